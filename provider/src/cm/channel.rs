//! Event channel of librdmacm (`rdma_create_event_channel(3)`): an open file with a queue of events.
//!
//! The application polls the file and may make it non-blocking, so it is the end of a pipe that holds a byte exactly while there
//! are events. Threads wait at a socket of the library's own that holds one then, too: a look at it takes nothing, goes on after
//! signals as their handlers ask, and may be cancelled. The file itself is no socket, because the kernel's is none:
//! nfs-ganesha calls shutdown(2) for it when a connection ends.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Mutex;

use urxe_net::identity::CheckedFd;

use crate::kernel::Errno;
use urxe_runtime::lock;

use super::event::Event;

/// An event channel.
pub struct Channel {
    queue: Mutex<VecDeque<Event>>,
    /// The application's end: the same open file, so that what it sets counts here.
    reader: CheckedFd,
    writer: CheckedFd,
    /// Where threads wait, and what wakes them.
    waiting: CheckedFd,
    waking: CheckedFd,
}

impl Channel {
    /// A channel and the end that is the application's.
    pub(crate) fn new() -> Result<(Self, OwnedFd), Errno> {
        let mut pair = [-1; 2];
        // SAFETY: room for two descriptors.
        if unsafe { libc::pipe2(pair.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
            return Err(Errno::last());
        }
        // SAFETY: two descriptors that are new and nobody else's.
        let (reader, writer) = unsafe { (OwnedFd::from_raw_fd(pair[0]), OwnedFd::from_raw_fd(pair[1])) };
        // SAFETY: as above.
        if unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0, pair.as_mut_ptr()) } != 0
        {
            return Err(Errno::last());
        }
        // SAFETY: as above.
        let (waiting, waking) = unsafe { (OwnedFd::from_raw_fd(pair[0]), OwnedFd::from_raw_fd(pair[1])) };
        let application = reader.try_clone().map_err(|_| Errno::last())?;
        let channel = Self {
            queue: Mutex::default(),
            reader: reader.into(),
            writer: writer.into(),
            waiting: waiting.into(),
            waking: waking.into(),
        };
        Ok((channel, application))
    }

    /// A socket where a byte can be seen while there are events, and whether a look may not wait: the application has made its end
    /// non-blocking.
    pub(crate) fn waiting(&self) -> (RawFd, bool) {
        // SAFETY: no pointers involved.
        let flags = unsafe { libc::fcntl(self.reader.as_raw_fd(), libc::F_GETFL) };
        (self.waiting.as_raw_fd(), flags & libc::O_NONBLOCK != 0)
    }

    pub(crate) fn push(&self, event: Event) {
        self.change(|queue| queue.push_back(event));
    }

    pub(crate) fn pop(&self) -> Option<Event> {
        self.change(VecDeque::pop_front)
    }

    /// Takes the events out for which `which` is true.
    pub(crate) fn extract(&self, which: impl Fn(&Event) -> bool) -> Vec<Event> {
        self.change(|queue| {
            let (out, keep): (Vec<_>, Vec<_>) = queue.drain(..).partition(|event| which(event));
            queue.extend(keep);
            out
        })
    }

    fn change<T>(&self, act: impl FnOnce(&mut VecDeque<Event>) -> T) -> T {
        let mut queue = lock(&self.queue);
        let before = queue.is_empty();
        let result = act(&mut queue);
        // The application may have closed them.
        if ![&self.reader, &self.writer, &self.waiting, &self.waking].iter().all(|fd| fd.is_ours()) {
            return result;
        }
        let mut byte = 1_u8;
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        match (before, queue.is_empty()) {
            // SAFETY: one byte each; there is room, for both are empty.
            (true, false) => unsafe {
                libc::write(self.writer.as_raw_fd(), (&raw const byte).cast(), 1);
                libc::send(self.waking.as_raw_fd(), (&raw const byte).cast(), 1, flags);
            },
            (false, true) => {
                // SAFETY: room for one byte.
                unsafe { libc::recv(self.waiting.as_raw_fd(), (&raw mut byte).cast(), 1, flags) };
                if is_readable(self.reader.as_raw_fd()) {
                    // SAFETY: room for one byte, which is there: nobody else takes it.
                    unsafe { libc::read(self.reader.as_raw_fd(), (&raw mut byte).cast(), 1) };
                }
            }
            _ => {}
        }
        result
    }
}

/// Whether a read would find something.
fn is_readable(fd: RawFd) -> bool {
    let mut polled = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry; does not wait.
    unsafe { libc::poll(&raw mut polled, 1, 0) == 1 }
}
