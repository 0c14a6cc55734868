//! The receiver's ends of rings.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;

use rustix::net::{RecvFlags, recv};

use super::handshake::{self, Purpose};
use super::pending_acks::{PendingAck, PendingAcks as _};
use super::ring::{self, Consumer, Damaged, RingRecord};
use super::segment::Segment;
use crate::direct::{Import, Imports};
use crate::ipc::refuse_files;
use crate::sys::epoll_key::EpollKey;
use crate::sys::fd::{Budget, Fd, FdSet, Permit};
use crate::sys::{borrow, is_hung_up};

/// The rings that others send to this process through.
#[derive(Debug)]
pub(crate) struct Inbox {
    rings: Vec<Incoming>,
    /// Connections whose handshake has not come yet, and the block whose listener they came to.
    guests: Vec<(u16, Fd, Permit)>,
    budget: Budget,
    purpose: Purpose,
    /// Where something was found last.
    at: usize,
    /// Where shared files go that come with rings; `None`: nowhere.
    imports: Option<Arc<Imports>>,
}

#[derive(Debug)]
struct Incoming {
    connection: Arc<Fd>,
    consumer: Consumer<Segment>,
    envelope: Envelope,
    /// A byte lies on the connection, for all that is known. Usually the doorbell is not armed then; but a sender that loses its
    /// processor between taking the doorbell and ringing may ring when its runs have been taken and the doorbell is armed anew.
    rang: bool,
    /// The shared file of the sender, as long as the sender is there.
    import: Option<Arc<Import>>,
    _permit: Permit,
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if let Some(import) = &self.import {
            import.end();
        }
    }
}

/// Addresses of the runs of a ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Envelope {
    /// The block of QPNs it is for.
    block: u16,
    /// Index of the local address.
    pub(crate) index: usize,
    pub(crate) peer: SocketAddr,
    pub(crate) tclass: u8,
    pub(crate) hop_limit: u8,
}

/// Counts of connections accepted and refused, and of rings that ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Visits {
    pub(crate) accepted: usize,
    pub(crate) refused: usize,
    /// Rings that ended.
    pub(crate) closed: usize,
}

/// Connections accepted, or messages read, in one turn: they may come as fast as they are taken.
const AT_ONCE: i32 = 64;

impl Inbox {
    /// An inbox of as many rings as the budget allows. Nothing is looked for in rings for [ACKs](Purpose::Acks) alone, whatever their senders
    /// put there.
    pub(crate) const fn new(budget: Budget, purpose: Purpose) -> Self {
        Self { rings: Vec::new(), guests: Vec::new(), budget, purpose, at: 0, imports: None }
    }

    /// Maps the shared files that come with rings from now on.
    pub(crate) fn import_into(&mut self, imports: &Arc<Imports>) {
        self.imports = Some(Arc::clone(imports));
    }

    /// Accepts the connections that wait at a listener. Each is watched, and [`Inbox::attend`]ed when it is ready.
    pub(crate) fn admit(
        &mut self,
        fds: &Arc<FdSet>,
        (block, listener): (u16, RawFd),
        find: impl Fn(SocketAddr) -> Option<usize>,
    ) -> io::Result<Visits> {
        let mut visits = Visits::default();
        // If more wait, the listener stays readable.
        for _ in 0..AT_ONCE {
            let Some(guest) = handshake::accept(listener)? else { break };
            let Some(permit) = self.budget.take() else {
                visits.refused += 1;
                continue;
            };
            let guest = fds.adopt(guest)?;
            fds.watch(guest.as_raw_fd(), EpollKey::RingRx(guest.as_raw_fd()).pack())?;
            self.greet((block, guest, permit), &find, &mut visits);
        }
        Ok(visits)
    }

