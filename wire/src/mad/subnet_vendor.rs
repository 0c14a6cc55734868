//! Class and vendor of announcements, by which hosts of a virtual subnet tell each other that they are there.

use super::{MAD_LEN, Mad, oui};

/// Class of announcements: of vendors with an OUI.
pub const CLASS: u8 = 0x3F;
/// Vendor: locally administered, so nobody's.
pub const OUI: [u8; 3] = [0x02, b'u', b'r'];

/// Whether a datagram with this header is an announcement, of any version.
#[must_use]
pub fn is_announcement(header: &Mad, datagram: &[u8; MAD_LEN]) -> bool {
    header.class == CLASS && oui(datagram) == OUI
}
