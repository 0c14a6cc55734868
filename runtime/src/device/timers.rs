//! Deadlines of a device, and waking the background thread for them.

use std::cell::OnceCell;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use urxe_engine::Instant;
use urxe_net::UdpSockets;
use urxe_net::cancellation::CancelGuard;

use super::Device;
use crate::progress::tuning::TUNING;
use crate::qp::Qp;

impl Device {
    pub(crate) fn set_timer(&self, qp: &Qp, at: Instant) {
        if self.timers.set(&qp.timer, qp.qpn(), at) {
            self.wake_for(at);
        }
    }

    pub(crate) fn next_timer(&self) -> Option<Instant> {
        let gsi = self.gsi_timer.get();
        let mads = self.mad_timer.get();
        let raw = self.raw_timer.get();
        let intercepted = self.intercept_due();
        let backpressure = self.backpressure.next_look();
        self.timers
            .next()
            .into_iter()
            .chain(self.moderated.next())
            .chain(gsi)
            .chain(mads)
            .chain(raw)
            .chain(intercepted)
            .chain(backpressure)
            .min()
    }

    /// Whether anything is due, for [`run_timers`](Self::run_timers).
    pub(crate) fn is_any_due(&self, now: Instant) -> bool {
        self.timers.is_over(now)
            || self.moderated.is_over(now)
            || self.gsi_timer.is_over(now)
            || self.mad_timer.is_over(now)
            || self.raw_timer.is_over(now)
            || self.backpressure.is_over(now)
            || self.intercept_due().is_some_and(|at| at <= now)
    }

    /// Sets the time at which QP1 is woken.
    pub fn set_gsi_timer(&self, at: Option<Instant>) {
        self.gsi_timer.set(at);
        if let Some(at) = at {
            self.wake_for(at);
        }
    }

    /// Sets the time at which the handler of management datagrams is woken.
    pub fn set_mad_timer(&self, at: Option<Instant>) {
        self.mad_timer.set(at);
        if let Some(at) = at {
            self.wake_for(at);
        }
    }

    /// Sets the time at which frames of raw packet queue pairs may leave.
    pub(crate) fn set_raw_timer(&self, at: Option<Instant>) {
        self.raw_timer.set(at);
        if let Some(at) = at {
            self.wake_for(at);
        }
    }

    /// Handles the deadlines that have passed.
    pub(crate) fn run_timers(&self, now: Instant) {
        self.moderated.expire(now);
        self.tell_overruns();
        if let Some(interceptor) = self.packet_interceptor() {
            self.release_held(interceptor, now);
        }
        if self.gsi_timer.is_over(now)
            && let Some(gsi) = self.gsi()
        {
            let _guard = CancelGuard::new();
            gsi.handle_timeout(now);
        }
        if self.mad_timer.is_over(now)
            && let Some(mads) = self.mads()
        {
            let _guard = CancelGuard::new();
            mads.handle_timeout(now);
        }
        if self.raw_timer.is_over(now) {
            let _guard = CancelGuard::new();
            self.with_work(|work| self.send_paced(work, now));
        }
        if self.backpressure.is_over(now) {
            self.with_work(|work| self.retry_blocked(work));
        }
        // Each once: packets are to get their turn as well, whatever is due next.
        let due: Vec<_> = std::iter::from_fn(|| self.timers.expired(now)).collect();
        let mut silent = Vec::new();
        for (at, qpn) in due {
            let Some(qp) = self.qp(qpn).filter(|qp| qp.timer.take(at)) else { continue };
            match self.with_work(|work| qp.try_timeout_before_ack_timeout(work)) {
                Some(true) => silent.push(qp),
                Some(false) => {}
                // The thread at work sets the timer, too, at the end of its turn: mostly it is not due any more.
                None => self.set_timer(&qp, now + TUNING.busy_retry),
            }
        }
        if !silent.is_empty() {
            self.time_out(&silent, now);
        }
    }

    /// The peers of these queue pairs are silent, it seems; but their answers may have come and lie unread, because the program
    /// had no processor, or has much to read. To send all again would make it more. So that is read before. A peer of this host may have
    /// had no processor either: the requests lie in shared memory or in its socket, where one sees that.
    //= spec/hosts.md#net-023
    //# What has arrived SHOULD be read before a peer is taken for silent.
    #[cold]
    fn time_out(&self, silent: &[Arc<Qp>], now: Instant) {
        let is_all_read = self.catch_up();
        let sockets = OnceCell::new();
        let sockets = || sockets.get_or_init(UdpSockets::read);
        for qp in silent {
            let is_all_read = is_all_read & self.catch_up_inside(qp);
            let waits = match silent_since(qp, now) {
                Some(at)
                    if now.since(at) >= TUNING.unread_most
                        || is_all_read && !qp.is_unread_by_peer(at, now, sockets) =>
                {
                    self.with_work(|work| qp.handle_timeout(work));
                    false
                }
                Some(_) => true,
                None => self.with_work(|work| qp.handle_timeout_before_ack_timeout(work)),
            };
            if waits {
                self.set_timer(qp, now + TUNING.unread_retry);
            }
        }
    }

    /// Wakes the background thread if it sleeps longer than to `at`, for which a deadline has been set.
    pub(crate) fn wake_for(&self, at: Instant) {
        if self.sleep_deadline.outlasts(at) {
            self.wake();
        }
    }

    /// Wakes the background thread.
    pub(crate) fn wake(&self) {
        if !self.kick.is_ours() {
            return;
        }
        let one = 1_u64.to_ne_bytes();
        // By number, as it is done for packets: write(2) is a cancellation point (`urxe_net::cancellation`).
        // SAFETY: eight bytes to our eventfd. It can only fail by being full, and then it is readable already.
        unsafe { libc::syscall(libc::SYS_write, self.kick.as_raw_fd(), one.as_ptr(), one.len()) };
    }

    /// Ends the background thread. False if it cannot be woken, as the application has closed the descriptor for that.
    pub fn request_stop(&self) -> bool {
        self.stop.store(true, Ordering::Release);
        let hears = self.kick.is_ours();
        self.wake();
        hears
    }
}

/// Since when the queue pair's peer is silent for too long, if it is.
fn silent_since(qp: &Qp, now: Instant) -> Option<Instant> {
    qp.inspect(|engine| engine.ack_deadline()).filter(|at| *at <= now)
}
