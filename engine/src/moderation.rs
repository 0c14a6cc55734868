//! Moderation of completion events.

use core::time::Duration;

/// One event for several completions (`ibv_modify_cq(3)`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moderation {
    /// Completions after which the event is raised.
    pub count: u16,
    /// Longest time from the first of them to the event.
    pub period: Duration,
}
