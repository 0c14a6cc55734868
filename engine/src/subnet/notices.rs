//! Traps: what has happened to hosts and links, for subnet managers.

use urxe_wire::mad::node::notice;
use urxe_wire::mad::smp::{self, Attribute};
use urxe_wire::mad::topology::{Switch, leaf_lid};
use urxe_wire::mad::{MAD_LEN, Mad};
use urxe_wire::{Lid, Qpn};

use super::announcement::Facts;
use super::{Output, Subnet, sma};

impl Subnet {
    /// A host has come, or gone.
    pub(super) fn tell(&mut self, facts: &Facts, trap: u64) {
        self.tell_link(facts.lid());
        if self.master().is_none() {
            self.report(trap, facts.gid());
        }
    }

    /// The state of the link of a host has changed.
    pub(super) fn tell_link(&mut self, lid: Lid) {
        let Some(switch) = Switch::of(leaf_lid(lid)) else { return };
        self.switches.entry(switch).or_default().change();
        let is_spine_there = self.hosts.has_spine();
        let told = if self.hosts.has_switch(switch) { switch } else { Switch::Spine };
        // Nobody is asked about switches that are not there.
        self.switches.retain(|switch, _| self.hosts.has_switch(*switch));
        if is_spine_there {
            self.switches.entry(Switch::Spine).or_default().change();
        }
        if self.takes_traps {
            let trap = self.trap(notice::LINK_CHANGED, told.lid(), 2, 0);
            self.put(Output::Local(told.lid(), Qpn::SMI, trap));
        }
    }

    /// A trap of a node about itself.
    pub(super) fn trap(&mut self, number: u64, issuer: Lid, producer: u64, mask: u64) -> [u8; MAD_LEN] {
        self.activity = self.activity.wrapping_add(1);
        let mut datagram = [0; MAD_LEN];
        let header = Mad::new(Mad::CLASS_SUBN_LID, 1, Mad::METHOD_TRAP, Attribute::Notice as u16);
        Mad { transaction_id: self.activity.into(), ..header }.put(&mut datagram);
        let mut details = [0; smp::DATA_LEN];
        let kind = if number == notice::LINK_CHANGED { notice::URGENT } else { notice::INFORMATION };
        for (field, value) in [
            (notice::IS_GENERIC, 1),
            (notice::TYPE, kind),
            (notice::PRODUCER, producer),
            (notice::TRAP, number),
            (notice::ISSUER_LID, issuer.0.into()),
        ] {
            field.put(&mut details, value);
        }
        if number == notice::LINK_CHANGED {
            notice::LINK_LID.put(&mut details, issuer.0.into());
        } else {
            notice::CAPABILITY_LID.put(&mut details, issuer.0.into());
            notice::CAPABILITY_MASK.put(&mut details, mask);
        }
        sma::put_attribute(&mut datagram, &details);
        datagram
    }
}
