//! Functions that start programs: a child gets the variables back that it would lose.
//!
//! [`shells`](super::shells) pass on the environment of this program, and so do those that take their words one by one (`execl`), which
//! cannot be forwarded.

use core::ffi::{c_char, c_int};

use super::Buffer;
use crate::environment::{given_back, own};

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
    }
}
