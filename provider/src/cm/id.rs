//! An `rdma_cm_id`, as the kernel sees it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use urxe_engine::Instant;
use urxe_net::Service;
use urxe_wire::Gid;
use urxe_wire::cm::CommId;

use super::channel::Channel;
use super::event::ConnParam;
use super::membership::Group;
use super::port_space::PortSpace;
use super::service_records::Services;

/// `enum rdma_cm_state` of the kernel, as far as it lasts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Idle,
    AddrBound,
    AddrResolved,
    RouteResolved,
    Listen,
    /// Connection, from a request of either end until it ends.
    Connect,
    Disconnect,
    /// The id's device was removed: the id can only be destroyed.
    Removed,
}

/// Parameters that both ends of a connection have exchanged.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Connection {
    /// Named by this end: the peer's first PSN.
    pub(crate) our_psn: u32,
    /// Named by the peer: this end's first PSN.
    pub(crate) peer_psn: u32,
    pub(crate) param: ConnParam,
    pub(crate) path_mtu: u8,
    pub(crate) ack_timeout: u8,
    pub(crate) ece: (u32, u32),
}

pub(crate) struct Id {
    pub(crate) channel: Arc<Channel>,
    /// The application's name for it; 0 until a connection is accepted.
    pub(crate) uid: u64,
    pub(crate) space: PortSpace,
    pub(crate) qp_type: u8,
    pub(crate) state: State,
    pub(crate) src: Option<SocketAddr>,
    pub(crate) dst: Option<SocketAddr>,
    /// Index of the device.
    pub(crate) device: Option<usize>,
    /// The address of the device that packets carry in place of a loopback address, which no device has.
    pub(crate) loopback: Option<IpAddr>,
    /// Time at which it took its port.
    pub(crate) bound_at: Option<Instant>,
    /// Names that keep others from the port.
    pub(crate) claims: Vec<Service>,
    pub(crate) reuse: bool,
    pub(crate) v6_only: bool,
    pub(crate) tos: u8,
    pub(crate) ack_timeout: Option<u8>,
    /// Number of requests that a listener lets wait.
    pub(crate) backlog: u32,
    pub(crate) comm: Option<CommId>,
    pub(crate) connection: Connection,
    pub(crate) events_reported: u32,
    /// Groups joined, or asked for.
    pub(crate) groups: Vec<Group>,
    /// Set while the event of its address waits for the Q_Key of IPoIB's groups.
    pub(crate) waits_for_key: bool,
    /// Services of subnet administration.
    pub(crate) services: Services,
}

impl Id {
    pub(crate) fn new(channel: Arc<Channel>, uid: u64, space: PortSpace, qp_type: u8) -> Self {
        Self {
            channel,
            uid,
            space,
            qp_type,
            state: State::Idle,
            src: None,
            dst: None,
            device: None,
            loopback: None,
            bound_at: None,
            claims: Vec::new(),
            reuse: false,
            v6_only: false,
            tos: 0,
            ack_timeout: None,
            backlog: 0,
            comm: None,
            connection: Connection::default(),
            events_reported: 0,
            groups: Vec::new(),
            waits_for_key: false,
            services: Services::Unknown,
        }
    }

    pub(crate) const fn is_datagram(&self) -> bool {
        self.qp_type == IBV_QPT_UD
    }

    pub(crate) fn local_gid(&self) -> Gid {
        self.on_device(self.src).map_or(Gid::UNSPECIFIED, Gid::from)
    }

    pub(crate) fn remote_gid(&self) -> Gid {
        self.on_device(self.dst).map_or(Gid::UNSPECIFIED, Gid::from)
    }

    /// The address that packets carry for `address`.
    pub(crate) fn on_device(&self, address: Option<SocketAddr>) -> Option<IpAddr> {
        let ip = address?.ip();
        Some(self.loopback.filter(|_| ip.is_loopback()).unwrap_or(ip))
    }
}

pub(crate) const IBV_QPT_RC: u8 = 2;
pub(crate) const IBV_QPT_UC: u8 = 3;
pub(crate) const IBV_QPT_UD: u8 = 4;
pub(crate) const IBV_QPT_XRC_SEND: u8 = 9;
pub(crate) const IBV_QPT_XRC_RECV: u8 = 10;
