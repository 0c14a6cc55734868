//! `urxe run --isolate`: the folder in the place of the machine's files for system calls too, by mounts.
//!
//! The process gets a mount namespace of its own, and, unless it is root, a user namespace in which to mount. There the
//! folders that RDMA's lie in (`/dev`, `/sys/class`, …) become file systems in memory, with the machine's entries bound into
//! them and copies of the folder's in their places. The kernel creates nothing in `/sys` for anybody, so nothing less would do.
//!
//! Copies, because everybody may read `/proc/PID/mountinfo`: of a bind mount it names the folder, which is to be known only to
//! processes of the run ([`super::folder`]).

use std::ffi::{CStr, CString, OsStr, c_int};
use std::fs::{self, File, FileType};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::layout::DEV_DIR;

/// Prefixes of the names of RDMA's files.
const OURS: [&str; 2] = ["infiniband", "rdma_cm"];

/// Prefix of the numbers of IOMMU groups.
const GROUPS: &[u8] = b"7572";

/// Start of the PCI domains that no machine has: 7572 to 757f.
const DOMAINS: &[u8] = b"757";

/// Folder of the new `/dev` that shows the machine's `/dev`.
const MACHINE_DEV: &str = ".machine";
/// Makes pseudoterminals in the `pts` that lies in the same folder of the same mount (`path_pts` of fs/namei.c): bound alone
/// it finds none.
const PTMX: &str = "ptmx";

/// Shows `folder`, which holds a `dev` and a `sys`, to this process and to what it becomes and starts.
pub(super) fn enter(folder: &Path) -> Result<()> {
    let here = std::env::current_dir();
    unshare().context("--isolate: no namespaces can be made here; without root, user namespaces must be allowed")?;
    // What the machine mounts from now on is seen, and nothing of this namespace is seen outside.
    mount(None, Path::new("/"), None, libc::MS_REC | libc::MS_SLAVE)?;
    show(&folder.join("sys"), Path::new("/sys"))?;
    show(&folder.join("dev"), Path::new("/dev"))?;
    // The working directory may be one that something was mounted over.
    if let Ok(here) = here {
        let _ = std::env::set_current_dir(here);
    }
    Ok(())
}

/// Enters new namespaces, as the user that this process is.
fn unshare() -> Result<()> {
    // SAFETY: they ask only.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    // SAFETY: no pointers; this process has one thread.
    if user == 0 && unsafe { libc::unshare(libc::CLONE_NEWNS) } == 0 {
        return Ok(());
    }
    // SAFETY: as above.
    let result = unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) };
    ensure!(result == 0, std::io::Error::last_os_error());
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))?;
    Ok(())
}

/// Whether an entry of the folder `dir` is RDMA's: by its name, or as the `device` of an interface.
fn is_ours(dir: &Path, name: &OsStr) -> bool {
    let is_netdev = || dir.starts_with("/sys/devices") && dir.parent().is_some_and(|parent| parent.ends_with("net"));
    let bytes = name.as_bytes();
    OURS.iter().any(|ours| bytes.starts_with(ours.as_bytes()))
        || is_domain(bytes.strip_prefix(b"pci").unwrap_or(bytes))
        || (dir.ends_with("iommu_groups") && bytes.starts_with(GROUPS))
        || (name == "device" && is_netdev())
}

/// Whether `name` starts with a PCI domain that no machine has.
fn is_domain(name: &[u8]) -> bool {
    let digit = |byte: &u8| matches!(byte, b'2'..=b'9' | b'a'..=b'f');
    name.strip_prefix(DOMAINS).is_some_and(|rest| matches!(rest, [last, b':', ..] if digit(last)))
}

/// Names and kinds of a folder's entries.
fn entries(dir: &Path) -> Result<Vec<(PathBuf, FileType)>> {
    let all = fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))?;
    all.map(|entry| {
        let entry = entry?;
        Ok((PathBuf::from(entry.file_name()), entry.file_type()?))
    })
    .collect()
}

