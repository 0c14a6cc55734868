//! Functions that find files by patterns.

use core::ffi::{CStr, c_char, c_int};

use super::Buffer;
use super::status::{lstat, stat};
use super::walks::{closedir, opendir, readdir};
use crate::folder::{folder, is_active, is_shadowed, unshadow_text};
use crate::pointer::is_plausible;
use crate::text::Path;

/// `GLOB_ALTDIRFUNC` of `<glob.h>`.
const ALTERNATIVE_FUNCTIONS: c_int = 1 << 9;

/// `WRDE_DOOFFS` of `<wordexp.h>`.
const OFFSET_IS_MEANT: c_int = 1;

/// `glob_t` of `<glob.h>`.
#[repr(C)]
pub(super) struct Glob {
    count: usize,
    paths: *mut *mut c_char,
    offset: usize,
    flags: c_int,
    closedir: Option<unsafe extern "C" fn(Buffer) -> c_int>,
    readdir: Option<unsafe extern "C" fn(Buffer) -> Buffer>,
    opendir: Option<unsafe extern "C" fn(*const c_char) -> Buffer>,
    lstat: Option<unsafe extern "C" fn(*const c_char, *mut libc::stat) -> c_int>,
    stat: Option<unsafe extern "C" fn(*const c_char, *mut libc::stat) -> c_int>,
}

const _: () = assert!(size_of::<Glob>() == size_of::<libc::glob_t>());

/// `wordexp_t` of `<wordexp.h>`.
#[repr(C)]
pub(super) struct Words {
    count: usize,
    words: *mut *mut c_char,
    offset: usize,
}

interpose! {
    others {
        fn glob(pattern: *const c_char, flags: c_int, error: Buffer, found: *mut Glob) -> c_int = |next| {
            // SAFETY: the caller's own call.
            unsafe { with_functions(flags, found, |flags| next(pattern, flags, error, found)) }
        }
        fn glob64(pattern: *const c_char, flags: c_int, error: Buffer, found: *mut Glob) -> c_int = |next| {
            // SAFETY: as above. On 64-bit machines the two structures are one.
            unsafe { with_functions(flags, found, |flags| next(pattern, flags, error, found)) }
        }
        fn wordexp(words: *const c_char, found: *mut Words, flags: c_int) -> c_int = |next| {
            // SAFETY: the caller's own call, but for the paths in it.
            unsafe { with_words(words, found, flags, |words| next(words, found, flags)) }
        }
    }
}

/// Has libc's `glob` open folders by the functions that others call.
///
/// # Safety
/// `found` is null or the caller's structure.
unsafe fn with_functions(flags: c_int, found: *mut Glob, then: impl FnOnce(c_int) -> c_int) -> c_int {
    if !is_active() || found.is_null() || flags & ALTERNATIVE_FUNCTIONS != 0 {
        return then(flags);
    }
    // SAFETY: the caller's promise. Without the flag these fields are of no use to the program.
    unsafe {
        (*found).closedir = Some(closedir);
        (*found).readdir = Some(readdir);
        (*found).opendir = Some(opendir);
        (*found).lstat = Some(lstat);
        (*found).stat = Some(stat);
        let result = then(flags | ALTERNATIVE_FUNCTIONS);
        (*found).flags &= !ALTERNATIVE_FUNCTIONS;
        result
    }
}

/// Calls `then` with words in which paths of the folder are written out, and turns what came of them back.
///
/// # Safety
/// `words` is null or a C string, `found` null or the caller's structure.
unsafe fn with_words(
    words: *const c_char,
    found: *mut Words,
    flags: c_int,
    then: impl FnOnce(*const c_char) -> c_int,
) -> c_int {
    if !is_plausible(words) || !is_plausible(found) {
        return then(words);
    }
    // SAFETY: the caller's promise.
    let Some(written) = written_out(unsafe { CStr::from_ptr(words) }.to_bytes()) else { return then(words) };
    let result = then(written.as_ptr());
    if result == 0 {
        // SAFETY: after success there are that many words, each allocated by itself, behind `offset` others.
        unsafe {
            let first = if flags & OFFSET_IS_MEANT == 0 { 0 } else { (*found).offset };
            for index in 0..(*found).count {
                unshadow_text(*(*found).words.add(first + index));
            }
        }
    }
    result
}

/// Words of the shell's with the folder in front of each that begins with a hidden path; `None` if none does.
fn written_out(words: &[u8]) -> Option<Path> {
    let folder = folder()?;
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-+".contains(byte);
    if !folder.iter().all(is_plain) {
        return None;
    }
    let is_separator = |byte: &u8| matches!(byte, b' ' | b'\t');
    if !words.split(is_separator).any(is_shadowed) {
        return None;
    }
    let mut written = Path::new()?;
    for (index, word) in words.split(is_separator).enumerate() {
        let separated = index == 0 || written.push(b' ');
        let is_ours = is_shadowed(word);
        if !separated || (is_ours && !written.push_all(folder)) || !written.push_all(word) {
            return None;
        }
    }
    Some(written)
}
