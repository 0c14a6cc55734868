//! Functions that start programs: a child gets the variables back that it would lose.
//!
//! `system` and `popen` start a shell inside libc, with the environment of this program: if that has lost the variables, one
//! line says so. Those that take their words one by one (`execl`) cannot be forwarded, and pass it on.

use core::ffi::{c_char, c_int};

use super::Buffer;
use crate::environment::{given_back, own, warn_if_lost};

/// A list of C strings that ends with null.
type List = *const *const c_char;

interpose! {
    others {
        fn execve(path: *const c_char, words: List, variables: List) -> c_int = |next| {
            // SAFETY: the caller's own call, but for the environment.
            unsafe { given_back(variables, |variables| next(path, words, variables)) }
        }
        fn execv(path: *const c_char, words: List) -> c_int = |_next| {
            // SAFETY: execv(3) is this.
            unsafe { execve(path, words, own()) }
        }
        fn execvpe(file: *const c_char, words: List, variables: List) -> c_int = |next| {
            // SAFETY: the caller's own call, but for the environment.
            unsafe { given_back(variables, |variables| next(file, words, variables)) }
        }
        fn execvp(file: *const c_char, words: List) -> c_int = |_next| {
            // SAFETY: execvp(3) is this.
            unsafe { execvpe(file, words, own()) }
        }
        fn fexecve(fd: c_int, words: List, variables: List) -> c_int = |next| {
            // SAFETY: the caller's own call, but for the environment.
            unsafe { given_back(variables, |variables| next(fd, words, variables)) }
        }
        fn execveat(dir: c_int, path: *const c_char, words: List, variables: List, flags: c_int) -> c_int = |next| {
            // SAFETY: as above.
            unsafe { given_back(variables, |variables| next(dir, path, words, variables, flags)) }
        }
        fn posix_spawn(
            pid: Buffer, path: *const c_char, actions: Buffer, attributes: Buffer, words: List, variables: List
        ) -> c_int = |next| {
            // SAFETY: as above.
            unsafe { given_back(variables, |variables| next(pid, path, actions, attributes, words, variables)) }
        }
        fn posix_spawnp(
            pid: Buffer, file: *const c_char, actions: Buffer, attributes: Buffer, words: List, variables: List
        ) -> c_int = |next| {
            // SAFETY: as above.
            unsafe { given_back(variables, |variables| next(pid, file, actions, attributes, words, variables)) }
        }
        fn system(command: *const c_char) -> c_int = |next| {
            // Without a command nothing is started.
            if !command.is_null() {
                warn_if_lost();
            }
            // SAFETY: the caller's own call.
            unsafe { next(command) }
        }
        fn popen(command: *const c_char, mode: *const c_char) -> Buffer = |next| {
            warn_if_lost();
            // SAFETY: the caller's own call.
            unsafe { next(command, mode) }
        }
    }
}
