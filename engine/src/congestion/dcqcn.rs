//! DCQCN (Zhu et al., SIGCOMM 2015): a window of packets, and a rate from the first congestion notification on.

use urxe_wire::Psn;

use super::limiter::RateLimiter;
use super::window::CongestionWindow;
use super::{Acknowledged, CongestionSettings, Controller, ReactionPoint};
use crate::time::Instant;

/// A window for losses, and a rate for congestion notifications.
#[derive(Debug)]
pub(super) struct Dcqcn {
    window: CongestionWindow,
    settings: CongestionSettings,
    /// The rate is limited: since the first CNP, until it is that of the link again.
    limiter: Option<RateLimiter>,
}

impl Dcqcn {
    pub(super) fn new(most: u32, settings: &CongestionSettings) -> Self {
        Self { window: CongestionWindow::new(most), settings: *settings, limiter: None }
    }
}

impl Controller for Dcqcn {
    fn packets(&self) -> u32 {
        self.window.packets()
    }

    fn on_acknowledged(&mut self, acknowledged: Acknowledged) {
        self.window.on_acknowledged(acknowledged);
    }

    fn on_loss(&mut self, snd_max: Psn) {
        self.window.on_loss(snd_max);
    }

    fn on_selective_loss(&mut self, lost: u32, snd_max: Psn) {
        self.window.on_selective_loss(lost, snd_max);
    }

    fn on_timeout(&mut self) {
        self.window.on_timeout();
    }

    fn on_notification(&mut self, now: Instant, _snd_max: Psn) {
        match &mut self.limiter {
            Some(limiter) => limiter.point.notified(now),
            None => self.limiter = Some(RateLimiter::new(ReactionPoint::new(&self.settings, now), now)),
        }
    }

    fn limiter(&mut self) -> Option<&mut RateLimiter> {
        self.limiter.take_if(|limiter| limiter.point.is_at_line_rate());
        self.limiter.as_mut()
    }
}
