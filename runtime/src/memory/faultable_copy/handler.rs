//! The handler of SIGSEGV and SIGBUS: lets the copies of [`super`] survive, and does with other faults what the application wants.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::wanted::{Wanted, empty_action};
#[cfg(target_arch = "x86_64")]
use super::words;
use super::{urxe_guard_begin, urxe_guard_end, urxe_guard_fault};

/// Signals of faults. Below `urxe run` the handler stays whatever the application installs later; elsewhere a handler that it
/// installs after the first region takes its place.
const SIGNALS: [i32; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// Signal action that the application has set, for each of [`SIGNALS`].
static WANTED: [Wanted; 2] = [const { Wanted::new() }; 2];
static INSTALLED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static ADMITTED: Cell<bool> = const { Cell::new(false) };
}

/// Makes copies in this thread survive: the handler is installed, and a fault reaches it. To be called also before the
/// first region exists, so that handlers which the application installs later are found in front of ours.
#[inline]
pub fn admit() {
    if !ADMITTED.replace(true) {
        prepare();
    }
}

#[cold]
fn prepare() {
    install();
    unblock();
}

/// Installs the handler, once in a process.
fn install() {
    if INSTALLED.swap(true, Ordering::AcqRel) {
        return;
    }
    for (signal, wanted) in SIGNALS.into_iter().zip(&WANTED) {
        let mut old = empty_action();
        // SAFETY: asks only. The handler needs the answer as soon as it is installed.
        if unsafe { sigaction(signal, ptr::null(), &raw mut old) } == 0 {
            wanted.set(&old);
        }
        // SAFETY: the handler is async-signal-safe: it reads constants and atomics, and calls sigaction and what is so, too.
        unsafe { sigaction(signal, &ours(&old), ptr::null_mut()) };
    }
    OWNER.store(std::process::id(), Ordering::Release);
    #[cfg(target_arch = "x86_64")]
    words::choose();
}

/// The handler, with what the application wants besides: signals that are blocked meanwhile, and whether calls go on.
fn ours(wanted: &libc::sigaction) -> libc::sigaction {
    let mut action = *wanted;
    let is_handled = !matches!(wanted.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
    let theirs = if is_handled { wanted.sa_flags & (libc::SA_RESTART | libc::SA_NODEFER) } else { libc::SA_RESTART };
    action.sa_sigaction = handler as *const () as usize;
    // On the thread's alternate stack if it has one, so that real stack overflows are still reported.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | theirs;
    action
}

fn wanted(signal: i32) -> &'static Wanted {
    if signal == libc::SIGBUS { &WANTED[1] } else { &WANTED[0] }
}

/// sigaction(2), as a function of another name than libc's.
pub type Sigaction = unsafe fn(i32, *const libc::sigaction, *mut libc::sigaction) -> i32;

static SIGACTION: OnceLock<Sigaction> = OnceLock::new();

/// Has sigaction(2) called by another function: where libc's name leads to [`set_wanted`].
pub fn call_sigaction_by(function: Sigaction) {
    let _ = SIGACTION.set(function);
}

static BEFORE_DEFAULT: OnceLock<fn()> = OnceLock::new();

/// Has `act` called when a fault is about to end the process, as the application handles none. `act` is async-signal-safe.
pub fn before_default_actions(act: fn()) {
    let _ = BEFORE_DEFAULT.set(act);
}

/// # Safety
/// As for sigaction(2).
unsafe fn sigaction(signal: i32, new: *const libc::sigaction, old: *mut libc::sigaction) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { SIGACTION.get().map_or_else(|| libc::sigaction(signal, new, old), |function| function(signal, new, old)) }
}

/// Process that installed the handler; 0 before.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// sigaction(2) of the application below `urxe run`: the handler stays, and does what the application wants with what is not
/// its own. `None` before the handler is there.
///
/// # Safety
/// As for sigaction(2), of SIGSEGV or SIGBUS.
pub unsafe fn set_wanted(signal: i32, new: *const libc::sigaction, old: *mut libc::sigaction) -> Option<i32> {
    let owner = OWNER.load(Ordering::Acquire);
    if owner == 0 {
        return None;
    }
    let wanted = wanted(signal);
    let mut before = wanted.get();
    // SAFETY: the caller's structure.
    let result = match unsafe { new.as_ref() } {
        // A child that shares the memory (vfork(2)) must leave the parent's alone. What it has set itself is the kernel's.
        new if std::process::id() != owner => {
            let mut actual = empty_action();
            // SAFETY: the caller's own call, and a structure to write.
            let result = unsafe { sigaction(signal, new.map_or(ptr::null(), ptr::from_ref), &raw mut actual) };
            if actual.sa_sigaction != handler as *const () as usize {
                before = actual;
            }
            result
        }
        None => 0,
        Some(new) => {
            wanted.set(new);
            // SAFETY: as in `install`.
            unsafe { sigaction(signal, &ours(new), ptr::null_mut()) }
        }
    };
    if !old.is_null() {
        // SAFETY: the caller's structure.
        unsafe { old.write(before) };
    }
    Some(result)
}

