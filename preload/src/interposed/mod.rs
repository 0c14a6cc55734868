//! The functions themselves.
//!
//! libc's names, and the names under which older and fortified programs call the same: `__xstat`, `open64`, `__open_2`.
//! libc's own calls of them are not seen (`scandir` opens its folder by itself), so those that take a path and open it
//! inside are here as well.
//!
//! `open` and its like take their mode as `...` in C. It is passed like a named argument on the machines that we run on
//! (System V ABI of x86-64, AAPCS64), so here it is one.

use core::ffi::{CStr, c_char, c_int, c_void};

use crate::resolve::locate;

/// Functions that replace libc's, `fn name(arguments) -> result = |next| { body }`: the body gets libc's own as `next`.
///
/// Of those that take a path, most differ only in their arguments: `fn name(arguments before; dir, path; arguments after)`,
/// in groups that name what is called with `dir`, the path, and a closure that calls libc's own with another path.
/// Functions that open files give their flags as well.
macro_rules! interpose {
    (
        $(opening($opening:path) {
            $(fn $open:ident($($open_before:ident: $open_before_type:ty),*; $open_dir:expr, path; $flags:ident
                $(, $open_after:ident: $open_after_type:ty)*) -> c_int;)*
        })?
        $(path, by $by:path {
            $(fn $name:ident($($before:ident: $before_type:ty),*; $dir:expr, path; $($after:ident: $after_type:ty),*)
                -> $result:ty;)*
        })*
        others { $(fn $other:ident($($arg:ident: $arg_type:ty),*) -> $other_result:ty = |$next:ident| $body:block)* }
    ) => {
        #[expect(non_upper_case_globals, reason = "the functions' own names")]
        mod original {
            use crate::interposed::c_name;
            use crate::next::Next;
            $($(pub(super) static $open: Next = Next::new(c_name(concat!(stringify!($open), "\0")));)*)?
            $($(pub(super) static $name: Next = Next::new(c_name(concat!(stringify!($name), "\0")));)*)*
            $(pub(super) static $other: Next = Next::new(c_name(concat!(stringify!($other), "\0")));)*
        }

        /// Finds libc's functions of these names.
        pub(crate) fn find_all() {
            $($(original::$open.address();)*)?
            $($(original::$name.address();)*)*
            $(original::$other.address();)*
        }

        $($(
            interpose!(@function $open($($open_before: $open_before_type,)* path: *const c_char, $flags: c_int
                $(, $open_after: $open_after_type)*) -> c_int = |next| {
                // SAFETY: the caller's own call, but for path and flags.
                unsafe {
                    $opening($open_dir, path, $flags, |path, $flags| next($($open_before,)* path, $flags $(, $open_after)*))
                }
            });
        )*)?

        $($(
            interpose!(@function $name($($before: $before_type,)* path: *const c_char $(, $after: $after_type)*)
                -> $result = |next| {
                // SAFETY: the caller's own call, but for the path.
                unsafe { $by($dir, path, |path| next($($before,)* path $(, $after)*)) }
            });
        )*)*

        $(interpose!(@function $other($($arg: $arg_type),*) -> $other_result = |$next| $body);)*
    };
    (@function $name:ident($($arg:ident: $arg_type:ty),*) -> $result:ty = |$next:ident| $body:block) => {
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $name($($arg: $arg_type),*) -> $result {
            type Function = unsafe extern "C" fn($($arg_type),*) -> $result;
            let next = original::$name.address();
            if next.is_null() {
                return crate::next::fail(libc::ENOSYS);
            }
            // SAFETY: the function of this name has this type.
            let $next = unsafe { core::mem::transmute::<*mut core::ffi::c_void, Function>(next) };
            $body
        }
    };
}

mod changes;
mod ends;
mod globs;
mod lookups;
mod opens;
mod programs;
mod shells;
mod signals;
mod sockets;
mod status;
mod syscalls;
mod walks;

/// Finds all of libc's functions, so that nothing has to be looked up in a signal handler, and keeps what later may be gone:
/// the variables that children may lose, standard error, and the working directory.
pub fn find_all() {
    crate::next::find_system_call();
    crate::listing::find_all();
    crate::environment::remember();
    crate::standard_error::remember();
    crate::resolve::remember_working_directory();
    changes::find_all();
    ends::find_all();
    globs::find_all();
    lookups::find_all();
    opens::find_all();
    programs::find_all();
    signals::find_all();
    sockets::find_all();
    status::find_all();
    walks::find_all();
}

pub use signals::next_sigaction;

/// A pointer to something that only libc and the program look into.
type Buffer = *mut c_void;

/// A name that ends with NUL as a C string.
const fn c_name(name: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a name without its end"),
    }
}

/// Calls `then` with the path at which the file really is.
///
/// # Safety
/// `path` is null or a C string.
unsafe fn with_path<T>(dir: c_int, path: *const c_char, then: impl FnOnce(*const c_char) -> T) -> T {
    // SAFETY: the caller's promise.
    match unsafe { locate(dir, path) } {
        Some(located) => then(located.as_ptr()),
        None => then(path),
    }
}
