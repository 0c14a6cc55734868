//! GIDs, within a process, of nodes that are no hosts: they never reach the network.

use urxe_wire::{Gid, Lid};

/// Start of the GIDs of nodes that are no hosts: a prefix that no network has.
const NODE_PREFIX: [u8; 14] = [0xFE, 0xC0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, b'u', b'r'];

/// The GID, within this process, of a node that is no host.
#[must_use]
pub fn node_gid(lid: Lid) -> Gid {
    let mut octets = [0; 16];
    let (prefix, end) = octets.split_at_mut(NODE_PREFIX.len());
    prefix.copy_from_slice(&NODE_PREFIX);
    end.copy_from_slice(&lid.0.to_be_bytes());
    Gid::new(octets)
}

/// The LID of a [`node_gid`].
#[must_use]
pub fn lid_of_node(gid: &Gid) -> Option<Lid> {
    let octets = gid.octets();
    let [high, low] = *octets.strip_prefix(&NODE_PREFIX)?.first_chunk()?;
    Some(Lid(u16::from_be_bytes([high, low])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_gids_of_their_own() {
        for lid in [0, 1, 0xBF00, 0xFFFF].map(Lid) {
            assert_eq!(lid_of_node(&node_gid(lid)), Some(lid));
        }
        assert_eq!(lid_of_node(&Gid::from(std::net::IpAddr::from([10, 77, 0, 2]))), None);
        assert_eq!(lid_of_node(&Gid::UNSPECIFIED), None);
    }
}
