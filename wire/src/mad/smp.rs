//! Subnet management packets (IBA 14.2): datagrams of QP0, routed by LID or by a path of port numbers.

use super::field::Field;
use super::{MAD_LEN, Mad};
use crate::numbered::numbered;

/// Start of the attribute.
pub const DATA: usize = 64;
/// Bytes of an attribute.
pub const DATA_LEN: usize = 64;
/// Most hops of a directed route (IBA 14.2.1.2): entry 0 of a path is not used.
pub const HOPS: u8 = 63;

/// Direction bit of a directed route, in the status: set on the way back.
const DIRECTION: u16 = 1 << 15;

/// Hop pointer and hop count of a directed route.
const HOP_POINTER: usize = 6;
const HOP_COUNT: usize = 7;

/// M_Key, for `Set()` of a port that is locked.
pub const M_KEY: Field = Field::bytes(24, 8);
/// LIDs at both ends of a directed route; permissive if all of it is directed.
pub const DR_SLID: Field = Field::bytes(32, 2);
/// See [`DR_SLID`].
pub const DR_DLID: Field = Field::bytes(34, 2);
const INITIAL_PATH: usize = 128;
const RETURN_PATH: usize = 192;

numbered! {
    /// Attributes of subnet management (IBA 14.2.5).
    pub enum Attribute: u16 {
        /// `Notice`
        Notice = 0x02,
        /// `NodeDescription`
        NodeDescription = 0x10,
        /// `NodeInfo`
        NodeInfo = 0x11,
        /// `SwitchInfo`
        SwitchInfo = 0x12,
        /// `GUIDInfo`
        GuidInfo = 0x14,
        /// `PortInfo`
        PortInfo = 0x15,
        /// `P_KeyTable`
        PKeyTable = 0x16,
        /// `SLtoVLMappingTable`
        SlToVl = 0x17,
        /// `VLArbitrationTable`
        VlArbitration = 0x18,
        /// `LinearForwardingTable`
        LinearForwarding = 0x19,
        /// `MulticastForwardingTable`
        MulticastForwarding = 0x1B,
        /// `SMInfo`
        SmInfo = 0x20,
    }
}

/// Whether a class is of subnet management: its datagrams go to QP0.
#[must_use]
pub const fn is_class(class: u8) -> bool {
    matches!(class, Mad::CLASS_SUBN_LID | Mad::CLASS_SUBN_DIRECTED)
}

/// Position of a datagram on its directed route.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hop {
    /// Whether the datagram is on its way back.
    pub is_returning: bool,
    /// Hop pointer.
    pub pointer: u8,
    /// Hop count.
    pub count: u8,
}

impl Hop {
    /// Reads the position; `None` beyond [`HOPS`], where no path leads.
    #[must_use]
    pub const fn of(datagram: &[u8; MAD_LEN]) -> Option<Self> {
        let (pointer, count) = (datagram[HOP_POINTER], datagram[HOP_COUNT]);
        if count > HOPS || pointer > count + 1 {
            return None;
        }
        Some(Self { is_returning: datagram[4] & 0x80 != 0, pointer, count })
    }

    /// Writes the position.
    pub const fn put(&self, datagram: &mut [u8; MAD_LEN]) {
        let status = u16::from_be_bytes([datagram[4], datagram[5]]) & !DIRECTION;
        let status = if self.is_returning { status | DIRECTION } else { status };
        [datagram[4], datagram[5]] = status.to_be_bytes();
        (datagram[HOP_POINTER], datagram[HOP_COUNT]) = (self.pointer, self.count);
    }
}

/// Port that the initial path leaves by at a hop.
#[must_use]
pub fn initial_path(datagram: &[u8; MAD_LEN], hop: u8) -> u8 {
    datagram.get(INITIAL_PATH + usize::from(hop & HOPS)).copied().unwrap_or_default()
}

/// Port that the return path leaves by at a hop.
#[must_use]
pub fn return_path(datagram: &[u8; MAD_LEN], hop: u8) -> u8 {
    datagram.get(RETURN_PATH + usize::from(hop & HOPS)).copied().unwrap_or_default()
}

/// Writes the port that a hop of the initial path leaves by.
pub fn put_initial_path(datagram: &mut [u8; MAD_LEN], hop: u8, port: u8) {
    put(datagram, INITIAL_PATH, hop, port);
}

/// Writes the port that a hop was entered by.
pub fn put_return_path(datagram: &mut [u8; MAD_LEN], hop: u8, port: u8) {
    put(datagram, RETURN_PATH, hop, port);
}

fn put(datagram: &mut [u8; MAD_LEN], path: usize, hop: u8, port: u8) {
    if let Some(byte) = datagram.get_mut(path + usize::from(hop & HOPS)) {
        *byte = port;
    }
}

/// Status of a datagram without the direction of its route.
#[must_use]
pub const fn status(header: &Mad) -> u16 {
    header.status & !DIRECTION
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hops_beyond_the_paths_are_none() {
        let mut datagram = [0; MAD_LEN];
        for (pointer, count, is_some) in [(0, 0, true), (1, 0, true), (2, 0, false), (64, 63, true), (1, 64, false)] {
            (datagram[6], datagram[7]) = (pointer, count);
            assert_eq!(Hop::of(&datagram).is_some(), is_some, "{pointer} of {count}");
        }
    }

    #[test]
    fn the_direction_leaves_the_status_alone() {
        let mut datagram = [0; MAD_LEN];
        datagram[5] = 0x1C;
        let hop = Hop { is_returning: true, pointer: 2, count: 3 };
        hop.put(&mut datagram);
        assert_eq!((datagram[4..8].to_vec(), Hop::of(&datagram)), (std::vec![0x80, 0x1C, 2, 3], Some(hop)));
        Hop { is_returning: false, ..hop }.put(&mut datagram);
        assert_eq!(datagram[4..6], [0, 0x1C]);
    }

    #[test]
    fn paths_lie_side_by_side() {
        let mut datagram = [0; MAD_LEN];
        put_initial_path(&mut datagram, 63, 7);
        put_return_path(&mut datagram, 63, 8);
        assert_eq!((datagram[191], datagram[255]), (7, 8));
        assert_eq!((initial_path(&datagram, 63), return_path(&datagram, 63)), (7, 8));
    }
}
