//! Subnet administration (IBA 15.2): the header of class 3, and its records with the component that each bit of a mask names.

pub mod class_port_info;
pub mod inform;
pub mod link;
pub mod member;
pub mod multi_path;
pub mod path;
pub mod service;

use super::field::Field;
use super::node::{node_info, port_info, sm_info, switch_info};
use super::{MAD_LEN, Mad};
use crate::numbered::numbered;

/// Start of the first record in a datagram.
pub const DATA: usize = 56;
/// Version of the class.
pub const VERSION: u8 = 2;
/// `SM_Key`
pub const SM_KEY: Field = Field::bytes(36, 8);
/// `SM_Key` of requests that are trusted, unless a manager has another (opensm's default).
pub const DEFAULT_SM_KEY: u64 = 1;
/// `AttributeOffset`: distance of records, in units of eight bytes.
pub const OFFSET: Field = Field::bytes(44, 2);
/// `ComponentMask`
pub const COMPONENT_MASK: Field = Field::bytes(48, 8);

/// `GetTable()` (IBA 15.2.2).
pub const METHOD_GET_TABLE: u8 = 0x12;
/// `GetTraceTable()` (IBA 15.2.2).
pub const METHOD_GET_TRACE_TABLE: u8 = 0x13;
/// `GetMulti()` (IBA 15.2.2).
pub const METHOD_GET_MULTI: u8 = 0x14;
/// `Delete()` (IBA 15.2.2).
pub const METHOD_DELETE: u8 = 0x15;

/// Status: no resources (IBA 15.2.2, the upper byte).
pub const STATUS_NO_RESOURCES: u16 = 0x0100;
/// Status: the request is invalid.
pub const STATUS_INVALID: u16 = 0x0200;
/// Status: no record matches.
pub const STATUS_NO_RECORDS: u16 = 0x0300;
/// Status: more than one record matches a `Get()`.
pub const STATUS_TOO_MANY_RECORDS: u16 = 0x0400;
/// Status: a GID is of no port.
pub const STATUS_INVALID_GID: u16 = 0x0500;
/// Status: components are missing.
pub const STATUS_INSUFFICIENT_COMPONENTS: u16 = 0x0600;

/// Attribute id of `ClassPortInfo`, which is no record.
pub const CLASS_PORT_INFO: u16 = 0x01;
/// Attribute id of `Notice`.
pub const NOTICE: u16 = 0x02;
/// Attribute id of `InformInfo`, which is no record.
pub const INFORM_INFO: u16 = 0x03;
/// Attribute id of `MultiPathRecord`, which is in requests only: answers have [`Record::Path`].
pub const MULTI_PATH: u16 = 0x3A;

numbered! {
    /// Attribute ids of records (IBA 15.2.5).
    pub enum Record: u16 {
        /// `NodeRecord`
        Node = 0x11,
        /// `PortInfoRecord`
        PortInfo = 0x12,
        /// `SLtoVLMappingTableRecord`
        SlToVl = 0x13,
        /// `SwitchInfoRecord`
        SwitchInfo = 0x14,
        /// `LinearForwardingTableRecord`
        LinearForwarding = 0x15,
        /// `MulticastForwardingTableRecord`
        MulticastForwarding = 0x17,
        /// `SMInfoRecord`
        SmInfo = 0x18,
        /// `LinkRecord`
        Link = 0x20,
        /// `GUIDInfoRecord`
        GuidInfo = 0x30,
        /// `ServiceRecord`
        Service = 0x31,
        /// `P_KeyTableRecord`
        PKeyTable = 0x33,
        /// `PathRecord`
        Path = 0x35,
        /// `VLArbitrationTableRecord`
        VlArbitration = 0x36,
        /// `MCMemberRecord`
        Member = 0x38,
        /// `InformInfoRecord`
        InformInfo = 0xF3,
    }
}

/// Component that is reserved: any two records agree in it.
const RESERVED: Field = Field::bits(0, 0, 0);

