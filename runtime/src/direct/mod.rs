//! One-sided requests between processes of one user and host without packets: the requester copies from and to the target's
//! memory itself ([`urxe_net::direct`]).
//!
//! - `target` and `region`: which queue pairs and regions a device shows to its peers;
//! - `inlet`: receive WQEs that peers fill;
//! - `requester`: a request that is carried out at the peer's memory, checked as the peer's responder would.
//!
//! A request that the responder would refuse, or that cannot be seen to be granted, goes by packets. So does all that comes while a
//! packet is outstanding.

mod inlet;
pub(crate) mod region;
mod requester;
mod target;

use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use urxe_engine::{Io, QpState, QpType, QueuePair};
use urxe_net::Port;
use urxe_net::direct::Export;
use urxe_status::Counters;
use urxe_wire::{Gid, Qpn};

use crate::host::DeviceHost;
use crate::memory::regions::Regions;
pub(crate) use requester::Attachment;
use target::{Hidden, Shown};

/// Posts between two looks for the peer, once the first ones were in vain.
const RARELY: u32 = 64;

/// The parts of a device that this takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reach<'a> {
    /// Table in which peers see queue pairs and regions.
    pub(crate) export: &'a Arc<Export>,
    pub(crate) regions: &'a Regions,
    pub(crate) net: &'a Port,
    pub(crate) counters: &'a Arc<Counters>,
}

/// Queue pair whose receive WQEs its peer fills.
pub(crate) trait CompletesDirect: Debug + Send + Sync {
    /// Completes messages that the peer has put into receive buffers itself, unless another thread has the queue pair. For polls.
    fn complete_direct(&self);
}

/// Requester and target side of a queue pair with direct access.
#[derive(Debug)]
pub(crate) struct Sides {
    qp: Weak<dyn CompletesDirect>,
    shown: Option<Shown>,
    hidden: Option<Box<Hidden>>,
    peer: Option<Box<Attachment>>,
    /// Looks for the peer.
    looks: u32,
}

impl Sides {
    /// Sides of this queue pair, which no peer sees yet.
    pub(crate) const fn new(qp: Weak<dyn CompletesDirect>) -> Self {
        Self { qp, shown: None, hidden: None, peer: None, looks: 0 }
    }

    /// Completes receive WQEs that the peer has filled.
    #[inline]
    pub(crate) fn complete(&self, engine: &mut QueuePair<DeviceHost>, io: &mut Io<'_, DeviceHost>) {
        if let Some(shown) = &self.shown {
            shown.complete(engine, io);
        }
    }

    /// Takes the peer for a turn, if its memory is within reach.
    #[inline]
    pub(crate) fn take_peer(
        &mut self,
        reach: Reach<'_>,
        engine: &QueuePair<DeviceHost>,
        posts: bool,
    ) -> Option<Box<Attachment>> {
        if self.peer.is_none() && posts {
            let looks = self.looks;
            self.looks = looks.wrapping_add(1);
            if looks < RARELY || looks.is_multiple_of(RARELY) {
                return find_peer(reach, engine).map(Box::new);
            }
        }
        self.peer.take()
    }

    /// Whether the peer's memory was within reach at the end of the last turn.
    #[inline]
    pub(crate) const fn has_peer(&self) -> bool {
        self.peer.is_some()
    }

    /// Takes the peer for a turn, if its memory was within reach.
    #[inline]
    pub(crate) const fn lend_peer(&mut self) -> Option<Box<Attachment>> {
        self.peer.take()
    }

    /// The end of the turn.
    #[inline]
    pub(crate) fn give_peer(&mut self, peer: Option<Box<Attachment>>) {
        self.peer = peer.filter(|peer| peer.is_current());
        if self.peer.is_some() {
            self.looks = 0;
        }
    }

    /// Tells the responder what the peer has carried out.
    #[inline]
    pub(crate) fn absorb(&mut self, reach: Reach<'_>, engine: &mut QueuePair<DeviceHost>) {
        if let Some(shown) = &mut self.shown {
            shown.absorb(reach.export, engine, reach.counters);
        } else if let Some(hidden) = &mut self.hidden
            && !hidden.absorb(reach.export, engine, reach.counters)
        {
            self.hidden = None;
        }
    }

