//! Bare UDP on loopback, the way urxe's packets travel but with nothing of urxe around them: the ceiling.
//!
//! Both ends are threads of one process; each takes a processor of its own.

#![expect(clippy::cast_possible_truncation, reason = "measurements and segment sizes fit")]

use std::io::{self, IoSlice};
use std::mem::{size_of, zeroed};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use urxe_wire::icrc;

/// Payload of a packet: the largest path MTU.
pub const PAYLOAD: usize = 4096;
/// A packet with BTH and ICRC around it.
pub const PACKET: usize = 12 + PAYLOAD + 4;
/// Packets of a GSO run.
pub const RUN: usize = 15;
/// A WRITE of 8 bytes: BTH, RETH, payload, ICRC.
pub const SMALL: usize = 12 + 16 + 8 + 4;
/// An ACK: BTH, AETH, ICRC.
pub const ACK: usize = 12 + 4 + 4;
/// Memory that is sent from and received to, as a bandwidth test's message.
pub const MESSAGE: usize = 1 << 20;

/// A socket as the receiving end of a stream has it.
pub(crate) fn socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a loopback UDP socket");
    for (level, name, value) in [
        (libc::SOL_SOCKET, libc::SO_RCVBUF, 8 << 20),
        (libc::SOL_UDP, libc::UDP_GRO, 1),
        (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO),
    ] {
        let value: libc::c_int = value;
        // SAFETY: the option value is a readable int.
        let rc = unsafe {
            let len = size_of::<libc::c_int>() as libc::socklen_t;
            libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), len)
        };
        assert_eq!(rc, 0, "socket option {name}: {}", io::Error::last_os_error());
    }
    socket.set_nonblocking(true).expect("non-blocking");
    socket
}

/// Sends `bytes` as segments of `segment` bytes.
pub(crate) fn send_run(socket: &UdpSocket, to: &socket2::SockAddr, bytes: &[u8], segment: usize) -> bool {
    send_parts(socket, to, &[IoSlice::new(bytes)], segment)
}

/// Room for the control message that says how long the segments of a run are.
#[repr(C, align(8))]
#[derive(Debug)]
pub(crate) struct Control([u8; 24]);

impl Control {
    /// Room that nothing is written to yet.
    pub(crate) const fn new() -> Self {
        Self([0; 24])
    }
}

/// The header of a message of `parts`, one behind the other, as segments of `segment` bytes. It points to its arguments.
pub(crate) fn header(
    to: &socket2::SockAddr,
    parts: &[IoSlice<'_>],
    segment: usize,
    control: &mut Control,
) -> libc::msghdr {
    // SAFETY: all-zero bytes are a valid msghdr; every pointer stored is to live memory of the length beside it (an
    // `IoSlice` is an iovec), and the control buffer is aligned and large enough for one header with a u16.
    unsafe {
        let mut message: libc::msghdr = zeroed();
        message.msg_name = to.as_ptr().cast_mut().cast();
        message.msg_namelen = to.len();
        message.msg_iov = parts.as_ptr().cast_mut().cast();
        message.msg_iovlen = parts.len();
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = control.0.len();
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_UDP;
        (*header).cmsg_type = libc::UDP_SEGMENT;
        (*header).cmsg_len = libc::CMSG_LEN(2) as usize;
        libc::CMSG_DATA(header).cast::<u16>().write_unaligned(segment as u16);
        message
    }
}

/// Sends `parts`, one behind the other, as segments of `segment` bytes.
fn send_parts(socket: &UdpSocket, to: &socket2::SockAddr, parts: &[IoSlice<'_>], segment: usize) -> bool {
    let mut control = Control::new();
    let message = header(to, parts, segment, &mut control);
    // SAFETY: the header points to the arguments, and to the room above.
    unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_DONTWAIT) > 0 }
}

/// Way in which payload comes into a packet that is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payload {
    /// Copied behind the headers.
    Copied,
    /// Payload stays where it is: the kernel gathers headers, payload and CRC (iovec).
    Gathered,
}

