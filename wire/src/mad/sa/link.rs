//! `LinkRecord` (IBA 15.2.5.14).

use crate::mad::field::Field;

/// `FromLID`
pub const FROM_LID: Field = Field::bytes(0, 2);
/// `FromPort`
pub const FROM_PORT: Field = Field::bytes(2, 1);
/// `ToPort`
pub const TO_PORT: Field = Field::bytes(3, 1);
/// `ToLID`
pub const TO_LID: Field = Field::bytes(4, 2);
pub(super) const FIELDS: [Field; 4] = [FROM_LID, FROM_PORT, TO_PORT, TO_LID];
