//! Keys under which epoll watches descriptors.

use std::os::fd::RawFd;

/// Key of a descriptor in epoll: its kind in the high byte, below it what identifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EpollKey {
    /// Unconnected UDP socket of this address.
    LeaderSocket(usize),
    /// The flow socket in this slot.
    Flow(usize),
    /// The mailbox with this descriptor.
    Mailbox(RawFd),
    /// Listening socket of the election at this address.
    ElectionListener(usize),
    /// Connection to the port owner of this address.
    LeaderLink(usize),
    /// Connection from a follower of this address.
    FollowerLink(usize, RawFd),
    /// The timer of what is put off.
    Timer,
    /// The multicast group in this slot.
    Group(usize),
    /// The rtnetlink socket.
    Rtnetlink,
    /// The timer of pending requests.
    PendingRequests,
    /// Listener for the handshakes of rings.
    RingListener(RawFd),
    /// Connection of a ring that this process reads, or whose handshake has not come yet.
    RingRx(RawFd),
    /// The connection of a ring that this process writes.
    RingTx(RawFd),
    /// A connection to another process's mailbox for which datagrams wait.
    Backlog(RawFd),
    /// A packet socket: the ring tells what is there.
    Raw,
}

impl EpollKey {
    pub(crate) fn pack(self) -> u64 {
        let (kind, index, fd) = match self {
            Self::LeaderSocket(role) => (1, role, 0),
            Self::Flow(slot) => (2, slot, 0),
            Self::Mailbox(fd) => (3, 0, fd),
            Self::ElectionListener(role) => (4, role, 0),
            Self::LeaderLink(role) => (5, role, 0),
            Self::FollowerLink(role, fd) => (6, role, fd),
            Self::Timer => (7, 0, 0),
            Self::Group(slot) => (8, slot, 0),
            Self::Rtnetlink => (9, 0, 0),
            Self::PendingRequests => (10, 0, 0),
            Self::RingListener(fd) => (11, 0, fd),
            Self::RingRx(fd) => (12, 0, fd),
            Self::RingTx(fd) => (13, 0, fd),
            Self::Backlog(fd) => (14, 0, fd),
            Self::Raw => (15, 0, 0),
        };
        // Indexes of roles and slots are below 2^24: each has a descriptor.
        kind << 56 | (index as u64) << 32 | u64::from(fd.cast_unsigned())
    }

    pub(crate) fn unpack(packed: u64) -> Option<Self> {
        let [kind, a, b, c, fd @ ..] = packed.to_be_bytes();
        let index = u32::from_be_bytes([0, a, b, c]) as usize;
        let fd = RawFd::from_be_bytes(fd);
        match kind {
            1 => Some(Self::LeaderSocket(index)),
            2 => Some(Self::Flow(index)),
            3 => Some(Self::Mailbox(fd)),
            4 => Some(Self::ElectionListener(index)),
            5 => Some(Self::LeaderLink(index)),
            6 => Some(Self::FollowerLink(index, fd)),
            7 => Some(Self::Timer),
            8 => Some(Self::Group(index)),
            9 => Some(Self::Rtnetlink),
            10 => Some(Self::PendingRequests),
            11 => Some(Self::RingListener(fd)),
            12 => Some(Self::RingRx(fd)),
            13 => Some(Self::RingTx(fd)),
            14 => Some(Self::Backlog(fd)),
            15 => Some(Self::Raw),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_survive_epoll() {
        for key in [
            EpollKey::LeaderSocket(0),
            EpollKey::Flow(0xFF_FFFF),
            EpollKey::Mailbox(RawFd::MAX),
            EpollKey::ElectionListener(1),
            EpollKey::LeaderLink(2),
            EpollKey::FollowerLink(3, 1023),
            EpollKey::Timer,
            EpollKey::Group(4),
            EpollKey::Rtnetlink,
            EpollKey::PendingRequests,
            EpollKey::RingListener(3),
            EpollKey::RingRx(4),
            EpollKey::RingTx(5),
            EpollKey::Backlog(6),
            EpollKey::Raw,
        ] {
            assert_eq!(EpollKey::unpack(key.pack()), Some(key));
        }
        assert_eq!(EpollKey::unpack(0), None);
    }
}
