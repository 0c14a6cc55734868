//! Rules by priority.

use alloc::vec::Vec;

use super::frame::Headers;
use super::spec::{Actions, Match};

/// Class of a rule (`enum ibv_flow_attr_type`), in the order in which they are asked.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Class {
    /// `IBV_FLOW_ATTR_NORMAL`: frames that meet the rule's condition.
    Normal,
    /// `IBV_FLOW_ATTR_MC_DEFAULT`: multicast that no rule before has taken.
    MulticastDefault,
    /// `IBV_FLOW_ATTR_ALL_DEFAULT`: everything that no rule before has taken.
    AllDefault,
    /// `IBV_FLOW_ATTR_SNIFFER`: a copy of every frame, sent or received.
    Sniffer,
}

/// A rule.
#[derive(Clone, Debug)]
pub struct Rule<T> {
    /// Class, asked first.
    pub class: Class,
    /// Priority within the class; 0 is asked first, and of one priority those that do not trap.
    pub priority: u16,
    /// Condition; of [`Class::Normal`] only.
    pub wanted: Match,
    /// Actions besides the delivery.
    pub actions: Actions,
    /// `IBV_FLOW_ATTR_FLAGS_DONT_TRAP`: rules of later places get the frame as well.
    pub dont_trap: bool,
    /// Receiver of the frames.
    pub target: T,
}

/// Name of a rule in its table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RuleId(u64);

/// Rules in the order in which they are asked: by place (class, priority, and those that do not trap before the others), then
/// by age.
#[derive(Clone, Debug)]
pub struct FlowTable<T> {
    rules: Vec<(RuleId, Rule<T>)>,
    next: u64,
}

impl<T> Default for FlowTable<T> {
    fn default() -> Self {
        Self { rules: Vec::new(), next: 0 }
    }
}

impl<T> Rule<T> {
    /// Place in the order of rules. Of those in one place, a frame belongs to one, and to others that want the same.
    const fn place(&self) -> (Class, u16, bool) {
        (self.class, self.priority, !self.dont_trap)
    }

    fn is_met(&self, headers: &Headers<'_>) -> bool {
        match self.class {
            Class::Normal => self.wanted.is_met(headers),
            Class::MulticastDefault => headers.frame().first().is_some_and(|first| first & 1 != 0),
            Class::AllDefault | Class::Sniffer => true,
        }
    }
}

impl<T> FlowTable<T> {
    /// Adds a rule behind those of its place.
    pub fn insert(&mut self, rule: Rule<T>) -> RuleId {
        let id = RuleId(self.next);
        self.next += 1;
        let at = self.rules.partition_point(|(_, other)| other.place() <= rule.place());
        self.rules.insert(at, (id, rule));
        id
    }

    /// Removes a rule.
    pub fn remove(&mut self, id: RuleId) -> Option<Rule<T>> {
        let at = self.rules.iter().position(|(other, _)| *other == id)?;
        Some(self.rules.remove(at).1)
    }

    /// Returns the rules, in the order in which they are asked.
    pub fn rules(&self) -> impl Iterator<Item = &Rule<T>> {
        self.rules.iter().map(|(_, rule)| rule)
    }

    /// Whether there are no rules.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Hands `each` the rules that a received frame belongs to: of each place the first that meets it and those equal to it, until
    /// one of them traps; and the sniffers.
    pub fn classify<'a>(&'a self, headers: &Headers<'_>, mut each: impl FnMut(&'a Rule<T>)) {
        let mut last: Option<&Rule<T>> = None;
        for rule in self.rules() {
            if rule.class == Class::Sniffer {
                each(rule);
                continue;
            }
            let takes = match last {
                // In mlx5 (fs.c), a place is a flow table, of which one entry takes a frame; equal rules are one entry with
                // several destinations.
                Some(last) if last.place() == rule.place() => last.wanted == rule.wanted,
                Some(last) if !last.dont_trap => false,
                _ => rule.is_met(headers),
            };
            if takes {
                each(rule);
                last = Some(rule);
            }
        }
    }

    /// Hands `each` the rules that a sent frame belongs to: the sniffers.
    pub fn classify_sent<'a>(&'a self, each: impl FnMut(&'a Rule<T>)) {
        self.rules().filter(|rule| rule.class == Class::Sniffer).for_each(each);
    }
}
