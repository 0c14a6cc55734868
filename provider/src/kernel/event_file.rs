//! Files from which libibverbs reads events: completion channels, and a context's asynchronous events.
//!
//! `ibv_get_cq_event` and `ibv_get_async_event` are a read(2) of one record; an application may poll(2) the file, make
//! it non-blocking, and count on `ibv_destroy_*` to wait for every event that it has *been given* and to take back
//! those that it has not. So the records lie in a socket pair of which we keep both ends: what is in there has not been
//! read, what was sent and is not in there has. (A pipe cannot be emptied from our side without blocking when the
//! application reads at the same moment; a socket can, call by call.)
//!
//! A kernel's event queue has no bound, a socket has: what does not fit waits in a backlog, and follows when there is
//! room again, which the `cq_event` and `async_event` ops tell ([`EventFile::refill`]): libibverbs calls them after each
//! read. Other hosts can cause events of the port without end: of each type one waits there, the last.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use urxe_ffi::uapi;
use urxe_ffi::verbs::ibv_event_type;
use urxe_net::identity::CheckedFd;
use urxe_runtime::event::{EventSink, EventType};

use super::Errno;
use super::memory::Fields;

/// Completion event or asynchronous event, as the application reads it from the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// `ib_uverbs_comp_event_desc`: a completion queue that was armed has a completion. The application's `ibv_cq *`.
    Completion {
        /// Address of the `ibv_cq`.
        cq: u64,
    },
    /// `ib_uverbs_async_event_desc`.
    Async {
        /// Address of the `ibv_qp`, `ibv_cq` or `ibv_srq`, or the port's number, depending on the type.
        element: u64,
        /// `IBV_EVENT_*`.
        event_type: ibv_event_type,
    },
}

impl Event {
    /// Converts it to what libibverbs reads.
    fn to_bytes(self) -> Vec<u8> {
        match self {
            Self::Completion { cq } => cq.to_ne_bytes().to_vec(),
            Self::Async { element, event_type } => {
                let mut bytes = element.to_ne_bytes().to_vec();
                bytes.extend(event_type.to_ne_bytes());
                bytes.resize(ASYNC, 0);
                bytes
            }
        }
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let element = fields.u64()?;
        Some(match fields.u32() {
            None => Self::Completion { cq: element },
            Some(event_type) => Self::Async { element, event_type },
        })
    }

    const fn element(self) -> u64 {
        match self {
            Self::Completion { cq } => cq,
            Self::Async { element, .. } => element,
        }
    }

    fn is_of_port(self) -> bool {
        let Self::Async { event_type, .. } = self else { return false };
        EventType::from_number(event_type).is_some_and(EventType::is_of_port)
    }
}

/// Size of `ib_uverbs_async_event_desc`, the larger record.
const ASYNC: usize = size_of::<uapi::ib_uverbs_async_event_desc>();

/// The library's side of an event file.
#[derive(Debug)]
pub struct EventFile {
    /// Events after those in the socket. Locked while the socket changes, except by the application's reads.
    backlog: Mutex<VecDeque<Event>>,
    /// The application's end as well, to look at what it has not read. Closed before the other: an epoll instance that the application
    /// has added its end to must not see it hang up, for a kernel's file is just gone when it is closed.
    receiver: CheckedFd,
    sender: CheckedFd,
}

