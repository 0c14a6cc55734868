//! Messages that wait for a program to read them, and a descriptor that is readable while there are any.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Mutex;

use urxe_engine::mad::Address;
use urxe_net::cancellation::CancelGuard;
use urxe_net::identity::CheckedFd;
use urxe_runtime::lock;
use urxe_wire::mad::Mad;

use crate::kernel::Errno;

/// Bytes of `struct ib_user_mad_hdr`.
pub(crate) const HEADER: usize = 64;

/// `struct ib_user_mad_hdr`, as a program wrote it.
pub(crate) type Header = [u8; HEADER];

/// Messages and bytes that may wait: what comes beyond is dropped.
const MESSAGES: usize = 4096;
const BYTES: usize = 64 << 20;

/// Message or outcome that an agent is to read.
#[derive(Debug)]
pub(crate) struct Packet {
    /// Number of the agent in its file.
    pub(crate) agent: u32,
    pub(crate) content: Content,
}

/// Contents of a packet.
#[derive(Debug)]
pub(crate) enum Content {
    /// A message has arrived.
    Received {
        /// Sender of the message.
        from: Address,
        /// Bytes of the message.
        message: Vec<u8>,
    },
    /// Timeout of a message without an answer.
    TimedOut {
        /// Header that the program wrote in front of the message.
        context: Header,
        /// The message's own header.
        header: [u8; Mad::LEN],
    },
}

impl Packet {
    fn bytes(&self) -> usize {
        match &self.content {
            Content::Received { message, .. } => message.len(),
            Content::TimedOut { header, .. } => header.len(),
        }
    }
}

/// The queue of a file.
#[derive(Debug)]
pub(crate) struct Inbox {
    queue: Mutex<Queue>,
    /// Other end of the program's socket. The program's end is readable while the queue is not empty, and writable, as the
    /// kernel's file is. A socket, since calls on it never wait, whatever the program reads from it and whether it has
    /// `O_NONBLOCK` set.
    sender: CheckedFd,
    /// The program's end as well, to take back what has made it readable.
    receiver: CheckedFd,
}

#[derive(Debug, Default)]
struct Queue {
    packets: VecDeque<Packet>,
    bytes: usize,
}

