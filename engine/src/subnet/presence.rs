//! Presence of hosts: the own one is announced, and announcements of others are heard.

use alloc::vec::Vec;

use urxe_wire::mad::node::{notice, port_info};
use urxe_wire::mad::topology::is_host;
use urxe_wire::mad::{MAD_LEN, Mad};
use urxe_wire::{Lid, Qpn};

use super::announcement::{Announcement, Facts, GROUPS_A_DATAGRAM};
use super::hosts::Change;
use super::{Event, Held, INTERVAL, INTERVAL_ALONE, Output, PortMembership, QUESTIONS, Refusal, SPACING, Subnet};
use crate::mad::Address;
use crate::time::Instant;

impl Subnet {
    /// Has the other processes of this host hear that clients are to register again: by an announcement with that bit.
    pub(super) fn tell_reregister(&mut self) {
        if self.is_owner {
            let mut facts = self.own;
            port_info::CLIENT_REREGISTER.put(&mut facts.port_info, 1);
            self.put(Output::Announce(Announcement::host(&facts, self.instance)));
        }
    }

    /// Takes an announcement that has come from the host with this LID.
    ///
    /// # Errors
    /// Why it is dropped.
    pub fn handle_announcement(
        &mut self,
        now: Instant,
        from: &Address,
        lid: Lid,
        datagram: &[u8; MAD_LEN],
    ) -> Result<(), Refusal> {
        self.prune(now);
        if !self.is_of_network(from) {
            return Err(Refusal::Lie);
        }
        if let Some(membership) = PortMembership::parse(datagram) {
            // Processes of this host speak for its port.
            return match (lid == self.config.lid && !membership.is_answer(), self.is_ready(now)) {
                (false, _) => Err(Refusal::Lie),
                (true, true) => self.broker(now, from, membership),
                (true, false) => self.hold(Held::Membership(*from, membership)),
            };
        }
        match Announcement::parse(datagram).ok_or(Refusal::Malformed)? {
            Announcement::Question => {
                let id = Mad::of(datagram).map_or(0, |header| header.transaction_id);
                if self.is_owner { self.answer_question(now, from, lid, id) } else { Ok(()) }
            }
            Announcement::Host(facts, instance, known) => {
                self.hear_of_host(now, from, lid, facts, known)?;
                if lid == self.config.lid && !self.is_owner {
                    let before = self.owner_instance.replace(instance);
                    self.owner_has_changed |= before.is_some_and(|before| before != instance);
                }
                Ok(())
            }
            Announcement::Groups(groups, count) => {
                if lid == self.config.lid && self.is_owner {
                    return Ok(());
                }
                let gid = self.hosts.get(lid).ok_or(Refusal::Lie)?.gid();
                self.administration.hear(now, (lid, gid), self.config.lid, groups.iter().take(count))
            }
        }
    }

    fn hear_of_host(
        &mut self,
        now: Instant,
        from: &Address,
        lid: Lid,
        mut facts: Facts,
        known: Option<u16>,
    ) -> Result<(), Refusal> {
        let state = facts.field(port_info::STATE);
        let is_sane = (port_info::DOWN..=port_info::ACTIVE).contains(&state)
            && (1..=5).contains(&facts.field(port_info::MTU_CAP))
            && facts.field(port_info::LMC) == 0;
        // The LID and the GUID say the sender's address: a host speaks for itself.
        let address = from.remote.ipv6().to_ipv4_mapped();
        let is_its_own = facts.lid() == lid && facts.guid.ipv4() == address;
        if !is_its_own || !is_host(lid) || !is_sane || address.is_none() {
            return Err(Refusal::Lie);
        }
        let reregister = facts.field(port_info::CLIENT_REREGISTER) != 0;
        port_info::CLIENT_REREGISTER.put(&mut facts.port_info, 0);
        if lid == self.config.lid {
            if self.is_owner {
                return Ok(());
            }
            self.own = facts;
            self.tell_state(now, self.is_ready(now));
            if reregister {
                self.raise(now, Event::Reregister);
            }
        }
        let is_news = self.hosts.get(lid) != Some(&facts);
        let change = self.hosts.take(now, facts).ok_or(Refusal::Full)?;
        if is_news {
            self.look_for_manager(now);
        }
        // A host that was asked and knows no more hosts than are known here has nothing to add.
        if known.is_some_and(|known| usize::from(known) <= self.hosts.len()) {
            self.ready_at = None;
            self.ask_at = None;
        }
        match change {
            Change::Appeared => self.tell(&facts, notice::IN_SERVICE),
            Change::State => self.tell_link(lid),
            Change::Nothing => {}
        }
        // It is to know this host without waiting for the next time.
        if change == Change::Appeared && self.is_owner {
            self.announce_at = self.announce_at.map(|at| at.min(now + INTERVAL));
        }
        Ok(())
    }

