//! Multicast groups: which port has joined which, as `MCMemberRecord`s (IBA 15.2.5.17).
//!
//! What goes to a group is delivered by its GID, without these records: they are what programs agree by.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use urxe_wire::mad::field::Field;
use urxe_wire::mad::sa::{Record, member};
use urxe_wire::{Gid, Lid};

use super::super::announcement::GROUP_LEN;
use super::super::hosts::AGE;
use super::super::{INTERVAL_ALONE, Refusal};
use super::Request;
use super::records::rate_of_code;
use crate::mad::AgentId;
use crate::time::Instant;

/// Groups of the own port, of each other host, and of all other hosts together.
pub(super) const OWN: usize = 256;
const SHARE: usize = 64;
const OTHERS: usize = 4096;
/// Time for which groups of the own port are kept by a process that hears of them from the owner of the address, who may be alone and
/// announce them seldom: two and a half intervals.
pub(super) const OWN_AGE: Duration = Duration::from_secs(INTERVAL_ALONE.as_secs() * 5 / 2);

/// An `MCMemberRecord`.
pub(super) type MemberRecord = [u8; GROUP_LEN];

/// A membership, and when its host has told of it last.
#[derive(Debug)]
struct Membership {
    record: MemberRecord,
    heard: Instant,
    /// The program that has joined the own port, by itself.
    maker: Option<AgentId>,
}

/// Memberships by group and port. Those of other hosts end unless they are told again.
#[derive(Debug, Default)]
pub(super) struct Groups {
    members: BTreeMap<(Gid, Lid), Membership>,
    /// Number of memberships by port.
    counts: BTreeMap<Lid, usize>,
    /// No membership is too old before.
    aged_at: Option<Instant>,
}

pub(super) fn mgid_of(record: &[u8]) -> Gid {
    Gid::new(member::MGID.slice(record).try_into().unwrap_or_default())
}

/// Whether a record says what a group can be.
pub(super) fn is_sound(record: &MemberRecord) -> bool {
    let get = |field: Field| field.get(record);
    record.first() == Some(&0xFF)
        && (0xC000..0xFFFF).contains(&get(member::MLID))
        && (1..=5).contains(&get(member::MTU.1))
        && rate_of_code(get(member::RATE.1)).is_some()
        && get(member::P_KEY) & 0x7FFF != 0
        && get(member::JOIN_STATE) != 0
}

impl Groups {
    pub(super) fn of(&self, mgid: Gid) -> impl Iterator<Item = (Lid, &MemberRecord)> {
        let all = self.members.range((mgid, Lid(0))..=(mgid, Lid(u16::MAX)));
        all.map(|((_, lid), membership)| (*lid, &membership.record))
    }

    pub(super) fn get(&self, mgid: Gid, lid: Lid) -> Option<&MemberRecord> {
        self.members.get(&(mgid, lid)).map(|membership| &membership.record)
    }

    fn count(&self, lid: Lid) -> usize {
        self.counts.get(&lid).copied().unwrap_or_default()
    }

    /// Whether a port may have another membership: no host takes the room of the own port, nor more than its share.
    pub(super) fn has_room(&self, lid: Lid, own: Lid) -> bool {
        let (count, own_count) = (self.count(lid), self.count(own));
        if lid == own { count < OWN } else { count < SHARE && self.members.len() - own_count < OTHERS }
    }

    /// Puts a membership, in place of the one that there is. Its maker stays the first.
    pub(super) fn put(&mut self, lid: Lid, record: MemberRecord, heard: Instant, maker: Option<AgentId>) {
        let new = Membership { record, heard, maker };
        match self.members.insert((mgid_of(&record), lid), new) {
            None => *self.counts.entry(lid).or_default() += 1,
            Some(Membership { maker: first, .. }) => {
                if let Some(known) = self.members.get_mut(&(mgid_of(&record), lid)) {
                    known.maker = first.or(maker);
                }
            }
        }
    }

    pub(super) fn remove(&mut self, mgid: Gid, lid: Lid) {
        if self.members.remove(&(mgid, lid)).is_some()
            && let Some(count) = self.counts.get_mut(&lid)
        {
            *count -= 1;
        }
    }

    /// Groups of the port with this LID that programs have joined it to by themselves, where there is little room left.
    pub(super) fn made_under_pressure(&self, own: Lid) -> impl Iterator<Item = (Gid, AgentId)> {
        // Each datagram asks: where there is room, nothing is looked through.
        let pressed = (self.count(own) >= OWN / 2).then_some(&self.members);
        let made = pressed.into_iter().flatten().filter(move |((_, lid), _)| *lid == own);
        made.filter_map(|((mgid, _), membership)| Some((*mgid, membership.maker?)))
    }

    /// Takes groups that the host with this LID and GID has told.
    ///
    /// # Errors
    /// If one of them can be none, or there is no room.
    pub(super) fn hear<'a>(
        &mut self,
        now: Instant,
        (lid, gid): (Lid, Gid),
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
                member::PORT_GID.put_slice(&mut record, &gid.octets());
                self.put(lid, record, now, None);
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

    /// Memberships of the port with this LID.
    pub(super) fn of_port(&self, own: Lid) -> impl Iterator<Item = &MemberRecord> {
        self.members.iter().filter(move |((_, lid), _)| *lid == own).map(|(_, membership)| &membership.record)
    }

    /// All memberships.
    pub(super) fn all(&self) -> impl Iterator<Item = (Lid, &MemberRecord)> {
        self.members.iter().map(|((_, lid), membership)| (*lid, &membership.record))
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
