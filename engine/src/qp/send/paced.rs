//! Sending at a limited rate: requests and READ responses share what the limit allows.

use super::reliable::Reliable;
use crate::congestion::{RateLimiter, Sent};
use crate::host::{Host, Io};
use crate::qp::attr::QpAttr;
use crate::qp::{Progress, QpConfig, Route};
use crate::time::Instant;

impl Reliable {
    /// Sends what may be sent at a limited rate.
    #[cold]
    pub(super) fn transmit_paced<H: Host>(
        &mut self,
        config: &QpConfig<H>,
        attr: &QpAttr,
        route: &Route<H>,
        io: &mut Io<'_, H>,
        may_start: bool,
        room: u32,
    ) -> Progress {
        loop {
            let Some(packets) = self.allowance(attr, io) else { return Progress::Idle };
            let in_flight = self.in_flight();
            let paced = room.min(in_flight.saturating_add(packets));
            let (sent, progress) = self.burst(config, attr, route, io, may_start, paced);
            self.charge(io, sent);
            if sent.packets == 0 || progress != Progress::Idle {
                return progress;
            }
        }
    }

    /// Whether the rate is limited.
    #[inline]
    pub(in crate::qp) fn is_limited(&mut self) -> bool {
        self.congestion.limiter().is_some()
    }

    /// Packets that the limit on the rate allows now. If none, asks to be woken later.
    pub(in crate::qp) fn allowance<H: Host>(&mut self, attr: &QpAttr, io: &Io<'_, H>) -> Option<u32> {
        let Some(limiter) = self.congestion.limiter() else { return Some(u32::MAX) };
        match limiter.allowance(io.now(), attr.path_mtu.bytes()) {
            Ok(packets) => {
                self.paced_until = None;
                Some(packets)
            }
            Err(at) => {
                self.paced_until = Some(at);
                None
            }
        }
    }

    /// Whether requests are next, where READ responses want the same rate: they take turns.
    pub(in crate::qp) fn takes_turn(&mut self) -> bool {
        self.has_output() && self.congestion.limiter().is_some_and(RateLimiter::takes_turn)
    }

    /// Whether nothing leaves until its time at a limited rate.
    pub(in crate::qp) const fn waits_for_rate(&self) -> bool {
        self.paced_until.is_some()
    }

    /// Notes what was sent at a limited rate.
    pub(in crate::qp) fn charge<H: Host>(&mut self, io: &Io<'_, H>, sent: Sent) {
        if sent.packets > 0
            && let Some(limiter) = self.congestion.limiter()
        {
            limiter.sent(io.now(), sent);
        }
    }

    /// A CNP came.
    pub(in crate::qp) fn handle_notification(&mut self, now: Instant) {
        self.congestion.on_notification(now, self.snd_max);
    }
}
