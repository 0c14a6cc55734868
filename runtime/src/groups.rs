//! Multicast groups, and the queue pairs attached to them.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use urxe_net::{Membership, Port, RouteError};
use urxe_wire::{Gid, Qpn};

use super::lock;
use crate::limits;

/// Reason why a queue pair cannot be attached to a multicast group.
#[derive(Debug)]
pub enum GroupError {
    /// Not a multicast address, or one that this interface cannot reach.
    Group(RouteError),
    /// The process has as many groups, or the group as many queue pairs, as the limits allow.
    Full,
}

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Group(error) => write!(f, "the group cannot be joined: {error}"),
            Self::Full => write!(
                f,
                "{} groups are joined, or {} queue pairs are in this one",
                limits::MAX_MCAST_GRP,
                limits::MAX_MCAST_QP_ATTACH
            ),
        }
    }
}

impl core::error::Error for GroupError {}

/// The groups of a device in this process.
#[derive(Debug, Default)]
pub struct Groups(Mutex<HashMap<Gid, Group>>);

#[derive(Debug)]
struct Group {
    /// The process listens as long as somebody is attached.
    membership: Arc<Membership>,
    attached: Vec<Qpn>,
}

impl Groups {
    /// Attaches a queue pair; once is enough.
    ///
    /// # Errors
    /// [`GroupError`].
    pub fn attach(&self, port: &Port, gid: Gid, qpn: Qpn) -> Result<(), GroupError> {
        let mut groups = lock(&self.0);
        if let Some(group) = groups.get_mut(&gid) {
            if group.attached.contains(&qpn) {
                return Ok(());
            }
            if group.attached.len() >= limits::MAX_MCAST_QP_ATTACH as usize {
                return Err(GroupError::Full);
            }
            group.attached.push(qpn);
            return Ok(());
        }
        if groups.len() >= limits::MAX_MCAST_GRP as usize {
            return Err(GroupError::Full);
        }
        let membership = port.join_multicast(&gid).map_err(GroupError::Group)?;
        groups.insert(gid, Group { membership, attached: vec![qpn] });
        Ok(())
    }

    /// Detaches a queue pair. False if it was not attached.
    pub fn detach(&self, gid: Gid, qpn: Qpn) -> bool {
        let mut groups = lock(&self.0);
        let Some(group) = groups.get_mut(&gid) else { return false };
        let before = group.attached.len();
        group.attached.retain(|other| *other != qpn);
        let found = group.attached.len() < before;
        if group.attached.is_empty() {
            groups.remove(&gid);
        }
        found
    }

    /// Whether a queue pair is attached to any group.
    pub fn holds(&self, qpn: Qpn) -> bool {
        lock(&self.0).values().any(|group| group.attached.contains(&qpn))
    }

    /// The queue pairs that get what is sent to `group`.
    pub(super) fn attached(&self, group: IpAddr) -> Vec<Qpn> {
        let groups = lock(&self.0);
        // MGIDs of InfiniBand may share an IP group.
        let found = groups.values().filter(|candidate| candidate.membership.group().ip() == group);
        let mut attached: Vec<Qpn> = found.flat_map(|group| group.attached.iter().copied()).collect();
        attached.sort_unstable();
        attached.dedup();
        attached
    }
}
