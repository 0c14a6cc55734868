//! Namespaces: the set-up that the `urxe-sandbox` program performs and then holds.
//!
//! `urxe-sandbox machine` makes a private machine (mounts and network), `urxe-sandbox host` a further network on it.
//! Both print `ready`, wait for the end of their standard input, and take everything with them.

use std::ffi::{CStr, CString, OsStr};
use std::fs;
use std::io::{Error, Read, Result};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::ptr::null;

/// Entries of `/dev` that programs need. Device nodes of the machine, and a `/dev/infiniband` above all, stay outside.
const DEV_ENTRIES: [&str; 13] =
    ["fd", "full", "net", "null", "ptmx", "pts", "random", "stderr", "stdin", "stdout", "tty", "urandom", "zero"];

/// Folders that `urxe install` writes to: every world has its own, with the machine's entries but for urxe's.
const PRIVATE_DIRS: [&str; 3] = ["/etc/libibverbs.d", "/usr/lib/tmpfiles.d", "/var/lib"];

/// Files with fixed names that perftest opens, and leaves behind.
const LEFT_BEHIND: [&str; 2] = ["/tmp/xrc_domain_server", "/tmp/xrc_domain_client"];

/// A private machine: new mount and network namespaces (and a user namespace, unless we are root).
pub fn machine() -> Result<()> {
    // SAFETY: `geteuid` has no preconditions.
    let user = if unsafe { libc::geteuid() } == 0 { 0 } else { libc::CLONE_NEWUSER };
    enter_new(user | libc::CLONE_NEWNS | libc::CLONE_NEWNET, user != 0)?;
    mount_flags(Path::new("/"), libc::MS_REC | libc::MS_PRIVATE)?;
    private_copy(Path::new("/dev"), |name| DEV_ENTRIES.iter().any(|kept| OsStr::new(kept) == name))?;
    fs::create_dir("/dev/shm")?;
    let not_ours = |name: &OsStr| !String::from_utf8_lossy(name.as_bytes()).contains("urxe");
    for dir in PRIVATE_DIRS.iter().map(PathBuf::from).chain(provider_dirs()?).filter(|dir| dir.is_dir()) {
        private_copy(&dir, not_ours)?;
    }
    for path in LEFT_BEHIND.map(Path::new) {
        replace_if_not_ours(path)?;
    }
    show_own_network()
}

/// Has a file of another user, which may be one that cannot be opened, be an empty one of this user.
fn replace_if_not_ours(path: &Path) -> Result<()> {
    // SAFETY: `geteuid` has no preconditions.
    let own = unsafe { libc::geteuid() };
    if fs::symlink_metadata(path).is_ok_and(|file| file.is_file() && file.uid() != own) {
        let empty = Path::new("/dev/empty");
        fs::write(empty, "")?;
        mount(empty, path, c"none", libc::MS_BIND)?;
        fs::remove_file(empty)?;
    }
    Ok(())
}

/// Folders that a libibverbs of this machine may load providers from.
fn provider_dirs() -> Result<Vec<PathBuf>> {
    let mut dirs = vec![PathBuf::from("/usr/lib64/libibverbs"), PathBuf::from("/usr/lib/libibverbs")];
    // Debian's multiarch folders.
    for entry in fs::read_dir("/usr/lib")? {
        dirs.push(entry?.path().join("libibverbs"));
    }
    Ok(dirs)
}

/// A further host: its own network namespace, everything else as where it is started.
pub fn host() -> Result<()> {
    enter_new(libc::CLONE_NEWNS | libc::CLONE_NEWNET, false)?;
    mount_flags(Path::new("/"), libc::MS_REC | libc::MS_PRIVATE)?;
    show_own_network()
}

