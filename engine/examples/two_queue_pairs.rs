//! Two RC queue pairs without sockets, threads or clocks: a SEND, an RDMA WRITE, an RDMA READ, and a packet that is lost.
//!
//!     cargo run -p urxe-engine --example two_queue_pairs

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr};

use urxe_engine::endpoint::{Buffer, CqId, HeapMemory, Route, connected_attr};
use urxe_engine::{Access, Data, Endpoint, Instant, Memory, Pd, QpSetup, QpType, RecvWr, SendOp, SendWr, SgeList};
use urxe_wire::{Packet, Qpn};

/// The protection domain of everything here.
const PD: Pd = Pd(1);

/// One end of the connection.
struct End {
    endpoint: Endpoint<HeapMemory>,
    buffer: Buffer,
    cq: CqId,
    qpn: Qpn,
}

impl End {
    fn new(host: u8) -> Result<Self, Box<dyn Error>> {
        let mut memory = HeapMemory::new(host.into());
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let buffer = memory.register(PD, access, 8192).ok_or("an empty table has room for a region")?;
        let address = IpAddr::V4(Ipv4Addr::new(192, 0, 2, host));
        let mut endpoint = Endpoint::new(address, memory, host.into());
        let cq = endpoint.create_cq(16);
        let qpn = endpoint.create_qp(&QpSetup { sq_sig_all: true, ..QpSetup::new(QpType::Rc, PD, cq, cq) });
        Ok(Self { endpoint, buffer, cq, qpn })
    }

    fn post(&mut self, now: Instant, wr_id: u64, op: SendOp, buffers: SgeList) -> Result<(), Box<dyn Error>> {
        let wr = SendWr { wr_id, op, data: Data::Gather(buffers), ..SendWr::default() };
        Ok(self.endpoint.post_send(now, self.qpn, wr, None)?)
    }

    fn holds(&self, offset: u64, expected: &[u8]) -> Result<bool, Box<dyn Error>> {
        let mut bytes = vec![0; expected.len()];
        self.endpoint.memory().read(self.buffer.addr + offset, &mut bytes)?;
        Ok(bytes == expected)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut now = Instant::default();
    let mut ends = [End::new(1)?, End::new(2)?];
    let peers = [1, 0].map(|peer: usize| (ends[peer].endpoint.address(), ends[peer].qpn));
    for (end, (to, peer_qpn)) in ends.iter_mut().zip(peers) {
        let route = Route { to, source_port: 0xC000 };
        end.endpoint.connect(now, end.qpn, &connected_attr(peer_qpn), Some(route))?;
    }

    let text = b"hello, RDMA";
    let [a, b] = &mut ends;
    a.endpoint.memory().write(a.buffer.addr, text)?;
    b.endpoint.post_recv(now, b.qpn, RecvWr { wr_id: 1, buffers: b.buffer.sge(0, 64) })?;
    a.post(now, 2, SendOp::Send, a.buffer.sge(0, 11))?;
    a.post(now, 3, SendOp::Write(b.buffer.remote(1024)), a.buffer.sge(0, 4096))?;
    a.post(now, 4, SendOp::Read(b.buffer.remote(1024)), a.buffer.sge(4096, 11))?;

    let mut packets = 0;
    loop {
        let mut silent = true;
        for (from, to) in [(0, 1), (1, 0)] {
            while let Some(datagram) = ends[from].endpoint.poll_transmit(now) {
                (silent, packets) = (false, packets + 1);
                let lost = packets == 2;
                let note = if lost { "  (lost)" } else { "" };
                println!("{} -> {}  {}{note}", datagram.from.ip(), datagram.to.ip(), Packet::parse(&datagram.bytes)?);
                if !lost {
                    ends[to].endpoint.handle_datagram(now, &datagram);
                }
            }
        }
        if silent {
            // Nothing is on its way: time goes on to the next timeout, if anything is still waited for.
            let Some(at) = ends.iter().filter_map(|end| end.endpoint.next_timeout()).min() else { break };
            now = at;
            ends.iter_mut().for_each(|end| end.endpoint.handle_timeout(now));
        }
    }

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
