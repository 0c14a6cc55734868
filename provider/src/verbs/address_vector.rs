//! Address vectors, as `ibv_ah_attr` has them.

use urxe_wire::{Gid, Lid};

/// Hop limit of a GRH whose sender names none: the system's default (`net.ipv4.ip_default_ttl`).
pub(crate) const HOP_LIMIT: u8 = 64;

/// Destination of an address vector (`struct ibv_ah_attr`), as far as it needs no pointers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AddressVector {
    /// The peer's GID.
    pub(crate) dgid: Gid,
    /// Index of our own.
    pub(crate) sgid_index: u32,
    /// Decides the UDP source port.
    pub(crate) flow_label: u32,
    /// TOS or traffic class.
    pub(crate) traffic_class: u8,
    /// TTL or hop limit.
    pub(crate) hop_limit: u8,
    /// Set if there is a GRH: RoCE needs one.
    pub(crate) is_global: bool,
    /// The peer's LID, which counts where there is no GRH and ports have LIDs.
    pub(crate) dlid: Lid,
}
