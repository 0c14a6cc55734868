//! Link layers of ports.

/// Link layer that a port says it has (`enum rdma_link_layer` of the kernel).
///
/// Packets are those of RoCE v2 with either: the link layer decides how a port names itself and others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkLayer {
    /// Ethernet: GIDs are IP addresses, address vectors have a GRH.
    #[default]
    Ethernet,
    /// InfiniBand: ports have LIDs, GIDs are a subnet prefix and a GUID, address vectors need no GRH.
    Infiniband,
}

impl LinkLayer {
    /// Returns the link layer of this name in `--link-layer`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "ethernet" => Some(Self::Ethernet),
            "infiniband" => Some(Self::Infiniband),
            _ => None,
        }
    }

    /// Returns the content of the file `link_layer` of sysfs.
    #[must_use]
    pub const fn sysfs_name(self) -> &'static str {
        match self {
            Self::Ethernet => "Ethernet",
            Self::Infiniband => "InfiniBand",
        }
    }

    /// Whether ports are of InfiniBand.
    #[must_use]
    pub const fn is_infiniband(self) -> bool {
        matches!(self, Self::Infiniband)
    }
}
