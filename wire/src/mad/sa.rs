//! Subnet administration (IBA 15.2): the header of class 3, and its records with the component that each bit of a mask names.

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
        /// `SwitchInfoRecord`
        SwitchInfo = 0x14,
        /// `LinearForwardingTableRecord`
        LinearForwarding = 0x15,
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
        /// `MCMemberRecord`
        Member = 0x38,
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

/// `LinkRecord` (IBA 15.2.5.14).
pub mod link {
    use super::Field;

    /// `FromLID`
    pub const FROM_LID: Field = Field::bytes(0, 2);
    /// `FromPort`
    pub const FROM_PORT: Field = Field::bytes(2, 1);
    /// `ToPort`
    pub const TO_PORT: Field = Field::bytes(3, 1);
    /// `ToLID`
    pub const TO_LID: Field = Field::bytes(4, 2);
    pub(super) const FIELDS: [Field; 4] = [FROM_LID, FROM_PORT, TO_PORT, TO_LID];
}

/// `PathRecord` (IBA 15.2.5.16).
pub mod path {
    use super::{Field, RESERVED};

    /// `DGID`
    pub const DGID: Field = Field::bytes(8, 16);
    /// `SGID`
    pub const SGID: Field = Field::bytes(24, 16);
    /// `DLID`
    pub const DLID: Field = Field::bytes(40, 2);
    /// `SLID`
    pub const SLID: Field = Field::bytes(42, 2);
    /// `Reversible`
    pub const REVERSIBLE: Field = Field::bits(49, 0, 1);
    /// `NumbPath`
    pub const NUMBER: Field = Field::bits(49, 1, 7);
    /// `P_Key`
    pub const P_KEY: Field = Field::bytes(50, 2);
    /// `SL`
    pub const SL: Field = Field::bits(52, 12, 4);
    /// `Mtu`, with its selector.
    pub const MTU: (Field, Field) = (Field::bits(54, 0, 2), Field::bits(54, 2, 6));
    /// `Rate`, with its selector.
    pub const RATE: (Field, Field) = (Field::bits(55, 0, 2), Field::bits(55, 2, 6));
    /// `PacketLifeTime`, with its selector.
    pub const LIFE_TIME: (Field, Field) = (Field::bits(56, 0, 2), Field::bits(56, 2, 6));

    pub(super) const FIELDS: [Field; 22] = [
        RESERVED,
        RESERVED,
        DGID,
        SGID,
        DLID,
        SLID,
        Field::bits(44, 0, 1),
        RESERVED,
        RESERVED,
        RESERVED,
        RESERVED,
        RESERVED,
        RESERVED,
        P_KEY,
        RESERVED,
        SL,
        RESERVED,
        RESERVED,
        RESERVED,
        RESERVED,
        RESERVED,
        RESERVED,
    ];
    /// Bit of a mask: the source, by GID or by LID.
    pub const HAS_SOURCE: u64 = 1 << 3 | 1 << 5;
    /// Bits of a mask: both ends, by GID.
    pub const ENDS: u64 = 0b11 << 2;
    /// Selectors with their values, and the bits of a mask that both have.
    pub const SELECTED: [(u64, (Field, Field)); 3] = [(0b11 << 16, MTU), (0b11 << 18, RATE), (0b11 << 20, LIFE_TIME)];
}

/// `MultiPathRecord` (IBA 15.2.5.20): paths between each of some sources and each of some destinations.
pub mod multi_path {
    use super::{Field, path};

    /// `SGIDCount`
    pub const SOURCES: Field = Field::bytes(15, 1);
    /// `DGIDCount`
    pub const DESTINATIONS: Field = Field::bytes(16, 1);
    /// Start of the GIDs: those of sources, then those of destinations.
    pub const GIDS: usize = 24;
    /// Bits of a mask that every request has: both counts.
    pub const NEEDED: u64 = 1 << 19 | 1 << 20;
    /// Components that a path has as well: the first bit of a mask, the number of bits, the first bit of a mask for paths, and
    /// fields here and there.
    pub const OF_PATH: [(u32, u32, u32, Field, Field); 5] = [
        (7, 1, 13, Field::bytes(6, 2), path::P_KEY),
        (9, 1, 15, Field::bits(8, 12, 4), path::SL),
        (10, 2, 16, Field::bytes(10, 1), Field::bytes(54, 1)),
        (12, 2, 18, Field::bytes(11, 1), Field::bytes(55, 1)),
        (14, 2, 20, Field::bytes(12, 1), Field::bytes(56, 1)),
    ];
}

/// `MCMemberRecord` (IBA 15.2.5.17).
pub mod member {
    use super::Field;

