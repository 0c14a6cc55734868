//! The sender's end of a ring.

use core::sync::atomic::{AtomicBool, Ordering};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use urxe_wire::Qpn;

use super::handshake::{self, Handshake, Purpose};
use super::pending_acks::{PendingAck, PendingAcks as _};
use super::ring::{self, Producer, RingRecord};
use super::segment::{AckWords, Segment};
use crate::direct::Offer;
use crate::ipc::credentials::{self, Credentials};
use crate::mutex::lock;
use crate::sys::epoll_key::EpollKey;
use crate::sys::fd::{Fd, FdSet};
use crate::sys::random::random_u32;
use crate::sys::{self, borrow};

/// Bytes that a batch of packets holds at most.
pub(crate) const BATCH: usize = 128 << 10;
/// Bytes that must be free for packets to be made: all that the batches of two threads may hold by then, and what the end of
/// the ring wastes.
const ROOM: usize = 2 * BATCH + (64 << 10);
const _: () = assert!(cfg!(loom) || ROOM * 2 < ring::SIZE);

/// A receiver that takes nothing for so long holds up nobody any more: what it has no room for is lost, as in the full
/// buffer of a socket that nobody reads, and the transport's timers decide what becomes of it. Longer than a process
/// waits for a processor on a machine that has ten times more to do than it can: UC and UD repeat nothing, and on the way from
/// one process to another of its host a card loses nothing.
const STALLED: Duration = Duration::from_secs(1);

/// A ring to another process, or to this one.
#[derive(Debug)]
pub(crate) struct Link {
    purpose: Purpose,
    connection: Fd,
    /// The process that takes what is put in, if it can be seen from here.
    peer_pid: Option<u32>,
    /// In the memory of the writer's ring, which stays as long as this.
    acks: AckWords,
    /// The other end has gone.
    is_dead: AtomicBool,
    /// Set if there was room behind the run put in last, so there is.
    has_room: AtomicBool,
    /// Set if a run did not fit.
    has_lost: AtomicBool,
    writer: Mutex<Writer>,
}

#[derive(Debug)]
struct Writer {
    producer: Producer<Segment>,
    /// Since when the receiver has been where it is, if it is being waited for.
    stuck: Option<(u64, Instant)>,
}

impl Link {
    /// A ring for what `from` sends to `to`, where the owner of the block takes rings; `offer` goes with it. An error says that it
    /// has to be UDP.
    #[expect(clippy::too_many_arguments, reason = "a ring's addresses, and what goes with it")]
    pub(crate) fn open(
        fds: &Arc<FdSet>,
        purpose: Purpose,
        block: u16,
        from: SocketAddr,
        to: SocketAddr,
        tclass: u8,
        hop_limit: u8,
        offer: Option<&Offer>,
    ) -> io::Result<Self> {
        let connection = handshake::connect(block, purpose)?;
        let (segment, memory) = Segment::create()?;
        let key = u64::from(random_u32()) << 32 | u64::from(random_u32()) | 1;
        // SAFETY: the producer keeps the segment, in the link that has both; the mapping does not move with it.
        let acks = unsafe { AckWords::of(&segment) };
        let producer = Producer::new(segment, key);
        // Asleep, for all that is known.
        producer.begin();
        let handshake = Handshake { from, to, tclass, hop_limit, key };
        let offer = offer.filter(|_| purpose == Purpose::Packets && credentials::may_trace_us(connection.as_raw_fd()));
        let peer_pid = Credentials::of(&connection)?.pid;
        handshake::send(connection.as_raw_fd(), &handshake, &memory, offer)?;
        let connection = fds.adopt(connection)?;
        let fd = connection.as_raw_fd();
        fds.watch(fd, EpollKey::RingTx(fd).pack())?;
        let writer = Mutex::new(Writer { producer, stuck: None });
        Ok(Self {
            purpose,
            connection,
            peer_pid,
            acks,
            is_dead: AtomicBool::new(false),
            has_room: AtomicBool::new(true),
            has_lost: AtomicBool::new(false),
            writer,
        })
    }

