//! Multicast groups: which port has joined which, as `MCMemberRecord`s (IBA 15.2.5.17).
//!
//! What goes to a group is delivered by its GID, without these records: they are what programs agree by.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::time::Duration;

use urxe_wire::mad::MAD_LEN;
use urxe_wire::mad::field::Field;
use urxe_wire::mad::node::{notice, port_info};
use urxe_wire::mad::sa::{self, Record, member};
use urxe_wire::{Gid, Guid, Lid, PKey, mgid};

use super::super::announcement::{Announcement, Facts, GROUP_LEN, GROUPS_A_DATAGRAM};
use super::super::hosts::AGE;
use super::super::{INTERVAL_ALONE, Refusal, Subnet};
use super::records::{RATES_BY_CODE, rate, rate_of_code};
use super::{Failure, Request};
use crate::time::Instant;

/// Groups of the own port, of each other host, and of all other hosts together.
const OWN: usize = 256;
const SHARE: usize = 64;
const OTHERS: usize = 4096;
/// How long groups of the own port are kept by a process that hears of them from the owner of the address, who may be alone and
/// announce them seldom: two and a half intervals.
const OWN_AGE: Duration = Duration::from_secs(INTERVAL_ALONE.as_secs() * 5 / 2);
/// Bit of a JoinState: full member.
const FULL: u64 = 1;
/// Bit of a Q_Key that only privileged programs may use (IBA 10.2.5).
const CONTROLLED: u64 = 1 << 31;

/// Code of the rate of a group whose maker names none: 10 Gb/s.
const DEFAULT_RATE: u64 = 3;
/// A property that a request compares: bits of a mask for selector and value, and both fields.
type Selected = (u64, (Field, Field));
const MTU: Selected = (0b11 << 4, member::MTU);
const RATE: Selected = (0b11 << 8, member::RATE);
const LIFE_TIME: Selected = (0b11 << 10, member::LIFE_TIME);

type MemberRecord = [u8; GROUP_LEN];

/// Whether a value is greater than, less than, or exactly another, as a selector says; the largest there is goes with all. An unknown
/// value is none of these.
fn is_selected(selector: u64, value: Option<u32>, wanted: Option<u32>) -> bool {
    let compares = |how: fn(&u32, &u32) -> bool| value.zip(wanted).is_some_and(|(value, wanted)| how(&value, &wanted));
    match selector {
        0 => compares(PartialOrd::gt),
        1 => compares(PartialOrd::lt),
        2 => compares(PartialEq::eq),
        _ => true,
    }
}

/// An MTU, or a life time, by its code.
fn as_code(code: u64) -> Option<u32> {
    u32::try_from(code).ok()
}

/// Whether a group has the MTU, rate and life time that a request compares (IBA 15.2.5.17.2).
fn selects(mask: u64, wanted: &[u8], group: &[u8]) -> bool {
    let is_one = |(bits, (selector, field)): &Selected, of: fn(u64) -> Option<u32>| {
        let (selector, value, wanted) = (selector.get(wanted), field.get(group), field.get(wanted));
        mask & bits != *bits || is_selected(selector, of(value), of(wanted))
    };
    is_one(&MTU, as_code) && is_one(&RATE, rate_of_code) && is_one(&LIFE_TIME, as_code)
}

/// The property of a group that is made: the largest candidate that the request allows. A request without selector means exactly its
/// value.
fn choose(
    mask: u64,
    wanted: &[u8],
    (bits, (selector, field)): &Selected,
    default: u64,
    candidates: impl Iterator<Item = u64>,
    of: fn(u64) -> Option<u32>,
) -> Option<u64> {
    let value_bit = bits & (bits << 1);
    match mask & bits {
        both if both == *bits => {
            let (selector, wanted) = (selector.get(wanted), field.get(wanted));
            candidates.filter(|code| is_selected(selector, of(*code), of(wanted))).max_by_key(|code| of(*code))
        }
        value if value == value_bit => Some(field.get(wanted)),
        _ => Some(default),
    }
}

/// A membership, and when its host has told of it last.
#[derive(Debug)]
struct Membership {
    record: MemberRecord,
    heard: Instant,
}

