//! Packets as rules see them.

use std::net::IpAddr;

use urxe_wire::{Opcode, Qpn};

/// Direction of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "says itself")]
pub enum Direction {
    Received,
    Sent,
}

/// A queue pair of this side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Qp {
    /// Number, which is random.
    pub qpn: Qpn,
    /// Position in the order in which queue pairs of the device were made, counted from 1; `None` if it is not known.
    pub made: Option<u32>,
}

/// A packet, as far as rules aim at it.
#[derive(Clone, Copy, Debug)]
pub struct Sight {
    /// Direction of the packet.
    pub direction: Direction,
    /// Operation and transport.
    pub opcode: Opcode,
    /// The queue pair on this side.
    pub qp: Qp,
    /// The other side.
    pub peer: IpAddr,
    /// Bytes, BTH to ICRC.
    pub len: usize,
}
