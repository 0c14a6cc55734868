//! Behaviours that the specification allows and devices rarely show, for programs to be tried with.
//!
//! Queue pairs, completion queues and shared receive queues ask an implementation of [`Quirks`] where the specification
//! leaves a choice. `()` chooses what ordinary devices do, and costs nothing: each answer is a constant. With the feature
//! `quirks` there is [`QuirkSet`], which picks behaviours by a seed.

#[cfg(feature = "quirks")]
mod seeded;

use alloc::boxed::Box;
use core::fmt;
use core::time::Duration;

#[cfg(feature = "quirks")]
pub use seeded::{CqDelay, ParseQuirksError, QpQuirks, Quirk, QuirkSet, Row, SrqOrder, TABLE};

/// Choices that the specification leaves to a device. The methods that are not implemented choose as ordinary devices do.
pub trait Quirks: fmt::Debug {
    /// The credits that acknowledgements carry (IBA 9.7.7.2).
    #[inline(always)]
    fn credits(&self) -> CreditPolicy {
        CreditPolicy::All
    }

    /// Policy by which requests are acknowledged (IBA 9.7.5.1.2).
    #[inline(always)]
    fn acks(&self) -> AckPolicy {
        AckPolicy::Coalesced
    }

    /// The order in which the bytes of a WRITE become visible (IBA 9.5); `None` is at once.
    #[inline(always)]
    fn writes(&self) -> Option<WritePolicy> {
        None
    }

    /// Whether [`completion_delay`](Self::completion_delay) is ever more than zero.
    #[inline(always)]
    fn delays_completions(&self) -> bool {
        false
    }

    /// The time for which the next completion cannot be polled yet (IBA 11.4.2.1).
    #[inline(always)]
    fn completion_delay(&mut self) -> Duration {
        Duration::ZERO
    }

    /// The receive WQE that a shared receive queue hands out next: an index into the `posted` ones, 0 the oldest (IBA
    /// 10.8.3.2 promises no order).
    #[inline(always)]
    fn next_recv(&mut self, _posted: usize) -> usize {
        0
    }
}

/// Ordinary devices.
impl Quirks for () {}

/// `None` behaves as an ordinary device.
impl<Q: Quirks> Quirks for Option<Q> {
    #[inline]
    fn credits(&self) -> CreditPolicy {
        self.as_ref().map_or(CreditPolicy::All, Q::credits)
    }

    #[inline]
    fn acks(&self) -> AckPolicy {
        self.as_ref().map_or(AckPolicy::Coalesced, Q::acks)
    }

    #[inline]
    fn writes(&self) -> Option<WritePolicy> {
        self.as_ref().and_then(Q::writes)
    }

    #[inline]
    fn delays_completions(&self) -> bool {
        self.as_ref().is_some_and(Q::delays_completions)
    }

    #[inline]
    fn completion_delay(&mut self) -> Duration {
        self.as_mut().map_or(Duration::ZERO, Q::completion_delay)
    }

    #[inline]
    fn next_recv(&mut self, posted: usize) -> usize {
        self.as_mut().map_or(0, |quirks| quirks.next_recv(posted))
    }
}

/// The quirks behind the pointer.
impl<Q: Quirks + ?Sized> Quirks for Box<Q> {
    fn credits(&self) -> CreditPolicy {
        (**self).credits()
    }

    fn acks(&self) -> AckPolicy {
        (**self).acks()
    }

    fn writes(&self) -> Option<WritePolicy> {
        (**self).writes()
    }

    fn delays_completions(&self) -> bool {
        (**self).delays_completions()
    }

    fn completion_delay(&mut self) -> Duration {
        (**self).completion_delay()
    }

    fn next_recv(&mut self, posted: usize) -> usize {
        (**self).next_recv(posted)
    }
}

/// Credits in acknowledgements.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CreditPolicy {
    /// Credits for all receive WQEs that are posted.
    #[default]
    All,
    /// Never more than this many.
    AtMost(u32),
    /// The credit code for "not counted".
    Uncounted,
}

/// The time and number of acknowledgements.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AckPolicy {
    /// ACK when a packet asks for it; one ACK for all that has come.
    #[default]
    Coalesced,
    /// One ACK for each packet.
    PerPacket,
    /// One ACK for all that has come, this long after the first.
    Delayed(Duration),
}

/// Reordering of the bytes of WRITEs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WritePolicy {
    /// Decides the order.
    pub seed: u64,
    /// The time between the last bytes and the others.
    pub gap: Duration,
}
