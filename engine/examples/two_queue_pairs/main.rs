//! Two RC queue pairs, without sockets, threads or clocks: a SEND, an RDMA WRITE, an RDMA READ, and a packet that is lost.
//!
//!     cargo run -p urxe-engine --example two_queue_pairs

extern crate alloc;

mod stack;

use std::net::{IpAddr, Ipv4Addr};

use stack::{Stack, exchange};
use urxe_engine::SendOp;
use urxe_wire::{Packet, Qpn};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (here, there) = (IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)));
    let (qpn_a, qpn_b) = (Qpn::new(0x11), Qpn::new(0x22));
    let (mut a, mut b) = (Stack::new(here, qpn_a, 8192), Stack::new(there, qpn_b, 8192));
    a.connect(there, qpn_b)?;
    b.connect(here, qpn_a)?;

    a.poke(0, b"hello, RDMA")?;
    b.post_recv(1, 0, 64)?;
    a.post_send(2, SendOp::Send, 0, 11)?;
    a.post_send(3, SendOp::Write(b.remote(1024)), 0, 4096)?;
    a.post_send(4, SendOp::Read(b.remote(1024)), 4096, 11)?;
    let mut packets = 0;
    exchange(&mut a, &mut b, |datagram| {
        packets += 1;
        let lost = packets == 2;
        let packet = Packet::parse(&datagram.bytes).map_or_else(|malformed| malformed.to_string(), |p| p.to_string());
        println!("{} -> {}  {packet}{}", datagram.from.ip(), datagram.to.ip(), if lost { "  (lost)" } else { "" });
        lost
    });

    for (end, stack) in [("a", &a), ("b", &b)] {
        for cqe in &stack.completions.0 {
            println!("{end}: wr_id {} {:?} {:?}, {} bytes", cqe.wr_id, cqe.opcode, cqe.status, cqe.byte_len);
        }
    }
    assert_eq!(b.peek(0, 11)?, b"hello, RDMA", "the SEND arrived");
    assert_eq!(b.peek(1024, 11)?, b"hello, RDMA", "the WRITE arrived");
    assert_eq!(a.peek(4096, 11)?, b"hello, RDMA", "the READ came back");
    Ok(())
}
