//! A port whose packets meet with faults that somebody asked for ([`crate::observe`]).

use std::sync::atomic::Ordering;

use urxe_engine::Instant;
use urxe_net::Datagram;

use super::port::{NetPort, Work};
use crate::counters::bump;
use crate::observe::{Fate, Observer};

impl NetPort {
    /// Shows a packet that has come to the observer. `None`: it is not to be taken. `room` is for what may come in its
    /// place. A packet that is not `fresh` has been through this before.
    pub(super) fn observe<'a>(
        &self,
        observer: &Observer,
        datagram: Datagram<'a>,
        fresh: bool,
        room: &'a mut Vec<u8>,
    ) -> Option<Datagram<'a>> {
        observer.received(&datagram, |qpn| self.qp(qpn).is_some());
        if !fresh {
            observer.remark("URXE_FAULTS: comes late or once more");
            return Some(datagram);
        }
        match observer.fate(&datagram) {
            Fate::Taken => Some(datagram),
            Fate::Gone => None,
            Fate::Damaged => {
                bump(&self.counters().icrc_err);
                None
            }
            Fate::Replaced(packet) => {
                *room = packet;
                Some(Datagram { payload: room, ..datagram })
            }
        }
    }

    /// Does what the observer wants done after a call into an engine.
    pub(super) fn attend(&self, observer: &Observer, work: &mut Work) {
        for qpn in observer.take_broken() {
            if let Some(qp) = self.qp(qpn) {
                qp.drive(work, |engine, io| engine.fail(io));
                qp.raise(urxe_engine::AsyncEvent::QpFatal);
            }
        }
        if observer.next_due().is_some_and(|at| self.sleeps_until.load(Ordering::SeqCst) > at.as_nanos()) {
            self.wake();
        }
    }

    /// Does what is due.
    pub(super) fn release_held(&self, observer: &Observer, now: Instant) {
        if observer.next_due().is_none_or(|at| at > now) {
            return;
        }
        self.with_work(|work| work.sender.send_due(now));
        for announcement in observer.announcements(now) {
            self.listeners.pretend(announcement.event);
        }
        // What arrives late arrives in there.
        self.progress(super::port::Acks::Leave);
    }

    /// The application has opened the device.
    pub(super) fn opened(&self) {
        if let Some(observer) = self.observer() {
            observer.opened();
            self.wake();
        }
    }
}
