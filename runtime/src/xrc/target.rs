//! State of an XRC target.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// State of an XRC target, for whoever holds the receive token.
#[derive(Debug, Default)]
pub(crate) struct Target {
    /// Jobs that wait in the queue or are being done. Packets that come meanwhile come behind them.
    pub(super) jobs: AtomicUsize,
    /// A job to resume waits in the queue. One sends whatever is left to be sent by then.
    pub(super) resumes: AtomicBool,
    /// UDP sender whose packet the queue pair accepted last.
    pub(super) accepted: Mutex<Option<SocketAddr>>,
}

impl Target {
    /// Whether packets for it have to wait behind earlier ones.
    pub(crate) fn is_busy(&self) -> bool {
        self.jobs.load(Ordering::Acquire) > 0
    }
}
