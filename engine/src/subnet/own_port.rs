//! The own port: its interface, the process that answers for it, and what its programs are told.

use alloc::vec::Vec;

use urxe_wire::Lid;
use urxe_wire::mad::node::port_info;
use urxe_wire::mad::topology::leaf_lid;

use super::announcement::Facts;
use super::{Event, PortConfig, READY, Subnet, sma};
use crate::time::Instant;

impl Subnet {
    /// Says whether this process answers for the host.
    pub fn set_owner(&mut self, now: Instant, is_owner: bool) {
        if core::mem::replace(&mut self.is_owner, is_owner) != is_owner {
            self.announce_at = None;
            // Whoever has the key has given it to another process, or will.
            self.m_key = 0;
            self.administration.set_owner(now, self.config.lid, is_owner);
            self.owner_instance = None;
            self.owner_has_changed = true;
            self.groups_have_changed = true;
            self.look_for_manager(now);
            self.announce_soon(now);
        }
    }

    /// Whether another process answers for this host since the last call: programs' groups are to be told to it.
    pub const fn take_owner_change(&mut self) -> bool {
        core::mem::replace(&mut self.owner_has_changed, false)
    }

    /// The interface has changed.
    pub fn configure(&mut self, now: Instant, config: PortConfig) {
        if config == self.config {
            return;
        }
        let (old, new) = ((self.config.lid, self.config.guid()), (config.lid, config.guid()));
        if (old, self.config.prefix_len) != (new, config.prefix_len) {
            // Another network, perhaps: all that is known is about the old one.
            let known: Vec<Lid> = self.hosts().collect();
            known.into_iter().for_each(|lid| self.administration.forget(lid));
            self.hosts.clear();
            self.switches.clear();
            (self.ready_at, self.ask_at, self.has_asked) = (Some(now + READY), Some(now), false);
        }
        let is_sm = self.own.is_sm();
        let sm_lid = if leaf_lid(config.lid) == leaf_lid(self.config.lid) { self.sm_lid } else { leaf_lid(config.lid) };
        self.own = Facts {
            guid: config.guid(),
            port_info: sma::first_port_info(&config, sm_lid),
            description: config.description,
        };
        if is_sm {
            let mask = self.own.field(port_info::CAPABILITY_MASK) | port_info::IS_SM;
            port_info::CAPABILITY_MASK.put(&mut self.own.port_info, mask);
        }
        self.config = config;
        self.tell_state(now, false);
        if old.0 != new.0 {
            self.raise(now, Event::Lid(new.0));
        }
        self.own_changes(now);
    }

    /// Tells whether the port is active, if a manager has changed that. What becomes of the link others tell.
    pub(super) fn tell_state(&mut self, now: Instant, is_told: bool) {
        let state = self.own.field(port_info::STATE);
        let is_active = state == port_info::ACTIVE;
        let was_active = core::mem::replace(&mut self.is_active, is_active);
        if is_told && was_active != is_active && state != port_info::DOWN && self.config.is_up {
            self.raise(now, Event::Active(is_active));
        }
    }

    /// Tells programs of this process of an event, at its time; those of the other processes where only the owner hears of it.
    pub(super) fn raise(&mut self, now: Instant, event: Event) {
        if matches!(event, Event::Reregister | Event::Lid(_) | Event::Active(false)) {
            self.administration.forget_own(self.config.lid);
            // Processes that have joined again before tell the owner once more, as another one.
            self.instance = self.instance.wrapping_add(1);
        }
        if self.events.push(now, event) && event == Event::Reregister {
            self.tell_reregister();
        }
    }

    /// Notes and announces a change of the own port.
    pub(super) fn own_changes(&mut self, now: Instant) {
        self.hosts.take(now, self.own);
        self.look_for_manager(now);
        self.announce_soon(now);
        if self.announce_at.is_some_and(|at| at <= now) {
            self.announce(now);
        }
    }
}
