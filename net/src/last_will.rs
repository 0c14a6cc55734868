//! Last wills: messages that a neighbour sends for a process that was killed.
//!
//! A kernel tells the peers of a process that was killed that its connections are over. Here the process itself would
//! have to, so it leaves what it would say with a neighbour, which is there anyhow: the owner of its address, or, if it
//! is the owner, its first follower. The two are connected over a socket (election.rs); when that hangs up, the
//! neighbour says it. A process that is alone on its host leaves its last wills with a [keeper](crate::last_will_keeper), if there is one;
//! otherwise its peers find out as they would about a host without power.
//!
//! Neighbours of other users have no part in this (election.rs): a will names connections, and who knows their names can end
//! them; and whoever may leave last wills has the neighbour send them.
//!
//! Over the connection go last wills, and names alone of those that are taken back. What does not fit into the connection is
//! not left: it is best effort.

mod own;
mod store;

use std::io;

use socket2::SockAddr;
use urxe_wire::Gid;
use urxe_wire::mad::MAD_LEN;

use crate::ipc::NAME_PREFIX;
use crate::ipc::credentials::abstract_address;
pub(crate) use own::OwnLastWills;
pub(crate) use store::LastWillStore;

/// A name, two GIDs and a message.
const LEN: usize = 4 + 16 + 16 + MAD_LEN;

/// Message that QP1 sends to a peer's when its process has ended (MQTT's term).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastWill {
    /// Name of the connection that it is about.
    pub name: u32,
    /// GID of the sender.
    pub local: Gid,
    /// GID of the receiver.
    pub remote: Gid,
    /// The management datagram.
    pub message: [u8; MAD_LEN],
}

impl LastWill {
    fn emit(&self) -> Vec<u8> {
        [&self.name.to_le_bytes()[..], &self.local.octets(), &self.remote.octets(), &self.message].concat()
    }

    fn parse(bytes: &[u8; LEN]) -> Self {
        let (name, rest) = bytes.split_first_chunk().unwrap_or((&[0; 4], &[]));
        let (local, rest) = rest.split_first_chunk().unwrap_or((&[0; 16], &[]));
        let (remote, rest) = rest.split_first_chunk().unwrap_or((&[0; 16], &[]));
        let message = rest.first_chunk().unwrap_or(&[0; MAD_LEN]);
        Self { name: u32::from_le_bytes(*name), local: Gid::new(*local), remote: Gid::new(*remote), message: *message }
    }
}

/// Address of a keeper's listener.
pub(crate) fn keeper_address(name: &str) -> io::Result<SockAddr> {
    abstract_address(&format!("{NAME_PREFIX}/wills/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_will_is_read_as_it_was_written() {
        let will =
            LastWill { name: 0xAB00_1234, local: Gid::new([1; 16]), remote: Gid::new([2; 16]), message: [3; MAD_LEN] };
        let bytes = will.emit();
        assert_eq!(LastWill::parse(bytes.as_slice().try_into().unwrap()), will);
    }
}