/// Shows what `from` holds in the machine's folder `at`.
fn show(from: &Path, at: &Path) -> Result<()> {
    let ours = entries(from)?;
    let is_missing = |name: &Path| is_ours(at, name.as_os_str()) || !at.join(name).exists();
    let missing = ours.iter().any(|(name, kind)| (kind.is_dir() || is_ours(at, name.as_os_str())) && is_missing(name));
    if missing {
        rebuild(at)?;
        for (name, kind) in ours.iter().filter(|(name, _)| is_missing(name)) {
            let (source, target) = (from.join(name), at.join(name));
            if kind.is_symlink() {
                // `class/net` leads to itself here.
                if is_ours(at, name.as_os_str()) {
                    copy_link(&source, &target)?;
                }
                continue;
            }
            ensure!(kind.is_dir(), "{} is not a folder", source.display());
            if is_ours(at, name.as_os_str()) && target != Path::new(DEV_DIR) {
                copy(&source, &target)?;
                continue;
            }
            create_dir(&target)?;
            if target == Path::new(DEV_DIR) {
                show_devices(&source, &target)?;
            }
        }
    }
    for (name, _) in ours.iter().filter(|(name, kind)| kind.is_dir() && !is_ours(at, name.as_os_str())) {
        show(&from.join(name), &at.join(name))?;
    }
    // Nobody creates anything in /sys. In /dev, root may.
    // SAFETY: it asks only.
    if missing && !(at == Path::new("/dev") && unsafe { libc::geteuid() } == 0) {
        make_read_only(at)?;
    }
    Ok(())
}

/// The character devices: `/dev/null`, whose mode and owner cannot be changed here.
fn show_devices(from: &Path, at: &Path) -> Result<()> {
    memory(at)?;
    for (name, _) in entries(from)? {
        let target = at.join(name);
        File::create(&target)?;
        bind(Path::new("/dev/null"), &target)?;
        make_read_only(&target)?;
    }
    make_read_only(at)
}

/// Puts a file system in memory over the folder `at`, with all of the folder's entries but those of RDMA.
fn rebuild(at: &Path) -> Result<()> {
    let machine = entries(at)?;
    // Copied now: bound later, it would be with what is about to be mounted on it.
    let tree = copy_mounts(at);
    // Reaches what was there before.
    let old = File::open(at)?;
    let before = Path::new("/proc/self/fd").join(old.as_raw_fd().to_string());
    memory(at)?;
    for (name, kind) in machine.iter().filter(|(name, _)| !is_ours(at, name.as_os_str())) {
        let (source, target) = (before.join(name), at.join(name));
        if kind.is_symlink() {
            copy_link(&source, &target)?;
        } else if kind.is_dir() {
            create_dir(&target)?;
            bind(&source, &target)?;
        } else if kind.is_char_device() && at == Path::new("/dev") && name == Path::new(PTMX) {
            show_ptmx(&source, &target, tree.as_ref())?;
        } else {
            File::create(&target).with_context(|| target.display().to_string())?;
            bind(&source, &target)?;
        }
    }
    Ok(())
}

/// The device that makes pseudoterminals. A user namespace has no nodes of its own: a link leads to the machine's then, in a
/// copy of `/dev` that has the machine's `pts` too.
fn show_ptmx(from: &Path, at: &Path, machine: Option<&OwnedFd>) -> Result<()> {
    let path = CString::new(at.as_os_str().as_bytes())?;
    let metadata = fs::metadata(from).with_context(|| at.display().to_string())?;
    // SAFETY: a C string.
    if unsafe { libc::mknod(path.as_ptr(), libc::S_IFCHR, metadata.rdev()) } == 0 {
        return fs::set_permissions(at, metadata.permissions()).with_context(|| at.display().to_string());
    }
    let (Some(machine), Some(dev)) = (machine, at.parent()) else { return Ok(()) };
    create_dir(&dev.join(MACHINE_DEV))?;
    attach(machine, &dev.join(MACHINE_DEV))?;
    symlink(Path::new(MACHINE_DEV).join(PTMX), at).with_context(|| at.display().to_string())
}

fn create_dir(at: &Path) -> Result<()> {
    fs::create_dir(at).with_context(|| at.display().to_string())
}

fn copy_link(from: &Path, to: &Path) -> Result<()> {
    symlink(fs::read_link(from)?, to).with_context(|| to.display().to_string())
}

/// Copies a folder with all that is in it.
fn copy(from: &Path, to: &Path) -> Result<()> {
    create_dir(to)?;
    for (name, kind) in entries(from)? {
        let (source, target) = (from.join(&name), to.join(&name));
        if kind.is_symlink() {
            copy_link(&source, &target)?;
        } else if kind.is_dir() {
            copy(&source, &target)?;
        } else {
            fs::copy(&source, &target).with_context(|| target.display().to_string())?;
        }
    }
    Ok(())
}

