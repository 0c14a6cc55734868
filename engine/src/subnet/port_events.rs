//! Events of the own port: of each kind the first at once, and the last of those that follow closely.
//!
//! Other hosts cause them, as often as they like, and programs of every process are told.

use core::mem::discriminant;
use core::time::Duration;

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::Event;
use crate::time::Instant;

/// Interval between events of a kind.
pub(super) const EVENT_INTERVAL: Duration = Duration::from_millis(100);

/// Events to be told, and those that wait for their time.
#[derive(Debug, Default)]
pub(super) struct PortEvents {
    due: VecDeque<Event>,
    /// The last event told of each kind, its time, and the one that waits.
    kinds: Vec<(Event, Instant, Option<Event>)>,
}

impl PortEvents {
    /// Takes an event. Returns whether it is to be told now.
    pub(super) fn push(&mut self, now: Instant, event: Event) -> bool {
        let known = self.kinds.iter_mut().find(|(told, ..)| discriminant(told) == discriminant(&event));
        match known {
            Some((_, at, waiting)) if *at + EVENT_INTERVAL > now => {
                *waiting = Some(event);
                return false;
            }
            Some(known) => *known = (event, now, None),
            None => self.kinds.push((event, now, None)),
        }
        self.due.push_back(event);
        true
    }

    /// Has an event that has waited for its time told, and returns it.
    pub(super) fn release(&mut self, now: Instant) -> Option<Event> {
        let (told, at, waiting) =
            self.kinds.iter_mut().find(|(_, at, waiting)| waiting.is_some() && *at + EVENT_INTERVAL <= now)?;
        let event = waiting.take()?;
        (*told, *at) = (event, now);
        self.due.push_back(event);
        Some(event)
    }

    /// Takes the next event that is to be told.
    pub(super) fn pop(&mut self) -> Option<Event> {
        self.due.pop_front()
    }

    /// Time at which a waiting event is reported.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let waiting = self.kinds.iter().filter(|(_, _, waiting)| waiting.is_some());
        waiting.map(|(_, at, _)| *at + EVENT_INTERVAL).min()
    }
}