/// Says that all is set up and waits until whoever started this goes away.
pub fn hold() -> Result<()> {
    println!("ready");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// `unshare(2)`, and with `map_user` this user as root of the new user namespace.
fn enter_new(namespaces: libc::c_int, map_user: bool) -> Result<()> {
    // SAFETY: these two have no preconditions.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    // SAFETY: `unshare` takes no pointers; this program has one thread.
    check(unsafe { libc::unshare(namespaces) })?;
    if map_user {
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/uid_map", format!("0 {uid} 1"))?;
        fs::write("/proc/self/gid_map", format!("0 {gid} 1"))?;
    }
    Ok(())
}

/// Brings `lo` up, and has `/sys/class/net` show this network's interfaces.
fn show_own_network() -> Result<()> {
    // In a user namespace the kernel may refuse a new sysfs. Only programs that look at /sys/class/net would miss it.
    let _ = mount(Path::new("sysfs"), Path::new("/sys"), c"sysfs", 0);
    // SAFETY: `socket` takes no pointers.
    let socket = check(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: all-zero is a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = libc::c_char::from_ne_bytes([*from]);
    }
    #[expect(clippy::cast_possible_truncation, reason = "the two flags fit in 16 bits, as in struct ifreq itself")]
    let flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    request.ifr_ifru.ifru_flags = flags;
    // SAFETY: `request` is a valid `ifreq`, and SIOCSIFFLAGS only reads it.
    let result = check(unsafe { libc::ioctl(socket, libc::SIOCSIFFLAGS, &raw const request) });
    // SAFETY: `socket` was opened above and belongs to nobody else.
    unsafe { libc::close(socket) };
    result.map(|_| ())
}

/// Mounts an empty file system over `dir` and binds into it those of `dir`'s own entries that `keep` names. What is
/// created in `dir` from now on exists in this mount namespace only.
fn private_copy(dir: &Path, keep: impl Fn(&OsStr) -> bool) -> Result<()> {
    let entries: Vec<_> = fs::read_dir(dir)?.collect::<Result<_>>()?;
    // The old folder stays reachable through this descriptor.
    let old = fs::File::open(dir)?;
    let old = Path::new("/proc/self/fd").join(std::os::fd::AsRawFd::as_raw_fd(&old).to_string());
    // Not for everybody to write to, as it is by default: open(2) with O_CREAT would refuse other users' files there, such as the
    // device nodes of root (`may_create_in_sticky` of fs/namei.c).
    mount_with(Path::new("tmpfs"), dir, c"tmpfs", 0, Some(c"mode=755"))?;
    for entry in entries.iter().filter(|entry| keep(&entry.file_name())) {
        let (source, target) = (old.join(entry.file_name()), dir.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_symlink() {
            symlink(fs::read_link(&source)?, &target)?;
            continue;
        }
        // Bound alone it finds no `pts` beside it, and makes no pseudoterminals (`path_pts` of fs/namei.c).
        if entry.file_name() == "ptmx" && kind.is_char_device() && copy_node(&source, &target).is_ok() {
            continue;
        }
        if kind.is_dir() {
            fs::create_dir(&target)?;
        } else {
            fs::write(&target, "")?;
        }
        mount(&source, &target, c"none", libc::MS_BIND | libc::MS_REC)?;
    }
    Ok(())
}

/// Makes a device node of the same numbers and permissions. Only root can.
fn copy_node(from: &Path, to: &Path) -> Result<()> {
    let (path, metadata) = (CString::new(to.as_os_str().as_bytes())?, fs::metadata(from)?);
    // SAFETY: a C string.
    check(unsafe { libc::mknod(path.as_ptr(), metadata.mode(), metadata.rdev()) })?;
    fs::set_permissions(to, metadata.permissions())
}

/// Changes the propagation of the mount at `path`.
fn mount_flags(path: &Path, flags: libc::c_ulong) -> Result<()> {
    mount(Path::new("none"), path, c"none", flags)
}

fn mount(source: &Path, target: &Path, kind: &CStr, flags: libc::c_ulong) -> Result<()> {
    mount_with(source, target, kind, flags, None)
}

fn mount_with(source: &Path, target: &Path, kind: &CStr, flags: libc::c_ulong, data: Option<&CStr>) -> Result<()> {
    let (from, to) = (CString::new(source.as_os_str().as_bytes())?, CString::new(target.as_os_str().as_bytes())?);
    let data = data.map_or(null(), |data| data.as_ptr().cast());
    // SAFETY: the strings are NUL-terminated and live through the call.
    check(unsafe { libc::mount(from.as_ptr(), to.as_ptr(), kind.as_ptr(), flags, data) })
        .map_err(|error| {
            Error::new(error.kind(), format!("mount {} on {}: {error}", source.display(), target.display()))
        })
        .map(|_| ())
}

fn check(result: libc::c_int) -> Result<libc::c_int> {
    if result < 0 { Err(Error::last_os_error()) } else { Ok(result) }
}
