//! Queues of switches.

use std::collections::VecDeque;
use std::time::Duration;

use urxe_engine::Instant;
use urxe_engine::endpoint::Datagram;
use urxe_engine::rng::Rng;

use crate::counts::Counts;

/// The queue of a switch in front of a node's link: where several senders meet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bottleneck {
    /// Speed of the link behind it, in bits a second.
    pub rate: u64,
    /// Packets that it holds; more are lost.
    pub capacity: usize,
    /// Marks packets with CE by random early detection: from the first length on some, up to one in ten, from the second on
    /// all. `None`: marks nothing.
    pub marks: Option<(usize, usize)>,
}

impl Bottleneck {
    /// Bytes of Ethernet header and FCS, IPv4 and UDP header.
    const HEADERS: usize = 14 + 4 + 20 + 8;

    /// Time that the link takes for a packet of `len` bytes from the BTH to the ICRC.
    const fn time_of(&self, len: usize) -> Duration {
        Duration::from_nanos((len + Self::HEADERS) as u64 * 8 * 1_000_000_000 / self.rate)
    }

    /// Whether a packet that finds so many before it is marked.
    const fn marks(&self, length: usize, rng: &mut Rng) -> bool {
        let Some((some, all)) = self.marks else { return false };
        length >= all || (length > some && rng.below(10 * (all - some) as u64) < (length - some) as u64)
    }
}

/// A bottleneck, and the packets in it.
#[derive(Debug)]
pub(crate) struct SwitchQueue {
    bottleneck: Bottleneck,
    rng: Rng,
    /// When each packet in there leaves.
    leaving: VecDeque<Instant>,
    longest: usize,
}

impl SwitchQueue {
    pub(crate) const fn new(bottleneck: Bottleneck, seed: u64) -> Self {
        Self { bottleneck, rng: Rng::new(seed), leaving: VecDeque::new(), longest: 0 }
    }

    /// Most packets that were in it at a time.
    pub(crate) const fn longest(&self) -> usize {
        self.longest
    }

    /// Packets in it at `now`.
    pub(crate) fn len(&self, now: Instant) -> usize {
        self.leaving.iter().filter(|at| **at > now).count()
    }

    /// Takes a packet, and marks it if need be. Returns when it leaves; `None`: it is lost.
    pub(crate) fn take(&mut self, now: Instant, datagram: &mut Datagram, counts: &mut Counts) -> Option<Instant> {
        while self.leaving.front().is_some_and(|at| *at <= now) {
            self.leaving.pop_front();
        }
        let length = self.leaving.len();
        if length >= self.bottleneck.capacity {
            counts.queue_full += 1;
            return None;
        }
        if self.bottleneck.marks(length, &mut self.rng) {
            datagram.is_marked = true;
            counts.marked += 1;
        }
        let begins = self.leaving.back().copied().unwrap_or(now);
        let leaves = begins + self.bottleneck.time_of(datagram.bytes.len());
        self.leaving.push_back(leaves);
        self.longest = self.longest.max(length + 1);
        Some(leaves)
    }
}
