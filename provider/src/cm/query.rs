//! Queries of an id: addresses, device, route, queue-pair attributes.

use std::net::SocketAddr;

use urxe_status::port::PortAttributes;
use urxe_wire::{Gid, Lid, Mtu};

use super::event::Address;
use super::id::{Connection, IBV_QPT_UC, Id, State as Phase};
use super::port_space::{PortSpace, UDP_QKEY};
use super::{Device, EINVAL, Manager};
use crate::kernel::Errno;
use crate::verbs::address_vector::HOP_LIMIT;
use crate::verbs::lid;

/// Addresses, device and route of an id.
pub(crate) struct Route {
    /// Network byte order; 0 without a device.
    pub(crate) node_guid: u64,
    pub(crate) src: Option<SocketAddr>,
    pub(crate) dst: Option<SocketAddr>,
    pub(crate) path: Path,
    /// `enum rdma_ucm_port_space`.
    pub(crate) space: u16,
    /// The route is known.
    pub(crate) has_path: bool,
    /// `enum ibv_mtu`.
    pub(crate) mtu: u8,
    pub(crate) tclass: u8,
    pub(crate) packet_life_time: u8,
}

/// Ends of a path, and how packets go along it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Path {
    pub(crate) sgid: Gid,
    pub(crate) dgid: Gid,
    /// The two LIDs: of InfiniBand.
    pub(crate) slid: Lid,
    pub(crate) dlid: Lid,
    pub(crate) hop_limit: u8,
    /// `enum ibv_rate`.
    pub(crate) rate: u8,
}

impl Path {
    /// The path between two GIDs of the network.
    fn new(device: &Device, local: &Gid, remote: &Gid) -> Self {
        let port = device.shared.device().net();
        let (interface, Address { dlid, is_global, .. }) = (port.interface(), device.address(local, remote, 0));
        let link_layer = interface.link_layer();
        Self {
            sgid: interface.shown_gid(local),
            dgid: interface.shown_gid(remote),
            slid: if link_layer.is_infiniband() { lid::of(port).lid } else { Lid::NONE },
            dlid,
            // A path within a subnet has none (the kernel's `ib_init_ah_attr_from_path`).
            hop_limit: if is_global { HOP_LIMIT } else { 0 },
            rate: PortAttributes::of(link_layer).rate_code,
        }
    }
}

/// Attributes and mask for the `ibv_modify_qp(3)` to the next state.
pub(crate) struct QpAttr {
    pub(crate) mask: u32,
    pub(crate) access: u32,
    pub(crate) qkey: u32,
    pub(crate) connection: Connection,
    pub(crate) address: Address,
}

mod mask {
    use urxe_ffi::verbs as v;

    pub(super) const INIT: u32 = v::IBV_QP_STATE | v::IBV_QP_PKEY_INDEX | v::IBV_QP_PORT;
    pub(super) const INIT_UD: u32 = INIT | v::IBV_QP_QKEY;
    pub(super) const INIT_CONNECTED: u32 = INIT | v::IBV_QP_ACCESS_FLAGS;
    pub(super) const RTR: u32 =
        v::IBV_QP_STATE | v::IBV_QP_AV | v::IBV_QP_PATH_MTU | v::IBV_QP_DEST_QPN | v::IBV_QP_RQ_PSN;
    pub(super) const RTR_RELIABLE: u32 = v::IBV_QP_MAX_DEST_RD_ATOMIC | v::IBV_QP_MIN_RNR_TIMER;
    pub(super) const RTS: u32 = v::IBV_QP_STATE | v::IBV_QP_SQ_PSN;
    pub(super) const RTS_RELIABLE: u32 =
        v::IBV_QP_TIMEOUT | v::IBV_QP_RETRY_CNT | v::IBV_QP_RNR_RETRY | v::IBV_QP_MAX_QP_RD_ATOMIC;
}

impl Manager {
    pub(crate) fn query(&self, handle: u32) -> Result<Route, Errno> {
        let mut state = self.state();
        let id = state.id(handle)?;
        let (src, dst, index, tclass) = (id.src, id.dst, id.device, id.tos);
        let (local, remote, space) = (id.local_gid(), id.remote_gid(), id.space.number());
        let has_path = matches!(id.state, Phase::RouteResolved | Phase::Connect | Phase::Disconnect);
        let device = index.and_then(|index| state.devices.get(index));
        let unbound = Path { sgid: local, dgid: remote, ..Path::default() };
        let path = device.map_or(unbound, |device| Path::new(device, &local, &remote));
        Ok(Route {
            node_guid: device.map_or(0, |device| device.guid),
            src,
            dst,
            path,
            space,
            has_path,
            mtu: device.map_or(0, |device| Mtu::within(device.interface().path_mtu().into()).code()),
            tclass,
            packet_life_time: 16,
        })
    }

    /// Returns the attributes for the queue pair's transition to `qp_state` (`enum ibv_qp_state`).
    pub(crate) fn qp_attr(&self, handle: u32, qp_state: u32) -> Result<QpAttr, Errno> {
        use urxe_ffi::verbs as v;
        let mut state = self.state();
        let id = state.id(handle)?;
        let index = id.device.ok_or(EINVAL)?;
        let (is_datagram, reliable) = (id.is_datagram(), id.qp_type != IBV_QPT_UC);
        let mask = match (qp_state, is_datagram) {
            (v::IBV_QPS_INIT, true) => mask::INIT_UD,
            (v::IBV_QPS_INIT, false) => mask::INIT_CONNECTED,
            (v::IBV_QPS_RTR, true) => v::IBV_QP_STATE,
            (v::IBV_QPS_RTS, true) => mask::RTS,
            (v::IBV_QPS_RTR, false) if id.state == Phase::Connect => {
                mask::RTR | if reliable { mask::RTR_RELIABLE } else { 0 }
            }
            (v::IBV_QPS_RTS, false) if id.state == Phase::Connect => {
                mask::RTS | if reliable { mask::RTS_RELIABLE } else { 0 }
            }
            _ => return Err(EINVAL),
        };
        let connection = id.connection;
        let mut access = v::IBV_ACCESS_REMOTE_WRITE;
        if connection.param.responder_resources > 0 {
            access |= v::IBV_ACCESS_REMOTE_READ | v::IBV_ACCESS_REMOTE_ATOMIC;
        }
        let (local, remote, tclass, space) = (Id::local_gid(id), Id::remote_gid(id), id.tos, id.space);
        let device = state.devices.get(index).ok_or(Errno(libc::ENODEV))?;
        let address = device.address(&local, &remote, tclass);
        Ok(QpAttr {
            mask,
            // Before there is a connection, nobody may do anything.
            access: if connection.path_mtu == 0 { 0 } else { access },
            qkey: match space {
                _ if !is_datagram => 0,
                PortSpace::Ipoib if device.interface().link_layer().is_infiniband() => state.ipoib_key(index),
                _ => UDP_QKEY,
            },
            connection,
            address,
        })
    }
}
