//! Moderation of completion events.

use core::time::Duration;

/// One event for several completions (`ibv_modify_cq(3)`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moderation {
    /// The event is raised with this many completions,
    pub count: u16,
    /// or so long after the first of them.
    pub period: Duration,
}
