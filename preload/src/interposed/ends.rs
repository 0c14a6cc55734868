//! Functions that end the program without exit(3), which tells a library of the end by itself.
//!
//! libc's own calls of them are not seen: a damaged heap or stack ends a program unseen.

use core::cell::UnsafeCell;
use core::ffi::{c_char, c_int, c_long, c_uint, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, Ordering};

use super::next_sigaction;
use crate::ends::about_to_fail;
use crate::next::{fail, system_call};

/// Signals of a crash, for which no program waits by sigwait(3): raised, each ends a program that does not handle it.
const CRASHES: [c_int; 7] =
    [libc::SIGABRT, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGSEGV, libc::SIGSYS, libc::SIGTRAP];

/// Functions that do not come back, `name(arguments), what is done before`, and functions that send a signal, `name(arguments, signal),
/// if it is sent to this process`. Handlers of the program may throw through all of them.
macro_rules! end {
    (
        ending { $($name:ident($($arg:ident: $arg_type:ty),*), $before:expr;)* }
        sending { $($send:ident($($send_arg:ident: $send_type:ty,)*; $signal:ident), if $to_own:expr;)* }
    ) => {
        #[expect(non_upper_case_globals, reason = "the functions' own names")]
        mod original {
            use crate::interposed::c_name;
            use crate::next::Next;
            $(pub(super) static $name: Next = Next::new(c_name(concat!(stringify!($name), "\0")));)*
            $(pub(super) static $send: Next = Next::new(c_name(concat!(stringify!($send), "\0")));)*
        }

        /// Finds libc's functions of these names.
        pub(crate) fn find_all() {
            $(original::$name.address();)*
            $(original::$send.address();)*
        }

        $(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $send($($send_arg: $send_type,)* $signal: c_int) -> c_int {
                type Function = unsafe extern "C-unwind" fn($($send_type,)* c_int) -> c_int;
                if ends_process($signal) && $to_own {
                    about_to_fail();
                }
                let next = original::$send.address();
                if next.is_null() {
                    return fail(libc::ENOSYS);
                }
                // SAFETY: the function of this name has this type.
                let next = unsafe { core::mem::transmute::<*mut c_void, Function>(next) };
                // SAFETY: the caller's own call.
                unsafe { next($($send_arg,)* $signal) }
            }
        )*

        $(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name($($arg: $arg_type),*) -> ! {
                type Function = unsafe extern "C-unwind" fn($($arg_type),*) -> !;
                $before;
                let next = original::$name.address();
                if next.is_null() {
                    end_anyway();
                }
                // SAFETY: the function of this name has this type.
                let next = unsafe { core::mem::transmute::<*mut c_void, Function>(next) };
                // SAFETY: the caller's own call.
                unsafe { next($($arg),*) }
            }
        )*
    };
}

end! {
    ending {
        abort(), before_abort();
        __assert_fail(claim: *const c_char, file: *const c_char, line: c_uint, function: *const c_char), before_abort();
        __assert_perror_fail(errno: c_int, file: *const c_char, line: c_uint, function: *const c_char), before_abort();
        __assert(claim: *const c_char, file: *const c_char, line: c_int), before_abort();
        _exit(status: c_int), before_exit(status);
        _Exit(status: c_int), before_exit(status);
        quick_exit(status: c_int), before_exit(status);
    }
    sending {
        raise(; signal), if true;
        // Zero is the caller's process group.
        kill(process: libc::pid_t,; signal), if process == 0 || is_this(process);
        tgkill(process: libc::pid_t, thread: libc::pid_t,; signal), if is_this(process);
        // The action of a signal is that of the process.
        pthread_kill(thread: libc::pthread_t,; signal), if true;
    }
}

fn is_this(process: libc::pid_t) -> bool {
    // SAFETY: no preconditions.
    process == unsafe { libc::getpid() }
}

