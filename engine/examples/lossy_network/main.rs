//! Messages of 64 KiB with selective repeat over a network that loses some packets: what losses cost the processor.
//!
//! Counted in instructions, which neither load nor the clock disturb:
//!
//!     cargo build --release -p urxe-engine --example lossy_network
//!     valgrind --tool=callgrind --callgrind-out-file=out target/release/examples/lossy_network write 4096 10
//!     callgrind_annotate --inclusive=yes out | grep -e sender_turn -e receiver_turn
//!
//! The arguments are `write`, `send` or `read`, the path MTU, and packets lost in a thousand. Every message has the same buffers, as
//! those of perftest do. What is printed last divides the counts. The sender of a READ is its requester.

use std::collections::VecDeque;
use std::error::Error;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use urxe_engine::attr::QpAttr;
use urxe_engine::endpoint::{Buffer, CqId, Datagram, HeapMemory, Route, connected_attr};
use urxe_engine::rng::Rng;
use urxe_engine::{Access, Data, Endpoint, Instant, Pd, QpSetup, QpType, RecvWr, SendOp, SendWr, WcStatus};
use urxe_wire::{Mtu, Qpn};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const MESSAGES: u64 = 1000;
const LENGTH: u32 = 1 << 16;
/// Messages and packets in flight.
const DEPTH: u64 = 32;
const WINDOW: u32 = 256;
/// Packets that a receiver finds at once.
const BURST: usize = 32;

struct End {
    endpoint: Endpoint<HeapMemory>,
    buffer: Buffer,
    cq: CqId,
    qpn: Qpn,
}

impl End {
    fn new(host: u8) -> Result<Self> {
        let pd = Pd(1);
        let mut memory = HeapMemory::new(host.into());
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let buffer = memory.register(pd, access, LENGTH as usize).ok_or("an empty table has room for a region")?;
        let mut endpoint = Endpoint::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, host)), memory, host.into());
        let cq = endpoint.create_cq(1024);
        let setup =
            QpSetup { sq_sig_all: true, window: WINDOW, selective_paths: 1, ..QpSetup::new(QpType::Rc, pd, cq, cq) };
        let qpn = endpoint.create_qp(&setup);
        Ok(Self { endpoint, buffer, cq, qpn })
    }

    fn post_recv(&mut self, now: Instant) -> Result<()> {
        let buffers = self.buffer.sge(0, LENGTH);
        Ok(self.endpoint.post_recv(now, self.qpn, RecvWr { wr_id: 0, buffers })?)
    }
}

/// The sender takes answers, and sends what it may.
#[inline(never)]
fn sender_turn(end: &mut End, now: Instant, answers: &mut VecDeque<Datagram>, sent: &mut VecDeque<Datagram>) {
    for answer in answers.drain(..) {
        end.endpoint.handle_packet(now, &answer.origin(), &answer.bytes);
    }
    end.endpoint.handle_timeout(now);
    end.endpoint.transmit(now);
    sent.extend(std::iter::from_fn(|| end.endpoint.outbox_mut().pop()));
}

/// The receiver takes packets, and answers them together.
#[inline(never)]
fn receiver_turn(end: &mut End, now: Instant, packets: &[Datagram], answers: &mut VecDeque<Datagram>) {
    for packet in packets {
        end.endpoint.handle_packet(now, &packet.origin(), &packet.bytes);
    }
    end.endpoint.handle_timeout(now);
    end.endpoint.transmit(now);
    answers.extend(std::iter::from_fn(|| end.endpoint.outbox_mut().pop()));
}

fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let (what, mtu, per_mille) = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        // Without arguments, as a test.
        [] => ("write", Mtu::Mtu1024, 10),
        [what @ ("write" | "send" | "read"), mtu, per_mille] => {
            let mtu = if mtu == "4096" { Mtu::Mtu4096 } else { Mtu::Mtu1024 };
            (what, mtu, per_mille.parse()?)
        }
        _ => return Err("write|send|read 1024|4096 LOST_IN_A_THOUSAND".into()),
    };
    let mut now = Instant::default();
    let (mut sender, mut receiver) = (End::new(1)?, End::new(2)?);
    let names = [(sender.endpoint.address(), sender.qpn), (receiver.endpoint.address(), receiver.qpn)];
    for (end, (to, qpn)) in [(&mut sender, names[1]), (&mut receiver, names[0])] {
        // As perftest has them.
        let attr = QpAttr { path_mtu: mtu, max_rd_atomic: 128, max_dest_rd_atomic: 128, ..connected_attr(qpn) };
        end.endpoint.connect(now, end.qpn, &attr, Some(Route { to, source_port: 0xC000 }))?;
    }
    for _ in 0..DEPTH * u64::from(what == "send") {
        receiver.post_recv(now)?;
    }
    let op = match what {
        "send" => SendOp::Send,
        "read" => SendOp::Read(receiver.buffer.remote(0)),
        _ => SendOp::Write(receiver.buffer.remote(0)),
    };
    let mut rng = Rng::new(42);
    let mut is_lost = || rng.below(1000) < per_mille;
    let (mut posted, mut done, mut lost, mut handled) = (0, 0, 0_usize, 0_usize);
    let (mut link, mut answers) = (VecDeque::new(), VecDeque::new());
    while done < MESSAGES {
        while posted < MESSAGES && posted < done + DEPTH {
            let data = Data::Gather(sender.buffer.sge(0, LENGTH));
            let wr = SendWr { wr_id: posted, op, data, ..SendWr::default() };
            sender.endpoint.post_send(now, sender.qpn, wr, None)?;
            posted += 1;
        }
        // Those that are lost are among what is handled.
        let mut news: VecDeque<_> = answers.drain(..answers.len().min(BURST)).collect();
        let before = news.len();
        news.retain(|_| !is_lost());
        lost += before - news.len();
        handled += news.len();
        sender_turn(&mut sender, now, &mut news, &mut link);
        let mut burst: Vec<_> = link.drain(..link.len().min(BURST)).collect();
        let before = burst.len();
        burst.retain(|_| !is_lost());
        lost += before - burst.len();
        handled += burst.len();
        receiver_turn(&mut receiver, now, &burst, &mut answers);
        while let Some(cqe) = receiver.endpoint.poll_cq(receiver.cq) {
            assert_eq!(cqe.status, WcStatus::Success);
            receiver.post_recv(now)?;
        }
        while let Some(cqe) = sender.endpoint.poll_cq(sender.cq) {
            assert_eq!((cqe.wr_id, cqe.status), (done, WcStatus::Success));
            done += 1;
        }
        // Where nothing is under way, until a timeout.
        let idle = link.is_empty() && answers.is_empty() && done < MESSAGES;
        now = now + Duration::from_micros(20);
        if let Some(at) = sender.endpoint.next_timeout().filter(|at| idle && *at > now) {
            now = at;
        }
    }
    let packets = MESSAGES * u64::from(mtu.packets(LENGTH));
    println!("{packets} packets delivered, {lost} lost, {handled} handled");
    Ok(())
}
