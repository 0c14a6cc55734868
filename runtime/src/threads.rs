//! Threads of the library in the application's process.

use std::mem::MaybeUninit;
use std::os::unix::thread::JoinHandleExt;
use std::thread::JoinHandle;

use crate::progress::tuning::TUNING;

/// Runs `start` with all signals blocked, which a thread that it starts inherits: none of the application's may be
/// handled by ours.
pub fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: local signal sets.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let result = start();
    // SAFETY: the set that the call above filled in.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    result
}

/// Lets a thread run on the processors of another one, as far as the caller may decide that. Otherwise it runs on those of the thread that
/// started it, which may be pinned to one and not let anybody else run there.
pub fn run_like<T, U>(thread: &JoinHandle<T>, other: &JoinHandle<U>) {
    let (thread, other) = (thread.as_pthread_t(), other.as_pthread_t());
    // SAFETY: threads that were not joined, a set that is written, and all-zero is a value of it.
    unsafe {
        let mut processors = std::mem::zeroed::<libc::cpu_set_t>();
        let size = size_of_val(&processors);
        if libc::pthread_getaffinity_np(other, size, &raw mut processors) == 0 {
            libc::pthread_setaffinity_np(thread, size, &raw const processors);
        }
    }
}

/// Asks the kernel to let the calling thread run soon after it wakes, and to wake it on time.
pub fn ask_for_promptness() {
    /// `struct sched_attr` (sched_setattr(2)) as of Linux 4.14.
    #[repr(C)]
    #[derive(Default)]
    struct SchedAttr {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
        util_min: u32,
        util_max: u32,
    }
    // SAFETY: asks only, and needs no memory of ours.
    let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    let attr = SchedAttr {
        size: u32::try_from(size_of::<SchedAttr>()).unwrap_or_default(),
        policy: libc::SCHED_OTHER.cast_unsigned(),
        nice,
        // Linux 6.12 and later take it as the slice; earlier ones ignore it.
        runtime: u64::try_from(TUNING.scheduler_slice.as_nanos()).unwrap_or_default(),
        ..SchedAttr::default()
    };
    // Both are wishes: nothing depends on whether they are granted.
    // SAFETY: a structure of the size it says; the other call takes plain numbers.
    unsafe {
        libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0);
        libc::prctl(libc::PR_SET_TIMERSLACK, 1);
    }
}
