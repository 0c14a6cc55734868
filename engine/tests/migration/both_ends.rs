//! Two queue pairs that migrate and are armed again.

use std::collections::VecDeque;

use urxe_engine::rng::Rng;
use urxe_engine::{MigrationState, SendOp, WcStatus};
use urxe_sim::single_qp::{SQ_PSN, SingleQp};
use urxe_wire::{Packet, Psn};

use crate::{ACK_TIMEOUT, ALTERNATE, PRIMARY, rearm, set, state};

/// Two queue pairs with two paths that both work, and packets on their way to each.
struct Ends {
    ends: [SingleQp; 2],
    /// By the end that gets them, then by path.
    flights: [[VecDeque<Vec<u8>>; 2]; 2],
    posted: [u64; 2],
    done: [u64; 2],
}

impl Ends {
    fn new() -> Self {
        let ends = [(); 2].map(|()| SingleQp::with(|attr| attr.rq_psn = Psn::new(SQ_PSN)));
        let mut ends = Self { ends, flights: Default::default(), posted: [0; 2], done: [0; 2] };
        ends.ends.iter_mut().for_each(|qp| rearm(qp, ALTERNATE));
        ends
    }

    fn post(&mut self, end: usize) {
        self.posted[end] += 1;
        self.ends[1 - end].recv(0, 64);
        self.ends[end].post(self.posted[end], SendOp::Send, 1);
    }

    fn transmit(&mut self) {
        for end in 0..2 {
            let qp = &mut self.ends[end];
            qp.node.transmit(qp.now);
            for datagram in qp.node.nic().take_sent() {
                let path = usize::from(datagram.to.ip() == ALTERNATE);
                self.flights[1 - end][path].push_back(datagram.bytes);
            }
        }
    }

    /// The first packet of a path to an end arrives there. Returns whether there was one.
    fn deliver(&mut self, end: usize, path: usize) -> bool {
        self.transmit();
        let Some(bytes) = self.flights[end][path].pop_front() else { return false };
        let packet = Packet::parse(&bytes).unwrap();
        let mut header = packet.header;
        header.bth.dest_qp = self.ends[end].qpn;
        self.ends[end].gets_from([PRIMARY, ALTERNATE][path], &header, packet.payload);
        true
    }

    /// Lets all that is posted complete.
    fn finish(&mut self, what: &str) {
        for _ in 0..100 {
            while (0..4).any(|nth| self.deliver(nth / 2, nth % 2)) {}
            for end in 0..2 {
                for cqe in self.ends[end].cqes() {
                    assert_eq!(cqe.status, WcStatus::Success, "{what}, end {end}");
                    self.done[end] += u64::from(cqe.wr_id != 0);
                }
            }
            if self.done == self.posted {
                return;
            }
            self.ends.iter_mut().for_each(|qp| qp.elapse(ACK_TIMEOUT / 4));
        }
        panic!("{what}: {:?} of {:?}", self.done, self.posted);
    }

    fn states(&self) -> [MigrationState; 2] {
        [0, 1].map(|end| state(&self.ends[end]))
    }
}

/// Ends migrate and are re-armed in any order, before or after they have heard of each other: nothing fails, and both come to the
/// same path and are armed again.
#[test]
fn any_order_of_migration_and_rearm_is_survived() {
    for seed in 0..400 {
        let mut rng = Rng::new(seed);
        let mut both = Ends::new();
        for round in 0..4 {
            let what = format!("seed {seed}, round {round}");
            (0..4).for_each(|nth| {
                both.post(nth % 2);
                both.finish(&what);
            });
            assert_eq!(both.states(), [MigrationState::Armed; 2], "{what}");
            let mut may_migrate = [2_u8; 2];
            for _ in 0..rng.below(16) {
                let end = usize::from(rng.next_u8() & 1);
                let qp = &mut both.ends[end];
                match rng.below(4) {
                    0 if may_migrate[end] > 0 && state(qp) == MigrationState::Armed => {
                        may_migrate[end] -= 1;
                        assert!(qp.node.path_failed(qp.now, qp.qpn));
                    }
                    0 | 1 if state(qp) == MigrationState::Migrated => set(qp, MigrationState::Rearm).unwrap(),
                    2 => both.post(end),
                    _ => {
                        both.deliver(end, usize::from(rng.next_u8() & 1));
                    }
                }
            }
            both.post(usize::from(rng.next_u8() & 1));
            both.finish(&what);
            (0..2).for_each(|end| both.post(end));
            both.finish(&what);
            let paths = [0, 1].map(|end| both.ends[end].node.qp(both.ends[end].qpn).route().unwrap().to);
            assert_eq!(paths[0], paths[1], "{what}");
            for qp in &mut both.ends {
                if state(qp) == MigrationState::Migrated {
                    set(qp, MigrationState::Rearm).unwrap();
                }
            }
        }
    }
}
