//! Attributes of the port that programs read in sysfs, and that verbs and PortInfo must agree with.

use urxe_wire::{LinkLayer, PKey};

/// Constant attributes of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAttributes {
    /// `CapabilityMask` of PortInfo (IBA 14.2.5.6), in sysfs `cap_mask`.
    pub capability_mask: u32,
    /// `LinkWidthActive` of PortInfo: 1 for one lane, 2 for four.
    pub width: u8,
    /// `LinkSpeedActive` of PortInfo, as `ibv_port_attr::active_speed` has it.
    pub speed: u8,
    /// Signalling rate, in units of 100 Mbit/s.
    pub rate: u64,
    /// Content of the file `rate`.
    pub rate_text: &'static str,
    /// The rate as path records have it (`enum ibv_rate`).
    pub rate_code: u8,
    /// Rows of the P_Key table. The first has the default partition, the others are empty until a subnet manager fills them.
    pub pkeys: u16,
}

/// Bits of `CapabilityMask` (IBA 14.2.5.6).
mod capability {
    pub(super) const TRAP: u32 = 1 << 3;
    pub(super) const SL_MAPPING: u32 = 1 << 6;
    pub(super) const SYSTEM_IMAGE_GUID: u32 = 1 << 11;
    pub(super) const COMMUNICATION_MANAGEMENT: u32 = 1 << 16;
    pub(super) const VENDOR_CLASS: u32 = 1 << 20;
    pub(super) const CLIENT_REREGISTRATION: u32 = 1 << 25;
}

/// Of RoCE: a lane of FDR10, as the kernel's rxe over a NIC of that speed. What is behind an interface varies.
const ETHERNET: PortAttributes = PortAttributes {
    capability_mask: capability::COMMUNICATION_MANAGEMENT,
    width: 1,
    speed: 8,
    rate: 100,
    rate_text: "10 Gb/sec (1X FDR10)",
    rate_code: 3,
    pkeys: 1,
};

/// Of InfiniBand: the fastest link that PortInfo can tell without extended speeds, four lanes of QDR.
const INFINIBAND: PortAttributes = PortAttributes {
    capability_mask: capability::TRAP
        | capability::SL_MAPPING
        | capability::SYSTEM_IMAGE_GUID
        | capability::COMMUNICATION_MANAGEMENT
        | capability::VENDOR_CLASS
        | capability::CLIENT_REREGISTRATION,
    width: 2,
    speed: 4,
    rate: 400,
    rate_text: "40 Gb/sec (4X QDR)",
    rate_code: 7,
    pkeys: 32,
};

impl PortAttributes {
    /// Returns the attributes of ports of a link layer.
    #[must_use]
    pub const fn of(link_layer: LinkLayer) -> &'static Self {
        match link_layer {
            LinkLayer::Ethernet => &ETHERNET,
            LinkLayer::Infiniband => &INFINIBAND,
        }
    }

    /// Returns a row of the P_Key table as it is before any subnet manager: full membership of the default partition in the
    /// first, nothing in the others. `None` beyond the table.
    #[must_use]
    pub fn pkey(&self, index: u16) -> Option<PKey> {
        (index < self.pkeys).then_some(if index == 0 { PKey::DEFAULT } else { PKey(0) })
    }
}
