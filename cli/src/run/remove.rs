//! Removing a folder with all that is in it, whatever else other users have put there.

use std::fs::{self, File, OpenOptions};
use std::io::Result;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Removes what can be removed, and goes on past what cannot. Follows no symlink: each folder is opened as what it is, and
/// its entries are reached through its descriptor, so that nobody can exchange a folder for a link on the way.
pub(super) fn remove_all(folder: &Path) {
    if let Ok(opened) = open(folder) {
        remove_entries(&opened);
    }
    // There is nobody to tell what goes wrong.
    let _ = fs::remove_dir(folder);
}

fn remove_entries(folder: &File) {
    let folder = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()));
    for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
        let path = folder.join(entry.file_name());
        // unlink(2) refuses folders.
        if fs::remove_file(&path).is_err() {
            remove_all(&path);
        }
    }
}

fn open(folder: &Path) -> Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW).open(folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    #[test]
    fn removal_does_not_follow_symlinks() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("file"), "").unwrap();
        let folder = tempfile::tempdir().unwrap().keep();
        symlink(outside.path(), folder.join("link")).unwrap();
        symlink("/no/such/file", folder.join("dangling")).unwrap();
        fs::create_dir_all(folder.join("a/b/c")).unwrap();
        fs::write(folder.join("a/b/c/file"), "").unwrap();
        remove_all(&folder);
        assert!(!folder.exists() && outside.path().join("file").exists());
        let link = outside.path().join("link");
        symlink(outside.path(), &link).unwrap();
        remove_all(&link);
        assert!(outside.path().join("file").exists(), "the folder itself is a link");
    }

    /// A folder like those that an earlier version shared for writing. Only root can make another user's folder.
    #[test]
    fn another_users_folder_does_not_stop_it() {
        // SAFETY: it asks only.
        if unsafe { libc::geteuid() } != 0 {
            println!("left out: this user is not root");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let shared = folder.path().join("shared");
        for name in ["1", "3"] {
            fs::create_dir_all(shared.join(name)).unwrap();
            chown(shared.join(name), Some(65534), None).unwrap();
        }
        // Another user's, with something in it, that nobody else may enter.
        fs::create_dir_all(shared.join("2/in")).unwrap();
        chown(shared.join("2"), Some(1), None).unwrap();
        fs::set_permissions(shared.join("2"), fs::Permissions::from_mode(0o700)).unwrap();
        for path in [folder.path(), &shared] {
            chown(path, Some(65534), None).unwrap();
        }
        let at = shared.clone();
        let as_nobody = std::thread::spawn(move || {
            // SAFETY: no pointers. It is about this thread alone.
            unsafe { libc::setfsuid(65534) };
            remove_all(&at);
        });
        as_nobody.join().unwrap();
        let left: Vec<_> = fs::read_dir(&shared).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["2"]);
    }
}
