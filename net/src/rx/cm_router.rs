//! Routing of connection management messages: to the process that listens for a service, or that named the connection.

use std::time::Instant;

use urxe_wire::{Gid, Qpn};

use super::deadline::Task;
use super::forward::{Forwarded, Forwarder, STALLED, Way, forward};
use super::pending_requests::{Decision, PendingRequests, RequestKey};
use super::{Call, Meta, Receiver, mad_router};
use crate::counters::add_alone;
use crate::datagram::{Datagram, dest_qpn};
use crate::mailbox::Mailbox;
use crate::port::Port;

/// Forwards, keeps or drops a packet to QP0 or QP1 that is not for this process.
//= spec/connections.md#cm-016
//# All copies of a request MUST be refused, or none.
pub(super) fn route(
    forwarder: &mut Forwarder,
    pending: &mut PendingRequests,
    port: &Port,
    meta: &Meta,
    index: u16,
    packet: &[u8],
) -> Way {
    let counters = port.counters();
    let is_management = dest_qpn(packet) == Some(Qpn::GSI);
    let named = if is_management { Mailbox::of_gsi(packet, Gid::from(meta.headers.local.ip())) } else { None };
    let Some((to, id)) = named else {
        return mad_router::route(forwarder, port, meta, index, packet);
    };
    let now = Instant::now();
    let request = id.map(|id| RequestKey::new(meta, to, id));
    let decision = request.map_or(Decision::New, |key| pending.decision(&key, now));
    match decision {
        Decision::New | Decision::Delivered => {}
        Decision::Waiting => {
            add_alone(&counters.early_requests, 1);
            return Way::Elsewhere { waits: false };
        }
        Decision::Refused => return Way::Refused,
    }
    if port.owns_mailbox(to) {
        return Way::Here;
    }
    let outcome = forward(forwarder, port, meta, index, false, to, packet);
    if matches!(outcome, Forwarded::Sent | Forwarded::Waits)
        && let Some(key) = request
    {
        pending.decide(key, Decision::Delivered, now);
    }
    let counter = match (outcome, request) {
        (Forwarded::Sent | Forwarded::Waits, _) => &counters.forwarded_out,
        // The process that has the first copy answers, or its successor.
        (Forwarded::Unknown, Some(_)) if decision == Decision::Delivered => &counters.early_requests,
        (Forwarded::Unknown, Some(key)) if pending.keep(port.fds(), key, *meta, index, packet) => {
            &counters.early_requests
        }
        (Forwarded::Unknown, Some(key)) => {
            pending.decide(key, Decision::Refused, now);
            return Way::Refused;
        }
        // Its sender hears from here that nobody knows the connection.
        (Forwarded::Unknown, None) => return Way::Here,
        // The sender will try again.
        (Forwarded::Full, _) => &counters.drop_forward_full,
        (Forwarded::Refused, _) => &counters.drop_forward_refused,
    };
    add_alone(counter, 1);
    Way::Elsewhere { waits: outcome == Forwarded::Waits }
}

impl Receiver {
    /// Forwards the requests whose service somebody has by now; delivers, to be refused, those that nobody will have.
    pub(super) fn look_for_listeners(&mut self, call: &mut Call<'_>) {
        let counters = call.port.counters();
        let mut waits = false;
        let Self { pending, forwarder, .. } = self;
        let refused = pending.poll(Instant::now(), |request| {
            let to = request.key.to();
            let outcome = forward(forwarder, call.port, &request.meta, request.index, false, to, &request.packet);
            let (counter, decision) = match outcome {
                Forwarded::Unknown => return None,
                Forwarded::Sent | Forwarded::Waits => (&counters.forwarded_out, Decision::Delivered),
                // The sender will try again, and what it sends then is as new.
                Forwarded::Full => (&counters.drop_forward_full, Decision::New),
                Forwarded::Refused => (&counters.drop_forward_refused, Decision::New),
            };
            add_alone(counter, 1);
            waits |= outcome == Forwarded::Waits;
            Some(decision)
        });
        if waits {
            self.deadlines.set(Task::DropBacklog, STALLED);
        }
        for request in refused {
            let Meta { index, headers, .. } = &request.meta;
            let flow = Some(self.peers.flow(*index, headers.local, headers.peer));
            let (payload, expected_id) = (&*request.packet, request.index);
            (call.deliver)(Datagram { headers, expected_id, flow, payload, is_refused: true }.into());
            add_alone(&counters.rx_packets, 1);
            add_alone(&counters.rx_bytes, payload.len());
            call.delivered += 1;
        }
    }
}
