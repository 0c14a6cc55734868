//! Joining and leaving groups (IBA 15.2.5.17.2).

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;

use urxe_wire::mad::field::Field;
use urxe_wire::mad::node::{notice, port_info};
use urxe_wire::mad::sa::{self, Record, member};
use urxe_wire::{Gid, Guid, Lid, PKey, mgid};

use super::super::Subnet;
use super::super::announcement::{Facts, GROUP_LEN};
use super::groups::{MemberRecord, is_sound, mgid_of};
use super::records::{RATES_BY_CODE, rate, rate_of_code};
use super::select::{LIFE_TIME, MTU, RATE, as_code, choose, rate_or_none, selects};
use super::{Failure, Request};
use crate::mad::AgentId;
use crate::time::Instant;

/// Bits of a JoinState: full member, and one that only sends.
const FULL: u64 = 1;
const SEND_ONLY_FULL: u64 = 1 << 3;
/// Bit of a Q_Key that only privileged programs may use (IBA 10.2.5).
const CONTROLLED: u64 = 1 << 31;

/// Bit of a mask: Q_Key.
const HAS_Q_KEY: u64 = 1 << 2;

/// Code of the rate of a group whose maker names none: 10 Gb/s.
const DEFAULT_RATE: u64 = 3;
/// `PacketLifeTime` of a group: that of every path.
const DEFAULT_LIFE_TIME: u64 = 18;

/// Components that a member has to want as the group has them: Q_Key, MLID, TClass, P_Key, SL, FlowLabel.
pub(super) const FIXED: u64 = 1 << 2 | 1 << 3 | 1 << 6 | 1 << 7 | 1 << 12 | 1 << 13;

/// Whether programs may make a group of this name: its flags are known, and it is not as those are that are made up here.
fn may_be_made(group: Gid) -> bool {
    let [_, flags_and_scope, signature @ ..] = group.octets();
    let (flags, scope) = (flags_and_scope >> 4, flags_and_scope & 0xF);
    flags <= 1 && !(scope == 2 && signature.starts_with(&[0xA0, 0x1B]))
}

/// Whether a member of a group can be asked for by a request: it wants what the group is.
pub(super) fn is_wanted(request: &Request<'_>, group: &MemberRecord) -> bool {
    let (mask, wanted) = (request.mask, request.wanted);
    Record::Member.matches(mask & FIXED, wanted, group) && selects(mask, wanted, group)
}

/// The Q_Key that a request names.
fn asked_key(request: &Request<'_>) -> Option<u64> {
    (request.mask & HAS_Q_KEY != 0).then(|| member::Q_KEY.get(request.wanted))
}

impl Subnet {
    /// Whether the own port can be in a group: its MTU, rate and P_Key, and a Q_Key for everybody or the one that is asked for.
    fn suits(&self, record: &MemberRecord, key: Option<u64>) -> bool {
        let own = &self.own.port_info;
        is_sound(record)
            && member::MTU.1.get(record) <= port_info::MTU_CAP.get(own)
            && rate_of_code(member::RATE.1.get(record)) <= rate_of_code(rate(own))
            && self.counts(record, key)
    }

    /// Whether a membership says anything about a group of the own port: it has the P_Key, and a Q_Key for everybody, or the one that
    /// is asked for. One that has not is of another partition or of privileged programs, or a lie that is to keep all others out.
    fn counts(&self, record: &MemberRecord, key: Option<u64>) -> bool {
        let (p_key, q_key) = (PKey(member::P_KEY.get_u16(record)), member::Q_KEY.get(record));
        self.config.p_keys.iter().any(|own| own.matches(p_key)) && (q_key & CONTROLLED == 0 || Some(q_key) == key)
    }

    /// Whether a group has members, as far as the own port is concerned.
    fn has_members(&self, group: Gid, key: Option<u64>) -> bool {
        self.administration.groups.of(group).any(|(lid, record)| lid == self.config.lid || self.counts(record, key))
    }