/// Whether a parent sees a failure: it gets eight bits.
const fn is_failure(status: c_int) -> bool {
    status & 0xff != 0
}

fn before_exit(status: c_int) {
    if is_failure(status) {
        about_to_fail();
    }
}

/// Returns the program's action for a signal.
fn action(signal: c_int) -> libc::sigaction {
    // SAFETY: all-zero is a value of this plain C struct.
    let mut now: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: asks only, with room for the answer.
    unsafe { next_sigaction(signal, core::ptr::null(), &raw mut now) };
    now
}

/// Whether a signal ends the process when it is delivered. Crash handlers end so: they restore the default, and send the signal again.
fn ends_process(signal: c_int) -> bool {
    signal == libc::SIGKILL || CRASHES.contains(&signal) && action(signal).sa_sigaction == libc::SIG_DFL
}

/// The program's action for SIGABRT, while [`abort_handler`] is in its place.
struct Replaced(UnsafeCell<MaybeUninit<libc::sigaction>>);

// SAFETY: written by the thread that has set `IS_REPLACED`, before the handler is in place, and read by the handler.
unsafe impl Sync for Replaced {}

static REPLACED: Replaced = Replaced(UnsafeCell::new(MaybeUninit::uninit()));
static IS_REPLACED: AtomicBool = AtomicBool::new(false);

/// Tells of the failure now, or when the program's handler of SIGABRT returns, for abort(3) ends the process then. The handler may go on
/// elsewhere (siglongjmp(3)), or end the process in its own way.
fn before_abort() {
    let own = action(libc::SIGABRT);
    if matches!(own.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN) {
        return about_to_fail();
    }
    // Another thread aborts as well: once is enough.
    if IS_REPLACED.swap(true, Ordering::Acquire) {
        return;
    }
    // SAFETY: this thread has set the flag.
    unsafe { (*REPLACED.0.get()).write(own) };
    let mut replacement = own;
    replacement.sa_sigaction = abort_handler as *const () as usize;
    replacement.sa_flags |= libc::SA_SIGINFO;
    // SAFETY: a handler of this kind, with the program's mask and flags.
    unsafe { next_sigaction(libc::SIGABRT, &raw const replacement, core::ptr::null_mut()) };
}

/// Calls the program's handler, with its action restored, and tells of the failure when that returns.
unsafe extern "C-unwind" fn abort_handler(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: written before this handler was in place.
    let own = unsafe { (*REPLACED.0.get()).assume_init() };
    let mut restored = own;
    if own.sa_flags & libc::SA_RESETHAND != 0 {
        restored.sa_sigaction = libc::SIG_DFL;
    }
    // SAFETY: the program's own action.
    unsafe { next_sigaction(libc::SIGABRT, &raw const restored, core::ptr::null_mut()) };
    IS_REPLACED.store(false, Ordering::Release);
    let handler = own.sa_sigaction as *const ();
    if own.sa_flags & libc::SA_SIGINFO == 0 {
        // SAFETY: a handler without this flag has this type.
        let handler = unsafe { core::mem::transmute::<*const (), unsafe extern "C-unwind" fn(c_int)>(handler) };
        // SAFETY: the kernel's own call.
        unsafe { handler(signal) };
    } else {
        type Informed = unsafe extern "C-unwind" fn(c_int, *mut libc::siginfo_t, *mut c_void);
        // SAFETY: a handler with this flag has this type.
        let handler = unsafe { core::mem::transmute::<*const (), Informed>(handler) };
        // SAFETY: the kernel's own call.
        unsafe { handler(signal, info, context) };
    }
    about_to_fail();
}

/// Ends the process where libc lacks the function.
#[cold]
fn end_anyway() -> ! {
    const STATUS: usize = 127;
    let number: c_long = libc::SYS_exit_group;
    loop {
        // SAFETY: a plain number.
        unsafe { system_call(number, [STATUS, 0, 0, 0]) };
    }
}
