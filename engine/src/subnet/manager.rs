//! The subnet's manager: a program of some host, or the built-in one.

use urxe_wire::Lid;
use urxe_wire::mad::node::{notice, port_info};
use urxe_wire::mad::topology::{Switch, leaf_lid};

use super::announcement::Facts;
use super::hosts::AGE;
use super::{Event, Output, Subnet, TRAP_TIMEOUT};
use crate::time::Instant;

impl Subnet {
    /// Whether a program of this host is a subnet manager: the port's capability mask says so. One that has made itself the master just
    /// before is the master.
    pub fn set_sm(&mut self, now: Instant, is_sm: bool) {
        let before = self.own.field(port_info::CAPABILITY_MASK);
        let mask = if is_sm { before | port_info::IS_SM } else { before & !port_info::IS_SM };
        if mask != before && self.is_owner {
            let own = u64::from(self.config.lid.0);
            if !is_sm {
                self.told_master = (self.own.field(port_info::SM_LID) == own).then_some(now);
            } else if self.told_master.take().is_some_and(|at| now.since(at) < AGE) {
                port_info::SM_LID.put(&mut self.own.port_info, own);
            }
            port_info::CAPABILITY_MASK.put(&mut self.own.port_info, mask);
            self.own_changes(now);
        }
    }

    /// The subnet manager that is a program: its host's LID.
    pub(super) fn master(&self) -> Option<Lid> {
        let set = self.hosts.get(Lid(port_info::SM_LID.get_u16(&self.own.port_info))).filter(|facts| facts.is_sm());
        let own = || {
            let masters = self
                .hosts
                .all()
                .filter(|facts| facts.is_sm() && facts.field(port_info::SM_LID) == u64::from(facts.lid().0));
            masters.min_by_key(|facts| facts.guid)
        };
        set.or_else(own).map(Facts::lid)
    }

    /// Follows the subnet's manager: where there is none, the built-in one has the port active.
    pub(super) fn look_for_manager(&mut self, now: Instant) {
        let master = self.master();
        let sm_lid = master.unwrap_or_else(|| leaf_lid(self.config.lid));
        if self.sm_lid != sm_lid {
            let was_program = Switch::of(self.sm_lid).is_none();
            self.sm_lid = sm_lid;
            self.raise(now, Event::SubnetManager(sm_lid));
            match master {
                // Who is in the port's groups has to tell the program. It asks for that, but the port may have heard so before it
                // knew the program, which knows nothing of what the built-in administration has granted since.
                Some(_) => {
                    let had_some = self.administration.groups_are_elsewhere(self.config.lid);
                    if had_some && !was_program && self.is_owner && !self.reregister {
                        self.raise(now, Event::Reregister);
                    }
                }
                // The built-in manager knows no more of them than another program would.
                None if was_program && self.is_owner => self.raise(now, Event::Reregister),
                None => {}
            }
        }
        if !self.is_owner {
            return;
        }
        let before = self.own.port_info;
        port_info::SM_LID.put(&mut self.own.port_info, sm_lid.0.into());
        if master.is_none() && self.own.field(port_info::STATE) != port_info::DOWN {
            port_info::STATE.put(&mut self.own.port_info, port_info::ACTIVE);
            self.m_key = 0;
        }
        if before != self.own.port_info {
            self.hosts.take(now, self.own);
            self.announce_soon(now);
        }
        self.tell_state(now, true);
        // A master that becomes known later than the change hears of it then.
        let mask = self.own.field(port_info::CAPABILITY_MASK);
        if let Some(lid) = master.filter(|lid| *lid != self.config.lid && mask != self.told_mask) {
            self.told_mask = mask;
            let trap = self.trap(notice::CAPABILITY_CHANGED, self.config.lid, 1, mask);
            self.put(Output::Request(lid, trap, TRAP_TIMEOUT));
        }
    }
}
