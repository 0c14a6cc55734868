//! Counters of a queue pair: packets, bytes, errors.

use std::sync::atomic::{AtomicU64, Ordering};

use urxe_engine::Event;
use urxe_status::Counters;

/// Traffic and error counters of one queue pair. Accessed only while the queue pair is locked.
#[derive(Debug, Default)]
pub(crate) struct QpCounters {
    /// Packets received, and their bytes from BTH to ICRC.
    pub(crate) received: Traffic,
    /// Packets sent, and their bytes from BTH to ICRC.
    pub(crate) sent: Traffic,
    /// Requests behind a gap, and those of them that were kept, that no error counter contains yet.
    out_of_order: (u64, u64),
    /// Error counters, allocated by the first error.
    errors: Option<Box<Counters>>,
}

/// Packets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traffic {
    packets: u64,
    bytes: u64,
}

impl Traffic {
    /// Counts a packet of so many bytes.
    pub(crate) const fn add(&mut self, bytes: usize) {
        self.packets += 1;
        self.bytes += bytes as u64;
    }

    /// Takes what was counted elsewhere.
    pub(crate) fn take(&mut self, other: &mut Self) {
        let Self { packets, bytes } = std::mem::take(other);
        self.packets += packets;
        self.bytes += bytes;
    }
}

/// Packets from one queue pair to another of this process. One thread at a time adds: each has its own, and they are added
/// when somebody reads.
#[derive(Debug, Default)]
pub(crate) struct InsideTraffic {
    runs: AtomicU64,
    packets: AtomicU64,
    bytes: AtomicU64,
}

impl InsideTraffic {
    /// Counts a run.
    pub(crate) fn add(&self, packets: u16, bytes: usize) {
        let add = |counter: &AtomicU64, n| counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
        add(&self.runs, 1);
        add(&self.packets, packets.into());
        add(&self.bytes, bytes as u64);
    }

    /// Value that belongs to the port's counter of this name.
    pub(crate) fn part_of(&self, name: &str) -> u64 {
        match name {
            "inside_runs" => &self.runs,
            "tx_packets" | "rx_packets" => &self.packets,
            "tx_bytes" | "rx_bytes" => &self.bytes,
            _ => return 0,
        }
        .load(Ordering::Relaxed)
    }
}

/// Requests carried out at the memory of peers, by whom one thread at a time does so.
#[derive(Debug, Default)]
pub(crate) struct DirectTraffic {
    requests: AtomicU64,
    bytes: AtomicU64,
}

impl DirectTraffic {
    /// Counts requests.
    pub(crate) fn add(&self, requests: u64, bytes: u64) {
        let add = |counter: &AtomicU64, n| counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
        add(&self.requests, requests);
        add(&self.bytes, bytes);
    }

    /// Value that belongs to the device's counter of this name.
    pub(crate) fn part_of(&self, name: &str) -> u64 {
        match name {
            "direct_requests" => &self.requests,
            "direct_bytes" => &self.bytes,
            _ => return 0,
        }
        .load(Ordering::Relaxed)
    }
}

impl QpCounters {
    /// Counts an event of the engine.
    pub(crate) fn count(&mut self, event: Event) {
        self.errors().count(event);
    }

    /// Notes requests that came behind a gap, and those of them that were kept.
    #[inline]
    pub(crate) const fn note_out_of_order(&mut self, requests: u64, kept: u64) {
        self.out_of_order.0 += requests;
        self.out_of_order.1 += kept;
    }

    /// Counts what was noted so, here and among those of the device, at the end of a turn: an atomic addition for each packet would
    /// wait until the bytes of the packet are stored.
    #[inline]
    pub(crate) fn count_out_of_order(&mut self, device: &Counters) {
        if self.out_of_order.0 > 0 {
            let (requests, kept) = std::mem::take(&mut self.out_of_order);
            device.count_out_of_order(requests, kept);
            self.errors().count_out_of_order(requests, kept);
        }
    }

    /// Counts a damaged packet that claims to be for the queue pair.
    pub(crate) fn damaged(&mut self) {
        bump(&self.errors().icrc_err);
    }

    fn errors(&mut self) -> &Counters {
        self.errors.get_or_insert_default()
    }

    /// Every counter with its name. Error counters are there from the first error on.
    pub(crate) fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let Self { received, sent, errors, .. } = self;
        let traffic = [
            ("tx_packets", sent.packets),
            ("tx_bytes", sent.bytes),
            ("rx_packets", received.packets),
            ("rx_bytes", received.bytes),
        ];
        traffic.into_iter().chain(errors.iter().flat_map(|counters| counters.named()))
    }
}

/// Adds one.
pub(crate) fn bump(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_behind_a_gap_are_counted_once_a_turn() {
        let (mut counters, device) = (QpCounters::default(), Counters::default());
        counters.note_out_of_order(2, 2);
        counters.note_out_of_order(1, 0);
        // The second turn has none.
        for _ in 0..2 {
            counters.count_out_of_order(&device);
        }
        let counted: Vec<_> = counters.named().filter(|(_, value)| *value > 0).collect();
        assert_eq!(counted, [("out_of_seq_request", 3), ("sack_kept", 2)]);
        assert_eq!(device.named().filter(|(_, value)| *value > 0).collect::<Vec<_>>(), counted);
    }
}
