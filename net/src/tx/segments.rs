//! Runs of equal packets in a batch.

use std::sync::Arc;

use crate::route::Route;

/// Equal packets to one destination, adjacent in the buffer.
#[derive(Debug)]
pub(super) struct TxSegments {
    pub(super) route: Arc<Route>,
    pub(super) start: usize,
    pub(super) len: usize,
    /// Length of each packet, ICRC included; the last may be shorter, and then nothing follows.
    pub(super) segment: usize,
    pub(super) packets: u16,
    /// Bytes that may follow; 0: nothing does.
    pub(super) room: usize,
    /// Whether the packets go through shared memory.
    pub(super) shared: bool,
    /// Whether the packets stay in this process.
    pub(super) inside: bool,
    /// Whether the packets have ICRCs.
    pub(super) has_icrc: bool,
    /// TOS or traffic class, if it is not the socket's.
    pub(super) tclass: Option<u8>,
}
