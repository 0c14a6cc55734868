//! Demultiplexing by QPN: packets for this process, another one, or none.

use std::os::fd::RawFd;
use std::time::Instant;

use urxe_wire::Qpn;

use super::cm_router;
use super::deadline::Task;
use super::forward::{Forwarded, STALLED, Way, forward};
use super::{Call, Meta, Receiver};
use crate::counters::add_alone;
use crate::datagram::{Datagram, RxBatch, dest_qpn, group_of, leading};
use crate::mailbox::Mailbox;
use crate::port::Port;
use crate::qpn_registry::block_of;

/// Treatment of a packet for another process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stray {
    /// Forward it. `learn`: it came through the unconnected socket.
    Forward { learn: bool },
    /// Drop it: it was forwarded before.
    Drop,
}

impl Receiver {
    /// Delivers, forwards or drops each packet of the datagram in the buffer. Returns whether any was ours.
    //= spec/packets.md#pkt-014
    //# Datagrams that are no RoCE v2 packets MUST do no harm.
    pub(super) fn demux(&mut self, meta: &Meta, len: usize, stray: Stray, call: &mut Call<'_>) -> bool {
        let Some(payload) = self.buffer.get(..len) else { return false };
        let headers = &meta.headers;
        // Where there are no ICRCs, nobody asks for it.
        let flow = if meta.icrc_elided { None } else { Some(self.peers.flow(meta.index, headers.local, headers.peer)) };
        let counters = call.port.counters();
        let (mut packets, mut bytes, mut at) = (0, 0, 0);
        let mut waits = false;
        // The kernel's runs have at most 128 packets, a mailbox's datagram at most 65 536 bytes.
        let mut index = meta.first;
        while let Some(packet) = payload.get(at..len.min(at + meta.segment)).filter(|packet| !packet.is_empty()) {
            let mut is_refused = false;
            if stray != Stray::Drop && matches!(dest_qpn(packet), Some(Qpn::GSI | Qpn::SMI)) {
                match cm_router::route(&mut self.forwarder, &mut self.pending, call.port, meta, index, packet) {
                    Way::Here => {}
                    Way::Refused => is_refused = true,
                    Way::Elsewhere { waits: is_late } => {
                        waits |= is_late;
                        at += packet.len();
                        index = index.wrapping_add(1);
                        continue;
                    }
                }
            }
            match dest_qpn(packet) {
                Some(qpn) if call.port.accepts(qpn) => {
                    // Each message to QP1 may be for another process.
                    let (group, count) = match qpn {
                        Qpn::GSI | Qpn::SMI => (packet, 1),
                        _ => leading(payload.get(at..).unwrap_or_default(), meta.segment, |next| next == qpn),
                    };
                    let first = Datagram { headers, expected_id: index, flow, payload: group, is_refused };
                    call.accepted |= (call.deliver)(RxBatch::new(first, meta.segment));
                    packets += usize::from(count);
                    bytes += group.len();
                    at += group.len();
                    index = index.wrapping_add(count);
                }
                Some(qpn) => {
                    let block = block_of(qpn);
                    let rest = payload.get(at..).unwrap_or_default();
                    let (group, count) = group_of(rest, meta.segment, block);
                    match stray {
                        Stray::Forward { learn } => {
                            let outcome = forward(
                                &mut self.forwarder,
                                call.port,
                                meta,
                                index,
                                learn,
                                Mailbox::Block(block),
                                group,
                            );
                            let counter = match outcome {
                                Forwarded::Sent | Forwarded::Waits => &counters.forwarded_out,
                                Forwarded::Unknown => &counters.drop_unknown_qpn,
                                Forwarded::Full => &counters.drop_forward_full,
                                Forwarded::Refused => &counters.drop_forward_refused,
                            };
                            waits |= outcome == Forwarded::Waits;
                            let packets = if outcome == Forwarded::Unknown { usize::from(count) } else { 1 };
                            add_alone(counter, packets);
                        }
                        Stray::Drop => add_alone(&counters.drop_mailbox_bad, 1),
                    }
                    at += group.len();
                    index = index.wrapping_add(count);
                }
                None => {
                    add_alone(&counters.drop_short, 1);
                    at += packet.len();
                    index = index.wrapping_add(1);
                }
            }
        }
        if len == 0 {
            add_alone(&counters.drop_short, 1);
        }
        if waits {
            self.deadlines.set(Task::DropBacklog, STALLED);
        }
        if packets > 0 {
            add_alone(&counters.rx_packets, packets);
            add_alone(&counters.rx_bytes, bytes);
            call.delivered += packets;
        }
        packets > 0
    }

    /// Puts datagrams that wait into a mailbox that has room.
    pub(super) fn send_backlog(&mut self, fd: RawFd, port: &Port) {
        self.forwarder.send_backlog(&self.fds, fd);
        add_alone(&port.counters().drop_forward_full, self.forwarder.take_lost());
    }

    /// Drops what waits for mailboxes that nobody reads.
    pub(super) fn drop_backlog(&mut self, port: &Port) {
        if self.forwarder.drop_backlog(&self.fds, Instant::now()) {
            self.deadlines.set(Task::DropBacklog, STALLED);
        }
        add_alone(&port.counters().drop_forward_full, self.forwarder.take_lost());
    }
}
