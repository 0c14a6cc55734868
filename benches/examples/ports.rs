//! Cost of `net`: one workload by bare UDP and through two ports, alternating in one run.
//!
//! The small packets carry an ICRC only where ports send them.
//!
//! `cargo run --release -p urxe-benches --example ports [-- REPETITIONS]`

#![expect(clippy::cast_possible_truncation, reason = "measurements fit")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use urxe_benches::bare::{self, Ball, MESSAGE, PACKET, PAYLOAD, Payload, RUN, SMALL};
use urxe_net::{Destination, Interface, Port, Receiver, Route, TxBatch};
use urxe_wire::Qpn;
use urxe_wire::icrc::Check;

struct End {
    port: Port,
    rx: Receiver,
    tx: TxBatch,
    qpn: Qpn,
}

impl End {
    fn open() -> Self {
        let lo = Interface::by_name("lo").expect("lo");
        let (port, rx) = Port::open(lo).expect("a port on lo");
        let qpn = port.alloc_qpn().expect("a QPN");
        Self { port, rx, tx: TxBatch::new(), qpn }
    }

    fn route(&self, to: Qpn) -> Arc<Route> {
        let gid = self.port.interface().gids()[1];
        let to = Destination { local: gid, remote: gid, dest_qpn: to, flow_label: 0, tclass: 0, hop_limit: 0 };
        self.port.route(&to).expect("a route to lo")
    }

    /// Queues a packet of `len` bytes, ICRC included.
    fn queue(&mut self, route: &Arc<Route>, to: Qpn, len: usize, payload: &[u8]) {
        let packet = self.tx.packet(&self.port, route, len - 4);
        packet[..12].fill(0);
        packet[5..8].copy_from_slice(&to.get().to_be_bytes()[1..]);
        let end = packet.len();
        packet[end - payload.len()..].copy_from_slice(payload);
        self.tx.commit();
    }

    fn flush(&mut self) {
        self.tx.flush(&self.port);
    }

    /// Receives once; each packet is verified and copied to `memory`. Returns the bytes received.
    fn receive(&mut self, memory: &mut [u8], at: &mut usize) -> usize {
        let mut bytes = 0;
        self.rx.receive(&self.port, 16, &mut |run| {
            for datagram in run.datagrams() {
                assert_eq!(datagram.verify(), Check::Exact);
                let body = &datagram.payload[12..datagram.payload.len() - 4];
                memory[*at..*at + body.len()].copy_from_slice(body);
                *at = (*at + body.len()) % (memory.len() - PAYLOAD);
                bytes += datagram.payload.len();
            }
            true
        });
        bytes
    }
}

fn ping_pong(rounds: usize) -> Vec<u64> {
    let (mut ping, mut pong) = (End::open(), End::open());
    let (there, back) = (ping.route(pong.qpn), pong.route(ping.qpn));
    let (ping_qpn, pong_qpn) = (ping.qpn, pong.qpn);
    let payload = [7u8; 8];
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stop = &stop;
        scope.spawn(move || {
            let mut memory = vec![0; 2 * PAYLOAD];
            while !stop.load(Ordering::Relaxed) {
                if pong.receive(&mut memory, &mut 0) > 0 {
                    pong.queue(&back, ping_qpn, SMALL, &payload);
                    pong.flush();
                } else {
                    std::hint::spin_loop();
                }
            }
        });
        let mut memory = vec![0; 2 * PAYLOAD];
        let mut times: Vec<u64> = (0..rounds)
            .map(|_| {
                let start = Instant::now();
                ping.queue(&there, pong_qpn, SMALL, &payload);
                ping.flush();
                let mut polls = 0u32;
                while ping.receive(&mut memory, &mut 0) == 0 {
                    std::hint::spin_loop();
                    polls += 1;
                    // Lost when another process of this host, which owned the address, has just ended.
                    if polls.is_multiple_of(1 << 20) {
                        ping.queue(&there, pong_qpn, SMALL, &payload);
                        ping.flush();
                    }
                }
                start.elapsed().as_nanos() as u64 / 2
            })
            .collect();
        stop.store(true, Ordering::Relaxed);
        times.sort_unstable();
        times
    })
}

/// A stream of packets of `len` bytes, `count` a flush: bytes of packets received a second.
fn stream(run: Duration, len: usize, count: usize) -> f64 {
    let (mut sender, mut receiver) = (End::open(), End::open());
    let route = sender.route(receiver.qpn);
    let to = receiver.qpn;
    let window = (receiver.port.receive_buffer() / 3).min(32 * count * len);
    let (received, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (received, stop) = (&received, &stop);
        scope.spawn(move || {
            let mut memory = vec![0u8; MESSAGE + PAYLOAD];
            let mut at = 0;
            while !stop.load(Ordering::Relaxed) {
                let bytes = receiver.receive(&mut memory, &mut at);
                if bytes > 0 {
                    received.fetch_add(bytes, Ordering::Relaxed);
                }
            }
            let lost: Vec<_> = receiver.port.counters().named().filter(|(n, v)| n.contains("drop") && *v > 0).collect();
            assert!(lost.is_empty(), "{lost:?}");
        });
        let source = vec![0x5Au8; MESSAGE];
        let (mut sent, mut at) = (0, 0);
        // The first packets go through the owner; begin when the flow is learnt.
        sender.queue(&route, to, len, &source[..len - 16]);
        sender.flush();
        let begin = Instant::now();
        let mut receive_own = || {
            sender.rx.receive(&sender.port, 16, &mut |_| false);
        };
        while received.load(Ordering::Relaxed) == 0 {
            receive_own();
            assert!(begin.elapsed() < Duration::from_secs(5), "the first packet got lost");
        }
        received.store(0, Ordering::Relaxed);
        let start = Instant::now();
        while start.elapsed() < run {
            while sent - received.load(Ordering::Relaxed) > window && start.elapsed() < run + Duration::from_secs(1) {
                std::hint::spin_loop();
            }
            for _ in 0..count {
                sender.queue(&route, to, len, &source[at..at + len - 16]);
                at = (at + len) % (MESSAGE - len);
            }
            sender.flush();
            sent += count * len;
        }
        let seconds = start.elapsed().as_secs_f64();
        let rate = received.load(Ordering::Relaxed) as f64 / seconds;
        stop.store(true, Ordering::Relaxed);
        rate
    })
}

fn main() {
    let repetitions = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(5);
    let run = Duration::from_millis(500);
    let mut measured: [[Vec<f64>; 2]; 3] = Default::default();
    for _ in 0..repetitions {
        let goodput = PAYLOAD as f64 / PACKET as f64 * 8.0 / 1e9;
        measured[0][0].push(bare::stream(run, Payload::Copied));
        measured[0][1].push(stream(run, PACKET, RUN) * goodput);
        measured[1][0].push(bare::small_rate(run));
        measured[1][1].push(stream(run, SMALL, 64) / SMALL as f64 / 1e6);
        measured[2][0].push(bare::percentile(&bare::ping_pong(50_000, Ball::Packet), 0.5) / 1000.0);
        measured[2][1].push(bare::percentile(&ping_pong(50_000), 0.5) / 1000.0);
    }
    let names = ["stream Gbit/s", "small Mpackets/s", "pingpong us"];
    for (name, [bare, ports]) in names.iter().zip(measured) {
        let (bare, ports) = (bare::median(bare), bare::median(ports));
        println!("{name}: bare {bare:.2}, ports {ports:.2}, ratio {:.2}", ports / bare);
    }
}
