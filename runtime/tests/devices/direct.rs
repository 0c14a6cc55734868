//! Requests that go straight to the memory of a peer, of kinds that programs of libibverbs 44 cannot post.

use std::time::{Duration, Instant};

use urxe_engine::{SendOp, WcStatus};
use urxe_runtime::device::OpenOptions;
use urxe_wire::{Feth, FlushLevel};

use crate::node::{Node, in_namespace};

/// Words of a buffer: of pages that nobody else has.
const WORDS: usize = 1 << 18;

/// A device whose requests may go straight to memory.
fn node(key_seed: u64) -> Node {
    let options = OpenOptions { shares_memory: true, is_direct: true, key_seed, ..OpenOptions::default() };
    Node::opened(options, WORDS)
}

/// Two nodes, once requests of the first go to the second's memory.
pub(crate) fn connected() -> (Node, Node) {
    let mut others = vec![];
    for _ in 0..10 {
        let (a, b) = (node(1), node(2));
        a.connect(b.qp.qpn());
        b.connect(a.qp.qpn());
        let until = Instant::now() + Duration::from_secs(10);
        while Instant::now() < until {
            a.post_send(SendOp::Read(b.remote(0)), 0, 8);
            assert_eq!(a.completion().status, WcStatus::Success);
            if a.count("direct_requests") > 0 {
                return (a, b);
            }
        }
        // Memory just above this thread's stack, which may be where another test's was, goes by packets. The next is elsewhere.
        others.push((a, b));
    }
    panic!("no request is direct");
}

/// Requests and bytes that went straight to memory, and packets.
fn counts(node: &Node) -> [u64; 3] {
    ["direct_requests", "direct_bytes", "tx_packets"].map(|name| node.count(name))
}

#[test]
fn an_atomic_write_is_direct() {
    in_namespace(|| {
        let (mut a, b) = connected();
        a.buffer[0] = 0x0123_4567_89AB_CDEF;
        let [requests, bytes, packets] = counts(&a);
        a.post_send(SendOp::AtomicWrite(b.remote(64)), 0, 8);
        assert_eq!(a.completion().status, WcStatus::Success);
        assert_eq!(counts(&a), [requests + 1, bytes + 8, packets]);
        assert_eq!([b.word(7), b.word(8), b.word(9)], [0, 0x0123_4567_89AB_CDEF, 0]);
        // Not to eight bytes of their own: the responder refuses it, so it goes by packets.
        a.post_send(SendOp::AtomicWrite(b.remote(4)), 0, 8);
        assert_eq!(a.completion().status, WcStatus::RemoteInvalidRequestError);
        assert_eq!(counts(&a)[0], requests + 1);
        assert_eq!([b.word(0), b.word(1)], [0, 0]);
    });
}

#[test]
fn a_flush_is_direct() {
    in_namespace(|| {
        let (a, b) = connected();
        let [mut requests, mut bytes, packets] = counts(&a);
        let whole = 8 * WORDS as u64;
        for (level, length, flushed) in [(FlushLevel::Range, 100, 100), (FlushLevel::Region, 0, whole)] {
            let how = Feth { global_visibility: true, persistence: false, level };
            a.post(SendOp::Flush { remote: b.remote(8), length, how }, &[]);
            assert_eq!(a.completion().status, WcStatus::Success, "{level:?}");
            (requests, bytes) = (requests + 1, bytes + flushed);
            assert_eq!(counts(&a), [requests, bytes, packets], "{level:?}");
        }
        // Behind the end of the region: refused by the responder.
        let how = Feth { global_visibility: true, persistence: false, level: FlushLevel::Range };
        a.post(SendOp::Flush { remote: b.remote(whole - 8), length: 16, how }, &[]);
        assert_eq!(a.completion().status, WcStatus::RemoteAccessError);
        assert_eq!(counts(&a)[0], requests);
    });
}