/// Memberships by group and port. Those of other hosts end unless they are told again.
#[derive(Debug, Default)]
pub(super) struct Groups {
    members: BTreeMap<([u8; 16], Lid), Membership>,
    /// Number of memberships by port.
    counts: BTreeMap<Lid, usize>,
    /// No membership is too old before.
    aged_at: Option<Instant>,
}

fn mgid_of(record: &[u8]) -> [u8; 16] {
    member::MGID.slice(record).try_into().unwrap_or_default()
}

/// Whether a record says what a group can be.
fn is_sound(record: &MemberRecord) -> bool {
    let get = |field: Field| field.get(record);
    record.first() == Some(&0xFF)
        && (0xC000..0xFFFF).contains(&get(member::MLID))
        && (1..=5).contains(&get(member::MTU.1))
        && rate_of_code(get(member::RATE.1)).is_some()
        && get(member::P_KEY) & 0x7FFF != 0
        && get(member::JOIN_STATE) != 0
}

impl Groups {
    fn of(&self, mgid: [u8; 16]) -> impl Iterator<Item = (Lid, &MemberRecord)> {
        let all = self.members.range((mgid, Lid(0))..=(mgid, Lid(u16::MAX)));
        all.map(|((_, lid), membership)| (*lid, &membership.record))
    }

    fn get(&self, mgid: [u8; 16], lid: Lid) -> Option<&MemberRecord> {
        self.members.get(&(mgid, lid)).map(|membership| &membership.record)
    }

    fn count(&self, lid: Lid) -> usize {
        self.counts.get(&lid).copied().unwrap_or_default()
    }

    /// Whether a port may have another membership: no host takes the room of the own port, nor more than its share.
    fn has_room(&self, lid: Lid, own: Lid) -> bool {
        let (count, own_count) = (self.count(lid), self.count(own));
        if lid == own { count < OWN } else { count < SHARE && self.members.len() - own_count < OTHERS }
    }

    fn put(&mut self, lid: Lid, record: MemberRecord, heard: Instant) {
        if self.members.insert((mgid_of(&record), lid), Membership { record, heard }).is_none() {
            *self.counts.entry(lid).or_default() += 1;
        }
    }

    fn remove(&mut self, mgid: [u8; 16], lid: Lid) {
        if self.members.remove(&(mgid, lid)).is_some()
            && let Some(count) = self.counts.get_mut(&lid)
        {
            *count -= 1;
        }
    }

    /// Takes groups that the host with this LID and GID has told.
    ///
    /// # Errors
    /// If one of them can be none, or there is no room.
    pub(super) fn hear<'a>(
        &mut self,
        now: Instant,
        (lid, gid): (Lid, [u8; 16]),
        own: Lid,
        groups: impl Iterator<Item = &'a MemberRecord>,
    ) -> Result<(), Refusal> {
        let mut result = Ok(());
        for record in groups {
            if !is_sound(record) {
                result = Err(Refusal::Lie);
            } else if self.get(mgid_of(record), lid).is_none() && !self.has_room(lid, own) {
                result = result.and(Err(Refusal::Full));
            } else {
                let mut record = *record;
                // A host speaks for itself.
                member::PORT_GID.put_slice(&mut record, &gid);
                self.put(lid, record, now);
                self.aged_at.get_or_insert(now + AGE);
            }
        }
        result
    }

    pub(super) fn forget(&mut self, lid: Lid) {
        if self.counts.remove(&lid).is_some() {
            self.members.retain(|(_, of), _| *of != lid);
        }
    }

    /// Has memberships of a port count as told now.
    pub(super) fn renew(&mut self, now: Instant, lid: Lid) {
        for ((_, of), membership) in &mut self.members {
            if *of == lid {
                membership.heard = now;
            }
        }
        self.aged_at.get_or_insert(now + AGE);
    }

    /// Ends memberships that have not been told again: those of the own port only in processes that are not the owner.
    pub(super) fn expire(&mut self, now: Instant, own: Lid, is_owner: bool) {
        if self.aged_at.is_none_or(|at| at > now) {
            return;
        }
        let is_kept = |lid: &Lid| is_owner && *lid == own;
        let end = |lid: &Lid, membership: &Membership| membership.heard + if *lid == own { OWN_AGE } else { AGE };
        self.members.retain(|(_, lid), membership| is_kept(lid) || end(lid, membership) > now);
        self.counts.clear();
        for (_, lid) in self.members.keys() {
            *self.counts.entry(*lid).or_default() += 1;
        }
        let others = self.members.iter().filter(|((_, lid), _)| !is_kept(lid));
        self.aged_at = others.map(|((_, lid), membership)| end(lid, membership)).min();
    }

    pub(super) fn announcements(&self, own: Lid) -> Vec<[u8; MAD_LEN]> {
        let own_records: Vec<_> =
            self.members.iter().filter(|((_, lid), _)| *lid == own).map(|(_, membership)| &membership.record).collect();
        own_records.chunks(GROUPS_A_DATAGRAM).map(|some| Announcement::groups(some.iter().copied(), own)).collect()
    }

    /// Memberships that match: everybody may know who is in a group.
    pub(super) fn find(&self, request: &Request<'_>) -> Vec<Vec<u8>> {
        let (mask, wanted) = (request.mask, request.wanted);
        // Selectors say how to compare what this leaves out.
        let mask = mask & !(0b11 << 4 | 0b1111 << 8);
        let matching = self.members.values().map(|membership| &membership.record);
        let matching = matching.filter(|record| Record::Member.matches(mask, wanted, &record[..]));
        matching.map(|record| record.to_vec()).collect()
    }
}