/// A stream of GSO runs, CRC at both ends, a copy at the receiving end and perhaps at the other: goodput in Gbit/s.
pub fn stream(run: Duration, payload: Payload) -> f64 {
    let (sender, receiver) = (socket(), socket());
    let (from, to) = (sender.local_addr().expect("bound"), receiver.local_addr().expect("bound"));
    let flow = icrc::Flow::new(from, to);
    let (received, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    // A run of 61 680 bytes is charged at less than twice that; the system may grant as little as 208 KiB.
    let window = granted(&receiver) / 3;
    std::thread::scope(|scope| {
        let rx = scope.spawn(|| {
            let mut buffer = vec![0u8; 1 << 16];
            let mut memory = vec![0u8; MESSAGE];
            let (mut at, mut bad) = (0, 0usize);
            while !stop.load(Ordering::Relaxed) {
                let Ok(len) = receiver.recv(&mut buffer) else { continue };
                for (index, packet) in buffer[..len].chunks(PACKET).enumerate() {
                    let (body, trailer) = packet.split_at(packet.len() - 4);
                    let is_right = icrc::compute(&flow, index as u16, body).to_le_bytes() == trailer;
                    // What is gathered has no ICRC: see below.
                    bad += usize::from(!is_right && payload == Payload::Copied);
                    memory[at..at + PAYLOAD].copy_from_slice(&body[12..]);
                    at = (at + PAYLOAD) % MESSAGE;
                }
                received.fetch_add(len, Ordering::Relaxed);
            }
            bad
        });
        let source = vec![0x5Au8; MESSAGE];
        let mut buffer = vec![0u8; RUN * PACKET];
        let (to, mut sent, mut at) = (socket2::SockAddr::from(to), 0, 0);
        let start = Instant::now();
        while start.elapsed() < run {
            while sent - received.load(Ordering::Relaxed) > window {
                if start.elapsed() > run + Duration::from_secs(1) {
                    break;
                }
                std::hint::spin_loop();
            }
            let is_sent = match payload {
                Payload::Copied => {
                    for (index, packet) in buffer.chunks_mut(PACKET).enumerate() {
                        let (body, trailer) = packet.split_at_mut(PACKET - 4);
                        body[12..].copy_from_slice(&source[at..at + PAYLOAD]);
                        at = (at + PAYLOAD) % MESSAGE;
                        trailer.copy_from_slice(&icrc::compute(&flow, index as u16, body).to_le_bytes());
                    }
                    send_run(&sender, &to, &buffer, PACKET)
                }
                Payload::Gathered => {
                    let mut parts = [IoSlice::new(&[]); 3 * RUN];
                    for (packet, part) in buffer.chunks(PACKET).zip(parts.chunks_mut(3)) {
                        // As long as computing an ICRC: `icrc` wants a packet in one piece.
                        let payload = &source[at..at + PAYLOAD];
                        std::hint::black_box(icrc::compute(&flow, 0, payload));
                        at = (at + PAYLOAD) % MESSAGE;
                        let (headers, trailer) = (&packet[..12], &packet[PACKET - 4..]);
                        part.copy_from_slice(&[headers, payload, trailer].map(IoSlice::new));
                    }
                    send_parts(&sender, &to, &parts, PACKET)
                }
            };
            if is_sent {
                sent += buffer.len();
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        let goodput = received.load(Ordering::Relaxed) as f64 * PAYLOAD as f64 / PACKET as f64;
        stop.store(true, Ordering::Relaxed);
        let bad = rx.join().expect("receiver");
        assert_eq!(bad, 0, "packets with a wrong CRC");
        goodput * 8.0 / seconds / 1e9
    })
}

/// Bytes that the system grants for what is received, as it counts them.
pub(crate) fn granted(socket: &UdpSocket) -> usize {
    socket2::SockRef::from(socket).recv_buffer_size().expect("SO_RCVBUF")
}

/// Small packets, 64 a GSO run, no CRC: millions a second.
pub fn small_rate(run: Duration) -> f64 {
    let (sender, receiver) = (socket(), socket());
    let to = receiver.local_addr().expect("bound");
    let (received, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = vec![0u8; 1 << 16];
            while !stop.load(Ordering::Relaxed) {
                if let Ok(len) = receiver.recv(&mut buffer) {
                    received.fetch_add(len / SMALL, Ordering::Relaxed);
                }
            }
        });
        let buffer = vec![0x5Au8; 64 * SMALL];
        let (to, mut sent) = (socket2::SockAddr::from(to), 0);
        let start = Instant::now();
        while start.elapsed() < run {
            while sent - received.load(Ordering::Relaxed) > 64 * 32 && start.elapsed() < run {
                std::hint::spin_loop();
            }
            if send_run(&sender, &to, &buffer, SMALL) {
                sent += 64;
            }
        }
        let rate = received.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64() / 1e6;
        stop.store(true, Ordering::Relaxed);
        rate
    })
}

/// Packets of each direction of a ping-pong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ball {
    /// A packet: a WRITE of 8 bytes.
    Packet,
    /// A GSO run of two: such a WRITE, and the ACK of the one that came before.
    PacketAndAck,
}

impl Ball {
    fn send(self, socket: &UdpSocket, to: &socket2::SockAddr) {
        let sent = match self {
            Self::Packet => socket2::SockRef::from(socket).send_to(&[0; SMALL], to).is_ok(),
            Self::PacketAndAck => send_run(socket, to, &[0; SMALL + ACK], SMALL),
        };
        assert!(sent, "send: {}", io::Error::last_os_error());
    }
}

/// Half round trips in nanoseconds, sorted, of a ping-pong where both ends poll.
pub fn ping_pong(rounds: usize, ball: Ball) -> Vec<u64> {
    let (ping, pong) = (socket(), socket());
    let [to_ping, to_pong] = [&ping, &pong].map(|socket| socket2::SockAddr::from(socket.local_addr().expect("bound")));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0u8; 2048];
            for _ in 0..rounds {
                poll(&pong, &mut buffer);
                ball.send(&pong, &to_ping);
            }
        });
        let mut buffer = [0u8; 2048];
        let mut times: Vec<u64> = (0..rounds)
            .map(|_| {
                let start = Instant::now();
                ball.send(&ping, &to_pong);
                poll(&ping, &mut buffer);
                start.elapsed().as_nanos() as u64 / 2
            })
            .collect();
        times.sort_unstable();
        times
    })
}

fn poll(socket: &UdpSocket, buffer: &mut [u8]) {
    while socket.recv_from(buffer).is_err() {
        std::hint::spin_loop();
    }
}

/// The value at a fraction of a sorted list.
pub fn percentile(sorted: &[u64], fraction: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * fraction) as usize] as f64
}

/// The middle of some measurements.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
