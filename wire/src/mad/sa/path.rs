//! `PathRecord` (IBA 15.2.5.16).

use super::RESERVED;
use crate::mad::field::Field;

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
/// Bits of a mask: the destination, by GID or by LID.
pub const HAS_DESTINATION: u64 = 1 << 2 | 1 << 4;
/// Bits of a mask: both ends, by GID.
pub const ENDS: u64 = 0b11 << 2;
/// Selectors with their values, and the bits of a mask that both have.
pub const SELECTED: [(u64, (Field, Field)); 3] = [(0b11 << 16, MTU), (0b11 << 18, RATE), (0b11 << 20, LIFE_TIME)];
