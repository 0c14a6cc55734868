//! What epoll is told of each descriptor, and tells in turn.

use std::os::fd::RawFd;

/// What epoll says of a descriptor: its kind in the high byte, below it what identifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// The unconnected socket of this seat.
    Owner(usize),
    /// The flow socket in this slot.
    Flow(usize),
    /// The mailbox with this descriptor.
    Mailbox(RawFd),
    /// This seat's listening socket.
    Listener(usize),
    /// This seat's connection to the owner.
    Leader(usize),
    /// A connection from another process to this seat.
    Follower(usize, RawFd),
    /// The timer of what is put off.
    Timer,
    /// The multicast group in this slot.
    Group(usize),
    /// The socket that tells of changes.
    Change,
    /// The timer of pending requests.
    PendingRequests,
    /// Where other processes offer rings.
    Door(RawFd),
    /// The connection of a ring that this process reads, or that is about to be offered.
    Ring(RawFd),
    /// The connection of a ring that this process writes.
    Link(RawFd),
    /// A connection to another process's mailbox for which datagrams wait.
    Backlog(RawFd),
}

impl Token {
    pub(crate) fn pack(self) -> u64 {
        let (kind, index, fd) = match self {
            Self::Owner(seat) => (1, seat, 0),
            Self::Flow(slot) => (2, slot, 0),
            Self::Mailbox(fd) => (3, 0, fd),
            Self::Listener(seat) => (4, seat, 0),
            Self::Leader(seat) => (5, seat, 0),
            Self::Follower(seat, fd) => (6, seat, fd),
            Self::Timer => (7, 0, 0),
            Self::Group(slot) => (8, slot, 0),
            Self::Change => (9, 0, 0),
            Self::PendingRequests => (10, 0, 0),
            Self::Door(fd) => (11, 0, fd),
            Self::Ring(fd) => (12, 0, fd),
            Self::Link(fd) => (13, 0, fd),
            Self::Backlog(fd) => (14, 0, fd),
        };
        // Seats and slots are below 2^24, being descriptors.
        kind << 56 | (index as u64) << 32 | u64::from(fd.cast_unsigned())
    }

    pub(crate) fn unpack(packed: u64) -> Option<Self> {
        let [kind, a, b, c, fd @ ..] = packed.to_be_bytes();
        let index = u32::from_be_bytes([0, a, b, c]) as usize;
        let fd = RawFd::from_be_bytes(fd);
        match kind {
            1 => Some(Self::Owner(index)),
            2 => Some(Self::Flow(index)),
            3 => Some(Self::Mailbox(fd)),
            4 => Some(Self::Listener(index)),
            5 => Some(Self::Leader(index)),
            6 => Some(Self::Follower(index, fd)),
            7 => Some(Self::Timer),
            8 => Some(Self::Group(index)),
            9 => Some(Self::Change),
            10 => Some(Self::PendingRequests),
            11 => Some(Self::Door(fd)),
            12 => Some(Self::Ring(fd)),
            13 => Some(Self::Link(fd)),
            14 => Some(Self::Backlog(fd)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_epoll() {
        for token in [
            Token::Owner(0),
            Token::Flow(0xFF_FFFF),
            Token::Mailbox(RawFd::MAX),
            Token::Listener(1),
            Token::Leader(2),
            Token::Follower(3, 1023),
            Token::Timer,
            Token::Group(4),
            Token::Change,
            Token::PendingRequests,
            Token::Door(3),
            Token::Ring(4),
            Token::Link(5),
            Token::Backlog(6),
        ] {
            assert_eq!(Token::unpack(token.pack()), Some(token));
        }
        assert_eq!(Token::unpack(0), None);
    }
}
