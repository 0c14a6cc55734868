//! Properties of the own port, and what the subnet wants done.

use alloc::vec::Vec;
use core::time::Duration;

use urxe_wire::mad::MAD_LEN;
use urxe_wire::mad::node::DESCRIPTION_LEN;
use urxe_wire::{Gid, Guid, Lid, PKey, Qpn};

use crate::mad::Address;

/// Properties of the own port, which follow from its interface and options.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortConfig {
    /// LID.
    pub lid: Lid,
    /// Rows of the table of GUIDs: the first that is not empty is the port's.
    pub guids: Vec<Guid>,
    /// Bits of the prefix of the network that the address in the port's GUID is in. Hosts outside are not of the subnet.
    pub prefix_len: u8,
    /// `CapabilityMask`, without the bit of a subnet manager.
    pub capability_mask: u32,
    /// Code of the link's width.
    pub width: u8,
    /// Code of the link's speed.
    pub speed: u8,
    /// Code of the MTU.
    pub mtu: u8,
    /// Rows of the table of P_Keys.
    pub p_keys: Vec<PKey>,
    /// `NodeDescription`
    pub description: [u8; DESCRIPTION_LEN],
    /// Whether there is a link.
    pub is_up: bool,
}

impl PortConfig {
    pub(super) fn guid(&self) -> Guid {
        // A row of an address that is gone is empty.
        self.guids.iter().copied().find(|guid| *guid != Guid::default()).unwrap_or_default()
    }

    /// Whether a peer's address is one of the port's network.
    pub(super) fn is_of_network(&self, peer: &Gid) -> bool {
        let own = self.guid().ipv4();
        let (Some(own), Some(peer)) = (own, peer.ipv6().to_ipv4_mapped()) else { return false };
        let beyond = u32::MAX.checked_shr(self.prefix_len.into()).unwrap_or(0);
        (own.to_bits() ^ peer.to_bits()) & !beyond == 0
    }
}

/// Action for the caller to carry out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// Send this to every host of the link, from QP1 to QP1.
    Announce([u8; MAD_LEN]),
    /// Send this to the host with this LID, from and to this queue pair.
    Send(Lid, Qpn, [u8; MAD_LEN]),
    /// Send this to where it was asked from, from this queue pair.
    Reply(Address, Qpn, [u8; MAD_LEN]),
    /// Give this to an agent of this process, as from this queue pair of the node with this LID.
    Local(Lid, Qpn, [u8; MAD_LEN]),
    /// Send a message from QP1, in segments if it is long. With a timeout it is a request.
    Message(Address, Vec<u8>, Option<Duration>),
    /// Send a request to subnet administration, which is a program: its answer is for [`handle_relayed`], with this number.
    ///
    /// [`handle_relayed`]: super::Subnet::handle_relayed
    Relay(u32, [u8; MAD_LEN]),
    /// Send a request to QP0 of the host with this LID, again until there is an answer.
    Request(Lid, [u8; MAD_LEN], Duration),
}

/// Event of the own port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The LID of its subnet manager is another.
    SubnetManager(Lid),
    /// The port has another LID.
    Lid(Lid),
    /// A subnet manager has brought it to the state Active, or out of it.
    Active(bool),
    /// The subnet manager asks clients to register again.
    Reregister,
}

/// Why a datagram was dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// No such class, version, method or position.
    #[error("no such class, version, method or position")]
    Malformed,
    /// A path that leads nowhere.
    #[error("the path leads nowhere")]
    NoWay,
    /// The M_Key or SM_Key is wrong.
    #[error("the M_Key or SM_Key is wrong")]
    Key,
    /// No room: a table is full.
    #[error("a table is full")]
    Full,
    /// A datagram about another than its sender, or from outside of the port's network.
    #[error("the datagram is about another than its sender, or from outside of the port's network")]
    Lie,
}
