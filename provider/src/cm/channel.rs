//! Event channel of librdmacm (`rdma_create_event_channel(3)`): an open file with a queue of events.
//!
//! The application polls the file and may make it non-blocking, so it is one end of a socket pair that holds a byte
//! exactly while there are events: a look at that byte waits, or does not, as the file is set.

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
}

impl Channel {
    /// A channel and the end that is the application's.
    pub(crate) fn new() -> Result<(Self, OwnedFd), Errno> {
        let mut pair = [-1; 2];
        // SAFETY: room for two descriptors.
        if unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0, pair.as_mut_ptr()) } != 0
        {
            return Err(Errno::last());
        }
        // SAFETY: two descriptors that are new and nobody else's.
        let (reader, writer) = unsafe { (OwnedFd::from_raw_fd(pair[0]), OwnedFd::from_raw_fd(pair[1])) };
        let application = reader.try_clone().map_err(|_| Errno::last())?;
        Ok((Self { queue: Mutex::default(), reader: reader.into(), writer: writer.into() }, application))
    }

    /// The library's copy of the application's end: a byte can be seen there while there are events.
    pub(crate) fn reader(&self) -> RawFd {
        self.reader.as_raw_fd()
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
        if !self.reader.is_ours() || !self.writer.is_ours() {
            return result;
        }
        let mut byte = 1_u8;
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        match (before, queue.is_empty()) {
            // SAFETY: one byte; the socket has room, for it is empty.
            (true, false) => unsafe {
                libc::send(self.writer.as_raw_fd(), (&raw const byte).cast(), 1, flags);
            },
            // SAFETY: room for one byte, which is there.
            (false, true) => unsafe {
                libc::recv(self.reader.as_raw_fd(), (&raw mut byte).cast(), 1, flags);
            },
            _ => {}
        }
        result
    }
}