    /// Properties of a group that has members: those that the own port has it with, else those of the most members that the
    /// own port can follow, else `None`.
    fn model(&self, group: Gid, key: Option<u64>) -> Option<MemberRecord> {
        let groups = &self.administration.groups;
        if let Some(own) = groups.get(group, self.config.lid) {
            return Some(*own);
        }
        let mut votes = BTreeMap::new();
        for (lid, record) in groups.of(group).filter(|(_, record)| self.suits(record, key)) {
            let mut properties = *record;
            member::PORT_GID.put_slice(&mut properties, &[0; 16]);
            member::JOIN_STATE.put(&mut properties, 0);
            votes.entry(properties).or_insert((0_usize, Reverse(lid))).0 += 1;
        }
        votes.into_iter().max_by_key(|(_, votes)| *votes).map(|(properties, _)| properties)
    }

    /// Joins the own port to a group, which is made if there is none. `maker` is the program that asks, if it asks for the port
    /// itself.
    pub(super) fn join(
        &mut self,
        now: Instant,
        request: &Request<'_>,
        maker: Option<AgentId>,
    ) -> Result<Vec<Vec<u8>>, Failure> {
        let (mask, wanted) = (request.mask, request.wanted);
        if mask & member::JOIN != member::JOIN || member::JOIN_STATE.get(wanted) == 0 {
            return Err(sa::STATUS_INSUFFICIENT_COMPONENTS);
        }
        let lid = self.port_of(member::PORT_GID.slice(wanted)).ok_or(sa::STATUS_INVALID)?;
        // Nobody joins for another host.
        if lid != self.config.lid {
            return Err(sa::STATUS_INVALID);
        }
        let mut group = mgid_of(wanted);
        let is_named = mask & member::HAS_MGID != 0 && !group.is_unspecified();
        if !is_named {
            group = self.new_group(lid);
        }
        if !group.octets().starts_with(&[0xFF]) {
            return Err(sa::STATUS_INVALID);
        }
        let groups = &self.administration.groups;
        let key = asked_key(request);
        let is_new = !self.has_members(group, key);
        if groups.get(group, lid).is_none() && !groups.has_room(lid, lid) {
            return Err(sa::STATUS_NO_RESOURCES);
        }
        let mut record = match &self.model(group, key) {
            None if !is_new => return Err(sa::STATUS_INVALID),
            Some(model) if is_wanted(request, model) => *model,
            Some(_) => return Err(sa::STATUS_INVALID),
            None => self.make_group(request, group, is_named)?,
        };
        let joined = groups.get(group, lid).map_or(0, |record| member::JOIN_STATE.get(record));
        member::PORT_GID.copy(wanted, &mut record);
        member::JOIN_STATE.put(&mut record, joined | member::JOIN_STATE.get(wanted));
        self.administration.groups.put(lid, record, Instant::default(), maker);
        if is_new {
            self.report(notice::GROUP_MADE, group);
        }
        self.groups_have_changed = true;
        self.announce_soon(now);
        Ok(vec![record.to_vec()])
    }

