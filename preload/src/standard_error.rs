//! Text goes where standard error led when the program began, or nowhere.
//!
//! Descriptor 2 may be something else by now: a daemon that has closed its descriptors gets the number for a file or a
//! connection of its own. Nothing is written where a write would wait or end the program by a signal, nor to a socket that was
//! standard input as well: a server that inetd(8) starts has its client there. If somebody asks for text, such a socket of this
//! machine gets it.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::next::with_errno_kept;
use crate::status::status_of;

/// Device and inode of the file that standard error was; inode 0 if there was none.
static DEVICE: AtomicU64 = AtomicU64::new(0);
static INODE: AtomicU64 = AtomicU64::new(0);

/// Set if standard error is a socket that is standard input, too.
static IS_CLIENT: AtomicBool = AtomicBool::new(false);

/// Set once text is asked for.
static IS_WANTED: AtomicBool = AtomicBool::new(false);

/// Longest text that a pipe takes whole: POLLOUT promises as much (pipe(7)).
const PIPE_BUF: usize = 4096;

/// Keeps which file standard error is, for text that somebody asks for.
pub fn expect_text() {
    IS_WANTED.store(true, Ordering::Relaxed);
    remember();
}

/// Keeps which file standard error is. To be called before the program can have changed it.
pub fn remember() {
    with_errno_kept(|| {
        let Some(status) = status() else { return };
        let input = status_of(libc::STDIN_FILENO);
        if input.is_some_and(|input| (input.st_dev, input.st_ino) == (status.st_dev, status.st_ino)) {
            IS_CLIENT.store(true, Ordering::Relaxed);
        }
        DEVICE.store(status.st_dev, Ordering::Relaxed);
        INODE.store(status.st_ino, Ordering::Relaxed);
    });
}

fn status() -> Option<libc::stat> {
    status_of(libc::STDERR_FILENO)
}

/// Writes text, if standard error is what it was and takes it now. Text longer than a pipe takes whole is cut at line ends.
pub fn write(text: &[u8]) {
    with_errno_kept(|| {
        let is_same = |status: &libc::stat| {
            (status.st_dev, status.st_ino) == (DEVICE.load(Ordering::Relaxed), INODE.load(Ordering::Relaxed))
        };
        let Some(status) = status().filter(is_same) else { return };
        match status.st_mode & libc::S_IFMT {
            libc::S_IFCHR | libc::S_IFIFO => in_parts(text, |part| can_be_written() && write_now(part)),
            libc::S_IFREG if files_may_grow() => in_parts(text, write_now),
            libc::S_IFSOCK if !IS_CLIENT.load(Ordering::Relaxed) || IS_WANTED.load(Ordering::Relaxed) && is_local() => {
                in_parts(text, send_now);
            }
            _ => {}
        }
    });
}

/// Has `put` called for parts of the text, as long as it says that all of the part was taken.
fn in_parts(mut text: &[u8], put: impl Fn(&[u8]) -> bool) {
    while !text.is_empty() {
        let most = text.get(..PIPE_BUF).unwrap_or(text);
        let line_end = if most.len() < text.len() { most.iter().rposition(|byte| *byte == b'\n') } else { None };
        let (part, rest) = text.split_at(line_end.map_or(most.len(), |at| at + 1));
        if !put(part) {
            return;
        }
        text = rest;
    }
}

fn write_now(part: &[u8]) -> bool {
    // SAFETY: a descriptor, and as many bytes as there are.
    let written = unsafe { libc::write(libc::STDERR_FILENO, part.as_ptr().cast(), part.len()) };
    usize::try_from(written) == Ok(part.len())
}

fn send_now(part: &[u8]) -> bool {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: a descriptor, and as many bytes as there are.
    let sent = unsafe { libc::send(libc::STDERR_FILENO, part.as_ptr().cast(), part.len(), flags) };
    usize::try_from(sent) == Ok(part.len())
}

/// Whether the socket leads to a process of this machine.
fn is_local() -> bool {
    let mut domain: c_int = 0;
    let mut length: libc::socklen_t = 4;
    let (option, at) = (libc::SO_DOMAIN, (&raw mut domain).cast());
    // SAFETY: room for the answer.
    let result = unsafe { libc::getsockopt(libc::STDERR_FILENO, libc::SOL_SOCKET, option, at, &raw mut length) };
    result == 0 && domain == libc::AF_UNIX
}

/// Whether a write would neither wait nor find that nobody reads (SIGPIPE).
fn can_be_written() -> bool {
    let mut polled = libc::pollfd { fd: libc::STDERR_FILENO, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one entry.
    unsafe { libc::poll(&raw mut polled, 1, 0) == 1 && polled.revents == libc::POLLOUT }
}

/// Whether a write cannot reach the limit of a file's size (SIGXFSZ, setrlimit(2)).
fn files_may_grow() -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: room for the answer.
    let result: c_int = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    result == 0 && limit.rlim_cur == libc::RLIM_INFINITY
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn long_text_is_cut_at_line_ends() {
        let line = [b'a'; 1500];
        let text = [&line[..], b"\n", &line, b"\n", &line, b"\n", &[b'b'; 5000], b"\n"].concat();
        let parts = RefCell::new(Vec::new());
        in_parts(&text, |part| {
            parts.borrow_mut().push(part.to_vec());
            true
        });
        let parts = parts.into_inner();
        assert_eq!(parts.concat(), text);
        assert_eq!(parts.iter().map(Vec::len).collect::<Vec<_>>(), [3002, 1501, 4096, 905]);
        let count = RefCell::new(0);
        in_parts(&text, |_| {
            *count.borrow_mut() += 1;
            false
        });
        assert_eq!(count.into_inner(), 1, "what comes behind a part that was not taken is lost as well");
    }
}
