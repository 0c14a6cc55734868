//! Becoming another program.

use std::ffi::{CString, OsString, c_char};
use std::io::{Error, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Never;

/// Whether SIGPIPE was ignored when this process began. Rust's run time ignores it before `main`, and an ignored signal
/// stays ignored in the next program.
static SIGPIPE_IGNORED: AtomicBool = AtomicBool::new(false);

#[used]
#[unsafe(link_section = ".init_array")]
static LOOK_AT_SIGPIPE: extern "C" fn() = look_at_sigpipe;

extern "C" fn look_at_sigpipe() {
    // SAFETY: all-zero is a valid `sigaction`.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: asks only.
    unsafe { libc::sigaction(libc::SIGPIPE, std::ptr::null(), &raw mut before) };
    SIGPIPE_IGNORED.store(before.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
}

/// Becomes the program `command`, which is looked for in `PATH` as a shell would.
pub(super) fn exec(command: &[OsString]) -> Never {
    let words: Vec<CString> = command
        .iter()
        .map(|word| CString::new(word.as_bytes()).map_err(|_| Error::from(ErrorKind::InvalidInput)))
        .collect::<Result<_, _>>()?;
    let mut pointers: Vec<*const c_char> = words.iter().map(|word| word.as_ptr()).collect();
    pointers.push(std::ptr::null());
    let Some(program) = words.first() else { return Err(ErrorKind::InvalidInput.into()) };
    if !SIGPIPE_IGNORED.load(Ordering::Relaxed) {
        // SAFETY: what it was.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    }
    // SAFETY: C strings, and a list of them that ends with null.
    unsafe { libc::execvp(program.as_ptr(), pointers.as_ptr()) };
    Err(Error::last_os_error())
}