/// LID at the start of records about ports.
pub const LID: Field = Field::bytes(0, 2);
/// Start of the attribute in `NodeRecord`, `PortInfoRecord`, `SwitchInfoRecord` and `SMInfoRecord`.
pub const ATTRIBUTE: usize = 4;
/// Start of the table in records of tables.
pub const TABLE: usize = 8;
/// Port number of a `PortInfoRecord`.
pub const PORT: Field = Field::bytes(2, 1);
/// Number of the table's block, in `LinearForwardingTableRecord` and `P_KeyTableRecord`.
pub const BLOCK: Field = Field::bytes(2, 2);
/// Number of a multicast table's block, and which ports' it is: sixteen at a time.
pub const MULTICAST_BLOCK: Field = Field::bits(2, 7, 9);
/// See [`MULTICAST_BLOCK`].
pub const POSITION: Field = Field::bits(2, 0, 4);
/// Ports of an `SLtoVLMappingTableRecord`, the way in and the way out.
pub const PORTS: (Field, Field) = (Field::bytes(2, 1), Field::bytes(3, 1));
/// Number of the block of a `VLArbitrationTableRecord`.
pub const ARBITRATION_BLOCK: Field = Field::bytes(3, 1);
/// Port number of a `P_KeyTableRecord`.
pub const TABLE_PORT: Field = Field::bytes(4, 1);
/// `NodeDescription` of a `NodeRecord`.
pub const DESCRIPTION: Field = Field::bytes(ATTRIBUTE + node_info::LEN, super::node::DESCRIPTION_LEN);

const fn moved<const N: usize, const M: usize>(own: [Field; N], fields: &[Field]) -> [Field; M] {
    let mut all = [RESERVED; M];
    let mut at = 0;
    while at < M {
        all[at] = if at < N {
            own[at]
        } else if at - N < fields.len() {
            fields[at - N].moved(ATTRIBUTE)
        } else {
            RESERVED
        };
        at += 1;
    }
    all
}

const NODE: [Field; 15] = {
    let mut fields: [Field; 15] = moved([LID, RESERVED], &node_info::FIELDS);
    fields[14] = DESCRIPTION;
    fields
};
const PORT_INFO: [Field; 49] = moved([LID, PORT, RESERVED], &port_info::FIELDS);
const SWITCH_INFO: [Field; 2] = [LID, RESERVED];
const LINEAR_FORWARDING: [Field; 2] = [LID, BLOCK];
const SM_INFO: [Field; 7] =
    moved([LID, RESERVED], &[sm_info::GUID, sm_info::SM_KEY, sm_info::ACTIVITY, sm_info::PRIORITY, sm_info::STATE]);
const GUID_INFO: [Field; 2] = [LID, Field::bytes(2, 1)];
const P_KEY_TABLE: [Field; 3] = [LID, BLOCK, TABLE_PORT];
const SL_TO_VL: [Field; 3] = [LID, PORTS.0, PORTS.1];
const MULTICAST_FORWARDING: [Field; 4] = [LID, POSITION, RESERVED, MULTICAST_BLOCK];
const VL_ARBITRATION: [Field; 3] = [LID, PORT, ARBITRATION_BLOCK];

impl Record {
    /// Components, by the bit of a mask that names each.
    #[must_use]
    pub const fn components(self) -> &'static [Field] {
        match self {
            Self::Node => &NODE,
            Self::PortInfo => &PORT_INFO,
            Self::SwitchInfo => &SWITCH_INFO,
            Self::LinearForwarding => &LINEAR_FORWARDING,
            Self::SmInfo => &SM_INFO,
            Self::Link => &link::FIELDS,
            Self::GuidInfo => &GUID_INFO,
            Self::Service => &service::FIELDS,
            Self::PKeyTable => &P_KEY_TABLE,
            Self::Path => &path::FIELDS,
            Self::Member => &member::FIELDS,
            Self::SlToVl => &SL_TO_VL,
            Self::MulticastForwarding => &MULTICAST_FORWARDING,
            Self::VlArbitration => &VL_ARBITRATION,
            Self::InformInfo => &inform::RECORD_FIELDS,
        }
    }

    /// Bytes of the record.
    #[expect(clippy::len_without_is_empty, reason = "no record is empty")]
    #[must_use]
    pub const fn len(self) -> usize {
        match self {
            Self::Node => ATTRIBUTE + node_info::LEN + super::node::DESCRIPTION_LEN,
            Self::PortInfo => ATTRIBUTE + port_info::LEN,
            Self::SwitchInfo => ATTRIBUTE + switch_info::LEN,
            Self::LinearForwarding
            | Self::GuidInfo
            | Self::PKeyTable
            | Self::MulticastForwarding
            | Self::VlArbitration => TABLE + 64,
            Self::SlToVl => TABLE + 8,
            Self::InformInfo => inform::AT + inform::LEN,
            Self::SmInfo => 32,
            Self::Link => 8,
            Self::Service => 176,
            Self::Path => 64,
            Self::Member => 52,
        }
    }

    /// Bytes from one record to the next in a table: whole units of eight.
    #[must_use]
    pub const fn distance(self) -> usize {
        self.len().div_ceil(8) * 8
    }

    /// Whether a record has the components that `mask` asks for.
    #[must_use]
    pub fn matches(self, mask: u64, wanted: &[u8], record: &[u8]) -> bool {
        let mut asked = self.components().iter().enumerate().filter(|(bit, _)| mask & (1 << bit) != 0);
        asked.all(|(_, field)| field.is_same(wanted, record))
    }
}

