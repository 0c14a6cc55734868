//! Two RC queue pairs without sockets, threads or clocks: a SEND, an RDMA WRITE, an RDMA READ, and a packet that is lost.
//!
//!     cargo run -p urxe-engine --example two_queue_pairs

extern crate alloc;

mod end;

use end::{End, Result, exchange};
use urxe_engine::{Instant, Memory, RecvWr, SendOp};
use urxe_wire::Packet;

fn main() -> Result<()> {
    let now = Instant::default();
    let mut ends = End::pair(now)?;
    let text = b"hello, RDMA";
    let [a, b] = &mut ends;
    a.endpoint.memory().write(a.buffer.addr, text)?;
    b.endpoint.post_recv(now, b.qpn, RecvWr { wr_id: 1, buffers: b.buffer.sge(0, 64) })?;
    a.post(now, 2, SendOp::Send, a.buffer.sge(0, 11))?;
    a.post(now, 3, SendOp::Write(b.buffer.remote(1024)), a.buffer.sge(0, 4096))?;
    a.post(now, 4, SendOp::Read(b.buffer.remote(1024)), a.buffer.sge(4096, 11))?;

    let mut packets = 0;
    exchange(&mut ends, now, |datagram| {
        packets += 1;
        let lost = packets == 2;
        let note = if lost { "  (lost)" } else { "" };
        let packet = Packet::parse(&datagram.bytes).map_or_else(|error| error.to_string(), |it| it.to_string());
        println!("{} -> {}  {packet}{note}", datagram.from.ip(), datagram.to.ip());
        !lost
    });

    for (name, end) in ["a", "b"].into_iter().zip(&mut ends) {
        while let Some(cqe) = end.endpoint.poll_cq(end.cq) {
            println!("{name}: wr_id {} {:?} {:?}, {} bytes", cqe.wr_id, cqe.opcode, cqe.status, cqe.byte_len);
        }
    }
    let [a, b] = &ends;
    assert!(b.holds(0, text)?, "the SEND arrived");
    assert!(b.holds(1024, text)?, "the WRITE arrived");
    assert!(a.holds(4096, text)?, "the READ came back");
    Ok(())
}
