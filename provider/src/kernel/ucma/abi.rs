//! Structures of `rdma/rdma_user_cm.h`, to and from what the rest works with.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV6};

use urxe_ffi::ucma;
use urxe_wire::{Gid, Guid, mgid};

use crate::cm::connect::Offer;
use crate::cm::event::{Address, ConnParam, Event, Param};
use crate::cm::query::{QpAttr, Route};
use crate::kernel::Errno;
use crate::verbs::address_vector::HOP_LIMIT;

/// `AF_IB` of Linux.
pub(super) const AF_IB: u16 = 27;

/// Plain C structures: any bytes are a value, and all-zero is one.
///
/// # Safety
/// Only integers, and arrays, unions and structures of such.
pub(super) unsafe trait Abi: Sized {}

macro_rules! plain {
    ($($name:ident),* $(,)?) => {
        $(
            // SAFETY: generated from the kernel's header, which has nothing else.
            unsafe impl Abi for ucma::$name {}
        )*
    };
}

plain!(
    rdma_ucm_cmd_hdr,
    rdma_ucm_create_id,
    rdma_ucm_create_id_resp,
    rdma_ucm_destroy_id,
    rdma_ucm_destroy_id_resp,
    rdma_ucm_bind_ip,
    rdma_ucm_bind,
    rdma_ucm_resolve_ip,
    rdma_ucm_resolve_addr,
    rdma_ucm_resolve_route,
    rdma_ucm_query,
    rdma_ucm_query_route_resp,
    rdma_ucm_query_addr_resp,
    rdma_ucm_connect,
    rdma_ucm_listen,
    rdma_ucm_accept,
    rdma_ucm_reject,
    rdma_ucm_disconnect,
    rdma_ucm_init_qp_attr,
    rdma_ucm_notify,
    rdma_ucm_join_ip_mcast,
    rdma_ucm_join_mcast,
    rdma_ucm_get_event,
    rdma_ucm_event_resp,
    rdma_ucm_set_option,
    rdma_ucm_migrate_id,
    rdma_ucm_migrate_resp,
);

/// `struct ib_uverbs_qp_attr` of `rdma/ib_user_verbs.h`.
#[repr(C)]
pub(super) struct UverbsQpAttr {
    qp_attr_mask: u32,
    qp_state: u32,
    cur_qp_state: u32,
    path_mtu: u32,
    path_mig_state: u32,
    qkey: u32,
    rq_psn: u32,
    sq_psn: u32,
    dest_qp_num: u32,
    qp_access_flags: u32,
    ah_attr: ucma::ib_uverbs_ah_attr,
    alt_ah_attr: ucma::ib_uverbs_ah_attr,
    cap: [u32; 5],
    pkey_index: u16,
    alt_pkey_index: u16,
    en_sqd_async_notify: u8,
    sq_draining: u8,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    min_rnr_timer: u8,
    port_num: u8,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    alt_port_num: u8,
    alt_timeout: u8,
    reserved: [u8; 5],
}

const _: () = assert!(size_of::<UverbsQpAttr>() == 144);

// SAFETY: integers only.
unsafe impl Abi for UverbsQpAttr {}

/// The structure at the start of `bytes`; what is missing is zero.
pub(super) fn decode<T: Abi>(bytes: &[u8]) -> T {
    let mut value = std::mem::MaybeUninit::<T>::zeroed();
    let len = bytes.len().min(size_of::<T>());
    // SAFETY: so many bytes are there on both sides; `Abi` promises that any are a value.
    unsafe {
        value.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), len);
        value.assume_init()
    }
}

fn zeroed<T: Abi>() -> T {
    decode(&[])
}

