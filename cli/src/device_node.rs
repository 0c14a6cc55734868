//! Device nodes with the number of `/dev/null`.
//!
//! libibverbs opens a character device and compares its number with sysfs. A node of its own has a mode and an owner of its
//! own; a link to `/dev/null` has those of `/dev/null`.

use std::ffi::CString;
use std::fs::{self, File, Permissions};
use std::io::{Error, Result};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

/// Read and written by everybody, as the kernel's `ib_uverbs` and `rdma_ucm` ask of devtmpfs.
const MODE: libc::mode_t = 0o666;

const fn number() -> libc::dev_t {
    libc::makedev(1, 3)
}

/// Makes a node at `path`. Needs `CAP_MKNOD`, which many containers lack.
pub(crate) fn make(path: &Path) -> Result<()> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: a C string.
    if unsafe { libc::mknod(name.as_ptr(), libc::S_IFCHR | MODE, number()) } < 0 {
        return Err(Error::last_os_error());
    }
    // Whatever the umask.
    fs::set_permissions(path, Permissions::from_mode(MODE))
}

/// Whether there is such a node at `path` itself, not behind a link.
pub(crate) fn is_null_device(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| found.file_type().is_char_device() && found.rdev() == number())
}

/// Whether nodes can be made in `dir`, and opened: `nodev` mounts and device cgroups forbid that.
pub(crate) fn can_be_made(dir: &Path) -> bool {
    let path = dir.join(format!(".urxe-{}", std::process::id()));
    let works = make(&path).and_then(|()| File::options().read(true).write(true).open(&path)).is_ok();
    // Not made, or made and no longer wanted.
    let _ = fs::remove_file(&path);
    works
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_device_is_told_from_links_and_other_devices() {
        assert!(is_null_device(Path::new("/dev/null")));
        assert!(!is_null_device(Path::new("/dev/zero")));
        assert!(!is_null_device(Path::new("/no/such/file")));
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        assert!(!is_null_device(&link));
    }

    #[test]
    fn probing_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        can_be_made(dir.path());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(!can_be_made(&dir.path().join("missing")));
    }
}