impl Subnet {
    /// Whether the own port can be in a group: its MTU, rate and P_Key, and a Q_Key for everybody.
    fn suits(&self, record: &MemberRecord) -> bool {
        let own = &self.own.port_info;
        is_sound(record)
            && member::MTU.1.get(record) <= port_info::MTU_CAP.get(own)
            && rate_of_code(member::RATE.1.get(record)) <= rate_of_code(rate(own))
            && self.counts(record)
    }

    /// Whether a membership says anything about a group of the own port: it has the P_Key, and a Q_Key for everybody. One that
    /// has not is of another partition or of privileged programs, or a lie that is to keep all others out.
    fn counts(&self, record: &MemberRecord) -> bool {
        let p_key = PKey(member::P_KEY.get_u16(record));
        self.config.p_keys.iter().any(|own| own.matches(p_key)) && member::Q_KEY.get(record) & CONTROLLED == 0
    }

    /// Whether a group has members, as far as the own port is concerned.
    fn has_members(&self, group: [u8; 16]) -> bool {
        self.administration.groups.of(group).any(|(lid, record)| lid == self.config.lid || self.counts(record))
    }

    /// Properties of a group that has members: those that the own port has it with, else those of the most members that the
    /// own port can follow, else `None`.
    fn model(&self, group: [u8; 16]) -> Option<MemberRecord> {
        let groups = &self.administration.groups;
        if let Some(own) = groups.get(group, self.config.lid) {
            return Some(*own);
        }
        let mut votes = BTreeMap::new();
        for (lid, record) in groups.of(group).filter(|(_, record)| self.suits(record)) {
            let mut properties = *record;
            member::PORT_GID.put_slice(&mut properties, &[0; 16]);
            member::JOIN_STATE.put(&mut properties, 0);
            votes.entry(properties).or_insert((0_usize, Reverse(lid))).0 += 1;
        }
        votes.into_iter().max_by_key(|(_, votes)| *votes).map(|(properties, _)| properties)
    }

