//! Places in the virtual subnet: which switch port a LID hangs on.
//!
//! All hosts of a network hang on leaf switches, 240 LIDs on each. While the hosts that are there have one leaf, that is the only
//! switch; else a spine connects the leaves. Positions follow from LIDs alone, so every host knows the same subnet.

use crate::{Guid, Lid};

/// Host ports of a leaf switch.
pub const LEAF_PORTS: u8 = 240;
/// Port of a leaf switch that leads to the spine.
pub const UPLINK: u8 = LEAF_PORTS + 1;
/// First LID of switches: that of leaf 0. No host has one from here on.
pub const SWITCH_LIDS: u16 = 0xBF00;
/// Leaf switches of the LIDs below [`SWITCH_LIDS`].
pub const LEAVES: u8 = 204;
const _: () = assert!(LEAVES as u16 == (SWITCH_LIDS - 2) / LEAF_PORTS as u16 + 1);

/// A switch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Switch {
    /// The leaf with this number.
    Leaf(u8),
    /// The switch that connects leaves.
    Spine,
}

impl Switch {
    /// LID of the switch.
    #[must_use]
    pub const fn lid(self) -> Lid {
        match self {
            Self::Leaf(leaf) => Lid(SWITCH_LIDS + leaf as u16),
            Self::Spine => Lid(0xBFFF),
        }
    }

    /// The switch of a LID.
    #[must_use]
    pub fn of(lid: Lid) -> Option<Self> {
        if lid == Self::Spine.lid() {
            return Some(Self::Spine);
        }
        let leaf = u8::try_from(lid.0.checked_sub(SWITCH_LIDS)?).ok()?;
        (leaf < LEAVES).then_some(Self::Leaf(leaf))
    }

    /// Number of external ports.
    #[must_use]
    pub const fn ports(self) -> u8 {
        match self {
            Self::Leaf(_) => UPLINK,
            Self::Spine => LEAVES,
        }
    }

    /// GUID, locally administered: nobody's card has it.
    #[must_use]
    pub const fn guid(self) -> Guid {
        let number = match self {
            Self::Leaf(leaf) => leaf,
            Self::Spine => 0xFF,
        };
        Guid::new([0x02, b'u', b'r', 0xFF, 0xFE, b's', b'w', number])
    }
}

/// The place of a host: its leaf, and the port there. `None` for what is no host's LID.
#[must_use]
pub fn place(lid: Lid) -> Option<(u8, u8)> {
    if !is_host(lid) {
        return None;
    }
    let (leaf, port) = ((lid.0 - 1) / u16::from(LEAF_PORTS), (lid.0 - 1) % u16::from(LEAF_PORTS) + 1);
    Some((u8::try_from(leaf).ok()?, u8::try_from(port).ok()?))
}

/// The LID of the host at a leaf's port.
#[must_use]
pub fn host_at(leaf: u8, port: u8) -> Option<Lid> {
    if !(1..=LEAF_PORTS).contains(&port) {
        return None;
    }
    let lid = Lid(u16::from(leaf) * u16::from(LEAF_PORTS) + u16::from(port));
    is_host(lid).then_some(lid)
}

/// Whether a host can have the LID.
#[must_use]
pub const fn is_host(lid: Lid) -> bool {
    lid.0 != 0 && lid.0 < SWITCH_LIDS
}

/// The LID of the switch that a host hangs on, where the built-in subnet manager and subnet administration are;
/// [`Lid::NONE`] for what is no host's LID.
#[must_use]
pub fn leaf_lid(lid: Lid) -> Lid {
    place(lid).map_or(Lid::NONE, |(leaf, _)| Switch::Leaf(leaf).lid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_host_has_a_place_of_its_own() {
        let mut last = (0, 0);
        for lid in (1..SWITCH_LIDS).map(Lid) {
            let place = place(lid).unwrap();
            assert!(place > last && place.0 < LEAVES && place.1 <= LEAF_PORTS);
            assert_eq!(host_at(place.0, place.1), Some(lid));
            last = place;
        }
        assert_eq!(last.0, LEAVES - 1);
        assert_eq!(place(Lid(1)), Some((0, 1)));
        for nobody in [0, SWITCH_LIDS, 0xBFFF, 0xC000, 0xFFFF] {
            assert_eq!((place(Lid(nobody)), leaf_lid(Lid(nobody))), (None, Lid::NONE));
        }
        assert!(host_at(0, 0).is_none() && host_at(0, UPLINK).is_none() && host_at(LEAVES - 1, LEAF_PORTS).is_none());
    }

    #[test]
    fn switches_have_lids_and_guids() {
        for switch in (0..LEAVES).map(Switch::Leaf).chain([Switch::Spine]) {
            assert_eq!(Switch::of(switch.lid()), Some(switch));
            assert!(switch.lid().is_unicast() && place(switch.lid()).is_none());
        }
        assert_ne!(Switch::Leaf(0).guid(), Switch::Spine.guid());
        assert_eq!(Switch::of(Lid(SWITCH_LIDS + u16::from(LEAVES))), None);
        assert_eq!(Switch::of(Lid(1)), None);
    }
}
