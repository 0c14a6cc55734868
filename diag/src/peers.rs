//! Connections of queue pairs, beyond their packets: the peer that the application named, and the errors since.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use urxe_engine::event::RetryReason;
use urxe_engine::{QpState, QpType};
use urxe_wire::{Psn, QKey, Qpn};

use super::fmt::Refused;
use super::notes::Note;

/// Queue pairs that are no more, and are remembered.
const MOST_GONE: usize = 1024;
/// Numbers of queue pairs that were never there and were asked for, which peers choose.
const MOST_UNKNOWN: usize = 16;

/// A queue pair as the application has set it up.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Service of the queue pair.
    pub qp_type: QpType,
    /// State after the change.
    pub state: QpState,
    /// The queue pair that it talks to.
    pub qpn: Qpn,
    /// Address of that queue pair.
    pub address: Option<IpAddr>,
    /// The ACK timeout.
    pub timeout: Option<Duration>,
    /// Tries after a timeout.
    pub retry_cnt: u8,
    /// Tries after an RNR NAK.
    pub rnr_retry: u8,
    /// Bytes of payload in a full packet.
    pub path_mtu: usize,
    /// The first PSN expected.
    pub rq_psn: Psn,
    /// The first PSN sent.
    pub sq_psn: Psn,
    /// The Q_Key (UD).
    pub q_key: QKey,
}

/// A kind of message that is printed once for a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Once {
    PsnMismatch,
    QKey,
    NoReceive,
    TooShort,
    TooLong,
    SentTooLong,
    /// The peer has dropped a datagram.
    PeerDropped,
}

/// A queue pair, and what has been seen of it.
#[derive(Debug)]
pub(super) struct QpRecord {
    pub(super) peer: Peer,
    /// A packet has come since it was set up.
    pub(super) heard: bool,
    /// Reason of the last retry.
    pub(super) last_retry: Option<RetryReason>,
    /// A request that will fail, and why.
    pub(super) refused: Option<(u64, Refused)>,
    /// Whether the transition to ERR has been explained: flushed requests are a consequence.
    pub(super) explained: bool,
    /// The first request has come: the one with `rq_psn`.
    began: bool,
    /// PSN of a request that came before that one, and how often it came.
    out_of_window: Option<(Psn, u32)>,
    /// The PSN to which the requester has gone back last.
    retried_at: Option<Psn>,
    /// The PSN of the last answer to what is not outstanding.
    pub(super) ghost: Option<Psn>,
    /// Packets that `URXE_FAULTS` has lost, damaged or held back since a send request completed well.
    pub(super) spoilt: u64,
    /// `URXE_FAULTS` has sent the queue pair to ERR.
    pub(super) is_asked_for: bool,
    /// Reason of the peer's last refusal, as its process says.
    pub(super) note: Option<Note>,
    reported: Vec<Once>,
}

/// Requests with a PSN beside the expected one that come so often are no losses: the requester begins there.
const SURE: u32 = 3;
/// Packets that a loss may leave out.
const NEAR: u32 = 64;

impl QpRecord {
    fn new(peer: Peer) -> Self {
        Self {
            peer,
            heard: false,
            last_retry: None,
            refused: None,
            explained: false,
            began: false,
            out_of_window: None,
            retried_at: None,
            ghost: None,
            spoilt: 0,
            is_asked_for: false,
            note: None,
            reported: Vec::new(),
        }
    }

    /// Whether a line has not been printed yet.
    pub(super) fn first(&mut self, what: Once) -> bool {
        let first = !self.reported.contains(&what);
        if first {
            self.reported.push(what);
        }
        first
    }

    /// Notes a request that is not the expected one. Returns whether the peer must have another `sq_psn` than `rq_psn` here:
    /// nothing has come in order yet, and this came before the first PSN or comes again and again.
    pub(super) fn is_out_of_window(&mut self, psn: Psn) -> bool {
        if self.began {
            return false;
        }
        let distance = psn.distance_from(self.peer.rq_psn);
        if distance < 0 {
            return true;
        }
        let count = match self.out_of_window {
            Some((first, count)) if psn.distance_from(first) > 0 => return self.is_often_out_of_window(count),
            Some((first, count)) if first == psn => count + 1,
            _ => 1,
        };
        self.out_of_window = Some((psn, count));
        self.is_often_out_of_window(count)
    }

    fn is_often_out_of_window(&self, count: u32) -> bool {
        let Some((first, _)) = self.out_of_window else { return false };
        let is_far = first.distance_from(self.peer.rq_psn).unsigned_abs() > NEAR;
        count >= if is_far { 2 } else { SURE }
    }

    /// Whether no later packet tells more about the queue pair, of requests or of the others.
    pub(super) const fn has_told_all(&self, is_request: bool) -> bool {
        self.heard && (self.began || !is_request)
    }

    /// Whether the peer answers for PSNs that were never sent, and nothing was ever acknowledged: what it expects.
    pub(super) fn expected_elsewhere(&self) -> Option<Psn> {
        self.ghost.filter(|_| self.retried_at == Some(self.peer.sq_psn))
    }
}

