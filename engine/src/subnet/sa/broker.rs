//! Memberships that processes of this host have joined the port to for their programs: the owner of the address keeps them, as the
//! kernel's `ib_sa` does for its clients (its multicast.c).
//!
//! A process asks the owner, whoever administrates the subnet. The port is in a group for as long as one of the processes
//! is: the owner joins it with the first and leaves it with the last, in the built-in administration or in a program's, which
//! it asks in turn. Requests about one group are carried out one after the other. Processes that are gone leave
//! their groups. Another owner knows the groups by the announcements of the one before, and processes tell it anew that they are
//! in them; what nobody claims is left.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use urxe_wire::mad::Mad;
use urxe_wire::mad::sa::{self, member};
use urxe_wire::{Gid, Qpn};

use super::super::announcement::{GroupKind, ToldGroup};
use super::super::{Output, PortMembership, Refusal, Subnet};
use super::Failure;
use super::groups::{MemberRecord, OWN, OWN_AGE, is_sound, mgid_of};
use super::join::is_wanted;
use super::port_group::{Asked, PortGroup};
use crate::mad::{Address, AgentId};
use crate::time::Instant;

/// Requests about a group that wait for the one before.
const WAITING: usize = 64;
/// Processes that are in a group.
const PROCESSES: usize = 256;
/// How long a new owner waits for processes to claim groups of the one before: the interval of announcements, and some.
const CLAIM: Duration = Duration::from_secs(5);

/// Groups of the port, by processes.
#[derive(Debug, Default)]
pub(super) struct Broker {
    groups: BTreeMap<Gid, PortGroup>,
    /// Groups of the requests that a program's administration carries out.
    relayed: BTreeMap<u32, Gid>,
    number: u32,
    is_owner: bool,
}

impl Broker {
    /// Whether processes have joined the port to the group of this record.
    pub(super) fn has(&self, record: &MemberRecord) -> bool {
        self.groups.contains_key(&mgid_of(record))
    }

    /// Memberships of the port.
    pub(super) fn records(&self) -> impl Iterator<Item = &MemberRecord> {
        self.groups.values().filter_map(|group| group.record.as_ref())
    }

    /// Takes a group that the owner of the port's address has told of. `gid` is the port's: an announcement has the LID where the
    /// PortGID of its first group belongs.
    pub(super) fn hear(&mut self, now: Instant, told: &ToldGroup, gid: Gid) {
        let is_of_processes = told.kind != GroupKind::OfPort && is_sound(&told.record);
        let mgid = mgid_of(&told.record);
        if is_of_processes && !self.is_owner && (self.groups.len() < OWN || self.groups.contains_key(&mgid)) {
            let group = self.groups.entry(mgid).or_default();
            let mut record = told.record;
            member::PORT_GID.put_slice(&mut record, &gid.octets());
            (group.record, group.heard) = (Some(record), Some(now));
        }
    }

    /// Forgets everything: whoever is in a group joins it anew. Requests on their way are answered.
    pub(super) fn clear(&mut self) {
        self.groups.retain(|_, group| {
            (group.record, group.unclaimed) = (None, None);
            group.processes.clear();
            !group.is_idle()
        });
    }

    pub(super) fn set_owner(&mut self, now: Instant, is_owner: bool) {
        self.is_owner = is_owner;
        if !is_owner {
            self.groups.clear();
            self.relayed.clear();
        }
        for group in self.groups.values_mut() {
            group.unclaimed = Some(now + CLAIM);
        }
    }

    /// Forgets groups that the owner, who is another process, tells of no more.
    pub(super) fn expire(&mut self, now: Instant, is_owner: bool) {
        if !is_owner {
            self.groups.retain(|_, group| group.heard.is_some_and(|at| at + OWN_AGE > now));
        }
    }

    /// Time at which groups are left that no process has claimed.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.groups.values().filter_map(|group| group.unclaimed).min()
    }

    /// Whether the request waits already, and has been sent again.
    fn is_known(&self, mgid: Gid, asked: &Asked) -> bool {
        let group = self.groups.get(&mgid);
        let all =
            group.into_iter().flat_map(|group| group.current.iter().map(|(_, asked)| asked).chain(&group.waiting));
        let name = |asked: &Asked| (asked.membership.transaction_id, asked.membership.method);
        all.into_iter().any(|other| other.from.is_some() && name(other) == name(asked))
    }
}

