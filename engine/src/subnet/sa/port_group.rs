//! A group that processes have joined the port to, and their requests about it.

use alloc::collections::{BTreeMap, VecDeque};

use urxe_wire::mad::Mad;
use urxe_wire::mad::sa::{self, Record, member};

use super::super::PortMembership;
use super::Request;
use super::groups::MemberRecord;
use crate::mad::{Address, AgentId};
use crate::time::Instant;

/// A request of a process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    /// Address that the answer goes to; `None` if nobody waits for one: the process is gone.
    pub(super) from: Option<Address>,
    pub(super) process: AgentId,
    pub(super) membership: PortMembership,
}

impl Asked {
    /// Turns a membership into a request to the administration.
    pub(super) fn request(membership: &PortMembership) -> Request<'_> {
        let PortMembership { method, mask, transaction_id, .. } = *membership;
        let header = Mad::new(Mad::CLASS_SUBN_ADM, sa::VERSION, method, Record::Member as u16);
        Request { header: Mad { transaction_id, ..header }, mask, wanted: &membership.record }
    }

    /// A leave with these states, for a process that is gone.
    pub(super) fn leave(process: AgentId, record: &MemberRecord, states: u64) -> Self {
        let mut record = *record;
        member::JOIN_STATE.put(&mut record, states);
        let mask = member::JOIN | member::HAS_MGID;
        let membership = PortMembership { method: sa::METHOD_DELETE, status: 0, transaction_id: 0, mask, record };
        Self { from: None, process, membership }
    }
}

/// A group of the port.
#[derive(Debug, Default)]
pub(super) struct PortGroup {
    /// Join states by process.
    pub(super) processes: BTreeMap<AgentId, u64>,
    /// The membership, as administration has told it.
    pub(super) record: Option<MemberRecord>,
    /// Time at which the owner has told of the group last.
    pub(super) heard: Option<Instant>,
    /// Time until which processes may claim the group.
    pub(super) unclaimed: Option<Instant>,
    /// The request that is carried out by a program's administration, and its number.
    pub(super) current: Option<(u32, Asked)>,
    pub(super) waiting: VecDeque<Asked>,
}

impl PortGroup {
    /// Join states that some process other than this one has.
    pub(super) fn states_without(&self, process: AgentId) -> u64 {
        let others = self.processes.iter().filter(|(other, _)| **other != process);
        others.fold(0, |all, (_, states)| all | states)
    }

    /// Join states of the port.
    pub(super) fn joined(&self) -> u64 {
        self.record.map_or(0, |record| member::JOIN_STATE.get(&record))
    }

    /// States that the port leaves when a process does; `None` if the process is not in the group with these.
    pub(super) fn leaving(&self, asked: &Asked) -> Option<u64> {
        let states = asked.membership.join_state();
        let own = self.processes.get(&asked.process).copied().unwrap_or_default();
        let is_in = asked.from.is_none() || (states != 0 && own & states == states);
        is_in.then(|| states & self.joined() & !self.states_without(asked.process))
    }

    pub(super) fn note_left(&mut self, asked: &Asked, left: u64) {
        let states = asked.membership.join_state();
        if let Some(own) = self.processes.get_mut(&asked.process) {
            *own &= !states;
        }
        self.processes.retain(|_, states| *states != 0);
        let remaining = self.joined() & !left;
        if let Some(record) = &mut self.record {
            member::JOIN_STATE.put(record, remaining);
        }
        if remaining == 0 {
            self.record = None;
        }
    }

    pub(super) fn note_joined(&mut self, asked: &Asked, record: MemberRecord) {
        self.record = Some(record);
        self.unclaimed = None;
        *self.processes.entry(asked.process).or_default() |= asked.membership.join_state();
    }

    pub(super) fn is_idle(&self) -> bool {
        self.current.is_none() && self.waiting.is_empty()
    }

    /// The membership, for the answer to a process that has left.
    pub(super) fn left(&self, asked: &Asked) -> MemberRecord {
        self.record.unwrap_or_else(|| {
            let mut record = asked.membership.record;
            member::JOIN_STATE.put(&mut record, 0);
            record
        })
    }
}
