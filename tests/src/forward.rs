//! Networks that change the order of RoCE packets: each joins two interfaces.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io::ErrorKind;
use std::os::fd::IntoRawFd;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use pnet_datalink::{Channel, Config, DataLinkReceiver, DataLinkSender};
use socket2::{Domain, Socket, Type};

/// UDP port of RoCE v2.
const ROCE_V2_PORT: u16 = 4791;
/// Number of packets of which one is overtaken.
const ONE_IN: u32 = 100;
/// A packet that nothing comes behind leaves after this time.
const TIMEOUT: Duration = Duration::from_millis(1);
/// Bytes of frames that wait for the forwarder: windows of several queue pairs, if the system grants so many.
const BUFFER: usize = 4 << 20;

/// Microseconds that packets take on each of eight paths. From the fastest to the slowest several dozen packets leave.
pub const DIFFERENT_PATHS: [u64; 8] = [0, 200, 400, 600, 800, 1000, 1200, 1400];
/// Eight paths, each as slow as the slowest of these.
pub const EQUAL_PATHS: [u64; 8] = [1400; 8];

/// Order in which a network passes RoCE packets on.
#[derive(Debug, Clone)]
pub enum Reordering {
    /// Order in which one packet in a hundred is overtaken by some that come behind.
    Overtaking {
        /// Number that decides which packets.
        seed: u64,
        /// Packets that overtake one, at most; with 0 all stay in order.
        by: u32,
    },
    /// Paths on which packets take so long each. The UDP source port says which path a packet takes: those of one connection take
    /// one after the other.
    Paths(Vec<Duration>),
}

impl Reordering {
    /// Reads it from arguments: `overtake SEED BY` or `paths MICROSECONDS...`.
    pub fn from_args(args: &[&str]) -> Result<Self> {
        match args {
            ["overtake", seed, by] => Ok(Self::Overtaking { seed: seed.parse()?, by: by.parse()? }),
            ["paths", delays @ ..] if !delays.is_empty() => {
                let delays: Result<Vec<u64>, _> = delays.iter().map(|micros| micros.parse()).collect();
                Ok(Self::Paths(delays?.into_iter().map(Duration::from_micros).collect()))
            }
            _ => bail!("expected overtake SEED BY or paths MICROSECONDS..."),
        }
    }
}

/// Passes frames on between two interfaces of this network until the process is killed. Says on standard error how many
/// packets were overtaken, or how many source ports there are, now and then.
pub fn forward(left: &str, right: &str, reordering: &Reordering) -> Result<()> {
    let (mut left_out, mut left_in) = open(left)?;
    let (mut right_out, mut right_in) = open(right)?;
    println!("ready");
    match reordering {
        Reordering::Overtaking { seed, by } => {
            let mut rng = fastrand::Rng::with_seed(*seed);
            let other = rng.fork();
            both(
                || overtake(&mut *left_in, &mut *right_out, rng, *by),
                || overtake(&mut *right_in, &mut *left_out, other, *by),
            )
        }
        Reordering::Paths(delays) => {
            both(|| spread(&mut *left_in, &mut *right_out, delays), || spread(&mut *right_in, &mut *left_out, delays))
        }
    }
}

/// Runs both directions, each in a thread.
fn both(there: impl FnOnce() -> Result<()> + Send, back: impl FnOnce() -> Result<()> + Send) -> Result<()> {
    thread::scope(|scope| {
        let (there, back) = (scope.spawn(there), scope.spawn(back));
        there.join().and(back.join()).unwrap_or_else(|_| bail!("a thread panicked"))
    })
}

fn open(name: &str) -> Result<(Box<dyn DataLinkSender>, Box<dyn DataLinkReceiver>)> {
    let interface = pnet_datalink::interfaces().into_iter().find(|interface| interface.name == name);
    // It receives nothing until it is bound.
    let socket = Socket::new(Domain::PACKET, Type::RAW, None)?;
    socket.set_recv_buffer_size(BUFFER)?;
    let socket_fd = Some(socket.into_raw_fd());
    let config = Config { read_timeout: Some(TIMEOUT), socket_fd, ..Config::default() };
    match pnet_datalink::channel(&interface.with_context(|| format!("no interface {name}"))?, config)? {
        Channel::Ethernet(sender, receiver) => Ok((sender, receiver)),
        _ => bail!("{name} is not Ethernet"),
    }
}