impl Subnet {
    /// Takes a request about a membership of the port that a process makes for its programs.
    pub(in super::super) fn broker(
        &mut self,
        now: Instant,
        from: &Address,
        membership: PortMembership,
    ) -> Result<(), Refusal> {
        let process = AgentId::of(membership.transaction_id);
        let (mgid, joins) = (membership.mgid(), membership.is_join());
        let asked = Asked { from: Some(*from), process, membership };
        let broker = &mut self.administration.broker;
        // Where a group has no name, nobody could say later which it was.
        if mgid.is_unspecified() || !self.is_owner {
            self.tell_process(&asked, Err(sa::STATUS_INVALID));
            return Ok(());
        }
        if broker.is_known(mgid, &asked) {
            return Ok(());
        }
        let is_full = match broker.groups.get(&mgid) {
            Some(group) => group.waiting.len() >= WAITING || (joins && group.processes.len() >= PROCESSES),
            None => joins && broker.groups.len() >= OWN,
        };
        if is_full {
            self.tell_process(&asked, Err(sa::STATUS_NO_RESOURCES));
            return Err(Refusal::Full);
        }
        broker.groups.entry(mgid).or_default().waiting.push_back(asked);
        self.advance(now, mgid);
        Ok(())
    }

    /// Processes of this host that have joined the port to groups: those that are gone are to be told of.
    pub fn processes_in_groups(&self) -> impl Iterator<Item = AgentId> {
        let Self { administration, config, .. } = self;
        let of_programs = administration.groups.made_under_pressure(config.lid).map(|(_, maker)| maker);
        administration.broker.groups.values().flat_map(|group| group.processes.keys().copied()).chain(of_programs)
    }

    /// Has a process that is gone leave its groups.
    pub fn process_is_gone(&mut self, now: Instant, process: AgentId) {
        let mut left: Vec<(Gid, Asked)> = Vec::new();
        for (mgid, group) in &self.administration.broker.groups {
            if let (Some(states), Some(record)) = (group.processes.get(&process), &group.record) {
                left.push((*mgid, Asked::leave(process, record, *states)));
            }
        }
        for (mgid, asked) in left {
            self.leave_for(now, mgid, asked);
        }
        let made = self.administration.groups.made_under_pressure(self.config.lid);
        let made: Vec<Gid> = made.filter(|(_, maker)| *maker == process).map(|(mgid, _)| mgid).collect();
        for mgid in made {
            self.administration.groups.remove(mgid, self.config.lid);
            self.groups_have_changed = true;
        }
    }

    /// Leaves groups of the owner before that no process has claimed.
    pub(in super::super) fn leave_unclaimed(&mut self, now: Instant) {
        let mut left: Vec<(Gid, Asked)> = Vec::new();
        for (mgid, group) in &mut self.administration.broker.groups {
            if group.unclaimed.is_some_and(|at| at <= now) {
                group.unclaimed = None;
                let record = group.record.filter(|_| group.processes.is_empty());
                left.extend(record.map(|record| (*mgid, Asked::leave(AgentId(0), &record, group.joined()))));
            }
        }
        for (mgid, asked) in left {
            self.leave_for(now, mgid, asked);
        }
    }

    fn leave_for(&mut self, now: Instant, mgid: Gid, asked: Asked) {
        if let Some(group) = self.administration.broker.groups.get_mut(&mgid) {
            group.waiting.push_back(asked);
        }
        self.advance(now, mgid);
    }

    /// Takes the answer of a program's administration to a request that was relayed; `None` if it has not answered.
    pub fn handle_relayed(&mut self, now: Instant, number: u32, answer: Option<&[u8]>) {
        let broker = &mut self.administration.broker;
        let Some(mgid) = broker.relayed.remove(&number) else { return };
        let Some(group) = broker.groups.get_mut(&mgid) else { return };
        let Some((_, asked)) = group.current.take_if(|(its, _)| *its == number) else { return };
        let told = answer.map(|answer| {
            let record = sa::response(answer)?.first_chunk().copied();
            record.filter(|record| mgid_of(record) == mgid && is_sound(record)).ok_or(sa::STATUS_INVALID)
        });
        if asked.membership.is_join() {
            if let Some(Ok(record)) = told {
                group.note_joined(&asked, record);
            }
            if let Some(told) = told {
                self.tell_process(&asked, told);
            }
        } else {
            // Whatever it says, the process is out; and what is not answered is asked again by nobody.
            let left = group.leaving(&asked).unwrap_or_default();
            group.note_left(&asked, left);
            let record = group.left(&asked);
            self.tell_process(&asked, Ok(record));
        }
        self.groups_have_changed = true;
        self.advance(now, mgid);
    }