    /// `MGID`
    pub const MGID: Field = Field::bytes(0, 16);
    /// `PortGID`
    pub const PORT_GID: Field = Field::bytes(16, 16);
    /// `Q_Key`
    pub const Q_KEY: Field = Field::bytes(32, 4);
    /// `MLID`
    pub const MLID: Field = Field::bytes(36, 2);
    /// `MTU`, with its selector.
    pub const MTU: (Field, Field) = (Field::bits(38, 0, 2), Field::bits(38, 2, 6));
    /// `TClass`
    pub const TRAFFIC_CLASS: Field = Field::bytes(39, 1);
    /// `P_Key`
    pub const P_KEY: Field = Field::bytes(40, 2);
    /// `Rate`, with its selector.
    pub const RATE: (Field, Field) = (Field::bits(42, 0, 2), Field::bits(42, 2, 6));
    /// `PacketLifeTime`, with its selector.
    pub const LIFE_TIME: (Field, Field) = (Field::bits(43, 0, 2), Field::bits(43, 2, 6));
    /// `SL`
    pub const SL: Field = Field::bits(44, 0, 4);
    /// `FlowLabel`
    pub const FLOW_LABEL: Field = Field::bits(44, 4, 20);
    /// `HopLimit`
    pub const HOP_LIMIT: Field = Field::bytes(47, 1);
    /// `Scope`
    pub const SCOPE: Field = Field::bits(48, 0, 4);
    /// `JoinState`
    pub const JOIN_STATE: Field = Field::bits(48, 4, 4);
    /// `ProxyJoin`
    pub const PROXY_JOIN: Field = Field::bits(49, 0, 1);
    pub(super) const FIELDS: [Field; 18] = [
        MGID,
        PORT_GID,
        Q_KEY,
        MLID,
        MTU.0,
        MTU.1,
        TRAFFIC_CLASS,
        P_KEY,
        RATE.0,
        RATE.1,
        LIFE_TIME.0,
        LIFE_TIME.1,
        SL,
        FLOW_LABEL,
        HOP_LIMIT,
        SCOPE,
        JOIN_STATE,
        PROXY_JOIN,
    ];
    /// Bits of a mask: PortGID and JoinState, which a join and a leave need.
    pub const JOIN: u64 = 1 << 16 | 1 << 1;
    /// Bits of a mask that a join needs which makes the group: P_Key, Q_Key, SL, FlowLabel, TClass.
    pub const CREATE: u64 = 1 << 2 | 1 << 6 | 1 << 7 | 1 << 12 | 1 << 13;
    /// Bit of a mask: MGID.
    pub const HAS_MGID: u64 = 1;
}

/// `ServiceRecord` (IBA 15.2.5.13).
pub mod service {
    use super::{Field, RESERVED};

    /// `ServiceID`
    pub const ID: Field = Field::bytes(0, 8);
    /// `ServiceGID`
    pub const GID: Field = Field::bytes(8, 16);
    /// `ServiceP_Key`
    pub const P_KEY: Field = Field::bytes(24, 2);
    /// `ServiceLease`, in seconds.
    pub const LEASE: Field = Field::bytes(28, 4);
    /// `ServiceKey`
    pub const KEY: Field = Field::bytes(32, 16);
    /// `ServiceName`
    pub const NAME: Field = Field::bytes(48, 64);
    pub(super) const FIELDS: [Field; 7] = [ID, GID, P_KEY, RESERVED, LEASE, KEY, NAME];
    /// Fields that tell records apart.
    pub const IDENTITY: [Field; 3] = [ID, GID, P_KEY];
    /// Bits of a mask: service id and GID, which a registration needs.
    pub const NEEDED: u64 = 0b011;
}

/// `InformInfo` (IBA 13.4.8.3).
pub mod inform {
    use super::Field;

    /// `IsGeneric`
    pub const IS_GENERIC: Field = Field::bytes(22, 1);
    /// `Subscribe`
    pub const SUBSCRIBE: Field = Field::bytes(23, 1);
    /// `TrapNumber`: 0xFFFF for all.
    pub const TRAP: Field = Field::bytes(26, 2);
    /// Queue pair that reports go to.
    pub const QPN: Field = Field::bytes(28, 3);
}

/// `ClassPortInfo` (IBA 13.4.8.1).
pub mod class_port_info {
    use super::Field;

    /// Bytes of the attribute.
    pub const LEN: usize = 72;
    /// `BaseVersion`
    pub const BASE_VERSION: Field = Field::bytes(0, 1);
    /// `ClassVersion`
    pub const CLASS_VERSION: Field = Field::bytes(1, 1);
    /// `CapabilityMask`
    pub const CAPABILITY_MASK: Field = Field::bytes(2, 2);
    /// `RespTimeValue`
    pub const RESPONSE_TIME: Field = Field::bits(7, 3, 5);
}

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
            Self::LinearForwarding | Self::GuidInfo | Self::PKeyTable => TABLE + 64,
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
        assert_eq!(records.len(), 11);
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
