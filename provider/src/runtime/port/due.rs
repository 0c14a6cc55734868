//! What is due when, and waking the background thread for it.

use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

use urxe_engine::Instant;

use super::NetPort;
use crate::runtime::qp::Qp;

impl NetPort {
    pub(in crate::runtime) fn set_timer(&self, qp: &Qp, at: Instant) {
        if self.timers.set(&qp.timer, qp.qpn(), at) {
            self.wake_for(at);
        }
    }

    pub(in crate::runtime) fn next_timer(&self) -> Option<Instant> {
        let gsi = self.gsi_timer.get();
        let observer = self.observer().and_then(|observer| observer.next_due());
        let crammed = self.crammed.next_look();
        self.timers.next().into_iter().chain(self.moderated.next()).chain(gsi).chain(observer).chain(crammed).min()
    }

    /// Whether anything is due, for [`run_timers`](Self::run_timers).
    pub(in crate::runtime) fn is_any_due(&self, now: Instant) -> bool {
        self.timers.is_over(now)
            || self.moderated.is_over(now)
            || self.gsi_timer.is_over(now)
            || self.crammed.is_over(now)
            || self.observer().and_then(|observer| observer.next_due()).is_some_and(|at| at <= now)
    }

    /// When QP1 wants to be woken.
    pub(crate) fn set_gsi_timer(&self, at: Option<Instant>) {
        self.gsi_timer.set(at);
        if let Some(at) = at {
            self.wake_for(at);
        }
    }

    /// Does what is due.
    pub(in crate::runtime) fn run_timers(&self, now: Instant) {
        self.moderated.expire(now);
        self.tell_overruns();
        if let Some(observer) = self.observer() {
            self.release_held(observer, now);
        }
        if self.gsi_timer.is_over(now)
            && let Some(gsi) = self.gsi()
        {
            gsi.handle_timeout(now);
        }
        if self.crammed.is_over(now) {
            self.with_work(|work| self.squeeze_in(work));
        }
        // Each once: packets are to get their turn as well, whatever is due next.
        let due: Vec<_> = std::iter::from_fn(|| self.timers.expired(now)).collect();
        for (at, qpn) in due {
            let Some(qp) = self.qp(qpn).filter(|qp| qp.timer.take(at)) else { continue };
            self.with_work(|work| qp.handle_timeout(work));
        }
    }

    /// Wakes the background thread if it sleeps longer than to `at`, for which a deadline has been set.
    pub(in crate::runtime) fn wake_for(&self, at: Instant) {
        if self.slumber.outlasts(at) {
            self.wake();
        }
    }

    /// Wakes the background thread.
    pub(in crate::runtime) fn wake(&self) {
        let one = 1_u64.to_ne_bytes();
        // SAFETY: eight bytes to our eventfd. It can only fail by being full, and then it is readable already.
        unsafe { libc::write(self.kick.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Ends the background thread.
    pub(crate) fn request_stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }
}
