//! `MCMemberRecord` (IBA 15.2.5.17).

use crate::mad::field::Field;

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
