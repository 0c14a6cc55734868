//! Datagrams out of the sockets.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Instant;

use urxe_wire::{Qpn, icrc};

use super::deadline::Task;
use super::demux::Stray;
use super::flow::IDLE;
use super::{ACK, BURST, Call, Meta, PROBE, Receiver};
use crate::counters::add_alone;
use crate::datagram::{Datagram, Headers, dest_qpn};
use crate::election::Role;
use crate::interface::find_local;
use crate::ipc::header::{HEADER_LEN, Header};
use crate::port::Port;
use crate::sys::cancellation::CancelGuard;
use crate::sys::epoll_key::EpollKey;
use crate::sys::udp::report_headers;
use crate::sys::{recv_parts, recv_udp};

impl Receiver {
    /// Receives from one socket: one datagram, and more if more are likely to be there.
    pub(super) fn receive_from(&mut self, key: EpollKey, call: &mut Call<'_>) {
        let mut found = 0;
        while call.left > 0 && call.delivered < BURST {
            let run = match key {
                EpollKey::LeaderSocket(role) => match self.roles.get(role) {
                    Some(Role::Leader { udp, .. }) => self.receive_udp(udp.as_raw_fd(), role, None, call),
                    _ => None,
                },
                EpollKey::Flow(slot) => match self.flows.get(slot) {
                    Some(flow) => self.receive_udp(flow.raw_fd(), flow.local, Some(slot), call),
                    None => None,
                },
                EpollKey::Mailbox(fd) => self.receive_mailbox(fd, call),
                EpollKey::Group(slot) => self.receive_group(slot, call),
                _ => None,
            };
            let Some(several) = run else { break };
            call.left -= 1;
            found += 1;
            self.probe = self.probe.wrapping_add(1);
            if !(self.eager || several || self.probe.is_multiple_of(PROBE)) {
                return;
            }
        }
        self.eager = found > 1;
    }

    /// Receives a datagram from the socket of this local address, or of the flow in `slot`. Returns whether it was a run of packets,
    /// other than a request and an [`ACK`]; `None`: there is none.
    #[inline]
    fn receive_udp(&mut self, fd: RawFd, index: usize, slot: Option<usize>, call: &mut Call<'_>) -> Option<bool> {
        let received = recv_udp(fd, &mut self.buffer)?;
        let local = self.address(index)?;
        add_alone(&call.port.counters().rx_datagrams, 1);
        let meta = Meta {
            index,
            headers: Headers { local, peer: received.peer, tclass: received.tclass, hop_limit: received.hop_limit },
            segment: received.segment,
            first: 0,
            icrc_elided: false,
        };
        let ours = self.demux(&meta, received.len, Stray::Forward { learn: slot.is_none() }, call);
        if let Some(slot) = slot
            && self.flows.note(slot, ours)
        {
            add_alone(&call.port.counters().flows_closed, 1);
        }
        Some(received.len > received.segment + ACK)
    }

    //= spec/hosts.md#net-005
    //# A forwarded packet MUST NOT be forwarded again.
    #[inline(never)]
    pub(super) fn receive_mailbox(&mut self, fd: RawFd, call: &mut Call<'_>) -> Option<bool> {
        let mut header = [0; HEADER_LEN];
        let len = recv_parts(fd, [header.as_mut_slice(), &mut self.buffer]).ok().flatten()?;
        let counters = call.port.counters();
        let Some((header, len, index, local)) = len.checked_sub(HEADER_LEN).and_then(|len| {
            let header = Header::parse(&header)?;
            let index = find_local(&self.addresses, header.local.0, header.local.1)?;
            Some((header, len, index, self.address(index)?))
        }) else {
            add_alone(&counters.drop_mailbox_bad, 1);
            return Some(false);
        };
        add_alone(&counters.rx_datagrams, 1);
        add_alone(&counters.forwarded_in, 1);
        let meta = Meta {
            index,
            headers: Headers { local, peer: header.peer, tclass: header.tclass, hop_limit: header.hop_limit },
            segment: header.segment.into(),
            first: header.first,
            icrc_elided: false,
        };
        call.accepted = false;
        self.demux(&meta, len, Stray::Drop, call);
        if call.accepted && header.learn {
            self.learn(index, local, header.peer, call.port);
        }
        Some(len > usize::from(header.segment))
    }

    /// Receives one datagram of a multicast group.
    #[inline(never)]
    pub(super) fn receive_group(&mut self, slot: usize, call: &mut Call<'_>) -> Option<bool> {
        let membership = call.port.groups().get(slot)?;
        let received = recv_udp(membership.raw_fd(), &mut self.buffer)?;
        let counters = call.port.counters();
        add_alone(&counters.rx_datagrams, 1);
        let flow = icrc::Flow::new(received.peer, membership.group());
        let payload = self.buffer.get(..received.len).unwrap_or_default();
        let headers = Headers {
            local: membership.group(),
            peer: received.peer,
            tclass: received.tclass,
            hop_limit: received.hop_limit,
        };
        for (index, packet) in (0..).zip(payload.chunks(received.segment.max(1))) {
            // To QP1 go announcements of subnets.
            if !matches!(dest_qpn(packet), Some(Qpn::MULTICAST | Qpn::GSI)) {
                add_alone(&counters.drop_unknown_qpn, 1);
                continue;
            }
            let datagram = Datagram {
                headers: &headers,
                expected_id: index,
                flow: Some(&flow),
                payload: packet,
                is_refused: false,
            };
            (call.deliver)(datagram.into());
            add_alone(&counters.rx_packets, 1);
            add_alone(&counters.rx_bytes, packet.len());
            call.delivered += 1;
        }
        Some(received.len > received.segment)
    }

    /// Opens a flow socket, so that the next datagrams come directly. Only for a sender whose packet was accepted: anybody
    /// can send a datagram that names a queue pair, from as many ports as it likes.
    //= spec/hosts.md#net-033
    //# A flow socket MUST be opened only for a sender whose packet a queue pair has accepted, and closed when it is idle.
    //= spec/hosts.md#net-001
    //# Processes of one host MUST share UDP 4791 of an address without privileges.
    fn learn(&mut self, index: usize, local: SocketAddr, peer: SocketAddr, port: &Port) {
        // The owner gets everything that no flow socket takes; a forwarded datagram is from before it became the owner.
        if matches!(self.roles.get(index), Some(Role::Leader { .. })) {
            return;
        }
        let _guard = CancelGuard::new();
        let (new, closed) = self.flows.learn(&self.fds, index, local, peer, Instant::now());
        add_alone(&port.counters().flows_closed, closed);
        if let Some((slot, fd)) = new {
            add_alone(&port.counters().flows_opened, 1);
            report_headers(fd, local, self.reported);
            if self.fds.watch(fd, EpollKey::Flow(slot).pack()).is_err() {
                // Unwatched it might never be read; without it, forwarding goes on.
                self.flows.close(slot);
            }
            self.deadlines.set(Task::CloseIdleFlows, IDLE);
        }
    }

    /// Closes the flows through which nothing has come for long.
    pub(super) fn close_idle_flows(&mut self, port: &Port) {
        add_alone(&port.counters().flows_closed, self.flows.close_idle(Instant::now(), IDLE));
        if self.flows.iter().next().is_some() {
            self.deadlines.set(Task::CloseIdleFlows, IDLE);
        }
    }
}
