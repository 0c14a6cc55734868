//! Regions that peers see.

use urxe_engine::{Region, RegionKind};
use urxe_net::direct::{Export, SharedRegion};
use urxe_wire::Qpn;

use super::halves;

/// Number of a kind of region that peers may use, and which queue pair alone.
const WINDOW: u32 = 1 << 30;
const BOUND: u32 = 1 << 31;

/// The word that says who may use a region. `None`: no peer.
const fn user(kind: RegionKind) -> Option<u32> {
    match kind {
        RegionKind::Memory => Some(0),
        RegionKind::Window(None) => Some(WINDOW),
        RegionKind::Window(Some(qpn)) => Some(BOUND | qpn.get()),
        RegionKind::Null => None,
    }
}

/// The kind of a region of which this is the word.
pub(super) const fn kind(user: u32) -> RegionKind {
    match user {
        0 => RegionKind::Memory,
        bound if bound & BOUND != 0 => RegionKind::Window(Some(Qpn::new(bound & 0xFF_FFFF))),
        _ => RegionKind::Window(None),
    }
}

/// Shows a region whose first byte is at `at` of the shared file.
pub(crate) fn show(export: &Export, region: &Region, at: u64) -> bool {
    let Some(user) = user(region.kind) else { return false };
    let shared = SharedRegion {
        name: halves(region.key.0, region.pd.0),
        rights: halves(region.access.bits(), user),
        iova: region.iova,
        length: region.length,
        at,
    };
    export.show_region(region.key.0, &shared)
}

/// Hides a region.
pub(crate) fn hide(export: &Export, region: &Region) {
    export.hide_region(region.key.0);
}
