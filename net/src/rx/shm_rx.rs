//! Runs out of the rings of shared memory.

use std::os::fd::RawFd;

use urxe_wire::{ICRC_LEN, icrc};

use super::demux::Stray;
use super::{BURST, Call, Meta, Receiver};
use crate::counters::add_alone;
use crate::datagram::Headers;
use crate::interface::find_local;
use crate::port::Port;
use crate::shm::{Damaged, Envelope, Visits};
use crate::sys::scope_id;

/// Looks at the rings that left something there, in a row, before more than one run is taken at a time. An answer to
/// each is what a request that comes with others behind it expects, and what costs least while there are few.
const BACKLOG: u32 = 4;

impl Receiver {
    /// Takes a run out of the rings; several if there have been more than one for some time: as many packets as a budget of
    /// datagrams may be, since these cost no system call.
    pub(super) fn receive_rings(&mut self, call: &mut Call<'_>) {
        let most = call.delivered + if self.backlog >= BACKLOG { BURST } else { 1 };
        // A sender may put there without end what is for no queue pair.
        let mut runs = 0;
        while call.delivered < most && runs < BURST {
            runs += 1;
            let counters = call.port.counters();
            let (envelope, run) = match self.inbox.take(&mut self.buffer) {
                None => {
                    self.backlog = 0;
                    return;
                }
                Some(Ok(found)) => found,
                Some(Err(Damaged)) => {
                    add_alone(&counters.drop_ring_bad, 1);
                    continue;
                }
            };
            add_alone(&counters.rx_datagrams, 1);
            add_alone(&counters.rx_ring_runs, 1);
            let Some(local) = self.address(envelope.index) else { continue };
            let Envelope { index, peer, tclass, hop_limit, .. } = envelope;
            let icrc_elided = !run.has_icrc && !call.port.keeps_icrcs();
            if !run.has_icrc && !icrc_elided {
                let flow = self.peers.flow(index, local, peer);
                for (id, packet) in (0..).zip(self.buffer[..run.len].chunks_mut(run.segment)) {
                    if let Some((body, trailer)) = packet.split_last_chunk_mut::<ICRC_LEN>() {
                        *trailer = icrc::compute(flow, id, body).to_le_bytes();
                    }
                }
            }
            let headers = Headers { local, peer, tclass, hop_limit };
            let meta = Meta { index, headers, segment: run.segment, first: 0, icrc_elided };
            self.demux(&meta, run.len, Stray::Drop, call);
        }
        self.backlog = if self.inbox.is_empty() { 0 } else { self.backlog.saturating_add(1) };
        // Another one's turn.
        self.inbox.next();
    }

    /// Accepts the rings that other processes offer at a listener.
    pub(super) fn accept_rings(&mut self, listener: RawFd, port: &Port) {
        let Some(block) = port.block_of_listener(listener) else { return };
        let Self { inbox, addresses, fds, .. } = self;
        match inbox.admit(fds, (block, listener), |local| find_local(addresses, local.ip(), scope_id(local))) {
            Ok(visits) => count_visits(port, visits),
            // No descriptor to spare: who waits there goes by UDP, and whoever comes.
            Err(_) => port.close_listener(listener),
        }
    }

    /// The sender of a ring has something to say, or has gone.
    pub(super) fn attend_ring(&mut self, fd: RawFd, port: &Port) {
        let Self { inbox, addresses, .. } = self;
        let (visits, acks) = inbox.attend(fd, |local| find_local(addresses, local.ip(), scope_id(local)));
        count_visits(port, visits);
        if !acks.is_empty() {
            add_alone(&port.counters().rx_left_acks, acks.len());
            port.leave_acks(acks);
        }
    }

    /// Makes the descriptor readable when anything comes through shared memory from now on. False: something has come
    /// meanwhile, receive it and ask again. To be called by whoever is about to wait for [`Port::epoll_fd`], and by nobody
    /// else: until then, senders do not bother to wake anybody.
    pub fn prepare_to_wait(&mut self) -> bool {
        self.inbox.arm()
    }
}

fn count_visits(port: &Port, visits: Visits) {
    let counters = port.counters();
    add_alone(&counters.rings_accepted, visits.accepted);
    add_alone(&counters.rings_refused, visits.refused);
    add_alone(&counters.rings_closed, visits.closed);
}
