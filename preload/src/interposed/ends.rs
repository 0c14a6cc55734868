//! Functions that end the program without exit(3), which tells a library of the end by itself.
//!
//! libc's own calls of them are not seen: a damaged heap or stack ends a program unseen.

use core::ffi::{c_char, c_int, c_long, c_uint, c_void};
use core::mem::MaybeUninit;

use super::next_sigaction;
use crate::ends::about_to_fail;
use crate::next::{fail, system_call};

/// Signals of a crash, for which no program waits by sigwait(3): raised, each ends a program that does not handle it.
const CRASHES: [c_int; 7] =
    [libc::SIGABRT, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGSEGV, libc::SIGSYS, libc::SIGTRAP];

/// Functions that do not come back, `name(arguments), if fails`. Handlers of the program may throw through them.
macro_rules! end {
    ($($name:ident($($arg:ident: $arg_type:ty),*), if $fails:expr;)*) => {
        #[expect(non_upper_case_globals, reason = "the functions' own names")]
        mod original {
            use crate::interposed::c_name;
            use crate::next::Next;
            pub(super) static raise: Next = Next::new(c"raise");
            $(pub(super) static $name: Next = Next::new(c_name(concat!(stringify!($name), "\0")));)*
        }

        /// Finds libc's functions of these names.
        pub(crate) fn find_all() {
            original::raise.address();
            $(original::$name.address();)*
        }

        $(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name($($arg: $arg_type),*) -> ! {
                type Function = unsafe extern "C-unwind" fn($($arg_type),*) -> !;
                if $fails {
                    about_to_fail();
                }
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
    abort(), if !is_handled(libc::SIGABRT);
    __assert_fail(claim: *const c_char, file: *const c_char, line: c_uint, function: *const c_char),
        if !is_handled(libc::SIGABRT);
    __assert_perror_fail(errno: c_int, file: *const c_char, line: c_uint, function: *const c_char),
        if !is_handled(libc::SIGABRT);
    __assert(claim: *const c_char, file: *const c_char, line: c_int), if !is_handled(libc::SIGABRT);
    _exit(status: c_int), if is_failure(status);
    _Exit(status: c_int), if is_failure(status);
    quick_exit(status: c_int), if is_failure(status);
}

/// Whether a parent sees a failure: it gets eight bits.
const fn is_failure(status: c_int) -> bool {
    status & 0xff != 0
}

/// Returns the program's action for a signal: the address of its handler, `SIG_DFL` or `SIG_IGN`.
fn action(signal: c_int) -> usize {
    // SAFETY: all-zero is a value of this plain C struct.
    let mut now: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: asks only, with room for the answer.
    unsafe { next_sigaction(signal, core::ptr::null(), &raw mut now) };
    now.sa_sigaction
}

/// Whether a handler decides what becomes of the program. It may go on elsewhere (siglongjmp(3)), or raise the signal again.
fn is_handled(signal: c_int) -> bool {
    !matches!(action(signal), libc::SIG_DFL | libc::SIG_IGN)
}

/// Crash handlers end so: they restore the default, and raise the signal again.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn raise(signal: c_int) -> c_int {
    if CRASHES.contains(&signal) && action(signal) == libc::SIG_DFL {
        about_to_fail();
    }
    let next = original::raise.address();
    if next.is_null() {
        return fail(libc::ENOSYS);
    }
    // SAFETY: the function of this name has this type.
    let next = unsafe { core::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn(c_int) -> c_int>(next) };
    // SAFETY: the caller's own call.
    unsafe { next(signal) }
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