    /// Joins the own port to a group, which is made if there is none.
    pub(super) fn join(&mut self, now: Instant, request: &Request<'_>) -> Result<Vec<Vec<u8>>, Failure> {
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
        if mask & member::HAS_MGID == 0 || group == [0; 16] {
            group = self.new_group(lid);
        }
        if group.first() != Some(&0xFF) {
            return Err(sa::STATUS_INVALID);
        }
        let groups = &self.administration.groups;
        let is_new = !self.has_members(group);
        if groups.get(group, lid).is_none() && !groups.has_room(lid, lid) {
            return Err(sa::STATUS_NO_RESOURCES);
        }
        let mut record = match &self.model(group) {
            None if !is_new => return Err(sa::STATUS_INVALID),
            // A member has to want what the group is.
            Some(model) => {
                let fixed = mask & (1 << 2 | 1 << 3 | 1 << 6 | 1 << 7 | 1 << 12 | 1 << 13);
                if !Record::Member.matches(fixed, wanted, model) || !selects(mask, wanted, model) {
                    return Err(sa::STATUS_INVALID);
                }
                *model
            }
            None => self.make_group(mask, wanted, group)?,
        };
        let joined = groups.get(group, lid).map_or(0, |record| member::JOIN_STATE.get(record));
        member::PORT_GID.copy(wanted, &mut record);
        member::JOIN_STATE.put(&mut record, joined | member::JOIN_STATE.get(wanted));
        self.administration.groups.put(lid, record, Instant::default());
        if is_new {
            self.report(notice::GROUP_MADE, &group);
        }
        self.groups_have_changed = true;
        self.announce_soon(now);
        Ok(vec![record.to_vec()])
    }

    fn make_group(&self, mask: u64, wanted: &[u8], group: [u8; 16]) -> Result<MemberRecord, Failure> {
        if mask & member::CREATE != member::CREATE || member::JOIN_STATE.get(wanted) & FULL == 0 {
            return Err(sa::STATUS_INSUFFICIENT_COMPONENTS);
        }
        let own = &self.own.port_info;
        let pick = |bit: u64, field: Field, default: u64| if mask & bit == 0 { default } else { field.get(wanted) };
        // The largest that the port has and the request allows.
        let mtus = 1..=port_info::MTU_CAP.get(own);
        let mtu = choose(mask, wanted, &MTU, port_info::NEIGHBOR_MTU.get(own), mtus, as_code);
        let rates = RATES_BY_CODE.iter().map(|(code, _)| *code);
        let rates = rates.filter(|code| rate_of_code(*code) <= rate_of_code(rate(own)));
        let group_rate = choose(mask, wanted, &RATE, DEFAULT_RATE, rates, rate_of_code);
        let mut record = [0; GROUP_LEN];
        member::MGID.put_slice(&mut record, &group);
        for field in [member::Q_KEY, member::TRAFFIC_CLASS, member::P_KEY, member::SL, member::FLOW_LABEL] {
            field.copy(wanted, &mut record);
        }
        for (field, value) in [
            (member::MLID, mgid::mlid(&Gid::new(group)).0.into()),
            (member::MTU.0, 2),
            (member::MTU.1, mtu.ok_or(sa::STATUS_INVALID)?),
            (member::RATE.0, 2),
            (member::RATE.1, group_rate.ok_or(sa::STATUS_INVALID)?),
            (member::LIFE_TIME.0, 2),
            (member::LIFE_TIME.1, pick(1 << 11, member::LIFE_TIME.1, 18)),
            (member::HOP_LIMIT, pick(1 << 14, member::HOP_LIMIT, 0)),
            (member::SCOPE, u64::from(group[1] & 0xF)),
        ] {
            field.put(&mut record, value);
        }
        let mut joined = record;
        member::JOIN_STATE.put(&mut joined, FULL);
        if self.suits(&joined) { Ok(record) } else { Err(sa::STATUS_INVALID) }
    }

    /// A GID for a group whose maker names none (IBA 15.2.5.17.2): transient, of the link, with the maker's LID.
    fn new_group(&self, lid: Lid) -> [u8; 16] {
        let [high, low] = lid.0.to_be_bytes();
        let numbered = |number: u16| {
            let [a, b] = number.to_be_bytes();
            [0xFF, 0x12, 0xA0, 0x1B, 0, 0, 0, 0, 0, 0, 0, 0, high, low, a, b]
        };
        let is_free = |group: &[u8; 16]| self.administration.groups.of(*group).next().is_none();
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
            groups.put(lid, record, Instant::default());
        } else {
            groups.remove(group, lid);
            if !self.has_members(group) {
                self.report(notice::GROUP_DELETED, &group);
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
