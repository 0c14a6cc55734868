//! Signal actions that the application has set for SIGSEGV and SIGBUS.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

/// A `struct sigaction` that a signal handler may read while it is written.
pub(super) struct Wanted {
    /// Address, `SIG_DFL` or `SIG_IGN`.
    handler: AtomicUsize,
    flags: AtomicI32,
    /// Signals 1 to 64.
    mask: AtomicU64,
}

/// The default action.
pub(super) fn empty_action() -> libc::sigaction {
    // SAFETY: all-zero is a value of this plain C struct: the default, with no flags and no signals.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

impl Wanted {
    /// The default.
    pub(super) const fn new() -> Self {
        Self { handler: AtomicUsize::new(libc::SIG_DFL), flags: AtomicI32::new(0), mask: AtomicU64::new(0) }
    }

    pub(super) fn set(&self, action: &libc::sigaction) {
        // SAFETY: a signal set is larger than a word, whose bits are signals 1 to 64 (kernel's sigset_t).
        let mask = unsafe { (&raw const action.sa_mask).cast::<u64>().read() };
        self.mask.store(mask, Ordering::Relaxed);
        self.flags.store(action.sa_flags, Ordering::Relaxed);
        self.handler.store(action.sa_sigaction, Ordering::Release);
    }

    pub(super) fn get(&self) -> libc::sigaction {
        let mut action = empty_action();
        action.sa_sigaction = self.handler.load(Ordering::Acquire);
        action.sa_flags = self.flags.load(Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { (&raw mut action.sa_mask).cast::<u64>().write(self.mask.load(Ordering::Relaxed)) };
        action
    }

    /// The handler to be called now, which is the default afterwards with `SA_RESETHAND`.
    pub(super) fn take(&self) -> usize {
        if self.flags.load(Ordering::Relaxed) & libc::SA_RESETHAND != 0 {
            self.handler.swap(libc::SIG_DFL, Ordering::AcqRel)
        } else {
            self.handler.load(Ordering::Acquire)
        }
    }
}
