//! `ServiceRecord` (IBA 15.2.5.13).

use super::RESERVED;
use crate::mad::field::Field;

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
