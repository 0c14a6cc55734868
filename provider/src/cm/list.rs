//! The ids of this process, for those who look from outside (`rdma resource show cm_id`).

use std::net::SocketAddr;

use super::Manager;
use super::id::{Id, State};

/// Public members of an id.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listed {
    pub(crate) handle: u32,
    /// `enum rdma_ucm_port_space`.
    pub(crate) space: u16,
    /// `enum rdma_cm_state` of the kernel.
    pub(crate) state: u8,
    pub(crate) qp_type: u8,
    pub(crate) src: Option<SocketAddr>,
    pub(crate) dst: Option<SocketAddr>,
}

impl Manager {
    /// The ids that are on a device, by their handles. Who listens at any address, listens on every device.
    pub(crate) fn list(&self, device: &str) -> Vec<Listed> {
        let state = self.state();
        let is_on = |id: &Id| match id.device {
            Some(index) => state.devices.get(index).is_some_and(|on| on.shared.name() == device),
            None => id.state == State::Listen,
        };
        let mut all: Vec<_> =
            state.ids.iter().filter(|(_, id)| is_on(id)).map(|(handle, id)| listed(handle, id)).collect();
        all.sort_by_key(|listed| listed.handle);
        all
    }
}

const fn listed(handle: u32, id: &Id) -> Listed {
    let Id { space, state, qp_type, src, dst, .. } = *id;
    Listed { handle, space: space.number(), state: rdma_cm_state(state), qp_type, src, dst }
}

/// `enum rdma_cm_state` (`cma_priv.h`).
const fn rdma_cm_state(state: State) -> u8 {
    match state {
        State::Idle => 0,
        State::AddrResolved => 2,
        State::RouteResolved => 4,
        State::Connect => 5,
        State::Disconnect => 6,
        State::AddrBound => 7,
        State::Listen => 8,
        State::Removed => 9,
    }
}