/// Unblocks the handler's signals in the calling thread. The kernel kills a process whose thread blocks the signal of its
/// own fault (signal(7)), and threads of servers often block all signals; those sent by kill(2), for which alone blocking
/// is of use, go to another thread or the handler's predecessor then.
fn unblock() {
    // SAFETY: a local signal set.
    unsafe {
        let mut set = MaybeUninit::uninit();
        libc::sigemptyset(set.as_mut_ptr());
        for signal in SIGNALS {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), ptr::null_mut());
    }
}

unsafe extern "C" fn handler(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: with SA_SIGINFO the third argument is the interrupted thread's ucontext.
    let at = unsafe { program_counter(context.cast()) };
    let guarded = (urxe_guard_begin as *const () as u64)..(urxe_guard_end as *const () as u64);
    // SAFETY: as above.
    let interrupted = unsafe { *at };
    // One that kill(2) or another thread has sent is no fault of the copy that it interrupts.
    // SAFETY: a plain C struct that the kernel gave us.
    let is_fault = unsafe { (*info).si_code } > 0;
    if is_fault && guarded.contains(&interrupted) {
        // The routines call nothing and keep nothing on the stack, so returning from `fault` returns from them.
        // SAFETY: as above.
        unsafe { *at = urxe_guard_fault as *const () as u64 };
        return;
    }
    // SAFETY: passes on what the kernel gave.
    unsafe { pass_on(signal, info, context) };
}

/// Passes the signal on to the handler before, or to the default action.
unsafe fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let wanted = wanted(signal);
    // SAFETY: a plain C struct that the kernel gave us.
    let is_sent = unsafe { (*info).si_code } <= 0;
    match wanted.take() {
        libc::SIG_IGN if is_sent => {}
        handler @ (libc::SIG_DFL | libc::SIG_IGN) => {
            if let Some(act) = BEFORE_DEFAULT.get() {
                act();
            }
            let mut default = empty_action();
            default.sa_sigaction = handler;
            // The instruction runs again, and ends the process with the right signal and core dump; what kill(2) sent comes
            // again when the handler has returned.
            // SAFETY: plain numbers, and a structure to read.
            unsafe {
                sigaction(signal, &raw const default, ptr::null_mut());
                if is_sent {
                    libc::raise(signal);
                }
            }
        }
        handler => {
            // SAFETY: a handler of the application's. One that was installed without SA_SIGINFO takes the first argument, and
            // leaves the others where they are.
            unsafe {
                let function: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
                    std::mem::transmute(handler);
                function(signal, info, context);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
unsafe fn program_counter(context: *mut libc::ucontext_t) -> *mut u64 {
    // SAFETY: the caller's promise.
    unsafe { (&raw mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize]).cast() }
}

#[cfg(target_arch = "aarch64")]
unsafe fn program_counter(context: *mut libc::ucontext_t) -> *mut u64 {
    // SAFETY: the caller's promise.
    unsafe { &raw mut (*context).uc_mcontext.pc }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::shared_pages::tests::ALONE;

    #[test]
    fn another_fault_still_ends_the_process() {
        let _alone = crate::lock(&ALONE);
        admit();
        // SAFETY: the child touches nothing that another thread may hold.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: meant to fault.
            unsafe {
                let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
                libc::setrlimit(libc::RLIMIT_CORE, &raw const limit);
                ptr::with_exposed_provenance_mut::<u8>(8).write_volatile(1);
                libc::_exit(0);
            }
        }
        let mut status = 0;
        // SAFETY: our child.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert!(libc::WIFSIGNALED(status));
        assert_eq!(libc::WTERMSIG(status), libc::SIGSEGV);
    }

    /// A child of fork(2) has actions of its own, and is told of them.
    #[test]
    fn a_child_hears_of_its_own_action() {
        extern "C" fn mine(_: i32) {}
        let _alone = crate::lock(&ALONE);
        admit();
        // SAFETY: the child makes system calls only.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let (mut action, mut found) = (empty_action(), empty_action());
            action.sa_sigaction = mine as *const () as usize;
            // SAFETY: structures of this test.
            unsafe {
                set_wanted(libc::SIGSEGV, &raw const action, ptr::null_mut());
                set_wanted(libc::SIGSEGV, ptr::null(), &raw mut found);
                libc::_exit(i32::from(found.sa_sigaction != action.sa_sigaction));
            }
        }
        let mut status = 0;
        // SAFETY: our child.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0);
    }
}