/// Builds a request about a record, with the components of `wanted` that `mask` names.
#[must_use]
pub fn request(method: u8, record: Record, mask: u64, wanted: &[u8]) -> [u8; MAD_LEN] {
    let mut datagram = [0; MAD_LEN];
    Mad::new(Mad::CLASS_SUBN_ADM, VERSION, method, record as u16).put(&mut datagram);
    COMPONENT_MASK.put(&mut datagram, mask);
    for (to, from) in datagram.iter_mut().skip(DATA).zip(wanted) {
        *to = *from;
    }
    datagram
}

/// Reads the response to a `Get()`, a `Set()` or a `Delete()`: the record.
///
/// # Errors
/// The status of a request that is refused. A message without a header is as good as one that is invalid.
pub fn response(message: &[u8]) -> Result<&[u8], u16> {
    let header = message.first_chunk().and_then(Mad::parse).ok_or(STATUS_INVALID)?;
    if header.status == 0 { message.get(DATA..).ok_or(STATUS_INVALID) } else { Err(header.status) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_responses() {
        let mut wanted = [0; 52];
        member::MLID.put(&mut wanted, 0xC007);
        let mut datagram = request(Mad::METHOD_SET, Record::Member, member::JOIN, &wanted);
        assert_eq!((&datagram[1..4], datagram[17]), (&[3, 2, 2][..], 0x38));
        assert_eq!(COMPONENT_MASK.get(&datagram), member::JOIN);
        assert_eq!(response(&datagram).map(|record| member::MLID.get(record)), Ok(0xC007));
        datagram[4] = 3;
        assert_eq!(response(&datagram), Err(STATUS_NO_RECORDS));
        assert_eq!(response(&datagram[..DATA - 1]), Err(STATUS_NO_RECORDS));
        datagram[4] = 0;
        assert_eq!(response(&datagram[..DATA - 1]), Err(STATUS_INVALID));
        assert_eq!(response(&[]), Err(STATUS_INVALID));
    }

    #[test]
    fn components_lie_within_their_records() {
        let records: std::vec::Vec<_> = (0..=u16::MAX).filter_map(Record::new).collect();
        assert_eq!(records.len(), 15);
        for record in records {
            assert!(record.components().len() <= 64);
            for field in record.components() {
                assert!(field.end() <= record.len(), "{field:?} of {record:?}");
            }
            assert!(record.distance() >= record.len() && record.distance() + DATA <= MAD_LEN);
        }
    }

    #[test]
    fn masks_choose_components() {
        let (mut wanted, mut record) = ([0; 108], [0; 108]);
        LID.put(&mut wanted, 7);
        LID.put(&mut record, 7);
        node_info::NODE_TYPE.moved(ATTRIBUTE).put(&mut record, 2);
        assert!(Record::Node.matches(1, &wanted, &record) && Record::Node.matches(0, &wanted, &record));
        assert!(!Record::Node.matches(1 << 4, &wanted, &record));
        DESCRIPTION.put_slice(&mut record, b"host");
        assert!(!Record::Node.matches(1 << 14, &wanted, &record));
        DESCRIPTION.put_slice(&mut wanted, b"host");
        assert!(Record::Node.matches(1 << 14 | 1, &wanted, &record));
    }
}
