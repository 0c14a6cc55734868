//! Steps of the simulation in the order of their times.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use urxe_engine::Instant;
use urxe_engine::endpoint::Datagram;

use crate::node::NodeId;

#[derive(Debug)]
pub(crate) enum Scheduled {
    Arrive(NodeId, Datagram),
    Enqueue(NodeId, Datagram),
    Serve(NodeId),
    Alarm(u64),
}

/// Scheduled step; of steps at the same time, the one scheduled first comes first.
#[derive(Debug)]
struct Entry {
    at: Instant,
    order: u64,
    what: Scheduled,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// Steps to come.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    entries: BinaryHeap<Reverse<Entry>>,
    order: u64,
}

impl Schedule {
    pub(crate) fn push(&mut self, at: Instant, what: Scheduled) {
        self.order += 1;
        self.entries.push(Reverse(Entry { at, order: self.order, what }));
    }

    pub(crate) fn pop(&mut self) -> Option<(Instant, Scheduled)> {
        self.entries.pop().map(|Reverse(entry)| (entry.at, entry.what))
    }

    /// Time of the next step.
    pub(crate) fn next_at(&self) -> Option<Instant> {
        self.entries.peek().map(|Reverse(entry)| entry.at)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}
