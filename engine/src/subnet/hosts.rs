//! Hosts of the subnet, as their announcements say.

use alloc::collections::BTreeMap;
use core::time::Duration;

use urxe_wire::Lid;
use urxe_wire::mad::node::port_info;
use urxe_wire::mad::topology::{Switch, UPLINK, host_at, place};

use super::announcement::Facts;
use crate::time::Instant;

/// Hosts that are known: more are refused, and counted.
pub(super) const HOSTS: usize = 1024;
/// Time for which a host is known that announces itself no more.
pub(super) const AGE: Duration = Duration::from_millis(3500);

/// A host.
#[derive(Clone, Debug)]
pub(super) struct Host {
    pub(super) facts: Facts,
    seen: Instant,
}

/// Effect of an announcement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// The host was not known.
    Appeared,
    /// The state of its port is another.
    State,
    /// No change that others have to be told of.
    Nothing,
}

/// Hosts by LID. The own one is among them, and does not age.
#[derive(Clone, Debug, Default)]
pub(super) struct Hosts {
    known: BTreeMap<Lid, Host>,
    /// No host is too old before.
    aged_at: Option<Instant>,
}

impl Hosts {
    /// Takes a host's facts; `None` if there is no room for another.
    pub(super) fn take(&mut self, now: Instant, facts: Facts) -> Option<Change> {
        let lid = facts.lid();
        let state = facts.field(port_info::STATE);
        let change = match self.known.get(&lid) {
            Some(host) if host.facts.field(port_info::STATE) == state => Change::Nothing,
            Some(_) => Change::State,
            None if self.known.len() >= HOSTS => return None,
            None => Change::Appeared,
        };
        self.known.insert(lid, Host { facts, seen: now });
        self.aged_at.get_or_insert(now + AGE);
        Some(change)
    }

    /// Forgets all hosts.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Whether a host may be too old.
    pub(super) fn may_be_aged(&self, now: Instant) -> bool {
        self.aged_at.is_some_and(|at| at <= now)
    }

    /// The next host, other than `own`, that has been silent for too long.
    pub(super) fn take_aged(&mut self, now: Instant, own: Lid) -> Option<Host> {
        let peers = self.known.iter().filter(|(lid, _)| **lid != own);
        let (lid, seen) = peers.map(|(lid, host)| (*lid, host.seen)).min_by_key(|(_, seen)| *seen).unzip();
        self.aged_at = seen.map(|seen| seen + AGE);
        if self.may_be_aged(now) { self.known.remove(&lid?) } else { None }
    }

    /// Time at which a host other than the own one may be too old.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.aged_at.filter(|_| self.known.len() > 1)
    }

    pub(super) fn get(&self, lid: Lid) -> Option<&Facts> {
        self.known.get(&lid).map(|host| &host.facts)
    }

    /// Hosts with these LIDs.
    pub(super) fn range(&self, lids: core::ops::RangeInclusive<Lid>) -> impl Iterator<Item = Lid> {
        self.known.range(lids).map(|(lid, _)| *lid)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Facts> {
        self.known.values().map(|host| &host.facts)
    }

    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// The leaves that have hosts, in order.
    pub(super) fn leaves(&self) -> impl Iterator<Item = u8> {
        let mut last = None;
        self.known.keys().filter_map(|lid| Some(place(*lid)?.0)).filter(move |leaf| last.replace(*leaf) != Some(*leaf))
    }

    pub(super) fn has_leaf(&self, leaf: u8) -> bool {
        let next = host_at(leaf, 1).and_then(|first| self.known.range(first..).next());
        next.and_then(|(lid, _)| place(*lid)).is_some_and(|(its, _)| its == leaf)
    }

    /// Whether the leaves need a spine.
    pub(super) fn has_spine(&self) -> bool {
        let leaf = |end: Option<(&Lid, &Host)>| end.and_then(|(lid, _)| place(*lid)).map(|(leaf, _)| leaf);
        leaf(self.known.first_key_value()) != leaf(self.known.last_key_value())
    }

    /// The switches that are there.
    pub(super) fn switches(&self) -> impl Iterator<Item = Switch> {
        let spine = self.has_spine().then_some(Switch::Spine);
        self.leaves().map(Switch::Leaf).chain(spine)
    }

    pub(super) fn has_switch(&self, switch: Switch) -> bool {
        match switch {
            Switch::Leaf(leaf) => self.has_leaf(leaf),
            Switch::Spine => self.has_spine(),
        }
    }

    /// The node at the other end of a switch's port.
    pub(super) fn neighbour(&self, switch: Switch, port: u8) -> Option<Neighbour> {
        match switch {
            Switch::Leaf(leaf) => match host_at(leaf, port) {
                Some(lid) => self.get(lid).map(|_| Neighbour::Host(lid)),
                None if port == UPLINK && self.has_spine() => Some(Neighbour::Switch(Switch::Spine, leaf + 1)),
                None => None,
            },
            Switch::Spine => {
                let leaf = port.checked_sub(1)?;
                let uplink = Neighbour::Switch(Switch::Leaf(leaf), UPLINK);
                (self.has_spine() && self.has_leaf(leaf)).then_some(uplink)
            }
        }
    }

    /// The port by which a switch reaches a LID: of the linear forwarding table.
    pub(super) fn port_towards(&self, switch: Switch, lid: Lid) -> Option<u8> {
        if switch.lid() == lid {
            return Some(0);
        }
        let target = match Switch::of(lid) {
            Some(target) if self.has_switch(target) => target,
            Some(_) => return None,
            None => {
                self.get(lid)?;
                let (leaf, port) = place(lid)?;
                if Switch::Leaf(leaf) == switch {
                    return Some(port);
                }
                Switch::Leaf(leaf)
            }
        };
        match (switch, target) {
            (Switch::Leaf(_), _) => self.has_spine().then_some(UPLINK),
            (Switch::Spine, Switch::Leaf(leaf)) => Some(leaf + 1),
            (Switch::Spine, Switch::Spine) => Some(0),
        }
    }
}

/// The other end of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Neighbour {
    /// The host with this LID.
    Host(Lid),
    /// A switch, and its port.
    Switch(Switch, u8),
}
