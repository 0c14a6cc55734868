//! Management datagrams: the common header, properties of classes, and the headers that some classes add.

pub mod field;
pub mod node;
pub mod perf;
pub mod rmpp;
pub mod sa;
pub mod smp;
pub mod subnet_vendor;
pub mod topology;

pub use rmpp::Rmpp;

use crate::{Bth, Deth};

/// Bytes of a management datagram (IBA 13.4.2).
pub const MAD_LEN: usize = 256;

/// The management datagram in a packet to QP1, behind BTH and DETH.
#[must_use]
pub fn in_packet(packet: &[u8]) -> Option<&[u8; MAD_LEN]> {
    packet.get(Bth::LEN + Deth::LEN..)?.first_chunk()
}

/// The common MAD header (IBA 13.4.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mad {
    /// Management class: [`Mad::CLASS_CM`] is communication management.
    pub class: u8,
    /// Version of the class.
    pub class_version: u8,
    /// Method, with the response bit at the top.
    pub method: u8,
    /// Outcome.
    pub status: u16,
    /// Field that the class defines.
    pub class_specific: u16,
    /// Chosen by the sender of a request.
    pub transaction_id: u64,
    /// Attribute, which names the message.
    pub attribute_id: u16,
    /// Modifier that the attribute defines.
    pub attribute_modifier: u32,
}

impl Mad {
    /// Bytes on the wire.
    pub const LEN: usize = 24;
    /// Communication management (IBA 13.4.4).
    pub const CLASS_CM: u8 = 7;
    /// The version of communication management spoken here (IBA 16.7.1).
    pub const CM_VERSION: u8 = 2;
    /// `Send()`: no response of the MAD layer is expected (IBA 13.4.5).
    pub const METHOD_SEND: u8 = 3;
    /// Subnet management, LID routed (IBA 13.4.4).
    pub const CLASS_SUBN_LID: u8 = 0x01;
    /// Subnet administration (IBA 15).
    pub const CLASS_SUBN_ADM: u8 = 0x03;
    /// Performance management (IBA 16.1).
    pub const CLASS_PERF: u8 = 0x04;
    /// Device administration (IBA 16.3).
    pub const CLASS_DEVICE_ADM: u8 = 0x10;
    /// Bridge management (IBA 13.4.4 "BM").
    pub const CLASS_BM: u8 = 0x05;
    /// Boot information (IBA 13.4.4 "BIS").
    pub const CLASS_BIS: u8 = 0x12;
    /// Subnet management, directed route (IBA 13.4.4).
    pub const CLASS_SUBN_DIRECTED: u8 = 0x81;
    /// `Get()` (IBA 13.4.5).
    pub const METHOD_GET: u8 = 1;
    /// `Set()` (IBA 13.4.5).
    pub const METHOD_SET: u8 = 2;
    /// `Trap()` (IBA 13.4.5).
    pub const METHOD_TRAP: u8 = 5;
    /// `Report()` (IBA 13.4.5).
    pub const METHOD_REPORT: u8 = 6;
    /// `TrapRepress()` (IBA 13.4.9): a response without the response bit.
    pub const METHOD_TRAP_REPRESS: u8 = 7;
    /// Bit of a method that makes it a response.
    pub const RESPONSE: u8 = 0x80;
    /// Status: this class or class version is not supported (IBA 13.4.7).
    pub const STATUS_BAD_VERSION: u16 = 1 << 2;
    /// Status: the method is not supported (IBA 13.4.7).
    pub const STATUS_BAD_METHOD: u16 = 2 << 2;
    /// Status: the combination of method and attribute is not supported (IBA 13.4.7).
    pub const STATUS_BAD_METHOD_ATTRIBUTE: u16 = 3 << 2;
    /// Status: a field of the attribute or its modifier is invalid (IBA 13.4.7).
    pub const STATUS_INVALID_FIELD: u16 = 7 << 2;
    /// The only version of the header.
    const BASE_VERSION: u8 = 1;

    /// A header with these fields, and 0 in the others.
    #[must_use]
    pub const fn new(class: u8, class_version: u8, method: u8, attribute_id: u16) -> Self {
        Self {
            class,
            class_version,
            method,
            status: 0,
            class_specific: 0,
            transaction_id: 0,
            attribute_id,
            attribute_modifier: 0,
        }
    }

    /// Reads the header at the start of a datagram.
    #[must_use]
    pub fn of(datagram: &[u8; MAD_LEN]) -> Option<Self> {
        Self::parse(datagram.first_chunk()?)
    }

    /// Whether the datagram answers another: its transaction id is its receiver's (IBA 13.4.6.4).
    #[must_use]
    pub const fn is_response(&self) -> bool {
        /// Modifier bit of a bridge management response (IBA 13.4.5).
        const BM_RESPONSE: u32 = 1;
        self.method & Self::RESPONSE != 0
            || self.method == Self::METHOD_TRAP_REPRESS
            || (self.class == Self::CLASS_BM && self.attribute_modifier & BM_RESPONSE != 0)
    }