    /// Takes the guest's handshake if it has come.
    fn greet(
        &mut self,
        (block, guest, permit): (u16, Fd, Permit),
        find: &impl Fn(SocketAddr) -> Option<usize>,
        visits: &mut Visits,
    ) {
        match handshake::receive(guest.as_raw_fd()) {
            Ok(None) => self.guests.push((block, guest, permit)),
            Ok(Some((handshake, segment, offered))) => {
                match find(handshake.to).filter(|_| handshake::is_own_address(handshake.from)) {
                    Some(index) => {
                        let (tclass, hop_limit) = (handshake.tclass, handshake.hop_limit);
                        let envelope = Envelope { block, index, peer: handshake.from, tclass, hop_limit };
                        let consumer = Consumer::new(segment, handshake.key);
                        // None is expected any more.
                        refuse_files(&guest);
                        let connection = Arc::new(guest);
                        let import = self.imports.as_ref().zip(offered).and_then(|(imports, offered)| {
                            imports.take(offered.file.as_fd(), offered.table, &connection).ok()
                        });
                        self.rings.push(Incoming {
                            connection,
                            consumer,
                            envelope,
                            rang: false,
                            import,
                            _permit: permit,
                        });
                        visits.accepted += 1;
                    }
                    None => visits.refused += 1,
                }
            }
            Err(_) => visits.refused += 1,
        }
    }

    /// Looks what a connection that is ready has to say: an handshake, or that its ring will not be written to any more. The
    /// latter ends the ring once it is empty; then the last ACKs of its sender's queue pairs are told.
    pub(crate) fn attend(
        &mut self,
        fd: RawFd,
        find: impl Fn(SocketAddr) -> Option<usize>,
    ) -> (Visits, Vec<PendingAck>) {
        let (mut visits, mut acks) = (Visits::default(), Vec::new());
        if let Some(at) = self.guests.iter().position(|(_, guest, _)| guest.as_raw_fd() == fd) {
            let guest = self.guests.swap_remove(at);
            self.greet(guest, &find, &mut visits);
        } else if let Some(at) = self.rings.iter().position(|ring| ring.connection.as_raw_fd() == fd)
            && let Some(ring) = self.rings.get_mut(at)
        {
            ring.rang = true;
            let holds_packets = self.purpose == Purpose::Packets;
            if !holds_packets {
                // Nobody will arm its doorbell, and nobody should have rung.
                discard(fd);
            }
            if is_hung_up(fd) && (!holds_packets || ring.consumer.is_empty()) {
                let ring = self.rings.swap_remove(at);
                acks = ring.consumer.storage().take(ring.envelope.block);
                visits.closed += 1;
            }
        }
        (visits, acks)
    }

    /// Takes one run out of the rings, into `buffer`. The ring where something was found last comes first, so a sender
    /// that has more is not made to wait; `next` is for when it has had its turn.
    pub(crate) fn take(&mut self, buffer: &mut [u8]) -> Option<Result<(Envelope, RingRecord), Damaged>> {
        if self.purpose == Purpose::Acks {
            return None;
        }
        let mut next = self.at;
        for _ in 0..self.rings.len() {
            let at = if next < self.rings.len() { next } else { 0 };
            next = at + 1;
            let ring = self.rings.get_mut(at)?;
            match ring.consumer.pop(buffer) {
                Ok(None) => {}
                Ok(Some(run)) => {
                    self.at = at;
                    return Some(Ok((ring.envelope, run)));
                }
                Err(damaged) => {
                    // Its sender finds the connection closed, and goes on by UDP.
                    self.rings.swap_remove(at);
                    return Some(Err(damaged));
                }
            }
        }
        None
    }

    /// Whether nothing is in any ring.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.purpose == Purpose::Acks || self.rings.iter().all(|ring| ring.consumer.is_empty())
    }

    /// The next ring comes first.
    pub(crate) fn next(&mut self) {
        self.at += 1;
    }

    /// Arms every doorbell: the senders wake this process for their next run. False if runs have come meanwhile: somebody has to take
    /// them, and then ask again. For whoever is about to sleep, and nobody else: see [`ring`].
    pub(crate) fn arm(&mut self) -> bool {
        if self.purpose == Purpose::Acks {
            return true;
        }
        let mut armed = false;
        for ring in self.rings.iter_mut().filter(|ring| ring.rang || !ring.consumer.is_armed()) {
            ring.rang = false;
            discard(ring.connection.as_raw_fd());
            // Also if it is armed: what has been discarded may be of a run that has come just now.
            ring.consumer.arm();
            armed = true;
        }
        if !armed {
            return true;
        }
        ring::barrier();
        self.is_empty()
    }

    /// Gives up the rings to a local address.
    pub(crate) fn close_local(&mut self, index: usize) {
        self.rings.retain(|ring| ring.envelope.index != index);
    }
}

