//! The last ACK of a process that ends: left where the peer's process finds it, and taken from there.

use std::sync::Arc;

use urxe_engine::QueuePair;
use urxe_net::{Datagram, Headers, PendingAck, Route};
use urxe_wire::{Aeth, Bth, Credits, Ext, Header, ICRC_LEN, Msn, Opcode, Operation, Qpn, Syndrome, Transport};

use super::Qp;
use crate::clock::LazyInstant;
use crate::host::{DeviceHost, TxContext};

/// The last ACK, where the peer's process finds it if this one ends.
#[derive(Default)]
pub(super) struct LastAck {
    /// The way to that process, and the peer.
    left_at: Option<(Arc<Route>, Qpn)>,
    /// Set while the ACK that was left says all that is owed.
    pub(super) is_current: bool,
}

impl LastAck {
    /// Leaves the ACK that is owed. False if that is not all, or there is nobody who would find it.
    #[inline]
    pub(super) fn leave(&mut self, engine: &QueuePair<DeviceHost>) -> bool {
        self.is_current = false;
        let (Some(route), Some(psn)) = (engine.route(), engine.pending_ack()) else { return false };
        let to = engine.dest_qpn();
        if !self.left_at.as_ref().is_some_and(|(at, before)| Arc::ptr_eq(at, route) && *before == to) {
            self.take_back(engine.config().qpn);
            self.left_at = Some((Arc::clone(route), to));
        }
        self.is_current = route.leave_ack(PendingAck { from: engine.config().qpn, to, psn });
        self.is_current
    }

    /// Takes back what the queue pair of this number has left: it begins anew.
    pub(super) fn take_back(&mut self, of: Qpn) {
        self.is_current = false;
        if let Some((route, peer)) = self.left_at.take() {
            route.take_back_ack(of, peer);
        }
    }
}

impl Qp {
    /// Gives the engine the last ACK of a peer whose process has ended.
    pub(crate) fn receive_left_ack(&self, work: &mut TxContext, clock: &LazyInstant, ack: PendingAck) {
        let to_peer = self.inspect(|engine| engine.route().filter(|_| engine.dest_qpn() == ack.from).cloned());
        let (Some(route), Some(opcode)) = (to_peer, Opcode::new(Transport::Rc, Operation::Acknowledge)) else { return };
        // Nobody posts receive WQEs there any more, nor counts messages.
        let aeth = Aeth { syndrome: Syndrome::Ack(Credits::INVALID), msn: Msn::default() };
        let header = Header::new(Bth::new(opcode, self.qpn, ack.psn), Ext::Aeth(aeth));
        // An ICRC follows, which nobody asks for.
        let mut bytes = vec![0; header.len() + ICRC_LEN];
        header.emit(&mut bytes);
        let headers = &Headers { local: route.local(), peer: route.remote(), tclass: 0, hop_limit: 0 };
        let datagram = Datagram { headers, expected_id: 0, flow: None, payload: &bytes, is_refused: false };
        self.receive(work, clock, &datagram.into());
    }
}
