//! `InformInfo` (IBA 13.4.8.3).

use super::RESERVED;
use crate::mad::field::Field;

/// Bytes of the attribute, and its place in an `InformInfoRecord`.
pub const LEN: usize = 36;
/// See [`LEN`].
pub const AT: usize = 24;
/// GID of the subscriber, in an `InformInfoRecord`.
pub const SUBSCRIBER: Field = Field::bytes(0, 16);
/// Number of the subscription, in an `InformInfoRecord`.
pub const NUMBER: Field = Field::bytes(16, 2);
/// `IsGeneric`
pub const IS_GENERIC: Field = Field::bytes(22, 1);
/// `Subscribe`
pub const SUBSCRIBE: Field = Field::bytes(23, 1);
/// `TrapNumber`: 0xFFFF for all.
pub const TRAP: Field = Field::bytes(26, 2);
/// Queue pair that reports go to.
pub const QPN: Field = Field::bytes(28, 3);

/// Components of an `InformInfoRecord`, by the bit of a mask that names each.
pub(super) const RECORD_FIELDS: [Field; 3] = [SUBSCRIBER, NUMBER, RESERVED];
