//! Events as librdmacm gets them.

use urxe_wire::{Gid, Lid};

/// `enum rdma_cm_event_type` (`rdma/rdma_cma.h`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    AddrResolved = 0,
    AddrError = 1,
    RouteResolved = 2,
    ConnectRequest = 4,
    ConnectResponse = 5,
    Unreachable = 7,
    Rejected = 8,
    Established = 9,
    Disconnected = 10,
    DeviceRemoval = 11,
    MulticastJoin = 12,
    MulticastError = 13,
    TimewaitExit = 15,
    AddrinfoResolved = 16,
    AddrinfoError = 17,
    /// The application's own ([`rdma_write_cm_event`](super::Manager::write_event)).
    User = 18,
    /// librdmacm's own.
    Internal = 19,
}

/// Numbers of a connection, as its receiver is to use them (`struct rdma_conn_param`).
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct ConnParam {
    pub(crate) qp_num: u32,
    pub(crate) srq: bool,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) flow_control: bool,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
}

/// Destination of datagrams (`struct rdma_ud_param`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct UdParam {
    pub(crate) qp_num: u32,
    pub(crate) qkey: u32,
    pub(crate) address: Address,
}

/// Address handle to a peer or a group.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Address {
    pub(crate) dgid: Gid,
    pub(crate) sgid_index: u8,
    pub(crate) tclass: u8,
    /// The peer's LID, or the group's: of InfiniBand.
    pub(crate) dlid: Lid,
    /// Set if there is a GRH: on InfiniBand to groups, and to peers that no LID leads to.
    pub(crate) is_global: bool,
}

/// The rest of an event.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Param {
    Conn(ConnParam),
    Ud(UdParam),
    /// An event that the program has written itself.
    Arg(u64),
}

/// An event that waits in a channel.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    /// The id it is about.
    pub(crate) handle: u32,
    /// The id that counts it, which for a request is the listener, and for a join the group.
    pub(crate) counted_by: u32,
    pub(crate) uid: u64,
    pub(crate) kind: Kind,
    pub(crate) status: i32,
    pub(crate) param: Param,
    pub(crate) private_data: Vec<u8>,
    /// ECE: vendor and options.
    pub(crate) ece: (u32, u32),
}
