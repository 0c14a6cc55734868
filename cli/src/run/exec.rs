//! Becoming another program.

use std::ffi::{CStr, CString, OsString, c_char};
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
    let words = Words::new(command)?;
    let Some(program) = words.texts.first() else { return Err(ErrorKind::InvalidInput.into()) };
    if !SIGPIPE_IGNORED.load(Ordering::Relaxed) {
        // SAFETY: what it was.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    }
    // SAFETY: C strings, and a list of them that ends with null.
    unsafe { libc::execvp(program.as_ptr(), words.pointers.as_ptr()) };
    Err(Error::last_os_error())
}

/// Becomes the program in `file`, with what this process has changed of its signals.
pub(super) fn exec_file(file: &CStr, command: &[OsString]) -> Never {
    let words = Words::new(command)?;
    // SAFETY: a C string, and a list of them that ends with null.
    unsafe { libc::execv(file.as_ptr(), words.pointers.as_ptr()) };
    Err(Error::last_os_error())
}

/// The words of a command as execve(2) takes them.
struct Words {
    texts: Vec<CString>,
    /// To each of `texts`, and null.
    pointers: Vec<*const c_char>,
}

impl Words {
    fn new(command: &[OsString]) -> Result<Self, Error> {
        let texts: Vec<CString> = command
            .iter()
            .map(|word| CString::new(word.as_bytes()).map_err(|_| Error::from(ErrorKind::InvalidInput)))
            .collect::<Result<_, _>>()?;
        let pointers = texts.iter().map(|word| word.as_ptr()).chain([std::ptr::null()]).collect();
        Ok(Self { texts, pointers })
    }
}
