//! A port whose packets meet with faults that somebody asked for ([`crate::observe`]).

use std::sync::Arc;

use urxe_engine::Instant;
use urxe_faults::Occurrence;
use urxe_net::Datagram;

use super::cq::Cq;
use super::port::{NetPort, Work};
use super::qp::Qp;
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
                if let Some(qp) = self.qp(datagram.dest_qpn()) {
                    qp.damaged();
                }
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
        if let Some(at) = observer.next_due() {
            self.wake_for(at);
        }
    }

    /// Does what is due.
    pub(super) fn release_held(&self, observer: &Observer, now: Instant) {
        if observer.next_due().is_none_or(|at| at > now) {
            return;
        }
        self.with_work(|work| work.sender.send_due(now));
        for announcement in observer.announcements(now) {
            match announcement.what {
                Occurrence::Event(event) => self.listeners.pretend(event),
                Occurrence::Removal => {
                    observer.take_out();
                    self.with_work(|work| self.leave(work));
                    self.listeners.take_out();
                }
            }
        }
        // What arrives late arrives in there.
        self.progress(super::port::Acks::Leave, &now.into());
    }

    /// In strict mode, compares the completion queues of a new queue pair with what completes there.
    pub(crate) fn check_sizes(&self, qp: &Qp) {
        let Some(observer) = self.observer().filter(|observer| observer.is_strict()) else { return };
        let cqs: Vec<_> = qp.inspect(|engine| {
            let config = engine.config();
            [&config.send_cq, &config.recv_cq].into_iter().flatten().cloned().collect()
        });
        let all = self.queue_pairs();
        for cq in cqs {
            let demand = |qp: &Arc<Qp>| {
                qp.inspect(|engine| {
                    let config = engine.config();
                    let part = |its: &Option<Arc<Cq>>, requests: u32| match its {
                        Some(its) if Arc::ptr_eq(its, &cq) => u64::from(requests),
                        _ => 0,
                    };
                    part(&config.send_cq, config.cap.max_send_wr) + part(&config.recv_cq, config.cap.max_recv_wr)
                })
            };
            let demand = all.iter().map(demand).sum();
            observer.sized(qp.qpn(), Arc::as_ptr(&cq) as u64, cq.capacity(), demand);
        }
    }

    /// In strict mode, tells what was not destroyed before the device is closed.
    pub(crate) fn check_leftovers(&self) {
        if let Some(observer) = self.observer() {
            observer.closed(self.queue_pairs().len(), self.regions().count(), &self.regions().all());
        }
    }

    /// The application has opened the device.
    pub(super) fn opened(&self) {
        if let Some(observer) = self.observer() {
            observer.opened();
            self.wake();
        }
    }
}