    /// Reads the header; `None` if it is of another base version. The reserved bytes are ignored.
    #[must_use]
    pub const fn parse(b: &[u8; Self::LEN]) -> Option<Self> {
        let [
            base,
            class,
            class_version,
            method,
            s0,
            s1,
            c0,
            c1,
            t0,
            t1,
            t2,
            t3,
            t4,
            t5,
            t6,
            t7,
            a0,
            a1,
            _,
            _,
            m0,
            m1,
            m2,
            m3,
        ] = *b;
        if base != Self::BASE_VERSION {
            return None;
        }
        Some(Self {
            class,
            class_version,
            method,
            status: u16::from_be_bytes([s0, s1]),
            class_specific: u16::from_be_bytes([c0, c1]),
            transaction_id: u64::from_be_bytes([t0, t1, t2, t3, t4, t5, t6, t7]),
            attribute_id: u16::from_be_bytes([a0, a1]),
            attribute_modifier: u32::from_be_bytes([m0, m1, m2, m3]),
        })
    }

    /// Replaces the transaction id in the header at the start of a message.
    pub fn put_transaction_id(message: &mut [u8], transaction_id: u64) {
        if let Some(bytes) = message.get_mut(8..16) {
            bytes.copy_from_slice(&transaction_id.to_be_bytes());
        }
    }

    /// Writes the header at the start of a datagram.
    pub fn put(&self, datagram: &mut [u8; MAD_LEN]) {
        if let Some(start) = datagram.first_chunk_mut() {
            self.emit(start);
        }
    }

    /// Writes the header.
    pub fn emit(&self, b: &mut [u8; Self::LEN]) {
        b[0..4].copy_from_slice(&[Self::BASE_VERSION, self.class, self.class_version, self.method]);
        b[4..6].copy_from_slice(&self.status.to_be_bytes());
        b[6..8].copy_from_slice(&self.class_specific.to_be_bytes());
        b[8..16].copy_from_slice(&self.transaction_id.to_be_bytes());
        b[16..18].copy_from_slice(&self.attribute_id.to_be_bytes());
        b[18..20].copy_from_slice(&[0; 2]);
        b[20..24].copy_from_slice(&self.attribute_modifier.to_be_bytes());
    }
}

/// Whether datagrams of the class have an RMPP header (IBA 13.6.2).
#[must_use]
pub const fn has_rmpp(class: u8) -> bool {
    matches!(class, Mad::CLASS_SUBN_ADM | Mad::CLASS_DEVICE_ADM | Mad::CLASS_BIS) || is_vendor_with_oui(class)
}

/// Whether datagrams of the class name a vendor by its OUI (IBA 16.5.1, the second vendor range).
#[must_use]
pub const fn is_vendor_with_oui(class: u8) -> bool {
    class >= 0x30 && class <= 0x4F
}

/// Offset of data in datagrams of the class, behind all headers (`ib_get_mad_data_offset` of the kernel's mad.c).
#[must_use]
pub const fn data_offset(class: u8) -> usize {
    match class {
        Mad::CLASS_SUBN_ADM => 56,
        Mad::CLASS_DEVICE_ADM | Mad::CLASS_BIS | 0x06 => 64,
        _ if is_vendor_with_oui(class) => 40,
        _ => Mad::LEN,
    }
}

/// Vendor of a datagram whose class [names one](is_vendor_with_oui) (IBA 16.5.1).
#[must_use]
pub const fn oui(datagram: &[u8; MAD_LEN]) -> [u8; 3] {
    [datagram[37], datagram[38], datagram[39]]
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; Mad::LEN] =
        [1, 7, 2, 3, 0x11, 0x22, 0x33, 0x44, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0x10, 0, 0, 0xAA, 0xBB, 0xCC, 0xDD];
    const HEADER: Mad = Mad {
        class: Mad::CLASS_CM,
        class_version: Mad::CM_VERSION,
        method: Mad::METHOD_SEND,
        status: 0x1122,
        class_specific: 0x3344,
        transaction_id: 0x0102_0304_0506_0708,
        attribute_id: 0x10,
        attribute_modifier: 0xAABB_CCDD,
    };

    #[test]
    fn parses() {
        assert_eq!(Mad::parse(&BYTES), Some(HEADER));
    }

    #[test]
    fn emits() {
        let mut bytes = [0xA5; Mad::LEN];
        HEADER.emit(&mut bytes);
        assert_eq!(bytes, BYTES);
    }

    #[test]
    fn responses_are_told_by_method_and_by_modifier_in_bridge_management() {
        let with = |class, method, attribute_modifier| Mad { class, method, attribute_modifier, ..HEADER };
        assert!(!with(4, Mad::METHOD_GET, 1).is_response());
        assert!(with(4, 0x81, 0).is_response() && with(3, Mad::METHOD_TRAP_REPRESS, 0).is_response());
        assert!(with(Mad::CLASS_BM, 3, 1).is_response() && !with(Mad::CLASS_BM, 3, 0).is_response());
    }

    #[test]
    fn classes_with_rmpp_have_room_for_its_header() {
        for class in 0..=u8::MAX {
            assert!(!has_rmpp(class) || data_offset(class) >= Rmpp::END, "{class:#x}");
        }
        assert!(has_rmpp(0x32) && !has_rmpp(0x50) && !has_rmpp(Mad::CLASS_PERF));
    }

    #[test]
    fn other_base_versions_are_refused() {
        let mut bytes = BYTES;
        bytes[0] = 2;
        assert_eq!(Mad::parse(&bytes), None);
    }
}