/// Queue pairs whose records have nothing more to learn from packets, for a look without lock and hash.
#[derive(Debug)]
pub(super) struct ToldAll {
    /// By the lowest bits of the QPN; queue pairs with the same bits take each other's place. QPNs of requests, and of others.
    rows: [[AtomicU32; 2]; 64],
}

impl Default for ToldAll {
    fn default() -> Self {
        Self { rows: std::array::from_fn(|_| Default::default()) }
    }
}

impl ToldAll {
    const fn row(&self, qpn: Qpn) -> &[AtomicU32; 2] {
        &self.rows[qpn.get() as usize % 64]
    }

    /// Whether packets of this kind to the queue pair tell nothing new.
    pub(super) fn contains(&self, qpn: Qpn, is_request: bool) -> bool {
        self.row(qpn)[usize::from(is_request)].load(Ordering::Relaxed) == qpn.get()
    }

    /// Notes that they do not; with the records locked.
    pub(super) fn insert(&self, qpn: Qpn, is_request: bool) {
        self.row(qpn)[usize::from(is_request)].store(qpn.get(), Ordering::Relaxed);
    }

    /// The record of the queue pair has changed; with the records locked.
    pub(super) fn remove(&self, qpn: Qpn) {
        for kind in self.row(qpn) {
            kind.store(0, Ordering::Relaxed);
        }
    }
}

/// Records of the queue pairs of a device.
#[derive(Debug, Default)]
pub(super) struct Peers {
    known: HashMap<Qpn, QpRecord>,
    /// Lately destroyed, oldest first.
    gone: VecDeque<Qpn>,
    /// Numbers of no queue pair that datagrams were for, and that was reported.
    unknown: Vec<Qpn>,
}

impl Peers {
    pub(super) fn set(&mut self, qpn: Qpn, mut peer: Peer) {
        let before = self.known.remove(&qpn);
        // Attributes are given once, and stay.
        peer.address = peer.address.or(before.as_ref().and_then(|known| known.peer.address));
        let fresh = matches!(peer.state, QpState::Reset | QpState::Init);
        let mut known = before.filter(|_| !fresh).unwrap_or_else(|| QpRecord::new(peer));
        known.peer = peer;
        self.known.insert(qpn, known);
    }

    pub(super) fn remove(&mut self, qpn: Qpn) {
        if self.known.remove(&qpn).is_some() {
            if self.gone.len() == MOST_GONE {
                self.gone.pop_front();
            }
            self.gone.push_back(qpn);
        }
    }

    pub(super) fn get(&self, qpn: Qpn) -> Option<&QpRecord> {
        self.known.get(&qpn)
    }

    pub(super) fn get_mut(&mut self, qpn: Qpn) -> Option<&mut QpRecord> {
        self.known.get_mut(&qpn)
    }

    /// Whether there has been no such queue pair lately, and that has not been told of.
    pub(super) fn is_unknown(&mut self, qpn: Qpn) -> bool {
        let new = self.unknown.len() < MOST_UNKNOWN && !self.unknown.contains(&qpn) && !self.gone.contains(&qpn);
        if new {
            self.unknown.push(qpn);
        }
        new
    }

    /// Notes that the queue pair's way to ERR is explained; returns whether it was already.
    pub(super) fn explain(&mut self, qpn: Qpn) -> bool {
        self.known.get_mut(&qpn).is_some_and(|known| std::mem::replace(&mut known.explained, true))
    }

    /// Whether a packet of this sender tells more about a queue pair than earlier ones: a request with this PSN, or another.
    pub(super) fn is_news(&self, qpn: Qpn, from: IpAddr, request: Option<Psn>) -> bool {
        self.known.get(&qpn).is_some_and(|known| {
            let is_first = request == Some(known.peer.rq_psn);
            known.peer.address.is_none_or(|address| address == from) && (!known.heard || (is_first && !known.began))
        })
    }

    /// Forgets what explains a lack of progress: a send request of the queue pair has completed well.
    pub(super) fn progressed(&mut self, qpn: Qpn) {
        if let Some(known) = self.known.get_mut(&qpn) {
            known.spoilt = 0;
            known.note = None;
        }
    }

    /// A packet has come: a request with this PSN, or another.
    pub(super) fn heard(&mut self, qpn: Qpn, request: Option<Psn>) {
        if let Some(known) = self.known.get_mut(&qpn) {
            known.heard = true;
            known.began |= request == Some(known.peer.rq_psn);
        }
    }

    pub(super) fn retried(&mut self, qpn: Qpn, reason: RetryReason, at: Psn) {
        if let Some(known) = self.known.get_mut(&qpn) {
            known.last_retry = Some(reason);
            known.retried_at = Some(at);
        }
    }

    pub(super) fn refused(&mut self, qpn: Qpn, wr_id: u64, refused: Refused) {
        if let Some(known) = self.known.get_mut(&qpn) {
            known.refused = Some((wr_id, refused));
        }
    }
}
