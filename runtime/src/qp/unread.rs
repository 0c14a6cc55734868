//! Requests that the peer's process has not read yet.

use urxe_engine::Instant;

use super::{Inner, Qp};
use crate::lock;

/// ACK timeout, and position in the ring to the peer that its silence counts from.
pub(super) type UnreadByPeer = Option<(Instant, u64)>;

impl Qp {
    /// Whether the peer's process has yet to read what had been sent when this was asked first for an ACK timeout. False for a peer that
    /// is not reached by shared memory.
    //= spec/hosts.md#net-024
    //# A peer of this host SHOULD NOT be taken for silent within a second after the ACK timeout while it has not read what it was sent.
    pub(crate) fn is_unread_by_peer(&self, ack_timeout: Instant) -> bool {
        let Inner { engine, unread, .. } = &mut *lock(&self.inner);
        let since = unread.and_then(|(at, position)| (at == ack_timeout).then_some(position));
        let position = engine.route().and_then(|route| route.unread(since));
        *unread = position.or(since).map(|position| (ack_timeout, position));
        position.is_some()
    }
}
