//! Streams of GSO runs, with the copies and the ICRC of both ends.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use urxe_wire::icrc::{self, Flow};

use super::Outcome;
use crate::bare::{MESSAGE, PACKET, PAYLOAD, RUN, granted, socket};

/// Bytes of the first packet of a message: a RETH more than the others have.
pub(super) const FIRST: usize = PACKET + 16;

/// Sends GSO runs from buffers, which the kernel may go on reading after the call.
pub(super) trait Sender {
    /// A buffer for [`RUN`] packets that may be written to, unless the kernel still reads them all.
    fn buffer(&mut self) -> io::Result<Option<&mut [u8]>>;
    /// Sends the buffer. Returns whether it was taken.
    fn send(&mut self) -> io::Result<bool>;
    /// Returns a note of the kernel's.
    fn note(&self) -> String {
        String::new()
    }
}

/// Receives GRO runs.
pub(super) trait Receiver {
    /// Calls `take` for what is there.
    fn receive(&mut self, take: &mut dyn FnMut(&[u8])) -> io::Result<()>;
}

/// Two sockets, the first connected to the second, which makes runs of [`PACKET`] bytes each of what it sends.
fn connected() -> io::Result<(UdpSocket, UdpSocket)> {
    let (sender, receiver) = (socket(), socket());
    sender.connect(receiver.local_addr()?)?;
    set(&sender, libc::SOL_UDP, libc::UDP_SEGMENT, PACKET as libc::c_int)?;
    Ok((sender, receiver))
}

/// Sets an option whose value is an int.
pub(super) fn set(socket: &UdpSocket, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the value is a readable int.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Goodput in Gbit/s.
pub(super) fn stream<S: Sender, R: Receiver + Send>(
    run: Duration,
    sender: fn(UdpSocket) -> io::Result<S>,
    receiver: fn(UdpSocket) -> io::Result<R>,
) -> io::Result<Outcome> {
    let (sending, receiving) = connected()?;
    let flow = Flow::new(sending.local_addr()?, receiving.local_addr()?);
    let window = granted(&receiving) / 3;
    let (mut sender, receiver) = (sender(sending)?, receiver(receiving)?);
    let source = vec![0x5A_u8; MESSAGE];
    let mut at = 0;
    let value = goodput(run, window, &flow, receiver, || {
        let Some(buffer) = sender.buffer()? else { return Ok(0) };
        for (index, packet) in buffer.chunks_mut(PACKET).enumerate() {
            fill(packet, 12, &source, &mut at, &flow, index);
        }
        Ok(if sender.send()? { RUN * PACKET } else { 0 })
    })?;
    Ok(Outcome { value, note: sender.note() })
}

/// Writes the next payload behind `headers` bytes, and the ICRC.
pub(super) fn fill(packet: &mut [u8], headers: usize, source: &[u8], at: &mut usize, flow: &Flow, index: usize) {
    let (body, trailer) = packet.split_at_mut(headers + PAYLOAD);
    body[headers..].copy_from_slice(&source[*at..*at + PAYLOAD]);
    *at = (*at + PAYLOAD) % MESSAGE;
    trailer.copy_from_slice(&icrc::compute(flow, index as u16, body).to_le_bytes());
}

/// Gbit/s of payload that arrive, while `send` sends and tells how many bytes, as long as `window` is not outstanding.
pub(super) fn goodput(
    run: Duration,
    window: usize,
    flow: &Flow,
    mut receiver: impl Receiver + Send,
    mut send: impl FnMut() -> io::Result<usize>,
) -> io::Result<f64> {
    let (received, packets, stop) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let receiving = scope.spawn(|| {
            let mut memory = vec![0_u8; MESSAGE];
            let (mut at, mut bad) = (0, 0_usize);
            let mut take = |run: &[u8]| {
                // A run with the first packet of a message is not a multiple of the others' length.
                let length = if run.len().is_multiple_of(PACKET) { PACKET } else { FIRST };
                for (index, packet) in run.chunks(length).enumerate() {
                    let (body, trailer) = packet.split_at(packet.len() - 4);
                    bad += usize::from(icrc::compute(flow, index as u16, body).to_le_bytes() != trailer);
                    memory[at..at + PAYLOAD].copy_from_slice(&body[body.len() - PAYLOAD..]);
                    at = (at + PAYLOAD) % MESSAGE;
                    packets.fetch_add(1, Ordering::Relaxed);
                }
                received.fetch_add(run.len(), Ordering::Relaxed);
            };
            let mut result = Ok(());
            while result.is_ok() && !stop.load(Ordering::Relaxed) {
                result = receiver.receive(&mut take);
            }
            result.map(|()| bad)
        });
        let (start, mut sent, mut result) = (Instant::now(), 0, Ok(()));
        while start.elapsed() < run && result.is_ok() {
            if sent - received.load(Ordering::Relaxed) > window {
                std::hint::spin_loop();
                continue;
            }
            result = send().map(|bytes| sent += bytes);
        }
        let seconds = start.elapsed().as_secs_f64();
        let payload = packets.load(Ordering::Relaxed) as f64 * PAYLOAD as f64;
        stop.store(true, Ordering::Relaxed);
        let bad = receiving.join().expect("a receiver that does not panic")?;
        assert_eq!(bad, 0, "packets with a wrong ICRC");
        result.map(|()| payload * 8.0 / seconds / 1e9)
    })
}

/// Sends by send(2).
#[derive(Debug)]
pub(super) struct Plain {
    socket: UdpSocket,
    buffer: Vec<u8>,
}

impl Plain {
    pub(super) fn new(socket: UdpSocket) -> io::Result<Self> {
        Ok(Self { socket, buffer: vec![0; RUN * PACKET] })
    }
}

impl Sender for Plain {
    fn buffer(&mut self) -> io::Result<Option<&mut [u8]>> {
        Ok(Some(&mut self.buffer))
    }

    fn send(&mut self) -> io::Result<bool> {
        taken(self.socket.send(&self.buffer))
    }
}

/// Whether what was sent was taken: a full socket takes nothing, and that is no error.
pub(super) fn taken(sent: io::Result<usize>) -> io::Result<bool> {
    match sent {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

/// Receives by recv(2).
#[derive(Debug)]
pub(super) struct PlainReceiver {
    socket: UdpSocket,
    buffer: Vec<u8>,
}

impl PlainReceiver {
    pub(super) fn new(socket: UdpSocket) -> io::Result<Self> {
        Ok(Self { socket, buffer: vec![0; 1 << 16] })
    }
}

impl Receiver for PlainReceiver {
    fn receive(&mut self, take: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        match self.socket.recv(&mut self.buffer) {
            Ok(length) => take(&self.buffer[..length]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}
