//! `MultiPathRecord` (IBA 15.2.5.20): paths between each of some sources and each of some destinations.

use super::path;
use crate::mad::field::Field;

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
