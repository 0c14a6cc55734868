//! When a requester lets its packets run out, so that the host can carry requests out without packets ([`super::direct`]).

/// Decision of a requester whose packets are outstanding to begin no more of them, so that its host can carry requests out.
///
/// A stream of one-sided requests that has begun by packets, before the peer's memory was within reach, would go on so: something
/// is always outstanding. Waiting costs a round trip, so it is tried after so many requests of such a stream, and after twice as
/// many where the host did not carry out what was waited for.
#[derive(Debug)]
pub(super) struct Drain {
    /// Requests in a row that have begun by packets, though a host may carry out such.
    streak: u32,
    /// Length of such a row after which the next request waits.
    threshold: u32,
}

impl Drain {
    const FIRST: u32 = 8;
    const MOST: u32 = 4096;

    /// Takes note of a request that begins by packets.
    #[inline]
    pub(super) fn begun(&mut self, is_for_host: bool) {
        self.streak = if is_for_host { self.streak.saturating_add(1) } else { 0 };
    }

    /// Whether the next one-sided request waits until nothing is outstanding.
    #[inline]
    pub(super) const fn waits(&self) -> bool {
        self.streak >= self.threshold
    }

    /// Takes note of the host's answer for a request before which nothing is outstanding.
    pub(super) fn answered(&mut self, is_carried_out: bool) {
        if is_carried_out {
            *self = Self::default();
        } else if self.waits() {
            self.threshold = (self.threshold * 2).min(Self::MOST);
            self.streak = 0;
        }
    }
}

impl Default for Drain {
    fn default() -> Self {
        Self { streak: 0, threshold: Self::FIRST }
    }
}