    /// Shows the queue pair to its peer, or hides it, as its state is now.
    #[inline]
    pub(crate) fn update(&mut self, reach: Reach<'_>, engine: &mut QueuePair<DeviceHost>) {
        match &mut self.shown {
            Some(shown) if engine.state().receives() => shown.tell(reach, engine),
            // Nobody waits where packets are received.
            Some(_) => self.end(reach, engine, None),
            None if self.hidden.is_none() => self.shown = Shown::new(reach, engine, &self.qp),
            None => {}
        }
        // The PSNs of another connection are others.
        if self.hidden.is_some() && !engine.state().receives() {
            self.hidden = None;
        }
    }

    /// Hides the queue pair, and waits until its peer does nothing by itself any more, unless that is stopped in the middle of a copy.
    /// Messages that have come until then are completed.
    pub(crate) fn hide(&mut self, reach: Reach<'_>, engine: &mut QueuePair<DeviceHost>, io: &mut Io<'_, DeviceHost>) {
        self.end(reach, engine, Some(io));
    }

    /// Hides it; without `io` nobody is waited for, and nothing completed.
    fn end(&mut self, reach: Reach<'_>, engine: &mut QueuePair<DeviceHost>, io: Option<&mut Io<'_, DeviceHost>>) {
        match self.shown.take() {
            Some(shown) => self.hidden = shown.hide(reach, engine, io).map(Box::new),
            None if io.is_some() => reach.export.wait(),
            None => {}
        }
    }
}

/// Finds the peer of a queue pair.
fn find_peer(reach: Reach<'_>, engine: &QueuePair<DeviceHost>) -> Option<Attachment> {
    let route = engine.route().filter(|_| engine.state() == QpState::Rts)?;
    let (dest, config) = (engine.dest_qpn(), engine.config());
    let (import, seen) = reach.net.find_shown(dest, route)?;
    let (_, peer_kind) = split(seen.value.limits);
    let peer_kind = peer_kind & !RECEIVES;
    let is_peer = seen.value.numbers == numbers(dest, config.qpn)
        && seen.value.addresses == digest(route.remote(), route.local())
        && Some(peer_kind) == kind(config.qp_type);
    is_peer.then(|| Attachment::new(import, dest, &seen))?
}

/// Set beside the type of a queue pair that shows its receive WQEs.
const RECEIVES: u32 = 1 << 8;

/// Number of a type of queue pair that may be a target.
const fn kind(qp_type: QpType) -> Option<u32> {
    match qp_type {
        QpType::Rc => Some(1),
        QpType::Uc => Some(2),
        QpType::Ud | QpType::XrcSend | QpType::XrcRecv => None,
    }
}

/// Digest of the addresses of both ends of a connection, by which each knows the other.
fn digest(shown: SocketAddr, peer: SocketAddr) -> u64 {
    // FNV-1a.
    let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
    [shown, peer].into_iter().flat_map(|end| Gid::from(end.ip()).octets()).fold(0xCBF2_9CE4_8422_2325, hash)
}

/// Two numbers of queue pairs in a word.
fn numbers(shown: Qpn, peer: Qpn) -> u64 {
    u64::from(shown.get()) | u64::from(peer.get()) << 24
}

/// A word of which the halves are these.
const fn halves(low: u32, high: u32) -> u64 {
    (low as u64) | (high as u64) << 32
}

/// The halves of a word.
#[expect(clippy::cast_possible_truncation, reason = "the halves of a word")]
const fn split(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

/// Bits of a PSN.
const PSN: u64 = 0xFF_FFFF;

#[cfg(test)]
mod tests {
    use super::*;
    use urxe_engine::{Access, RegionKind};

    /// The peer may be of another build: whoever changes these changes the version of the table (`urxe_net::direct`).
    #[test]
    fn words_mean_what_the_version_says() {
        assert_eq!(numbers(Qpn::new(0x12_3456), Qpn::new(0x78_9ABC)), 0x789A_BC12_3456);
        assert_eq!(halves(1, 2), 0x2_0000_0001);
        let types = [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend, QpType::XrcRecv];
        assert_eq!(types.map(kind), [Some(1), Some(2), None, None, None]);
        let ends = ["10.0.0.1:1", "[fe80::2%3]:4"].map(|end| end.parse().unwrap());
        assert_eq!(digest(ends[0], ends[1]), 0x0CF0_C49D_CE6A_F906);
        let users = [0, 1 << 30, 1 << 31 | 0x12_3456].map(region::kind);
        let bound = Some(Qpn::new(0x12_3456));
        assert_eq!(users, [RegionKind::Memory, RegionKind::Window(None), RegionKind::Window(bound)]);
        let rights = [Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC, Access::FLUSH_GLOBAL];
        assert_eq!(rights.map(Access::bits), [1 << 1, 1 << 2, 1 << 3, 1 << 8]);
    }
}