    /// Answers a host that has just come: it knows the own groups before it knows that there is nothing more to come.
    fn answer_question(&mut self, now: Instant, from: &Address, asker: Lid, id: u64) -> Result<(), Refusal> {
        let (count, since) = self.questions;
        let count = if now.since(since) >= INTERVAL { 0 } else { count };
        let mut answers = Vec::from([Announcement::answer(&self.own, self.instance, self.known_with(now, asker), id)]);
        let groups = self.administration.told_groups(self.config.lid);
        let groups = groups.chunks(GROUPS_A_DATAGRAM);
        // With many groups, hosts that ask one after the other hear of them when they are announced.
        let total = count + u32::try_from(groups.len() + 2).unwrap_or(QUESTIONS);
        if groups.len() > 0 && total <= QUESTIONS {
            let is_to_wait = Announcement::answer(&self.own, self.instance, usize::from(u16::MAX), id);
            let groups = groups.map(|some| Announcement::groups_answer(some, self.config.lid, id));
            answers.splice(0..0, core::iter::once(is_to_wait).chain(groups));
        }
        let count = count + u32::try_from(answers.len()).unwrap_or(QUESTIONS);
        self.questions = (count, if now.since(since) >= INTERVAL { now } else { since });
        if count > QUESTIONS {
            return Err(Refusal::Full);
        }
        answers.into_iter().for_each(|answer| self.put(Output::Reply(*from, Qpn::GSI, answer)));
        Ok(())
    }

    /// Number of hosts that are known, with the one that asks, which announces itself later; as many as can be while it is not
    /// known how many there are.
    fn known_with(&self, now: Instant, asker: Lid) -> usize {
        if !self.is_ready(now) {
            return usize::from(u16::MAX);
        }
        self.hosts.len() + usize::from(self.hosts.get(asker).is_none())
    }

    /// Announces the own port: with its groups if they have changed, or it is time for them.
    pub(super) fn announce(&mut self, now: Instant) {
        // Programs that manage the subnet are told to everybody who comes.
        let is_alone = self.hosts.len() < 2 && !self.own.is_sm();
        let interval = if is_alone { INTERVAL_ALONE } else { INTERVAL };
        self.activity = self.activity.wrapping_add(1);
        self.announced = Some(now);
        self.put(Output::Announce(Announcement::host(&self.own, self.instance)));
        let is_due = self.groups_told.is_none_or(|at| now >= at + INTERVAL);
        if core::mem::take(&mut self.groups_have_changed) || is_due {
            self.groups_told = Some(now);
            for some in self.administration.told_groups(self.config.lid).chunks(GROUPS_A_DATAGRAM) {
                self.put(Output::Announce(Announcement::groups(some, self.config.lid)));
            }
        }
        // Announcements in between do not put off those of groups.
        let next = self.groups_told.unwrap_or(now) + interval;
        self.announce_at = Some(next.max(now + SPACING));
    }

    /// Announces the own port at once, or when the last announcement is long enough ago.
    pub(super) fn announce_soon(&mut self, now: Instant) {
        if self.is_owner {
            let at = self.announced.map_or(now, |at| now.max(at + SPACING));
            self.announce_at = Some(self.announce_at.map_or(at, |known| known.min(at)));
        }
    }
}
