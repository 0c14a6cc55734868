//! Messages of which segments have arrived, and the share of the room that each peer has.
//!
//! Peers alone make this grow, so room is bounded twice: for each peer, and for all together. Where all of it is in use, a
//! message of the peer with the most makes way for one of a peer with less: what keeps RMPP from a peer is as many other
//! peers as there are messages, and not one that sends first segments.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::time::Duration;

use urxe_wire::mad::{MAD_LEN, Rmpp};
use urxe_wire::{Gid, Qpn};

use super::rmpp::{LONGEST, SegmentReceiver, Taken};
use super::types::{Address, AgentId};
use crate::time::Instant;

/// Time for which a receiver waits for a whole message, and for which it answers copies of a complete one's segments (kernel's
/// `start_rmpp`, `complete_rmpp`).
pub(super) const TOTAL_TIME: Duration = Duration::from_secs(40);
const LINGER: Duration = Duration::from_secs(10);

/// Messages of which segments may have arrived, of all peers and of one; complete ones are remembered among them.
const MESSAGES: usize = 1024;
const PEER_MESSAGES: usize = MESSAGES / 8;
/// Bytes of these: one peer has room for the longest message, and all together for four.
const PEER_MEMORY: usize = LONGEST + PEER_MESSAGES * MESSAGE;
const MEMORY: usize = 4 * PEER_MEMORY;
/// Bytes that a message counts for besides its segments: the first datagram, and the places that name it.
const MESSAGE: usize = 1024;

/// Name of a message that comes in segments. Messages of a peer are neighbours in a map.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct ReceiveKey {
    pub(super) remote: Gid,
    pub(super) agent: AgentId,
    pub(super) qpn: Qpn,
    pub(super) transaction_id: u64,
    pub(super) class: u8,
    pub(super) version: u8,
    pub(super) method: u8,
}

/// A message of which segments have arrived.
#[derive(Debug)]
struct Receiving {
    from: Address,
    first: [u8; MAD_LEN],
    segments: SegmentReceiver,
    deadline: Instant,
}

impl Receiving {
    fn memory(&self) -> usize {
        MESSAGE + self.segments.memory()
    }
}

/// Room that a peer uses.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Share {
    messages: usize,
    memory: usize,
}

/// Reaction to a segment.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reaction {
    /// No answer.
    Quiet,
    /// An ACK of this segment, with this window; with the whole message if this was the last segment of it.
    Ack { segment: u32, window: u32, message: Option<Vec<u8>> },
    /// The message has no room.
    NoRoom,
    /// A segment of a message whose first one has not come.
    NotBegun,
}

/// A message that is given up: its sender, and its first datagram.
#[derive(Debug)]
pub(super) struct GivenUp {
    pub(super) from: Address,
    pub(super) first: [u8; MAD_LEN],
}

/// Messages on their way in: see the [module documentation](self).
#[derive(Debug, Default)]
pub(super) struct Reassembly {
    receiving: BTreeMap<ReceiveKey, Receiving>,
    deadlines: BTreeSet<(Instant, ReceiveKey)>,
    shares: BTreeMap<Gid, Share>,
    memory: usize,
}

impl Reassembly {
    /// Bytes that are kept.
    pub(super) const fn memory(&self) -> usize {
        self.memory
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.receiving.len()
    }

    /// Time at which [`expired`](Self::expired) has something.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Forgets a message whose time is over. `Some(None)`: it had come whole, and nobody is told.
    pub(super) fn expired(&mut self, now: Instant) -> Option<Option<GivenUp>> {
        let &(at, key) = self.deadlines.first()?;
        if at > now {
            return None;
        }
        let gone = self.remove(&key)?;
        Some((!gone.segments.is_complete).then_some(GivenUp { from: gone.from, first: gone.first }))
    }

    /// Forgets the messages of an agent.
    pub(super) fn unregister(&mut self, agent: AgentId) {
        let keys: Vec<_> = self.receiving.keys().filter(|key| key.agent == agent).copied().collect();
        for key in keys {
            self.remove(&key);
        }
    }

    /// Takes a segment. Messages of other peers that had to make way for it are added to `given_up`.
    pub(super) fn take(
        &mut self,
        now: Instant,
        key: ReceiveKey,
        from: &Address,
        datagram: &[u8; MAD_LEN],
        given_up: &mut Vec<GivenUp>,
    ) -> Reaction {
        let rmpp = Rmpp::of(datagram);
        if !self.receiving.contains_key(&key) {
            if !rmpp.is_first() {
                return Reaction::NotBegun;
            }
            if !self.make_way_for_message(&key.remote, given_up) {
                return Reaction::NoRoom;
            }
            let segments = SegmentReceiver::new(key.class);
            self.insert(key, Receiving { from: *from, first: *datagram, segments, deadline: now + TOTAL_TIME });
        }
        let Some(receiving) = self.receiving.get_mut(&key) else { return Reaction::NotBegun };
        let before = receiving.memory();
        let taken = receiving.segments.take(datagram, rmpp.segment);
        let after = receiving.memory();
        let (segment, window) = (receiving.segments.segment, receiving.segments.window);
        self.memory = self.memory + after - before;
        let share = self.shares.entry(key.remote).or_default();
        share.memory = share.memory + after - before;
        match taken {
            Taken::Complete(message) => {
                self.await_until(&key, now + LINGER);
                Reaction::Ack { segment, window, message: Some(message) }
            }
            Taken::TooLong => self.refuse(&key),
            Taken::Quietly | Taken::Ack if !self.make_way_for_bytes(&key.remote, given_up) => self.refuse(&key),
            Taken::Quietly => Reaction::Quiet,
            Taken::Ack => Reaction::Ack { segment, window, message: None },
        }
    }

