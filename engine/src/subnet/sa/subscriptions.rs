//! Subscriptions to traps, and reports of them (IBA 13.4.8.3, 15.3.4).

use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use urxe_wire::mad::field::{Field, data_mut};
use urxe_wire::mad::node::notice;
use urxe_wire::mad::sa::{self, Record, inform};
use urxe_wire::mad::{MAD_LEN, Mad};
use urxe_wire::{Gid, Qpn};

use super::super::{Output, Subnet};
use super::{Failure, Request};
use crate::mad::{Address, AgentId};

/// Subscriptions to traps.
const SUBSCRIPTIONS: usize = 64;
/// How long a report waits for its answer.
const REPORT_TIMEOUT: Duration = Duration::from_secs(1);
/// Trap number of a subscription to all traps.
const ALL_TRAPS: u64 = 0xFFFF;

/// A subscription to reports of a trap.
#[derive(Debug)]
pub(super) struct Subscription {
    to: Address,
    trap: u64,
    /// `InformInfo`, as it was asked for first.
    inform: [u8; inform::LEN],
    /// Programs of a host share an address and a queue pair: those that have not ended their own.
    programs: BTreeSet<AgentId>,
    /// Transaction of the last report.
    transaction_id: u64,
}

impl Subnet {
    /// Begins a subscription, or ends it.
    pub(super) fn subscribe(&mut self, from: &Address, request: &Request<'_>) -> Result<Vec<Vec<u8>>, Failure> {
        let trap = inform::TRAP.get(request.wanted);
        let subscriptions = &mut self.administration.subscriptions;
        let qpn = Qpn::new(u32::try_from(inform::QPN.get(request.wanted)).unwrap_or_default());
        let to = Address { qpn: if qpn == Qpn::SMI { Qpn::GSI } else { qpn }, ..*from };
        let is_same = |other: &Subscription| (other.to.remote, other.to.qpn, other.trap) == (to.remote, to.qpn, trap);
        let at = subscriptions.iter().position(is_same);
        let is_full = subscriptions.len() >= SUBSCRIPTIONS;
        let known = at.and_then(|at| subscriptions.get_mut(at));
        let program = AgentId::of(request.header.transaction_id);
        let inform = request.wanted.first_chunk().copied().ok_or(sa::STATUS_INVALID)?;
        match (known, inform::SUBSCRIBE.get(request.wanted) == 0) {
            (None, true) => return Err(sa::STATUS_INVALID),
            (Some(known), true) => {
                // A program that has none ends one that somebody has left behind.
                if !known.programs.remove(&program) {
                    known.programs.pop_first();
                }
                subscriptions.retain(|subscription| !subscription.programs.is_empty());
            }
            (Some(known), false) if known.programs.len() < SUBSCRIPTIONS => drop(known.programs.insert(program)),
            (Some(_), false) => return Err(sa::STATUS_NO_RESOURCES),
            (None, false) if is_full => return Err(sa::STATUS_NO_RESOURCES),
            (None, false) => {
                let programs = BTreeSet::from([program]);
                subscriptions.push(Subscription { to, trap, inform, programs, transaction_id: 0 });
            }
        }
        Ok(vec![inform.to_vec()])
    }

    /// Subscriptions that match, numbered from zero: those of programs of the own host.
    pub(super) fn subscriptions(&self, request: &Request<'_>) -> Vec<Vec<u8>> {
        let gid = self.config.guid().gid();
        let all = self.administration.subscriptions.iter().zip(0..).map(|(subscription, number)| {
            let mut record = vec![0; Record::InformInfo.len()];
            inform::SUBSCRIBER.put_slice(&mut record, &gid.octets());
            inform::NUMBER.put(&mut record, number);
            Field::bytes(inform::AT, inform::LEN).put_slice(&mut record, &subscription.inform);
            record
        });
        all.filter(|record| Record::InformInfo.matches(request.mask, request.wanted, record)).collect()
    }

    /// Ends the subscriptions that a report is for which nobody has answered: the program is gone.
    pub fn report_timed_out(&mut self, transaction_id: u64) {
        // The upper half is the sender's agent.
        let low_half = |id: u64| id & u64::from(u32::MAX);
        let is_it = |subscription: &Subscription| subscription.transaction_id == low_half(transaction_id);
        self.administration.subscriptions.retain(|subscription| !is_it(subscription));
    }

    /// Reports a trap about a GID to those that have subscribed to it.
    pub(in super::super) fn report(&mut self, trap: u64, gid: Gid) {
        let mut to = Vec::new();
        for subscription in &mut self.administration.subscriptions {
            if subscription.trap == trap || subscription.trap == ALL_TRAPS {
                self.activity = self.activity.wrapping_add(1);
                subscription.transaction_id = self.activity.into();
                to.push((subscription.to, subscription.transaction_id));
            }
        }
        for (to, transaction_id) in to {
            let mut message = [0; MAD_LEN];
            let header = Mad::new(Mad::CLASS_SUBN_ADM, sa::VERSION, Mad::METHOD_REPORT, sa::NOTICE);
            Mad { transaction_id, ..header }.put(&mut message);
            let data = data_mut(&mut message, sa::DATA);
            for (field, value) in [
                (notice::IS_GENERIC, 1),
                (notice::TYPE, notice::SUBNET_MANAGEMENT),
                (notice::PRODUCER, notice::PRODUCER_MANAGER),
                (notice::TRAP, trap),
                (notice::ISSUER_LID, self.sm_lid.0.into()),
            ] {
                field.put(data, value);
            }
            notice::GID.put_slice(data, &gid.octets());
            notice::ISSUER_GID.put_slice(data, &gid.octets());
            self.put(Output::Message(to, message.to_vec(), Some(REPORT_TIMEOUT)));
        }
    }
}