impl Inbox {
    /// An empty queue, and the program's descriptor of it, opened with these flags.
    pub(crate) fn new(flags: libc::c_int) -> Result<(Self, OwnedFd), Errno> {
        let mut pair = [-1; 2];
        let kind = libc::SOCK_SEQPACKET
            | libc::SOCK_CLOEXEC
            | if flags & libc::O_NONBLOCK == 0 { 0 } else { libc::SOCK_NONBLOCK };
        // SAFETY: room for two descriptors.
        if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) } != 0 {
            return Err(Errno::last());
        }
        // SAFETY: two descriptors that are new, and ours.
        let (receiver, sender) = unsafe { (OwnedFd::from_raw_fd(pair[0]), OwnedFd::from_raw_fd(pair[1])) };
        let command = if flags & libc::O_CLOEXEC == 0 { libc::F_DUPFD } else { libc::F_DUPFD_CLOEXEC };
        // SAFETY: a descriptor of ours.
        let program = unsafe { libc::fcntl(receiver.as_raw_fd(), command, 0) };
        if program < 0 {
            return Err(Errno::last());
        }
        // SAFETY: new, and ours until it is given away.
        let program = unsafe { OwnedFd::from_raw_fd(program) };
        Ok((Self { queue: Mutex::default(), sender: sender.into(), receiver: receiver.into() }, program))
    }

    /// Adds a message; false if there is no room.
    pub(crate) fn push(&self, packet: Packet) -> bool {
        let mut queue = lock(&self.queue);
        if queue.packets.len() >= MESSAGES || queue.bytes + packet.bytes() > BYTES {
            return false;
        }
        queue.bytes += packet.bytes();
        queue.packets.push_back(packet);
        if queue.packets.len() == 1 {
            self.tell(true);
        }
        true
    }

    /// Looks at the first message, and takes it out if `then` succeeds. EAGAIN if there is none.
    pub(crate) fn read<T>(&self, then: impl FnOnce(&Packet) -> Result<T, Errno>) -> Result<T, Errno> {
        let mut queue = lock(&self.queue);
        let first = queue.packets.front().ok_or(Errno(libc::EAGAIN))?;
        let result = then(first)?;
        let bytes = first.bytes();
        queue.packets.pop_front();
        queue.bytes -= bytes;
        if queue.packets.is_empty() {
            self.tell(false);
        }
        Ok(result)
    }

    /// Drops the messages of an agent that is no more.
    pub(crate) fn discard(&self, agent: u32) {
        let mut queue = lock(&self.queue);
        let was_empty = queue.packets.is_empty();
        queue.packets.retain(|packet| packet.agent != agent);
        queue.bytes = queue.packets.iter().map(Packet::bytes).sum();
        if queue.packets.is_empty() && !was_empty {
            self.tell(false);
        }
    }

    /// Makes the descriptor readable, or not readable. With the queue locked.
    fn tell(&self, is_ready: bool) {
        if !self.sender.is_ours() || !self.receiver.is_ours() {
            return;
        }
        let _guard = CancelGuard::new();
        let mut byte = [0_u8];
        // SAFETY: one byte, and descriptors of ours.
        unsafe {
            while libc::recv(self.receiver.as_raw_fd(), byte.as_mut_ptr().cast(), 1, libc::MSG_DONTWAIT) > 0 {}
            if is_ready {
                let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
                libc::send(self.sender.as_raw_fd(), byte.as_ptr().cast(), 1, flags);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(agent: u32) -> Packet {
        Packet { agent, content: Content::TimedOut { context: [0; HEADER], header: [0; Mad::LEN] } }
    }

    fn is_readable(fd: &OwnedFd) -> bool {
        let mut polled = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry.
        unsafe { libc::poll(&raw mut polled, 1, 0) == 1 }
    }

    #[test]
    fn readable_while_something_waits() {
        let (inbox, fd) = Inbox::new(0).unwrap();
        assert!(!is_readable(&fd));
        assert!(inbox.push(packet(1)) && inbox.push(packet(2)));
        assert!(is_readable(&fd));
        let refused = inbox.read(|_| Err::<(), _>(Errno(libc::ENOSPC)));
        assert_eq!(refused, Err(Errno(libc::ENOSPC)), "it stays");
        assert_eq!(inbox.read(|packet| Ok(packet.agent)), Ok(1));
        assert!(is_readable(&fd));
        inbox.discard(2);
        assert!(!is_readable(&fd));
        assert_eq!(inbox.read(|_| Ok(())), Err(Errno(libc::EAGAIN)));
    }

    /// A program that reads the descriptor itself keeps nobody waiting; the next message makes it readable again.
    #[test]
    fn a_program_may_read_the_descriptor_itself() {
        let (inbox, fd) = Inbox::new(0).unwrap();
        for _ in 0..3 {
            assert!(inbox.push(packet(1)));
            let mut bytes = [0_u8; 8];
            // SAFETY: room for eight bytes; one waits.
            assert_eq!(unsafe { libc::read(fd.as_raw_fd(), bytes.as_mut_ptr().cast(), 8) }, 1);
            assert!(!is_readable(&fd));
            assert_eq!(inbox.read(|packet| Ok(packet.agent)), Ok(1));
            assert_eq!(inbox.read(|_| Ok(())), Err(Errno(libc::EAGAIN)));
        }
    }

    #[test]
    fn a_program_that_does_not_read_fills_a_bounded_queue() {
        let (inbox, _fd) = Inbox::new(libc::O_NONBLOCK).unwrap();
        assert_eq!((0..10_000).filter(|_| inbox.push(packet(0))).count(), MESSAGES);
    }
}
