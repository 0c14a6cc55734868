//! Learning that another process has ended.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::identity::CheckedFd;

/// A process, by a descriptor that stays its own when its number is another's (pidfd_open(2)).
#[derive(Debug)]
pub(crate) struct Process(CheckedFd);

impl Process {
    /// The process that has this number now. `None`: there is none, or the system has no more descriptors.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        // SAFETY: plain numbers. The descriptor is close-on-exec.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0)?;
        // SAFETY: new, and ours.
        Some(Self(unsafe { OwnedFd::from_raw_fd(fd) }.into()))
    }

    /// Whether it has ended, with all its threads.
    pub(crate) fn has_ended(&self) -> bool {
        let mut ask = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // The application may have closed it, and have a file of its own under the number.
        // SAFETY: one structure, and no wait.
        self.0.is_ours() && unsafe { libc::poll(&raw mut ask, 1, 0) } == 1 && ask.revents & libc::POLLIN != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_ends_when_it_is_killed() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let process = Process::of(child.id()).unwrap();
        assert!(!process.has_ended());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(process.has_ended());
        assert!(Process::of(child.id()).is_none_or(|another| !another.has_ended()));
    }

    #[test]
    fn a_file_of_somebody_else_tells_nothing() {
        let (mut child, (reads, writes)) =
            (std::process::Command::new("true").spawn().unwrap(), std::io::pipe().unwrap());
        let process = Process::of(child.id()).unwrap();
        child.wait().unwrap();
        assert!(process.has_ended());
        drop(writes);
        let raw = process.0.as_raw_fd();
        // SAFETY: a file that is at its end under a number that nobody else knows.
        assert_eq!(unsafe { libc::dup3(reads.as_raw_fd(), raw, libc::O_CLOEXEC) }, raw);
        assert!(!process.has_ended());
        drop(process);
        // SAFETY: a number that nobody else knows.
        assert_eq!(unsafe { libc::close(raw) }, 0, "it was left alone");
    }
}
