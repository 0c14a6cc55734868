//! Connections of queue pairs, beyond their packets: the peer that the application named, and the errors since.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use urxe_engine::QpState;
use urxe_engine::event::RetryReason;
use urxe_wire::Qpn;

use super::fmt::Refused;

/// A queue pair as the application has set it up.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
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
}

/// A queue pair, and what has been seen of it.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) peer: Peer,
    /// A packet has come since it was set up.
    pub(super) heard: bool,
    /// Reason of the last retry.
    pub(super) last_retry: Option<RetryReason>,
    /// A request that will fail, and why.
    pub(super) refused: Option<(u64, Refused)>,
    /// Whether the transition to ERR has been explained: flushed requests are a consequence.
    pub(super) explained: bool,
}

/// All of a device.
#[derive(Debug, Default)]
pub(super) struct Peers(HashMap<Qpn, Known>);

impl Peers {
    pub(super) fn set(&mut self, qpn: Qpn, mut peer: Peer) {
        let before = self.0.remove(&qpn);
        // Attributes are given once, and stay.
        peer.address = peer.address.or(before.as_ref().and_then(|known| known.peer.address));
        let fresh = matches!(peer.state, QpState::Reset | QpState::Init);
        let mut known = before.filter(|_| !fresh).unwrap_or(Known {
            peer,
            heard: false,
            last_retry: None,
            refused: None,
            explained: false,
        });
        known.peer = peer;
        self.0.insert(qpn, known);
    }

    pub(super) fn remove(&mut self, qpn: Qpn) {
        self.0.remove(&qpn);
    }

    pub(super) fn get(&self, qpn: Qpn) -> Option<&Known> {
        self.0.get(&qpn)
    }

    /// Notes that the queue pair's way to ERR is explained; returns whether it was already.
    pub(super) fn explain(&mut self, qpn: Qpn) -> bool {
        self.0.get_mut(&qpn).is_some_and(|known| std::mem::replace(&mut known.explained, true))
    }

    pub(super) fn heard(&mut self, qpn: Qpn) {
        if let Some(known) = self.0.get_mut(&qpn) {
            known.heard = true;
        }
    }

    pub(super) fn retried(&mut self, qpn: Qpn, reason: RetryReason) {
        if let Some(known) = self.0.get_mut(&qpn) {
            known.last_retry = Some(reason);
        }
    }

    pub(super) fn refused(&mut self, qpn: Qpn, wr_id: u64, refused: Refused) {
        if let Some(known) = self.0.get_mut(&qpn) {
            known.refused = Some((wr_id, refused));
        }
    }
}
