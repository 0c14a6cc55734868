//! Requests that the peer's process has not read yet.

use urxe_engine::Instant;
use urxe_net::UdpSockets;

use super::{Inner, Qp};
use crate::lock;
use crate::progress::tuning::TUNING;

/// An answer, for one ACK timeout.
#[derive(Clone, Copy)]
pub(super) struct UnreadByPeer {
    ack_timeout: Instant,
    /// Position in the ring to the peer that its silence counts from.
    position: Option<u64>,
    is_unread: bool,
    /// The peer has read since the last look what was unread then.
    is_just_read: bool,
    /// The answer holds until then.
    until: Instant,
}

impl Qp {
    /// Whether the peer's process has yet to read what had been sent when this was asked first for an ACK timeout, by shared memory; or
    /// has anything to read, by UDP. False for a peer whose sockets cannot be seen. `sockets` is called where they have to be looked at.
    //= spec/hosts.md#net-024
    //# A peer of this host SHOULD NOT be taken for silent within a second after the ACK timeout while it has not read what it was sent.
    pub(crate) fn is_unread_by_peer<'a>(
        &self,
        ack_timeout: Instant,
        now: Instant,
        sockets: impl FnOnce() -> &'a UdpSockets,
    ) -> bool {
        let (route, is_unread) = {
            let Inner { engine, unread, .. } = &mut *lock(&self.inner);
            let last = unread.filter(|last| last.ack_timeout == ack_timeout);
            if let Some(last) = last.filter(|last| now < last.until) {
                return last.is_unread;
            }
            let since = last.and_then(|last| last.position);
            let position = engine.route().and_then(|route| route.unread(since));
            // What has just been read is acknowledged by the application's answer, or when its ACK has waited for that.
            let is_just_read =
                position.is_none() && since.is_some() && last.is_some_and(|last| last.is_unread && !last.is_just_read);
            let is_unread = position.is_some() || is_just_read;
            let until = now + if is_just_read { TUNING.delayed_ack_timeout_contended } else { TUNING.unread_retry };
            *unread = Some(UnreadByPeer { ack_timeout, position: position.or(since), is_unread, is_just_read, until });
            (engine.route().cloned(), is_unread)
        };
        // Files are read without the lock.
        let is_unread = is_unread || route.is_some_and(|route| route.is_unread_in_socket(sockets));
        if let Some(last) = &mut lock(&self.inner).unread {
            last.is_unread = is_unread;
        }
        is_unread
    }
}
