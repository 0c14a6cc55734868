//! The lock that each process which uses a folder shares (`preload/src/shared_lock.rs`): waiting until nobody holds it.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The file of a folder. Without it, or where the file system has no such locks, nobody holds the lock.
pub(super) struct UsersLock(Option<File>);

impl UsersLock {
    pub(super) fn open(shown: &Path) -> Self {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        Self(options.open(shown.join(urxe_options::RUN_USERS_LOCK)).ok())
    }

    /// Sleeps until nobody holds it.
    pub(super) fn wait(&self) {
        let Some(file) = &self.0 else { return };
        while let Err(error) = set(file, libc::F_OFD_SETLKW, libc::F_WRLCK) {
            if error.kind() != ErrorKind::Interrupted {
                return;
            }
        }
        // A program that is just starting must get it.
        let _ = set(file, libc::F_OFD_SETLK, libc::F_UNLCK);
    }

    /// Whether nobody holds it.
    pub(super) fn is_free(&self) -> bool {
        let Some(file) = &self.0 else { return true };
        match set(file, libc::F_OFD_SETLK, libc::F_WRLCK) {
            Ok(()) => {
                let _ = set(file, libc::F_OFD_SETLK, libc::F_UNLCK);
                true
            }
            Err(error) => !matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)),
        }
    }
}

/// fcntl_locking(2), for the whole file and this open file description.
fn set(file: &File, command: libc::c_int, kind: libc::c_int) -> io::Result<()> {
    // SAFETY: all-zero is a valid `flock`: from the start (`SEEK_SET`, 0) to the end, by no process in particular.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    #[expect(clippy::cast_possible_truncation, reason = "0, 1 and 2")]
    {
        range.l_type = kind as libc::c_short;
    }
    // SAFETY: a descriptor, and what the command takes.
    if unsafe { libc::fcntl(file.as_raw_fd(), command, &raw const range) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_lock_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        assert!(UsersLock::open(folder.path()).is_free(), "without a file");
        let file = File::create(folder.path().join(urxe_options::RUN_USERS_LOCK)).unwrap();
        let lock = UsersLock::open(folder.path());
        lock.wait();
        assert!(lock.is_free());
        let user = File::open(folder.path().join(urxe_options::RUN_USERS_LOCK)).unwrap();
        set(&user, libc::F_OFD_SETLK, libc::F_RDLCK).unwrap();
        assert!(!lock.is_free());
        let waiting = std::thread::spawn(move || lock.wait());
        drop(user);
        waiting.join().unwrap();
        drop(file);
    }
}