    pub(crate) fn raw_fd(&self) -> RawFd {
        self.connection.as_raw_fd()
    }

    /// The process at the other end, if it can be seen from here.
    pub(crate) const fn peer_pid(&self) -> Option<u32> {
        self.peer_pid
    }

    #[inline]
    pub(crate) fn is_alive(&self) -> bool {
        !self.is_dead.load(Ordering::Relaxed)
    }

    /// Whether the other end is gone, asked of the system.
    pub(crate) fn is_gone(&self) -> bool {
        !self.is_alive() || (self.connection.is_ours() && sys::is_hung_up(self.raw_fd()))
    }

    /// The connection has become readable, which is how it ends.
    pub(crate) fn look(&self, fds: &FdSet) {
        let received = recv(borrow(self.raw_fd()), &mut [0; 1], RecvFlags::DONTWAIT | RecvFlags::PEEK);
        // Nobody answers on it: whoever does is none of us.
        if received.err() != Some(Errno::AGAIN) {
            self.is_dead.store(true, Ordering::Relaxed);
            fds.unwatch(self.raw_fd());
        }
    }

    /// Whether packets may be made now, or had better wait.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        // Asked for each packet: nearly always there is, and then it takes no lock.
        self.has_room.load(Ordering::Relaxed) || self.look_for_room()
    }

    /// Whether the ring has lost packets: its receiver may be stopped.
    pub(crate) fn has_lost(&self) -> bool {
        self.has_lost.load(Ordering::Relaxed)
    }

    #[cold]
    fn look_for_room(&self) -> bool {
        let mut writer = self.lock();
        let Writer { producer, stuck } = &mut *writer;
        if producer.has_room(ROOM) {
            *stuck = None;
            self.has_room.store(true, Ordering::Relaxed);
            return true;
        }
        match stuck {
            Some((at, since)) if *at == producer.seen() => since.elapsed() > STALLED,
            _ => {
                *stuck = Some((producer.seen(), Instant::now()));
                false
            }
        }
    }

    /// Puts runs in, and wakes the receiver if need be. Returns how many packets were lost for want of room.
    pub(crate) fn send<'a>(&self, runs: impl ExactSizeIterator<Item = (&'a [u8], RingRecord, u16)>) -> usize {
        let alone = runs.len() == 1;
        let mut lost = 0;
        let mut writer = self.lock();
        for (bytes, run, packets) in runs {
            if !writer.producer.push(bytes, run, alone) {
                lost += usize::from(packets);
            }
        }
        let has_room = writer.producer.has_room(ROOM);
        self.has_room.store(has_room, Ordering::Relaxed);
        if lost > 0 {
            self.has_lost.store(true, Ordering::Relaxed);
        }
        let must_ring = writer.producer.must_ring();
        drop(writer);
        // The application may have closed it, and have a socket of its own under the number.
        if must_ring && self.connection.is_ours() {
            sys::ring(self.raw_fd());
        }
        lost
    }

    /// Position that the receiver has yet to reach, if it has: `since`, or the end of what has been put in.
    pub(crate) fn unread(&self, since: Option<u64>) -> Option<u64> {
        self.lock().producer.unread(since)
    }

    /// Whether packets go through it.
    #[inline]
    pub(crate) fn carries_packets(&self) -> bool {
        self.purpose == Purpose::Packets
    }

    /// Leaves an ACK for a queue pair of the receiver's block, in case this process ends before it has sent it.
    #[inline]
    pub(crate) fn leave_ack(&self, ack: PendingAck) {
        self.acks.leave(ack);
    }

    /// Takes back the ACK that `from` has left for `to`.
    pub(crate) fn take_back_ack(&self, from: Qpn, to: Qpn) {
        self.acks.take_back(from, to);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Writer> {
        lock(&self.writer)
    }
}