impl EventFile {
    /// A file without events, and the end that the application is given.
    pub fn new() -> Result<(Self, OwnedFd), Errno> {
        let mut pair = [-1; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: room for two descriptors.
        if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) } != 0 {
            return Err(Errno::last());
        }
        // SAFETY: two descriptors that are new and nobody else's.
        let (receiver, sender) = unsafe { (OwnedFd::from_raw_fd(pair[0]), OwnedFd::from_raw_fd(pair[1])) };
        let application = receiver.try_clone().map_err(|_| Errno::last())?;
        Ok((Self { backlog: Mutex::default(), sender: sender.into(), receiver: receiver.into() }, application))
    }

    /// The application's end once more.
    ///
    /// # Errors
    /// EBADF if the application has closed our descriptor; the number may be another file's by now.
    pub fn another_end(&self) -> Result<OwnedFd, Errno> {
        if !self.receiver.is_ours() {
            return Err(Errno(libc::EBADF));
        }
        // SAFETY: a descriptor of ours, open for as long as this lives.
        let receiver = unsafe { BorrowedFd::borrow_raw(self.receiver.as_raw_fd()) };
        receiver.try_clone_to_owned().map_err(|_| Errno::last())
    }

    /// Adds an event. Never blocks, never loses one: an event of the port takes the place of the same in the backlog.
    pub fn push(&self, event: Event) {
        let mut backlog = self.backlog.lock().unwrap_or_else(PoisonError::into_inner);
        if event.is_of_port()
            && let Some(at) = backlog.iter().position(|other| *other == event)
        {
            backlog.remove(at);
        }
        backlog.push_back(event);
        // The application may have closed it, and have a file of its own under the number: a system call for each event, which costs
        // less than the one that sends it. Completions go on then where messages go through shared memory.
        if self.sender.is_ours() {
            self.send(&mut backlog);
        }
    }

    /// The application has read: there may be room.
    pub fn refill(&self) {
        let mut backlog = self.backlog.lock().unwrap_or_else(PoisonError::into_inner);
        if !backlog.is_empty() && self.sender.is_ours() {
            self.send(&mut backlog);
        }
    }

    /// Ends the file, as there will be no other event: who has read all reads the end of the file, and who waits is woken.
    pub fn end(&self) {
        let _backlog = self.backlog.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.sender.is_ours() {
            return;
        }
        // SAFETY: a descriptor of ours.
        unsafe { libc::shutdown(self.sender.as_raw_fd(), libc::SHUT_WR) };
    }

    /// Takes back every event about `element` that has not been read, and says how many. The others keep their order.
    ///
    /// Whoever destroys the object then waits for the application to acknowledge all that were pushed, less these.
    pub fn discard(&self, element: u64) -> usize {
        let mut backlog = self.backlog.lock().unwrap_or_else(PoisonError::into_inner);
        // The application has closed it, and reads nothing any more.
        if !self.receiver.is_ours() || !self.sender.is_ours() {
            let before = backlog.len();
            backlog.retain(|event| event.element() != element);
            return before - backlog.len();
        }
        let unread: Vec<Event> = std::iter::from_fn(|| self.receive()).collect();
        for event in unread.into_iter().rev() {
            backlog.push_front(event);
        }
        let before = backlog.len();
        backlog.retain(|event| event.element() != element);
        let discarded = before - backlog.len();
        self.send(&mut backlog);
        discarded
    }

    /// Moves as much of the backlog into the socket as fits.
    fn send(&self, backlog: &mut VecDeque<Event>) {
        while let Some(event) = backlog.front() {
            let bytes = event.to_bytes();
            let (fd, nobody) = (self.sender.as_raw_fd(), std::ptr::null::<libc::sockaddr>());
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            // By number, as it is done for completions: send(2) is a cancellation point (`urxe_net::cancellation`).
            // SAFETY: a descriptor of ours and a buffer of this length.
            let sent = unsafe { libc::syscall(libc::SYS_sendto, fd, bytes.as_ptr(), bytes.len(), flags, nobody, 0) };
            if sent < 0 {
                // Full, for now. There is no other way to fail: we hold the receiving end.
                return;
            }
            backlog.pop_front();
        }
    }

    /// The first unread event in the socket, taken out.
    fn receive(&self) -> Option<Event> {
        let mut bytes = [0; ASYNC];
        // SAFETY: a descriptor of ours and a buffer of this length.
        let received = unsafe {
            libc::recv(self.receiver.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT)
        };
        Event::from_bytes(bytes.get(..usize::try_from(received).ok()?)?)
    }
}

impl EventSink for EventFile {
    fn completion(&self, cq: u64) {
        self.push(Event::Completion { cq });
    }

    fn async_event(&self, element: u64, event_type: EventType) {
        self.push(Event::Async { element, event_type: event_type as u32 });
    }

    fn discard(&self, element: u64) -> usize {
        Self::discard(self, element)
    }

    fn refill(&self) {
        Self::refill(self);
    }

    fn end(&self) {
        Self::end(self);
    }
}

#[cfg(test)]
mod tests;