/// Reads what there is on a connection, as it has served to wake us: some of it, from a sender that does not cease.
fn discard(fd: RawFd) {
    // Each message is a byte, or cut to the room there is.
    let is_read = |_: &i32| recv(borrow(fd), &mut [0; 64], RecvFlags::DONTWAIT).is_ok_and(|(length, _)| length > 0);
    (0..AT_ONCE).take_while(is_read).for_each(drop);
}

#[cfg(test)]
mod tests {
    use socket2::Socket;

    use super::super::handshake::Handshake;
    use super::super::ring::Producer;
    use super::*;
    use crate::ipc::unix;
    use crate::sys::random::random_u16;

    const RUN: RingRecord = RingRecord { len: 40, segment: 40, has_icrc: true };

    /// An inbox with one ring: the ring's producer, and its end of the connection.
    fn inbox_of(purpose: Purpose) -> (Arc<FdSet>, Inbox, Producer<Segment>, Socket) {
        let (fds, block) = (FdSet::new().unwrap(), random_u16());
        let listener = handshake::listen(block, purpose).unwrap();
        let sender = handshake::connect(block, purpose).unwrap();
        let (segment, memory) = Segment::create().unwrap();
        let producer = Producer::new(segment, 7);
        producer.begin();
        let (from, to) = ("127.0.0.1:50000".parse().unwrap(), "127.0.0.1:4791".parse().unwrap());
        let handshake = Handshake { from, to, tclass: 0, hop_limit: 64, key: 7 };
        handshake::send(sender.as_raw_fd(), &handshake, &memory, None).unwrap();
        let mut inbox = Inbox::new(Budget::new(8), purpose);
        assert_eq!(inbox.admit(&fds, (block, listener.as_raw_fd()), |_| Some(0)).unwrap().accepted, 1);
        (fds, inbox, producer, sender)
    }

    //= spec/hosts.md#net-008
    //= type=test
    //# A device on which nothing happens MUST NOT wake anything.
    /// The sender has lost its processor after it took the doorbell; what it rings for has been found without it.
    #[test]
    fn a_doorbell_that_is_rung_late_wakes_but_once() {
        let (fds, mut inbox, mut producer, sender) = inbox_of(Purpose::Packets);
        let (mut buffer, mut keys) = (vec![0; 1 << 16], [0; 4]);
        for _ in 0..3 {
            assert!(producer.push(&[1; 40], RUN, true) && producer.must_ring());
            assert!(matches!(inbox.take(&mut buffer), Some(Ok(_))));
            assert!(inbox.arm() && fds.ready(&mut keys) == 0, "nothing is left, and nobody has rung");
            assert_eq!(sender.send(&[0]).unwrap(), 1);
            assert_eq!(fds.ready(&mut keys), 1);
            let Some(EpollKey::RingRx(fd)) = EpollKey::unpack(keys[0]) else { panic!("something else rings") };
            inbox.attend(fd, |_| None);
            assert!(inbox.take(&mut buffer).is_none() && inbox.arm());
            assert_eq!(fds.ready(&mut keys), 0, "it rings on and on");
        }
    }

    /// The thread that receives would close it, which may last.
    #[test]
    fn a_file_behind_the_handshake_is_refused() {
        let (_fds, _inbox, _producer, sender) = inbox_of(Purpose::Packets);
        let (_, file) = Segment::create().unwrap();
        let is_refused = unix::send_file(sender.as_raw_fd(), b"more", file.as_raw_fd()).is_err();
        assert_eq!(is_refused, refuse_files(&sender));
    }

    /// Where packets go by UDP, a ring is there for the last ACKs.
    #[test]
    fn packets_in_a_ring_for_acks_are_not_there() {
        let (fds, mut inbox, mut producer, sender) = inbox_of(Purpose::Acks);
        let mut keys = [0; 4];
        assert!(producer.push(&[1; 40], RUN, true));
        assert!(inbox.is_empty() && inbox.take(&mut vec![0; 1 << 16]).is_none() && inbox.arm());
        assert_eq!(sender.send(&[0]).unwrap(), 1);
        assert_eq!(fds.ready(&mut keys), 1);
        let Some(EpollKey::RingRx(fd)) = EpollKey::unpack(keys[0]) else { panic!("something else rings") };
        assert_eq!(inbox.attend(fd, |_| None).0.closed, 0);
        assert_eq!(fds.ready(&mut keys), 0, "it rings on and on");
        drop(sender);
        assert_eq!(inbox.attend(fd, |_| None).0.closed, 1, "its ACKs are left to be taken");
    }
}
