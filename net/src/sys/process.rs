//! Ends of other processes, by pidfds.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::borrow;
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

    /// Whether the process has ended, with all its threads.
    pub(crate) fn has_ended(&self) -> bool {
        let fd = borrow(self.0.as_raw_fd());
        let (mut asked, now) = ([PollFd::new(&fd, PollFlags::IN)], Timespec { tv_sec: 0, tv_nsec: 0 });
        // The application may have closed it, and have a file of its own under the number.
        self.0.is_ours() && poll(&mut asked, Some(&now)).is_ok() && asked[0].revents().contains(PollFlags::IN)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A process that waits until it is ended. It has no descriptors of its own: until it runs a program, any other child has copies
    /// of what other tests close at the same time, whose names stay taken and whose peers see no end.
    #[derive(Debug)]
    pub(crate) struct Child {
        pid: libc::pid_t,
        has_ended: bool,
    }

    impl Child {
        pub(crate) fn start() -> Self {
            // SAFETY: a fork but for the descriptors, which both have. The child makes system calls only.
            let child = unsafe { libc::syscall(libc::SYS_clone, libc::CLONE_FILES | libc::SIGCHLD, 0, 0, 0, 0) };
            if child == 0 {
                // SAFETY: as above. It ends with the thread that waits for it, and some time in any case.
                unsafe {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
                    libc::alarm(600);
                    loop {
                        libc::pause();
                    }
                }
            }
            let pid = libc::pid_t::try_from(child).unwrap();
            assert!(pid > 0, "no child");
            Self { pid, has_ended: false }
        }

        pub(crate) fn id(&self) -> u32 {
            self.pid.cast_unsigned()
        }

        /// Kills it, and waits for its end.
        pub(crate) fn end(&mut self) {
            if !std::mem::replace(&mut self.has_ended, true) {
                // SAFETY: our child, which nobody has waited for yet.
                unsafe {
                    libc::kill(self.pid, libc::SIGKILL);
                    libc::waitpid(self.pid, std::ptr::null_mut(), 0);
                }
            }
        }
    }

    impl Drop for Child {
        fn drop(&mut self) {
            self.end();
        }
    }

    #[test]
    fn a_process_ends_when_it_is_killed() {
        let mut child = Child::start();
        let process = Process::of(child.id()).unwrap();
        assert!(!process.has_ended());
        child.end();
        assert!(process.has_ended());
        assert!(Process::of(child.id()).is_none_or(|another| !another.has_ended()));
    }

    #[test]
    fn a_file_of_somebody_else_tells_nothing() {
        let (mut child, (reads, writes)) = (Child::start(), std::io::pipe().unwrap());
        let process = Process::of(child.id()).unwrap();
        child.end();
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
