//! Packets that one queue pair of a process sends to another.

use std::sync::Arc;

use urxe_wire::Qpn;

use crate::datagram::{Datagram, Headers, RxBatch, dest_qpn, leading};
use crate::route::Route;

use super::segments::TxSegments;

/// Packets of one queue pair for another one of this process, all of one length but the last. They have no ICRC.
#[derive(Debug)]
pub struct InsideRun {
    headers: Headers,
    bytes: Vec<u8>,
    segment: usize,
    packets: u16,
}

impl InsideRun {
    fn new(route: &Arc<Route>, bytes: &[u8], segment: usize, packets: u16) -> Self {
        let (tclass, hop_limit) = route.class_and_hops();
        let headers = Headers { local: route.remote(), peer: route.local(), tclass, hop_limit };
        Self { headers, bytes: bytes.to_vec(), segment: segment.min(bytes.len()), packets }
    }

    /// Returns the packets as they arrive.
    #[must_use]
    pub fn batch(&self) -> RxBatch<'_> {
        let Self { headers, bytes, segment, .. } = self;
        let first = Datagram { headers, expected_id: 0, flow: None, payload: bytes, is_refused: false };
        RxBatch::new(first, *segment)
    }

    /// Returns the destination of the packets.
    #[must_use]
    pub fn dest_qpn(&self) -> Qpn {
        self.batch().dest_qpn()
    }

    /// Returns the number of packets.
    #[must_use]
    pub const fn packets(&self) -> u16 {
        self.packets
    }

    /// Returns the bytes of the packets, BTH to ICRC.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there are no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

/// Runs for queue pairs of this process, in order, that nobody has taken yet.
#[derive(Debug, Default)]
pub(super) struct InsideRuns {
    runs: Vec<InsideRun>,
    /// Bytes of all of them.
    bytes: usize,
}

impl InsideRuns {
    /// Keeps the runs of a batch that are for queue pairs of this process: each of packets for one of them.
    // Apart: most batches have none.
    #[inline(never)]
    pub(super) fn keep_inside(&mut self, buffer: &[u8], runs: &[TxSegments]) {
        for run in runs.iter().filter(|run| run.inside) {
            let segment = run.segment.min(run.len).max(1);
            let mut rest = &buffer[run.start..run.start + run.len];
            while let Some(qpn) = dest_qpn(rest) {
                let (group, count) = leading(rest, segment, |next| next == qpn);
                self.runs.push(InsideRun::new(&run.route, group, segment, count));
                self.bytes += group.len();
                rest = &rest[group.len()..];
            }
        }
    }

    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    #[inline]
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes all of them.
    pub(super) fn take(&mut self) -> impl Iterator<Item = InsideRun> {
        self.bytes = 0;
        self.runs.drain(..)
    }
}
