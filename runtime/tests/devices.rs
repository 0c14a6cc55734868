//! Devices in one process, without libibverbs: RC messages between two of them, over UDP and through shared memory, and between
//! queue pairs of one; requests that go straight to memory.

#[path = "devices/direct.rs"]
mod direct;
#[path = "devices/inside.rs"]
mod inside;
#[path = "devices/interceptor.rs"]
mod interceptor;
#[path = "devices/node.rs"]
mod node;
#[path = "devices/scheduling.rs"]
mod scheduling;
#[path = "../../net/tests/ports/user_namespace.rs"]
mod user_namespace;

use std::sync::{Arc, Weak};

use urxe_engine::{QpState, SendOp, WcStatus};
use urxe_runtime::device::Device;
use urxe_runtime::event::EventType;

use node::{Node, WORDS, in_namespace};

/// SEND, WRITE and READ in turn between two queue pairs, and a WRITE that is refused.
fn exchange(a: &mut Node, b: &Node) {
    a.connect(b.qp.qpn());
    b.connect(a.qp.qpn());
    for (word, value) in a.buffer.iter_mut().zip(100..) {
        *word = value;
    }
    let all = u32::try_from(8 * WORDS).unwrap();

    b.post_recv(0, all);
    a.post_send(SendOp::Send, 0, 4096);
    let (sent, received) = (a.completion(), b.completion());
    assert_eq!((sent.status, received.status, received.byte_len), (WcStatus::Success, WcStatus::Success, 4096));
    assert_eq!((b.word(0), b.word(511), b.word(512)), (100, 611, 0));

    a.post_send(SendOp::Write(b.remote(0)), 0, all);
    assert_eq!(a.completion().status, WcStatus::Success);
    assert_eq!(b.word(WORDS - 1), 100 + WORDS as u64 - 1);

    b.post_send(SendOp::Read(a.remote(8)), 0, all - 8);
    assert_eq!(b.completion().status, WcStatus::Success);
    assert_eq!((b.word(0), b.word(WORDS - 2)), (101, 100 + WORDS as u64 - 1));
    assert!(a.events.0.lock().unwrap().is_empty() && b.events.0.lock().unwrap().is_empty());

    // Behind the end of the region.
    a.post_send(SendOp::Write(b.remote(8)), 0, all);
    assert_eq!(a.completion().status, WcStatus::RemoteAccessError);
    assert_eq!(a.qp.inspect(|engine| engine.state()), QpState::Err);
    while b.events.0.lock().unwrap().is_empty() {
        b.device.polled(false);
    }
    assert_eq!(*b.events.0.lock().unwrap(), [(7, EventType::QpAccessError)]);
}

/// Exchanges between two devices.
fn exchange_between_devices(shares_memory: bool) {
    let (mut a, b) = (Node::new(1, shares_memory), Node::new(2, shares_memory));
    exchange(&mut a, &b);
    for node in [&a, &b] {
        assert_eq!(node.count("tx_ring_runs") > 0, shares_memory, "the way the packets go");
        assert_eq!(node.count("rx_ring_runs") > 0, shares_memory, "the way the packets come");
        assert_eq!(node.count("inside_runs"), 0, "they are two devices");
    }
}

#[test]
fn messages_go_over_udp() {
    in_namespace(|| exchange_between_devices(false));
}

#[test]
fn messages_go_through_shared_memory() {
    in_namespace(|| exchange_between_devices(true));
}

#[test]
fn a_closed_device_is_not_kept_alive() {
    in_namespace(|| {
        let node = Node::new(1, false);
        let device: Weak<Device> = Arc::downgrade(&node.device);
        drop(node);
        assert!(device.upgrade().is_none());
    });
}
