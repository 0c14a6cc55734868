//! One PSN of the scoreboard: what is known of its packet, and of its response.

use crate::qp::send::reordering::Reordering;
use crate::time::Instant;

/// Time and round trip when there is news.
#[derive(Clone, Copy, Debug)]
pub(in crate::qp::send) struct Timing {
    pub(in crate::qp::send) now: Instant,
    /// The round trip, in nanoseconds.
    pub(in crate::qp::send) round_trip: u64,
    /// The mean round trip: nothing is answered sooner than in half of it.
    pub(in crate::qp::send) mean: u64,
}

/// Knowledge of a PSN.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::qp::send) struct Entry {
    /// Number of the packet that was sent last for it; responses are numbered on from their request.
    pub(super) number: u32,
    /// Whether the PSN is that of a response, or of the request before it.
    pub(in crate::qp::send) answered: Answered,
    /// Whether the packet arrived, or the response.
    pub(in crate::qp::send) delivered: bool,
    /// Set on the first PSN of a READ whose request arrived.
    pub(super) requested: bool,
    /// Whether the packet is to be sent again, or the response asked for again.
    pub(super) lost: bool,
    /// State while a later packet has arrived.
    pub(super) overtaken: Option<Overtaken>,
    /// Time at which it was sent again; `None`: it was not.
    pub(super) again: Option<Instant>,
    /// Whether the packet was sent more than once.
    pub(super) resent: bool,
    /// A probe has asked for that, and no news of a gap.
    pub(super) probed: bool,
    /// The request was carried out, and this part of its answer is asked for again.
    pub(super) repeated: bool,
    /// The peer has the request and carries it out when one before it has come: no response is under way.
    pub(super) waits: bool,
    /// Path of the packet that was sent last for it.
    pub(super) path: u8,
}

/// State of a packet that is overtaken.
#[derive(Clone, Copy, Debug)]
pub(in crate::qp::send) struct Overtaken {
    /// Time since which it is so.
    pub(super) since: Instant,
    /// Whether a packet of its own path has overtaken it, and not only others.
    pub(super) on_path: bool,
}

/// Whether a response takes the PSN.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::qp::send) enum Answered {
    /// No response: the PSN is that of a packet of a SEND or WRITE.
    #[default]
    No,
    /// The first response takes the PSN, which is that of the request as well.
    First,
    /// A response behind the first takes the PSN.
    Behind,
}

impl Entry {
    /// Whether its own packet, a request, is on its way.
    pub(super) fn awaits_request(&self) -> bool {
        !self.delivered && !self.lost && !self.requested && self.answered != Answered::Behind
    }

    /// Whether a response is on its way.
    pub(super) fn awaits_response(&self) -> bool {
        !self.delivered && !self.lost && self.answered != Answered::No
    }

    /// Count of numbers between this packet and one that overtook it: `newest` is behind the youngest request that
    /// arrived, `answered` behind the youngest that was answered, and `responded` is that of the youngest response behind
    /// this one, before which all others have left the responder.
    pub(super) fn overtaking(&self, newest: u32, answered: u32, responded: Option<u32>) -> i32 {
        if self.repeated && self.awaits_response() {
            return answered.wrapping_sub(self.number).cast_signed() - 1;
        }
        let requests = if self.awaits_request() { newest.wrapping_sub(self.number).cast_signed() - 1 } else { 0 };
        match responded {
            Some(number) if self.awaits_response() => requests.max(number.wrapping_sub(self.number).cast_signed()),
            Some(_) | None => requests,
        }
    }

    /// Whether what arrived is the packet that was sent first, and not one that was sent again. Notes how late that came. `with_others`
    /// says that packets arrived with it that were sent once.
    pub(super) fn is_original(&self, timing: &Timing, reordering: &mut Reordering, with_others: bool) -> bool {
        let time_of = |since: Instant| u64::try_from(timing.now.since(since).as_nanos()).unwrap_or(u64::MAX);
        match (self.again, self.overtaken) {
            // The peer was slow: it goes on where it stopped, and the probe is still to be taken.
            (Some(_), _) if self.probed && with_others => true,
            // So soon the other one cannot have been answered.
            (Some(at), _) => time_of(at) < timing.mean / 2,
            (None, None) => true,
            (None, Some(Overtaken { since, on_path })) => {
                reordering.came_late(time_of(since), on_path);
                true
            }
        }
    }
}
