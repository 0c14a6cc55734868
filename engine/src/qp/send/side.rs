//! The send side of a queue pair, by its service: reliable (RC, XRC) or unreliable (UC, UD).

use urxe_wire::Psn;

use super::reliable::Reliable;
use super::unreliable::Unreliable;
use super::wqe::SendWqe;
use crate::host::{Host, Io};
use crate::qp::attr::QpAttr;
use crate::qp::{QpConfig, Route};
use crate::time::Instant;
use crate::work::UdRecipient;

/// The send queue of a queue pair, and the requester that empties it.
#[expect(clippy::large_enum_variant, reason = "nearly all are reliable, and packets of these wait for no other line")]
pub(in crate::qp) enum SendSide<H: Host> {
    Reliable(Reliable),
    Unreliable(Unreliable<H>),
}

impl<H: Host> SendSide<H> {
    pub(in crate::qp) fn new(config: &QpConfig<H>) -> Self {
        if config.qp_type.is_reliable() {
            Self::Reliable(Reliable::new(config.window, &config.congestion, config.ack_timer))
        } else {
            Self::Unreliable(Unreliable::new(config.window))
        }
    }

    /// A CNP came. On UC, which has no window, DCQCN answers it whatever the algorithm; UD gets none.
    pub(in crate::qp) fn handle_notification(&mut self, config: &QpConfig<H>, now: Instant) {
        match self {
            Self::Reliable(reliable) => reliable.handle_notification(now),
            Self::Unreliable(unreliable) => unreliable.handle_notification(config, now),
        }
    }

    /// RTR → RTS.
    pub(in crate::qp) fn start(&mut self, attr: &QpAttr) {
        match self {
            Self::Reliable(reliable) => reliable.start(attr),
            Self::Unreliable(unreliable) => unreliable.start(attr),
        }
    }

    /// Requests queued, or carried out by the host since the call began that posts more.
    #[inline(always)]
    pub(in crate::qp) const fn len(&self) -> usize {
        match self {
            Self::Reliable(reliable) => reliable.queue.len() + reliable.posted as usize,
            Self::Unreliable(unreliable) => unreliable.queue.len(),
        }
    }

    /// The place of the request that is posted next; [`push`](Self::push) makes it part of the queue.
    #[inline(always)]
    pub(in crate::qp) fn vacant(&mut self) -> &mut SendWqe {
        match self {
            Self::Reliable(reliable) => reliable.queue.vacant(),
            Self::Unreliable(unreliable) => &mut unreliable.queue.vacant().request,
        }
    }

    /// Addresses the request written in [`vacant`](Self::vacant), on UD.
    #[inline]
    pub(in crate::qp) fn address(&mut self, to: UdRecipient<Route<H>>) {
        if let Self::Unreliable(unreliable) = self {
            unreliable.queue.vacant().to = Some(to);
        }
    }

    /// Queues the request written in [`vacant`](Self::vacant).
    #[inline(always)]
    pub(in crate::qp) const fn push(&mut self) {
        match self {
            Self::Reliable(reliable) => reliable.queue.push(),
            Self::Unreliable(unreliable) => unreliable.queue.push(),
        }
    }

    /// The PSN of the next packet never sent before.
    pub(in crate::qp) const fn psn(&self) -> Psn {
        match self {
            Self::Reliable(reliable) => reliable.snd_max(),
            Self::Unreliable(unreliable) => unreliable.psn(),
        }
    }

    /// Whether every request begun has completed.
    pub(in crate::qp) fn is_drained(&self) -> bool {
        match self {
            Self::Reliable(reliable) => reliable.is_drained(),
            Self::Unreliable(unreliable) => unreliable.is_drained(),
        }
    }

    /// Whether there may be something to send.
    #[inline]
    pub(in crate::qp) fn has_output(&self) -> bool {
        match self {
            Self::Reliable(reliable) => reliable.has_output(),
            Self::Unreliable(unreliable) => unreliable.has_output(),
        }
    }

    /// The next timeout of the requester.
    #[inline]
    pub(in crate::qp) fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Reliable(reliable) => reliable.deadline(),
            Self::Unreliable(unreliable) => unreliable.deadline(),
        }
    }

    /// Completes all requests as flushed.
    pub(in crate::qp) fn flush(&mut self, config: &QpConfig<H>, io: &mut Io<'_, H>) {
        match self {
            Self::Reliable(reliable) => reliable.flush(config, io),
            Self::Unreliable(unreliable) => unreliable.flush(config, io),
        }
    }
}
