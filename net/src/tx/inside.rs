//! Packets that one queue pair of a process sends to another.

use std::sync::Arc;

use urxe_wire::Qpn;

use crate::datagram::{Datagram, Headers, RxBatch};
use crate::route::Route;

/// Packets of one queue pair for another one of this process, all of one length but the last. They have no ICRC.
#[derive(Debug)]
pub struct InsideRun {
    headers: Headers,
    bytes: Vec<u8>,
    segment: usize,
    packets: u16,
}

impl InsideRun {
    pub(super) fn new(route: &Arc<Route>, bytes: &[u8], segment: usize, packets: u16) -> Self {
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