    fn refuse(&mut self, key: &ReceiveKey) -> Reaction {
        self.remove(key);
        Reaction::NoRoom
    }

    fn share(&self, peer: &Gid) -> Share {
        self.shares.get(peer).copied().unwrap_or_default()
    }

    /// Makes room for another message of a peer. Complete ones, which are kept for copies of their segments only, go first.
    fn make_way_for_message(&mut self, peer: &Gid, given_up: &mut Vec<GivenUp>) -> bool {
        if self.share(peer).messages >= PEER_MESSAGES && !self.remove_complete(Some(peer)) {
            return false;
        }
        if self.receiving.len() >= MESSAGES
            && !self.remove_complete(None)
            && !self.give_up_of_another(peer, |share| share.messages, given_up)
        {
            return false;
        }
        self.share(peer).memory + MESSAGE <= PEER_MEMORY
            && (self.memory + MESSAGE <= MEMORY || self.give_up_of_another(peer, |share| share.memory, given_up))
    }

    /// Makes room for what a peer's message has grown by.
    fn make_way_for_bytes(&mut self, peer: &Gid, given_up: &mut Vec<GivenUp>) -> bool {
        self.share(peer).memory <= PEER_MEMORY
            && (self.memory <= MEMORY || self.give_up_of_another(peer, |share| share.memory, given_up))
    }

    /// Gives up the largest message of the peer that has most, if that is more than this one has.
    fn give_up_of_another(&mut self, peer: &Gid, of: impl Fn(&Share) -> usize, given_up: &mut Vec<GivenUp>) -> bool {
        let own = of(&self.share(peer));
        let most = self.shares.iter().max_by_key(|(_, share)| of(share)).filter(|(_, share)| of(share) > own + 1);
        let Some((&other, _)) = most else { return false };
        let largest = self.of_peer(&other).max_by_key(|(_, receiving)| receiving.memory()).map(|(key, _)| *key);
        let Some(gone) = largest.and_then(|key| self.remove(&key)) else { return false };
        if !gone.segments.is_complete {
            given_up.push(GivenUp { from: gone.from, first: gone.first });
        }
        true
    }

    fn of_peer(&self, peer: &Gid) -> impl Iterator<Item = (&ReceiveKey, &Receiving)> {
        let peer = *peer;
        let first = ReceiveKey {
            remote: peer,
            agent: AgentId(0),
            qpn: Qpn::new(0),
            transaction_id: 0,
            class: 0,
            version: 0,
            method: 0,
        };
        self.receiving.range(first..).take_while(move |(key, _)| key.remote == peer)
    }

    /// Removes a complete message, of this peer or of any.
    fn remove_complete(&mut self, peer: Option<&Gid>) -> bool {
        let is_complete = |(_, receiving): &(&ReceiveKey, &Receiving)| receiving.segments.is_complete;
        let found = match peer {
            Some(peer) => self.of_peer(peer).find(is_complete),
            None => self.receiving.iter().find(is_complete),
        };
        let Some(key) = found.map(|(key, _)| *key) else { return false };
        self.remove(&key).is_some()
    }

    fn insert(&mut self, key: ReceiveKey, receiving: Receiving) {
        let memory = receiving.memory();
        self.memory += memory;
        let share = self.shares.entry(key.remote).or_default();
        share.messages += 1;
        share.memory += memory;
        self.deadlines.insert((receiving.deadline, key));
        self.receiving.insert(key, receiving);
    }

    fn remove(&mut self, key: &ReceiveKey) -> Option<Receiving> {
        let receiving = self.receiving.remove(key)?;
        self.deadlines.remove(&(receiving.deadline, *key));
        let memory = receiving.memory();
        self.memory -= memory;
        if let Some(share) = self.shares.get_mut(&key.remote) {
            share.messages -= 1;
            share.memory -= memory;
            if share.messages == 0 {
                self.shares.remove(&key.remote);
            }
        }
        Some(receiving)
    }

    fn await_until(&mut self, key: &ReceiveKey, at: Instant) {
        if let Some(receiving) = self.receiving.get_mut(key) {
            self.deadlines.remove(&(receiving.deadline, *key));
            receiving.deadline = at;
            self.deadlines.insert((at, *key));
        }
    }
}
