//! Contexts of packets, as an interceptor is told of them.

use std::sync::{Arc, Mutex};

use urxe_engine::{AccessDenied, AsyncEvent, BindError, Cqe, Event, Instant, Region, SendOp, WcStatus};
use urxe_net::{Datagram, Headers, Port, TxBatch};
use urxe_runtime::device::OpenOptions;
use urxe_runtime::interceptor::{DeviceEvent, HeldPacket, Interceptor, Verdict};
use urxe_wire::{Opcode, Operation, Qpn, Transport};

use crate::inside::inside;
use crate::node::{LOOPBACK, Node, in_namespace, open};

/// The packet that reports belong to: its destination, and whether that was there.
type Context = Option<(Qpn, bool)>;

/// Interceptor that only looks.
#[derive(Debug, Default)]
struct Seen(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    context: Context,
    suspended: Vec<Context>,
    /// Packets.
    received: Vec<(Qpn, bool)>,
    /// Completions, each in its context.
    completed: Vec<(Qpn, Context)>,
}

impl Seen {
    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.0.lock().unwrap())
    }
}

impl Interceptor for Seen {
    fn touches_packets(&self) -> bool {
        false
    }

    fn needs_packets(&self) -> bool {
        true
    }

    fn opened(&self) {}

    fn created(&self, _qpn: Qpn) {}

    fn destroyed(&self, _qpn: Qpn) {}

    fn received(&self, datagram: &Datagram<'_>, known: &dyn Fn() -> bool) {
        let packet = (datagram.dest_qpn(), known());
        self.with(|state| {
            state.context = Some(packet);
            state.received.push(packet);
        });
    }

    fn verdict(&self, _datagram: &Datagram<'_>) -> Verdict {
        unreachable!("it touches no packets")
    }

    fn is_late(&self) {}

    fn arrivals(&self, _now: Instant) -> Vec<HeldPacket> {
        Vec::new()
    }

    fn settle(&self) {
        self.with(|state| state.context = None);
    }

    fn suspend(&self) {
        self.with(|state| state.suspended.push(state.context.take()));
    }

    fn resume(&self) {
        self.with(|state| state.context = state.suspended.pop().unwrap());
    }

    fn send(&self, _qpn: Qpn, _batch: &mut TxBatch, _port: &Port) {
        unreachable!("it touches no packets")
    }

    fn send_due(&self, _now: Instant, _batch: &mut TxBatch, _port: &Port) {
        unreachable!("it touches no packets")
    }

    fn flush(&self) {}

    fn event(&self, _qpn: Qpn, _event: &Event) {}

    fn refused(&self, _denied: &AccessDenied, _region: Option<&Region>) {}

    fn bind_failed(&self, _error: BindError) {}

    fn completion(&self, cqe: &mut Cqe) -> bool {
        self.with(|state| state.completed.push((cqe.qpn, state.context)));
        false
    }

    fn overrun(&self, _cqe: &Cqe, _capacity: usize) {}

    fn async_event(&self, _qpn: Qpn, _event: AsyncEvent) {}

    fn take_broken(&self) -> Vec<Qpn> {
        Vec::new()
    }

    fn next_due(&self) -> Option<Instant> {
        unreachable!("it touches no packets")
    }

    fn device_events(&self, _now: Instant) -> Vec<DeviceEvent> {
        unreachable!("it touches no packets")
    }

    fn removed(&self) {}
}

/// Two connected nodes of a device with such an interceptor.
fn connected() -> (Arc<Seen>, Node, Node) {
    let seen = Arc::<Seen>::default();
    let interceptor = Arc::clone(&seen);
    let device =
        open(OpenOptions { interceptor: Some(&mut |_, _| Some(Arc::<Seen>::clone(&interceptor))), ..inside() });
    let (a, b) = (Node::on(&device), Node::on(&device));
    a.connect(b.qp.qpn());
    b.connect(a.qp.qpn());
    (seen, a, b)
}

/// Packets inside the process that are handled within the handling of another one leave that one's context as it was.
#[test]
fn packets_within_the_handling_of_another() {
    in_namespace(|| {
        let (seen, a, b) = connected();
        let address = (LOOPBACK, 4791).into();
        let headers = &Headers { local: address, peer: address, tclass: 0, hop_limit: 64 };
        let mut payload = [0; 16];
        payload[0] = Opcode::new(Transport::Rc, Operation::Acknowledge).unwrap().to_u8();
        payload[7] = 77;
        let outer = Datagram { headers, expected_id: 0, flow: None, payload: &payload, is_refused: false };
        seen.received(&outer, &|| false);
        a.post_send(SendOp::Write(b.remote(0)), 0, 8);
        assert_eq!(a.completion().status, WcStatus::Success);
        let (to_a, to_b) = ((a.qp.qpn(), true), (b.qp.qpn(), true));
        seen.with(|state| {
            assert_eq!(state.received[1..], [to_b, to_a], "the WRITE and its ACK");
            assert_eq!(state.completed, [(a.qp.qpn(), Some(to_a))], "the completion is the ACK's");
            assert_eq!(state.context, Some((Qpn::new(77), false)));
        });
    });
}

/// A packet for a queue pair that is not there is shown, though it goes through no socket.
#[test]
fn packets_for_nobody_are_shown() {
    in_namespace(|| {
        let (seen, a, b) = connected();
        let (remote, gone) = (b.remote(0), b.qp.qpn());
        drop(b);
        a.post_send(SendOp::Write(remote), 0, 8);
        assert_eq!(a.count("unknown_qp"), 1);
        seen.with(|state| assert_eq!(state.received, [(gone, false)]));
    });
}
