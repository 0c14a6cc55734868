//! `ClassPortInfo` (IBA 13.4.8.1).

use crate::mad::field::Field;

/// Bytes of the attribute.
pub const LEN: usize = 72;
/// `BaseVersion`
pub const BASE_VERSION: Field = Field::bytes(0, 1);
/// `ClassVersion`
pub const CLASS_VERSION: Field = Field::bytes(1, 1);
/// `CapabilityMask`
pub const CAPABILITY_MASK: Field = Field::bytes(2, 2);
/// `CapabilityMask2`
pub const CAPABILITY_MASK_2: Field = Field::bits(4, 0, 27);
/// `RespTimeValue`
pub const RESPONSE_TIME: Field = Field::bits(7, 3, 5);
