//! A child that becomes the program, and a parent that waits for it and passes signals on.
//!
//! Signals are blocked and taken out of the queue (`sigwaitinfo(2)`), so there is no handler, none is lost between the fork
//! and the wait, and none reaches a process that has taken over the number of one that ended.

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// Signals that are passed on.
const PASSED_ON: [libc::c_int; 6] =
    [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGUSR1, libc::SIGUSR2];

/// A child process, which is waited for once.
pub(super) struct Child {
    pid: libc::pid_t,
    signals: Signals,
}

/// Starts a child, which gets `None`, and whose signals are as this process's were.
pub(super) fn fork() -> io::Result<Option<Child>> {
    let signals = Signals::block();
    // SAFETY: this process has one thread, so the child may do what it likes.
    match unsafe { libc::fork() } {
        0 => {
            signals.restore();
            Ok(None)
        }
        pid if pid > 0 => Ok(Some(Child { pid, signals })),
        _ => {
            let error = io::Error::last_os_error();
            signals.restore();
            Err(error)
        }
    }
}

impl Child {
    /// Waits for its end. Signals to this process reach the child until then, but for those that the kernel sends: a
    /// terminal's keys reach it anyway. Afterwards they are this process's again.
    pub(super) fn wait(self) -> io::Result<ExitStatus> {
        let status = loop {
            let mut status = 0;
            // SAFETY: room for the status.
            match unsafe { libc::waitpid(self.pid, &raw mut status, libc::WNOHANG) } {
                0 => {}
                pid if pid == self.pid => break ExitStatus::from_raw(status),
                _ => return Err(io::Error::last_os_error()),
            }
            let info = self.signals.next()?;
            if info.si_signo != libc::SIGCHLD && info.si_code != libc::SI_KERNEL {
                // SAFETY: plain numbers, of a child that was not waited for.
                unsafe { libc::kill(self.pid, info.si_signo) };
            }
        };
        self.signals.restore();
        Ok(status)
    }
}

/// Blocked signals, and how it was before.
struct Signals {
    blocked: libc::sigset_t,
    mask: libc::sigset_t,
    /// Disposition of SIGCHLD. Where it is ignored, the kernel keeps no status of a child (`waitpid(2)`).
    child: libc::sighandler_t,
}

impl Signals {
    fn block() -> Self {
        let (mut blocked, mut mask) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: room for two sets, which the calls fill; SIG_DFL is no handler.
        unsafe {
            libc::sigemptyset(blocked.as_mut_ptr());
            for signal in PASSED_ON.into_iter().chain([libc::SIGCHLD]) {
                libc::sigaddset(blocked.as_mut_ptr(), signal);
            }
            libc::sigprocmask(libc::SIG_BLOCK, blocked.as_ptr(), mask.as_mut_ptr());
            let child = libc::signal(libc::SIGCHLD, libc::SIG_DFL);
            Self { blocked: blocked.assume_init(), mask: mask.assume_init(), child }
        }
    }

    fn next(&self) -> io::Result<libc::siginfo_t> {
        let mut info = MaybeUninit::uninit();
        loop {
            // SAFETY: a set, and room for what came.
            if unsafe { libc::sigwaitinfo(&raw const self.blocked, info.as_mut_ptr()) } > 0 {
                // SAFETY: the call filled it.
                return Ok(unsafe { info.assume_init() });
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }

    fn restore(&self) {
        // SAFETY: a disposition and a set that this process had.
        unsafe {
            libc::signal(libc::SIGCHLD, self.child);
            libc::sigprocmask(libc::SIG_SETMASK, &raw const self.mask, std::ptr::null_mut());
        }
    }
}
