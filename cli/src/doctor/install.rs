//! Checks for programs started without `urxe run`: an installation, and a kernel that leaves libibverbs alone.

use std::ffi::CString;
use std::fs;
use std::io::{Error, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::Finding;
use crate::layout::{DEV_DIR, Layout, RDMA_CM, library_name};
use crate::{host, libibverbs, library};

const REMEDY: &str = "start programs with `urxe run -- PROGRAM`, which needs no installation; or as root: urxe install";

/// Whether somebody means programs to work without `urxe run`.
pub(super) fn is_wanted(machine: &Layout) -> bool {
    let below_run = std::env::var_os(urxe_options::RUN_VARIABLE).is_some();
    !below_run && (machine.manifest().is_file() || std::env::var_os("SYSFS_PATH").is_some())
}

pub(super) fn check() -> Vec<Finding> {
    let mut findings = vec![];
    findings.extend(sysfs());
    findings.extend(driver());
    if host::kernel_has_rdma() {
        findings.push(Finding::problem(
            "this kernel has RDMA support (NETLINK_RDMA): libibverbs lists the kernel's devices and does not look at \
             SYSFS_PATH",
            "start programs with `urxe run -- PROGRAM`",
        ));
    }
    let device = |name: &str| Path::new(DEV_DIR).join(name);
    if !device("uverbs0").exists() {
        let what = format!("{} is missing: libibverbs lists no device without it", device("uverbs0").display());
        findings.push(Finding::problem(what, REMEDY));
    }
    if !device(RDMA_CM).exists() {
        let what = format!("{} is missing: rdma_cm programs (rping, perftest -R) fail", device(RDMA_CM).display());
        findings.push(Finding::warning(what, REMEDY));
    }
    findings.extend(["uverbs0", RDMA_CM].into_iter().filter_map(|name| forbidden(&device(name))));
    if findings.is_empty() {
        findings.push(Finding::fine("installed: programs find devices without `urxe run` too"));
    }
    findings.extend(linked(&device("uverbs0")));
    findings.extend(sys_class());
    findings
}

/// Whether programs that read `/sys/class/infiniband` without asking libibverbs, which follows SYSFS_PATH, find the device.
fn sys_class() -> Option<Finding> {
    let tree = PathBuf::from(std::env::var_os("SYSFS_PATH")?);
    let name = fs::read_to_string(tree.join("class/infiniband_verbs/uverbs0/ibdev")).ok()?;
    let path = Path::new("/sys/class/infiniband").join(name.trim());
    (!path.exists()).then(|| {
        Finding::warning(
            format!(
                "{} does not exist: programs that read /sys/class/infiniband themselves (ibstat, NVSHMEM, valkey) find no \
                 device",
                path.display()
            ),
            "start those programs with `urxe run -- PROGRAM`, which shows it to them",
        )
    })
}

/// Whether the modes of the device keep this user from opening it.
fn forbidden(device: &Path) -> Option<Finding> {
    let path = CString::new(device.as_os_str().as_encoded_bytes()).ok()?;
    // SAFETY: a C string.
    let result = unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::R_OK | libc::W_OK, libc::AT_EACCESS) };
    if result == 0 || Error::last_os_error().kind() != ErrorKind::PermissionDenied {
        return None;
    }
    let allowed = fs::metadata(device).map_or_else(
        |_| "a folder above it may not be entered".to_owned(),
        |it| format!("its mode is {:o}, of user {} and group {}", it.mode() & 0o7777, it.uid(), it.gid()),
    );
    Some(Finding::problem(
        format!(
            "{} cannot be opened by user {} (EACCES): {allowed}",
            device.display(),
            urxe_net::ipc::credentials::own_uid()
        ),
        "as root: chmod 666 it, or add the user to its group (usermod -aG) where the mode lets the group in, and log in anew",
    ))
}

/// Whether the device is a link to `/dev/null`, which is what an installation without `CAP_MKNOD` makes.
fn linked(device: &Path) -> Option<Finding> {
    let target = fs::read_link(device).ok()?;
    (target == Path::new("/dev/null")).then(|| {
        Finding::warning(
            format!("{} is a link to /dev/null: chmod and chown of it change /dev/null itself", device.display()),
            "leave its mode and owner alone; or as root with CAP_MKNOD (docker run --cap-add MKNOD): urxe install",
        )
    })
}

fn sysfs() -> Option<Finding> {
    let Some(path) = std::env::var_os("SYSFS_PATH").map(PathBuf::from) else {
        return Some(Finding::problem(
            "SYSFS_PATH is not set: libibverbs looks for devices in /sys, where there are none of urxe's",
            "eval \"$(urxe env)\", or start programs with `urxe run -- PROGRAM`",
        ));
    };
    let tree = path.join("class/infiniband_verbs/uverbs0/ibdev");
    (!tree.is_file()).then(|| {
        Finding::problem(
            format!("SYSFS_PATH is {}, and there is no device in there", path.display()),
            "eval \"$(urxe env)\", or start programs with `urxe run -- PROGRAM`",
        )
    })
}

/// Whether libibverbs will find the provider: by a driver file, or by IBV_DRIVERS; and whether it will find the library.
fn driver() -> Option<Finding> {
    let machine = Layout::Machine;
    if let Some(drivers) = std::env::var_os("IBV_DRIVERS").and_then(|value| value.into_string().ok()) {
        // libibverbs splits the list at these, and appends the suffix of its own ABI.
        let stub = drivers.split([':', ';']).map(|driver| PathBuf::from(format!("{driver}-rdmav34.so")));
        return match stub.into_iter().find(|stub| stub.is_file()) {
            Some(stub) => missing_library(&stub),
            None => Some(Finding::problem(
                format!("IBV_DRIVERS is {drivers}, and there is no library of that name"),
                "eval \"$(urxe env)\"",
            )),
        };
    }
    let file = machine.driver_file().filter(|file| !file.is_file());
    if let Some(file) = file {
        let what = format!("{} is missing: libibverbs does not load the provider", file.display());
        return Some(Finding::problem(what, REMEDY));
    }
    let stub = libibverbs::provider_dir().ok()?.join(library_name(34));
    if !stub.is_file() {
        let what = format!("{} is missing: libibverbs cannot load the provider", stub.display());
        return Some(Finding::problem(what, REMEDY));
    }
    missing_library(&stub).or_else(|| {
        Some(Finding::warning(
            "IBV_DRIVERS is not set: a program that brings a libibverbs of its own (Python wheels do) finds no device if that \
             looks for providers in another folder",
            "eval \"$(urxe env)\"",
        ))
    })
}

/// The library that the stub at this path loads lies beside it.
fn missing_library(stub: &Path) -> Option<Finding> {
    let library = stub.with_file_name(library::NAME);
    (!library.is_file()).then(|| {
        Finding::problem(format!("{} is missing: libibverbs cannot load the provider", library.display()), REMEDY)
    })
}