    /// Carries out what waits for a group.
    fn advance(&mut self, now: Instant, mgid: Gid) {
        loop {
            let Some(group) = self.administration.broker.groups.get_mut(&mgid) else { return };
            if group.current.is_some() {
                return;
            }
            let Some(asked) = group.waiting.pop_front() else {
                if group.record.is_none() && group.processes.is_empty() {
                    self.administration.broker.groups.remove(&mgid);
                }
                return;
            };
            if asked.membership.is_join() {
                self.join_process(now, mgid, asked);
            } else {
                self.leave_process(now, mgid, asked);
            }
        }
    }

    fn join_process(&mut self, now: Instant, mgid: Gid, asked: Asked) {
        let is_relayed = self.master().is_some();
        let Some(group) = self.administration.broker.groups.get_mut(&mgid) else { return };
        let request = Asked::request(&asked.membership);
        let states = asked.membership.join_state();
        // A port that is a member already need not ask a program. The built-in administration may have been told otherwise by one.
        let is_member = is_relayed && states != 0 && group.joined() & states == states;
        if let Some(record) = group.record.filter(|_| is_member) {
            let is_wanted = is_wanted(&request, &record);
            if is_wanted {
                group.note_joined(&asked, record);
            }
            return self.tell_process(&asked, if is_wanted { Ok(record) } else { Err(sa::STATUS_INVALID) });
        }
        if is_relayed {
            return self.relay(mgid, asked, &asked.membership);
        }
        let joined = self.join(now, &request, None);
        let joined = joined.and_then(|joined| {
            joined.first().and_then(|record| record.first_chunk().copied()).ok_or(sa::STATUS_INVALID)
        });
        if let (Ok(record), Some(group)) = (joined, self.administration.broker.groups.get_mut(&mgid)) {
            group.note_joined(&asked, record);
        }
        self.tell_process(&asked, joined);
    }

    fn leave_process(&mut self, now: Instant, mgid: Gid, asked: Asked) {
        let is_relayed = self.master().is_some();
        let Some(group) = self.administration.broker.groups.get_mut(&mgid) else { return };
        let Some(leaving) = group.leaving(&asked) else {
            return self.tell_process(&asked, Err(sa::STATUS_INVALID));
        };
        let mut membership = asked.membership;
        member::JOIN_STATE.put(&mut membership.record, leaving);
        if leaving != 0 && is_relayed {
            return self.relay(mgid, asked, &membership);
        }
        group.note_left(&asked, leaving);
        let left = group.left(&asked);
        if leaving != 0 {
            // A program of the host may have had the port leave it before.
            let _ = self.leave(now, &Asked::request(&membership));
        }
        self.groups_have_changed = true;
        self.announce_soon(now);
        self.tell_process(&asked, Ok(left));
    }

    fn relay(&mut self, mgid: Gid, asked: Asked, membership: &PortMembership) {
        let broker = &mut self.administration.broker;
        broker.number = broker.number.wrapping_add(1);
        let number = broker.number;
        let Some(group) = broker.groups.get_mut(&mgid) else { return };
        group.current = Some((number, asked));
        broker.relayed.insert(number, mgid);
        self.put(Output::Relay(number, membership.to_administration()));
    }

    fn tell_process(&mut self, asked: &Asked, result: Result<MemberRecord, Failure>) {
        let Some(from) = asked.from else { return };
        let method = asked.membership.method | Mad::RESPONSE;
        let answer = match result {
            Ok(record) => PortMembership { method, record, ..asked.membership },
            Err(status) => PortMembership { method, status, ..asked.membership },
        };
        self.put(Output::Reply(from, Qpn::GSI, answer.to_datagram()));
    }
}
