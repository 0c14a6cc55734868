//! Ping-pong of packets as an 8-byte WRITE has them.

use std::io;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use super::Outcome;
use super::stream::{Receiver as _, Sender as _, set};
use super::uring::{UringReceiver, UringSender};
use crate::bare::{SMALL, percentile, socket};

/// Exchanges of a trial, behind those that warm up.
const EXCHANGES: usize = 10_000;
/// Exchanges that are not counted.
const WARM_UP: usize = 500;
/// Time after which a packet that does not come has failed the trial.
const LOST: Duration = Duration::from_secs(2);

/// One end.
pub(super) trait End {
    /// Sends a packet.
    fn send(&mut self) -> io::Result<()>;
    /// Waits for a packet.
    fn wait(&mut self) -> io::Result<()>;
}

/// Median of half an exchange in µs; the 99th percentile is the note.
pub(super) fn ping_pong<E: End + Send>(end: impl Fn(UdpSocket) -> io::Result<E>) -> io::Result<Outcome> {
    let (ping, pong) = (socket(), socket());
    ping.connect(pong.local_addr()?)?;
    pong.connect(ping.local_addr()?)?;
    let (mut ping, mut pong) = (end(ping)?, end(pong)?);
    std::thread::scope(|scope| {
        let other = scope.spawn(move || {
            (0..WARM_UP + EXCHANGES).try_for_each(|_| {
                pong.wait()?;
                pong.send()
            })
        });
        let mut times = Vec::with_capacity(EXCHANGES);
        for exchange in 0..WARM_UP + EXCHANGES {
            let start = Instant::now();
            ping.send()?;
            ping.wait()?;
            if exchange >= WARM_UP {
                times.push(start.elapsed().as_nanos() as u64 / 2);
            }
        }
        other.join().expect("an end that does not panic")?;
        times.sort_unstable();
        let note = format!("99th percentile {:.2} µs", percentile(&times, 0.99) / 1000.0);
        Ok(Outcome { value: percentile(&times, 0.5) / 1000.0, note })
    })
}

/// Polls by `look` until it has found a packet.
fn poll(mut look: impl FnMut() -> io::Result<bool>) -> io::Result<()> {
    let start = Instant::now();
    for turn in 0_u32.. {
        if look()? {
            return Ok(());
        }
        if turn % 1024 == 0 && start.elapsed() > LOST {
            break;
        }
        std::hint::spin_loop();
    }
    Err(io::ErrorKind::TimedOut.into())
}

/// Receives by recv(2) that does not block, in a loop.
#[derive(Debug)]
pub(super) struct Spinning(UdpSocket);

impl Spinning {
    pub(super) fn new(socket: UdpSocket) -> io::Result<Self> {
        Ok(Self(socket))
    }
}

impl End for Spinning {
    fn send(&mut self) -> io::Result<()> {
        self.0.send(&[0; SMALL]).map(drop)
    }

    fn wait(&mut self) -> io::Result<()> {
        let mut buffer = [0; 2048];
        poll(|| match self.0.recv(&mut buffer) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        })
    }
}

/// Receives by recv(2) that blocks.
#[derive(Debug)]
pub(super) struct Blocking(UdpSocket);

impl Blocking {
    /// Makes an end, perhaps with `SO_BUSY_POLL` of so many microseconds.
    pub(super) fn new(socket: UdpSocket, busy_poll: Option<libc::c_int>) -> io::Result<Self> {
        socket.set_nonblocking(false)?;
        socket.set_read_timeout(Some(LOST))?;
        if let Some(microseconds) = busy_poll {
            set(&socket, libc::SOL_SOCKET, libc::SO_BUSY_POLL, microseconds)?;
        }
        Ok(Self(socket))
    }
}

impl End for Blocking {
    fn send(&mut self) -> io::Result<()> {
        self.0.send(&[0; SMALL]).map(drop)
    }

    fn wait(&mut self) -> io::Result<()> {
        loop {
            match self.0.recv(&mut [0; 2048]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result.map(drop),
            }
        }
    }
}

/// Receives by io_uring, and looks into the completion queue in a loop.
pub(super) struct UringEnd {
    receiver: UringReceiver,
    sender: Sending,
    /// Packets that came with one before them.
    waiting: usize,
}

/// Way in which packets leave.
enum Sending {
    Plain(UdpSocket),
    Uring(Box<UringSender>),
}

impl UringEnd {
    /// Sends by send(2).
    pub(super) fn plain_send(socket: UdpSocket) -> io::Result<Self> {
        let sender = Sending::Plain(socket.try_clone()?);
        Ok(Self { receiver: UringReceiver::new(socket)?, sender, waiting: 0 })
    }

    /// Sends by io_uring, with a call for each packet.
    pub(super) fn uring_send(socket: UdpSocket) -> io::Result<Self> {
        let sender = Sending::Uring(Box::new(UringSender::new(socket.try_clone()?, SMALL, false)?));
        Ok(Self { receiver: UringReceiver::new(socket)?, sender, waiting: 0 })
    }
}

impl End for UringEnd {
    fn send(&mut self) -> io::Result<()> {
        match &mut self.sender {
            Sending::Plain(socket) => socket.send(&[0; SMALL]).map(drop),
            Sending::Uring(sender) => poll(|| Ok(sender.buffer()?.is_some() && sender.send()?)),
        }
    }

    fn wait(&mut self) -> io::Result<()> {
        let Self { receiver, waiting, .. } = self;
        poll(|| {
            if *waiting == 0 {
                receiver.receive(&mut |_| *waiting += 1)?;
            }
            let is_here = *waiting > 0;
            *waiting -= usize::from(is_here);
            Ok(is_here)
        })
    }
}