    fn make_group(&self, request: &Request<'_>, group: Gid, is_named: bool) -> Result<MemberRecord, Failure> {
        let (mask, wanted) = (request.mask, request.wanted);
        if mask & member::CREATE != member::CREATE {
            return Err(sa::STATUS_INSUFFICIENT_COMPONENTS);
        }
        let makes = member::JOIN_STATE.get(wanted) & (FULL | SEND_ONLY_FULL) != 0;
        if !makes || (is_named && !may_be_made(group)) {
            return Err(sa::STATUS_INVALID);
        }
        let own = &self.own.port_info;
        let pick = |bit: u64, field: Field, default: u64| if mask & bit == 0 { default } else { field.get(wanted) };
        // The largest that the port has and the request allows.
        let mtus = 1..=port_info::MTU_CAP.get(own);
        let mtu = choose(mask, wanted, &MTU, port_info::NEIGHBOR_MTU.get(own), mtus, as_code);
        let rates = RATES_BY_CODE.iter().map(|(code, _)| *code);
        let rates = rates.filter(|code| rate_of_code(*code) <= rate_of_code(rate(own)));
        let group_rate = choose(mask, wanted, &RATE, DEFAULT_RATE, rates, rate_or_none);
        let life_time = choose(mask, wanted, &LIFE_TIME, DEFAULT_LIFE_TIME, 0..=DEFAULT_LIFE_TIME, as_code);
        let mut record = [0; GROUP_LEN];
        member::MGID.put_slice(&mut record, &group.octets());
        for field in [member::Q_KEY, member::TRAFFIC_CLASS, member::P_KEY, member::SL, member::FLOW_LABEL] {
            field.copy(wanted, &mut record);
        }
        for (field, value) in [
            (member::MLID, mgid::mlid(&group).0.into()),
            (member::MTU.0, 2),
            (member::MTU.1, mtu.ok_or(sa::STATUS_INVALID)?),
            (member::RATE.0, 2),
            (member::RATE.1, group_rate.ok_or(sa::STATUS_INVALID)?),
            (member::LIFE_TIME.0, 2),
            (member::LIFE_TIME.1, life_time.ok_or(sa::STATUS_INVALID)?),
            (member::HOP_LIMIT, pick(1 << 14, member::HOP_LIMIT, 0)),
            (member::SCOPE, u64::from(group.octets()[1] & 0xF)),
        ] {
            field.put(&mut record, value);
        }
        let mut joined = record;
        member::JOIN_STATE.put(&mut joined, FULL);
        if self.suits(&joined, asked_key(request)) { Ok(record) } else { Err(sa::STATUS_INVALID) }
    }

    /// A GID for a group whose maker names none (IBA 15.2.5.17.2): transient, of the link, with the maker's LID.
    fn new_group(&self, lid: Lid) -> Gid {
        let [high, low] = lid.0.to_be_bytes();
        let numbered = |number: u16| {
            let [a, b] = number.to_be_bytes();
            Gid::new([0xFF, 0x12, 0xA0, 0x1B, 0, 0, 0, 0, 0, 0, 0, 0, high, low, a, b])
        };
        let is_free = |group: &Gid| self.administration.groups.of(*group).next().is_none();
        (1..u16::MAX).map(numbered).find(is_free).unwrap_or_default()
    }

    /// Ends a membership.
    pub(super) fn leave(&mut self, now: Instant, request: &Request<'_>) -> Result<Vec<Vec<u8>>, Failure> {
        let (mask, wanted) = (request.mask, request.wanted);
        let needed = member::JOIN | member::HAS_MGID;
        if mask & needed != needed {
            return Err(sa::STATUS_INSUFFICIENT_COMPONENTS);
        }
        let lid = self.port_of(member::PORT_GID.slice(wanted)).ok_or(sa::STATUS_INVALID)?;
        let group = mgid_of(wanted);
        let groups = &mut self.administration.groups;
        let mut record =
            groups.get(group, lid).copied().filter(|_| lid == self.config.lid).ok_or(sa::STATUS_INVALID)?;
        let (joined, leaves) = (member::JOIN_STATE.get(&record), member::JOIN_STATE.get(wanted));
        if joined & leaves != leaves {
            return Err(sa::STATUS_INVALID);
        }
        member::JOIN_STATE.put(&mut record, joined & !leaves);
        let answer = record.to_vec();
        if joined != leaves {
            groups.put(lid, record, Instant::default(), None);
        } else {
            groups.remove(group, lid);
            if !self.has_members(group, None) {
                self.report(notice::GROUP_DELETED, group);
            }
        }
        self.groups_have_changed = true;
        self.announce_soon(now);
        Ok(vec![answer])
    }

    /// The LID of the host that has a GID.
    fn port_of(&self, gid: &[u8]) -> Option<Lid> {
        let guid = Guid::of_gid(&Gid::new(gid.try_into().ok()?)).filter(|guid| *guid != Guid::default())?;
        if self.config.guids.contains(&guid) {
            return Some(self.config.lid);
        }
        self.hosts.all().find(|facts| facts.guid == guid).map(Facts::lid)
    }
}