fn memory(at: &Path) -> Result<()> {
    mount(Some(Path::new("tmpfs")), at, Some(c"tmpfs"), libc::MS_NOSUID)?;
    fs::set_permissions(at, fs::Permissions::from_mode(0o755)).with_context(|| at.display().to_string())
}

fn bind(from: &Path, at: &Path) -> Result<()> {
    mount(Some(from), at, None, libc::MS_BIND | libc::MS_REC)
}

/// Copies the mount at `at` with all below it (open_tree(2)); `None` before Linux 5.2.
fn copy_mounts(at: &Path) -> Option<OwnedFd> {
    const OPEN_TREE_CLONE: c_int = 1;
    const AT_RECURSIVE: c_int = 0x8000;
    let path = CString::new(at.as_os_str().as_bytes()).ok()?;
    let flags = OPEN_TREE_CLONE | AT_RECURSIVE | libc::O_CLOEXEC;
    // SAFETY: a C string.
    let fd = unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), flags) };
    // SAFETY: new, and ours.
    c_int::try_from(fd).ok().filter(|fd| *fd >= 0).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Mounts what [`copy_mounts`] has copied (move_mount(2)).
fn attach(tree: &OwnedFd, at: &Path) -> Result<()> {
    const MOVE_MOUNT_F_EMPTY_PATH: c_int = 4;
    let path = CString::new(at.as_os_str().as_bytes())?;
    let (from, to, flags) = (tree.as_raw_fd(), libc::AT_FDCWD, MOVE_MOUNT_F_EMPTY_PATH);
    // SAFETY: C strings, and descriptors.
    let result = unsafe { libc::syscall(libc::SYS_move_mount, from, c"".as_ptr(), to, path.as_ptr(), flags) };
    ensure!(result == 0, "--isolate: mounting on {}: {}", at.display(), std::io::Error::last_os_error());
    Ok(())
}

/// Makes the mount at `at` read-only. Devices in it can be written to.
fn make_read_only(at: &Path) -> Result<()> {
    let path = CString::new(at.as_os_str().as_bytes())?;
    // SAFETY: all-zero is a valid `statvfs`.
    let mut now: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: a C string, and room for the answer.
    ensure!(unsafe { libc::statvfs(path.as_ptr(), &raw mut now) } == 0, std::io::Error::last_os_error());
    // A user namespace may not take away what the mount has.
    let kept = [
        (libc::ST_NOSUID, libc::MS_NOSUID),
        (libc::ST_NODEV, libc::MS_NODEV),
        (libc::ST_NOEXEC, libc::MS_NOEXEC),
        (libc::ST_NOATIME, libc::MS_NOATIME),
        (libc::ST_NODIRATIME, libc::MS_NODIRATIME),
        (libc::ST_RELATIME, libc::MS_RELATIME),
    ];
    let kept = kept.iter().filter(|(flag, _)| now.f_flag & flag != 0).fold(0, |all, (_, flag)| all | flag);
    mount(None, at, None, libc::MS_REMOUNT | libc::MS_BIND | libc::MS_RDONLY | kept)
}

fn mount(source: Option<&Path>, target: &Path, kind: Option<&CStr>, flags: libc::c_ulong) -> Result<()> {
    let source = source.map(|source| CString::new(source.as_os_str().as_bytes())).transpose()?;
    let at = CString::new(target.as_os_str().as_bytes())?;
    let pointer = |text: Option<&CStr>| text.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: C strings or null, which live through the call; no data.
    let result =
        unsafe { libc::mount(pointer(source.as_deref()), at.as_ptr(), pointer(kind), flags, std::ptr::null()) };
    ensure!(result == 0, "--isolate: mounting on {}: {}", target.display(), std::io::Error::last_os_error());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_rdma_are_told_from_others() {
        for name in ["infiniband", "infiniband_verbs", "rdma_cm", "7572:00:00.0", "pci757f:00"] {
            assert!(is_ours(Path::new("/sys/class"), OsStr::new(name)), "{name}");
        }
        for name in ["net", "misc", "pci0000:00", "null", "0000:00:00.0", "7571:00:00.0", "757200"] {
            assert!(!is_ours(Path::new("/sys/class"), OsStr::new(name)), "{name}");
        }
        assert!(is_ours(Path::new("/sys/kernel/iommu_groups"), OsStr::new("757200")));
        for (dir, expected) in [("/sys/devices/virtual/net/lo", true), ("/sys/devices/virtual/block/loop0", false)] {
            assert_eq!(is_ours(Path::new(dir), OsStr::new("device")), expected, "{dir}");
        }
    }
}
