//! Shards of a device: ports of their own for queue pairs of some threads, or of some completion queues.
//!
//! Threads of a process that poll completion queues of their own would share one receive token, and one socket for each peer's process. A
//! shard is a device inside the device: it has queue pair numbers, sockets, rings, a receive token, timers and a background thread of its own, as
//! another process would have. Regions, XRC SRQs, counters of errors and what is shown to peers for direct requests are the
//! device's. Management, datagrams, multicast, XRC and raw frames stay with the device itself.
//!
//! A shard takes no part in the election of the port's owner. What strangers send to its queue pairs the owner forwards to it.

use std::sync::{Arc, PoisonError, Weak};

use urxe_net::PortError;

use super::Device;
use crate::qp::Qp;

impl Device {
    /// Opens a shard, one of so many. It is to be [closed](crate::fork::close) before the device.
    ///
    /// # Errors
    /// Any refusal of the system.
    pub fn open_shard(self: &Arc<Self>, of: usize) -> Result<Arc<Self>, PortError> {
        self.assemble_shard(of).map(Arc::new)
    }

    /// Counts a shard, whose background thread has been [started](crate::progress::start), as a part of the device.
    pub fn add_shard(&self, shard: &Arc<Self>) {
        self.shards.write().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(shard));
    }

    /// Returns the shards of the device.
    pub fn shards(&self) -> Vec<Arc<Self>> {
        self.shards.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the receiver is a shard of a device.
    pub const fn is_shard(&self) -> bool {
        self.primary.is_some()
    }

    /// Returns all queue pairs of the device and of its shards.
    pub fn all_queue_pairs(&self) -> Vec<Arc<Qp>> {
        let mut all = self.queue_pairs();
        all.extend(self.shards().iter().flat_map(|shard| shard.queue_pairs()));
        all
    }

    /// Returns all queue pairs of the device that this is, or is a shard of.
    pub(super) fn whole_queue_pairs(&self) -> Vec<Arc<Qp>> {
        let primary = self.primary.as_ref().and_then(Weak::upgrade);
        primary.as_deref().unwrap_or(self).all_queue_pairs()
    }
}
