//! The observer as the runtime's [`Interceptor`].

use std::sync::Arc;

use urxe_engine::{AccessDenied, AsyncEvent, BindError, Cqe, Event, Instant, Region};
use urxe_faults::Occurrence;
use urxe_net::{Datagram, Port, TxBatch};
use urxe_options::Format;
use urxe_runtime::cq::Cq;
use urxe_runtime::device::Device;
use urxe_runtime::event::EventType;
use urxe_runtime::interceptor::{DeviceEvent, HeldPacket, Interceptor, Verdict};
use urxe_runtime::qp::Qp;
use urxe_wire::Qpn;

use super::{Observer, messages, packet_context};

impl Interceptor for Observer {
    fn touches_packets(&self) -> bool {
        self.capture.is_some() || self.faults.is_some()
    }

    // Explanations are of failures, which packets bring.
    fn needs_packets(&self) -> bool {
        self.touches_packets() || self.strict.is_some()
    }

    fn opened(&self) {
        // Text that nobody asked for, at the end of a failed program, goes where standard error led when that began.
        if self.explain != Some(Format::Held) || self.strict.is_some() {
            messages::are_wanted();
        }
        self.start_script();
    }

    fn created(&self, qpn: Qpn) {
        self.made(qpn);
    }

    fn destroyed(&self, qpn: Qpn) {
        self.forgotten(qpn);
    }

    fn received(&self, datagram: &Datagram<'_>, known: &dyn Fn() -> bool) {
        self.show_received(datagram, known);
    }

    fn verdict(&self, datagram: &Datagram<'_>) -> Verdict {
        self.action(datagram)
    }

    fn is_late(&self) {
        self.remark("URXE_FAULTS: comes late or once more");
    }

    fn arrivals(&self, now: Instant) -> Vec<HeldPacket> {
        self.due_arrivals(now)
    }

    fn settle(&self) {
        self.end_packet();
    }

    fn suspend(&self) {
        packet_context::suspend();
    }

    fn resume(&self) {
        self.end_packet();
        packet_context::resume();
    }

    fn send(&self, qpn: Qpn, batch: &mut TxBatch, port: &Port) {
        self.commit_or_fault(qpn, batch, port);
    }

    fn send_due(&self, now: Instant, batch: &mut TxBatch, port: &Port) {
        self.resend_due(now, batch, port);
    }

    fn flush(&self) {
        self.flush_capture();
        self.take_due_notes();
    }

    fn event(&self, qpn: Qpn, event: &Event) {
        self.engine_event(qpn, event);
    }

    fn refused(&self, denied: &AccessDenied, region: Option<&Region>) {
        super::refused(denied, region);
    }

    fn bind_failed(&self, error: BindError) {
        super::unbound(error);
    }

    fn completion(&self, cqe: &mut Cqe) -> bool {
        let is_broken = self.spoil(cqe);
        self.show_completion(cqe);
        is_broken
    }

    fn overrun(&self, cqe: &Cqe, capacity: usize) {
        self.explain_overrun(cqe, capacity);
    }

    fn async_event(&self, qpn: Qpn, event: AsyncEvent) {
        self.explain_async_event(qpn, event);
    }

    fn take_broken(&self) -> Vec<Qpn> {
        self.broken()
    }

    fn next_due(&self) -> Option<Instant> {
        self.next_fault()
    }

    fn device_events(&self, now: Instant) -> Vec<DeviceEvent> {
        let announced = self.announcements(now).into_iter();
        let event = |what| match what {
            Occurrence::Event(number) => EventType::from_number(number).map(DeviceEvent::Event),
            Occurrence::Removal => Some(DeviceEvent::Removal),
        };
        announced.filter_map(|announcement| event(announcement.what)).collect()
    }

    fn removed(&self) {
        self.take_out();
    }
}

impl Observer {
    /// Compares, in strict mode, the completion queues of a new queue pair with what completes there.
    pub fn check_sizes(&self, device: &Device, qp: &Qp) {
        if !self.is_strict() {
            return;
        }
        let cqs: Vec<_> = qp.inspect(|engine| {
            let config = engine.config();
            [&config.send_cq, &config.recv_cq].into_iter().flatten().cloned().collect()
        });
        let all = device.queue_pairs();
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
            self.sized(qp.qpn(), Arc::as_ptr(&cq) as u64, cq.capacity(), demand);
        }
    }

    /// Reports, in strict mode, objects that were not destroyed before the device is closed.
    pub fn check_leftovers(&self, device: &Device) {
        self.closed(device.queue_pairs().len(), device.regions().count(), &device.regions().all());
    }
}