/// Returns the bytes of a response. Every value that goes out was zeroed first, padding included.
pub(super) fn encode<T: Abi>(value: &T) -> &[u8] {
    // SAFETY: the value's own memory; as said above, all of it is initialised.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// The address in room for a `sockaddr_in6`; `None` if the family is 0, as when it was not given.
pub(super) fn ip_address(address: &libc::sockaddr_in6) -> Result<Option<SocketAddr>, Errno> {
    // SAFETY: the structure's memory.
    let bytes = unsafe { std::slice::from_raw_parts(std::ptr::from_ref(address).cast::<u8>(), size_of_val(address)) };
    parse(bytes)
}

/// The address in a `sockaddr_storage`.
pub(super) fn storage_address(address: &ucma::__kernel_sockaddr_storage) -> Result<Option<SocketAddr>, Errno> {
    // SAFETY: the structure's memory.
    let bytes = unsafe { std::slice::from_raw_parts(std::ptr::from_ref(address).cast::<u8>(), size_of_val(address)) };
    parse(bytes)
}

/// Whether the address is the wildcard of AF_IB: of any GID, whatever service it names.
pub(super) fn is_any_ib(address: &ucma::__kernel_sockaddr_storage) -> bool {
    // SAFETY: the structure's memory.
    let bytes = unsafe { std::slice::from_raw_parts(std::ptr::from_ref(address).cast::<u8>(), size_of_val(address)) };
    let gid = bytes.get(8..24).unwrap_or_default();
    bytes.starts_with(&AF_IB.to_ne_bytes()) && gid.iter().all(|byte| *byte == 0)
}

/// `sockaddr_in` or `sockaddr_in6`: family, port, then address; flow and scope around the longer one.
pub(super) fn parse(bytes: &[u8]) -> Result<Option<SocketAddr>, Errno> {
    let [f0, f1, p0, p1, rest @ ..] = bytes else { return Err(Errno(libc::EINVAL)) };
    let port = u16::from_be_bytes([*p0, *p1]);
    match i32::from(u16::from_ne_bytes([*f0, *f1])) {
        libc::AF_UNSPEC => Ok(None),
        libc::AF_INET => {
            let octets: [u8; 4] = *rest.first_chunk().ok_or(Errno(libc::EINVAL))?;
            Ok(Some(SocketAddr::new(Ipv4Addr::from(octets).into(), port)))
        }
        libc::AF_INET6 => {
            let fields = rest.first_chunk::<24>().ok_or(Errno(libc::EINVAL))?;
            let [_, _, _, _, octets @ .., s0, s1, s2, s3] = fields;
            let octets: [u8; 16] = *octets;
            let scope = u32::from_ne_bytes([*s0, *s1, *s2, *s3]);
            Ok(Some(SocketAddrV6::new(octets.into(), port, 0, scope).into()))
        }
        family if family == i32::from(AF_IB) => ib_address(bytes).map(Some),
        _ => Err(Errno(libc::EAFNOSUPPORT)),
    }
}

/// The address behind a `sockaddr_ib`: of the GID, which is a port's that embeds an IPv4 address or a group's, with the port that
/// the service id ends in. ENODEV where no port has the GID (`cma_acquire_dev_by_src_ip`, `cma_resolve_ib_dev` of the
/// kernel's cma.c).
fn ib_address(bytes: &[u8]) -> Result<SocketAddr, Errno> {
    let not_ours = Errno(libc::ENODEV);
    let gid = Gid::new(*bytes.get(8..).and_then(<[u8]>::first_chunk).ok_or(not_ours)?);
    let [.., high, low] = *bytes.get(24..).and_then(<[u8]>::first_chunk::<8>).ok_or(not_ours)?;
    let address = Guid::of_gid(&gid).map_or_else(|| mgid::ipv4_group(&gid), Guid::ipv4).ok_or(not_ours)?;
    Ok(SocketAddr::new(address.into(), u16::from_be_bytes([high, low])))
}

/// The port that the service id of a `sockaddr_ib` ends in.
pub(super) fn ib_port(address: &ucma::__kernel_sockaddr_storage) -> u16 {
    // SAFETY: the structure's memory.
    let bytes = unsafe { std::slice::from_raw_parts(std::ptr::from_ref(address).cast::<u8>(), size_of_val(address)) };
    bytes.get(30..).and_then(<[u8]>::first_chunk).map_or(0, |port| u16::from_be_bytes(*port))
}

/// The start of a `sockaddr`, in room for a `sockaddr_in6`; and how long it is.
pub(super) fn bytes_of(address: Option<SocketAddr>) -> ([u8; 28], u16) {
    let mut bytes = [0; 28];
    let mut put = |at: usize, field: &[u8]| {
        if let Some(room) = bytes.get_mut(at..at + field.len()) {
            room.copy_from_slice(field);
        }
    };
    let family = |family: i32| u16::try_from(family).unwrap_or_default().to_ne_bytes();
    let len = match address {
        None => 0,
        Some(SocketAddr::V4(v4)) => {
            put(0, &family(libc::AF_INET));
            put(2, &v4.port().to_be_bytes());
            put(4, &v4.ip().octets());
            16
        }
        Some(SocketAddr::V6(v6)) => {
            put(0, &family(libc::AF_INET6));
            put(2, &v6.port().to_be_bytes());
            put(8, &v6.ip().octets());
            put(24, &v6.scope_id().to_ne_bytes());
            28
        }
    };
    (bytes, len)
}

fn sockaddr_in6(address: Option<SocketAddr>) -> libc::sockaddr_in6 {
    let (bytes, _) = bytes_of(address);
    // SAFETY: any 28 bytes are a `sockaddr_in6`.
    unsafe { std::mem::transmute::<[u8; 28], libc::sockaddr_in6>(bytes) }
}

/// The kernel's number for "no index": librdmacm then goes by the GUID alone.
const NO_INDEX: u32 = u32::MAX;
/// Full members of the default partition.
pub(super) const PKEY: u16 = 0xFFFF;

pub(super) fn route(route: &Route) -> ucma::rdma_ucm_query_route_resp {
    let mut resp: ucma::rdma_ucm_query_route_resp = zeroed();
    resp.node_guid = route.node_guid;
    resp.ibdev_index = NO_INDEX;
    resp.src_addr = sockaddr_in6(route.src);
    resp.dst_addr = sockaddr_in6(route.dst);
    if route.node_guid == 0 {
        return resp;
    }
    resp.port_num = 1;
    let [path, _] = &mut resp.ib_route;
    (path.sgid, path.dgid, path.pkey) = (route.path.sgid.octets(), route.path.dgid.octets(), PKEY.to_be());
    if route.has_path {
        resp.num_paths = 1;
        path.reversible = 1;
        path.numb_path = 1;
        // "Exactly", for each.
        (path.mtu_selector, path.mtu) = (2, route.mtu.into());
        (path.rate_selector, path.rate) = (2, route.path.rate);
        (path.slid, path.dlid) = (route.path.slid.0.to_be(), route.path.dlid.0.to_be());
        (path.packet_life_time_selector, path.packet_life_time) = (2, route.packet_life_time);
        path.traffic_class = route.tclass;
        path.hop_limit = route.path.hop_limit;
    }
    resp
}

pub(super) fn addresses(route: &Route) -> ucma::rdma_ucm_query_addr_resp {
    let mut resp: ucma::rdma_ucm_query_addr_resp = zeroed();
    resp.node_guid = route.node_guid;
    resp.port_num = u8::from(route.node_guid != 0);
    resp.pkey = PKEY.to_be();
    resp.ibdev_index = NO_INDEX;
    let end = |address| {
        let (bytes, len) = bytes_of(address);
        (storage(&bytes), len)
    };
    (resp.src_addr, resp.src_size) = end(route.src);
    (resp.dst_addr, resp.dst_size) = end(route.dst);
    resp
}

/// The start of an address, in room for any.
pub(super) fn storage(bytes: &[u8]) -> ucma::__kernel_sockaddr_storage {
    decode::<Storage>(bytes).0
}

/// So that a `sockaddr_storage` can be decoded.
#[repr(transparent)]
struct Storage(ucma::__kernel_sockaddr_storage);

// SAFETY: bytes; its other member is only there for alignment.
unsafe impl Abi for Storage {}

/// Converts the parameters of `rdma_connect(3)` or `rdma_accept(3)`.
pub(super) fn offer(param: &ucma::rdma_ucm_conn_param, ece: &ucma::rdma_ucm_ece) -> Offer {
    Offer {
        param: ConnParam {
            qp_num: param.qp_num,
            srq: param.srq != 0,
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            flow_control: param.flow_control != 0,
            // Three bits in a REQ and in a QP; the kernel's `cma_connect_ib` cuts larger numbers down too (libfabric asks
            // for 15).
            retry_count: param.retry_count.min(7),
            rnr_retry_count: param.rnr_retry_count.min(7),
        },
        qkey: param.qkey,
        private_data: param.private_data.get(..param.private_data_len.into()).unwrap_or_default().to_vec(),
        ece: (ece.vendor_id, ece.attr_mod),
    }
}

fn ah_attr(address: &Address) -> ucma::ib_uverbs_ah_attr {
    let mut attr: ucma::ib_uverbs_ah_attr = {
        // SAFETY: integers only: all-zero is a value.
        unsafe { std::mem::zeroed() }
    };
    attr.grh.dgid = address.dgid.octets();
    attr.grh.sgid_index = address.sgid_index;
    attr.grh.hop_limit = HOP_LIMIT;
    attr.grh.traffic_class = address.tclass;
    attr.is_global = address.is_global.into();
    attr.dlid = address.dlid.0;
    attr.port_num = 1;
    attr
}

pub(super) fn event(event: &Event) -> ucma::rdma_ucm_event_resp {
    let mut resp: ucma::rdma_ucm_event_resp = zeroed();
    resp.uid = event.uid;
    resp.id = event.handle;
    resp.event = event.kind as u32;
    resp.status = event.status.cast_unsigned();
    (resp.ece.vendor_id, resp.ece.attr_mod) = event.ece;
    let len = event.private_data.len().min(usize::from(u8::MAX));
    let put = |room: &mut [u8; 256]| {
        if let (Some(room), Some(data)) = (room.get_mut(..len), event.private_data.get(..len)) {
            room.copy_from_slice(data);
        }
        u8::try_from(len).unwrap_or(u8::MAX)
    };
    match event.param {
        Param::Conn(param) => {
            // SAFETY: any bytes are a value of either.
            let conn = unsafe { &mut resp.param.conn };
            conn.qp_num = param.qp_num;
            conn.srq = param.srq.into();
            conn.responder_resources = param.responder_resources;
            conn.initiator_depth = param.initiator_depth;
            conn.flow_control = param.flow_control.into();
            conn.retry_count = param.retry_count;
            conn.rnr_retry_count = param.rnr_retry_count;
            conn.private_data_len = put(&mut conn.private_data);
        }
        Param::Ud(param) => {
            // SAFETY: any bytes are a value of either.
            let ud = unsafe { &mut resp.param.ud };
            ud.qp_num = param.qp_num;
            ud.qkey = param.qkey;
            ud.ah_attr = ah_attr(&param.address);
            ud.private_data_len = put(&mut ud.private_data);
        }
        Param::Arg(arg) => {
            // SAFETY: any bytes are a value. `arg32`, of which these headers know nothing, is at the union's start.
            unsafe { (&raw mut resp.param).cast::<u64>().write_unaligned(arg) };
        }
    }
    resp
}

/// Code of the RNR timer that connections answer with: 0.64 ms.
const MIN_RNR_TIMER: u8 = 12;

pub(super) fn qp_attr(qp_state: u32, attr: &QpAttr) -> UverbsQpAttr {
    let mut resp: UverbsQpAttr = zeroed();
    let (connection, param) = (&attr.connection, &attr.connection.param);
    resp.qp_attr_mask = attr.mask;
    resp.qp_state = qp_state;
    resp.path_mtu = connection.path_mtu.into();
    resp.qkey = attr.qkey;
    //= spec/connections.md#cm-009
    //# Each end MUST begin with the PSN that the other named in its request or reply.
    resp.rq_psn = connection.our_psn;
    resp.sq_psn = connection.peer_psn;
    resp.dest_qp_num = param.qp_num;
    resp.qp_access_flags = attr.access;
    resp.ah_attr = ah_attr(&attr.address);
    resp.max_rd_atomic = param.initiator_depth;
    resp.max_dest_rd_atomic = param.responder_resources;
    resp.min_rnr_timer = MIN_RNR_TIMER;
    resp.port_num = 1;
    resp.timeout = connection.ack_timeout;
    resp.retry_cnt = param.retry_count;
    resp.rnr_retry = param.rnr_retry_count;
    resp
}