/// Sends a frame. A full queue loses it, as networks do.
fn send(to: &mut dyn DataLinkSender, frame: &[u8]) {
    let _ = to.send_to(frame, None);
}

fn overtake(
    from: &mut dyn DataLinkReceiver,
    to: &mut dyn DataLinkSender,
    mut rng: fastrand::Rng,
    by: u32,
) -> Result<()> {
    // Frames that wait, and how many more overtake each.
    let (mut held, mut overtaken) = (Vec::<(Vec<u8>, u32)>::new(), 0_u32);
    loop {
        match from.next() {
            Ok(frame) if by > 0 && source_port(frame).is_some() && rng.u32(..ONE_IN) == 0 => {
                held.push((frame.to_vec(), rng.u32(1..=by)));
            }
            Ok(frame) => {
                send(to, frame);
                held.iter_mut().for_each(|(_, left)| *left -= 1);
                while let Some(at) = held.iter().position(|(_, left)| *left == 0) {
                    send(to, &held.remove(at).0);
                    overtaken += 1;
                    if overtaken.is_power_of_two() {
                        eprintln!("{overtaken} overtaken");
                    }
                }
            }
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                for (waiting, _) in held.drain(..) {
                    send(to, &waiting);
                }
            }
            Err(error) => return Err(error).context("receiving"),
        }
    }
}

/// A frame on its way, ordered by when it leaves.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Delayed {
    due: Instant,
    /// Number in the order of arrival: of those due at the same time the first leaves first.
    nth: u64,
    frame: Vec<u8>,
}

fn spread(from: &mut dyn DataLinkReceiver, to: &mut dyn DataLinkSender, delays: &[Duration]) -> Result<()> {
    let (frames, coming) = mpsc::channel();
    thread::scope(move |scope| {
        scope.spawn(move || deliver(&coming, to));
        // Ports are random. Eight in a row take eight paths, where a hash would have some of them share one.
        let mut ports = HashMap::new();
        for nth in 0.. {
            let (came, frame) = match from.next() {
                Ok(frame) => (Instant::now(), frame),
                Err(error) if error.kind() == ErrorKind::TimedOut => continue,
                Err(error) => return Err(error).context("receiving"),
            };
            let delay = source_port(frame).map_or(Duration::ZERO, |port| {
                let known = ports.len();
                let at = *ports.entry(port).or_insert(known);
                if at == known && ports.len().is_power_of_two() {
                    eprintln!("{} source ports", ports.len());
                }
                delays.get(at % delays.len()).copied().unwrap_or_default()
            });
            if frames.send(Delayed { due: came + delay, nth, frame: frame.to_vec() }).is_err() {
                break;
            }
        }
        Ok(())
    })
}

/// Sends each frame when it is due.
fn deliver(coming: &Receiver<Delayed>, to: &mut dyn DataLinkSender) {
    let mut waiting: BinaryHeap<Reverse<Delayed>> = BinaryHeap::new();
    loop {
        let now = Instant::now();
        while waiting.peek().is_some_and(|Reverse(first)| first.due <= now) {
            if let Some(Reverse(first)) = waiting.pop() {
                send(to, &first.frame);
            }
        }
        let next = match waiting.peek() {
            Some(Reverse(first)) => coming.recv_timeout(first.due.saturating_duration_since(now)),
            None => coming.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match next {
            Ok(frame) => waiting.push(Reverse(frame)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// The UDP source port, if an Ethernet frame is IPv4 or IPv6 without options, UDP, to RoCE's port.
fn source_port(frame: &[u8]) -> Option<u16> {
    let (protocol, udp) = match frame.get(12..14)? {
        [0x08, 0x00] => (frame.get(23)?, 34),
        [0x86, 0xDD] => (frame.get(20)?, 54),
        _ => return None,
    };
    let &[high, low, to_high, to_low] = frame.get(udp..udp + 4)? else { return None };
    let is_roce = *protocol == 17 && u16::from_be_bytes([to_high, to_low]) == ROCE_V2_PORT;
    is_roce.then(|| u16::from_be_bytes([high, low]))
}
