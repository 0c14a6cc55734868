//! Connections: `rdma_connect(3)`, `rdma_accept(3)` and what ends them, for datagram ids too. The states and errnos are those of
//! the kernel's `cma.c`.

use urxe_engine::cm::{Ends, MAX_RETRIES, RESPONSE_TIMEOUT};
use urxe_wire::cm::{
    Ids, IpHeader, IpPair, Path, RejReason, Rep, Req, ServiceId, SidrReq, SidrStatus, TransportService,
};
use urxe_wire::{Lid, Mtu, PKey, Psn, QKey, Qpn};

use super::commands::low;
use super::event::ConnParam;
use super::explained::out_of_turn;
use super::id::{IBV_QPT_UC, IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND, State as Phase};
use super::port_space::UDP_QKEY;
use super::{EINVAL, Manager};
use crate::kernel::Errno;
use urxe_runtime::clock;
/// Exponent of the ACK timeout of connections: 4.096 µs · 2^17, half a second. The kernel's path record says 2^16 for a
/// packet on its way (`CMA_IBOE_PACKET_LIFETIME`), and there are two ways (`cm_ack_timeout` of cm.c).
const ACK_TIMEOUT: u8 = 17;

/// Parameters of `rdma_connect(3)` and `rdma_accept(3)`.
pub(crate) struct Offer {
    pub(crate) param: ConnParam,
    pub(crate) qkey: u32,
    pub(crate) private_data: Vec<u8>,
    pub(crate) ece: (u32, u32),
}

impl Manager {
    pub(crate) fn connect(&self, handle: u32, offer: &Offer) -> Result<(), Errno> {
        let mut state = self.state();
        let (our_psn, random) = (Psn::new(low(state.random())), state.random());
        let id = state.id(handle)?;
        if id.state != Phase::RouteResolved {
            return Err(out_of_turn(id.state, "wait for RDMA_CM_EVENT_ROUTE_RESOLVED of rdma_resolve_route first"));
        }
        let (src, dst, index) = (id.src.ok_or(EINVAL)?, id.dst.ok_or(EINVAL)?, id.device.ok_or(EINVAL)?);
        let ends = Ends { local: id.local_gid(), remote: id.remote_gid() };
        let service_id = ServiceId::new(id.space.number(), dst.port()).0;
        let (qp_type, is_datagram, tos) = (id.qp_type, id.is_datagram(), id.tos);
        let ack_timeout = id.ack_timeout.unwrap_or(ACK_TIMEOUT);
        let (local, remote) = (id.on_device(id.src).ok_or(EINVAL)?, id.on_device(id.dst).ok_or(EINVAL)?);
        let header = IpHeader { src_port: src.port(), addresses: IpPair::new(local, remote).ok_or(EINVAL)? };
        let device = state.devices.get_mut(index).ok_or(Errno(libc::ENODEV))?;
        let mtu = Mtu::within(device.interface().path_mtu().into());
        let (request, sidr_request) = if is_datagram {
            (None, Some(behind_header(&header, &offer.private_data).ok_or(EINVAL)?))
        } else {
            (Some(behind_header(&header, &offer.private_data).ok_or(EINVAL)?), None)
        };
        let comm = device.new_comm_id(random)?;
        let now = clock::now();
        let begun = if let Some(private_data) = request {
            let req = Req {
                local_id: comm,
                vendor_id: offer.ece.0,
                service_id,
                ca_guid: u64::from_be(device.guid),
                q_key: QKey(0),
                qpn: Qpn::new(offer.param.qp_num),
                responder_resources: offer.param.responder_resources,
                initiator_depth: offer.param.initiator_depth,
                eecn: 0,
                remote_eecn: 0,
                remote_response_timeout: RESPONSE_TIMEOUT,
                service: match qp_type {
                    IBV_QPT_UC => TransportService::Uc,
                    IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV => TransportService::Xrc,
                    _ => TransportService::Rc,
                },
                flow_control: offer.param.flow_control,
                starting_psn: our_psn,
                local_response_timeout: RESPONSE_TIMEOUT,
                retry_count: offer.param.retry_count,
                p_key: PKey::DEFAULT,
                path_mtu: mtu,
                rdc_exists: false,
                rnr_retry_count: offer.param.rnr_retry_count,
                max_cm_retries: MAX_RETRIES,
                srq: offer.param.srq,
                primary: Path {
                    local_lid: Lid::PERMISSIVE,
                    remote_lid: Lid::PERMISSIVE,
                    local_gid: ends.local,
                    remote_gid: ends.remote,
                    flow_label: 0,
                    // IB_RATE_10_GBPS.
                    packet_rate: 3,
                    traffic_class: tos,
                    hop_limit: 64,
                    sl: 0,
                    subnet_local: false,
                    ack_timeout,
                },
                alternate: Path::default(),
                private_data,
            };
            device.cm.connect(now, ends, &req, offer.ece.1)
        } else {
            let req = SidrReq {
                request_id: comm,
                p_key: PKey::DEFAULT,
                service_id,
                private_data: sidr_request.unwrap_or([0; 216]),
            };
            device.cm.resolve_service(now, ends, &req)
        };
        begun.map_err(|_| EINVAL)?;
        device.names.insert(comm, handle);
        let id = state.id(handle)?;
        id.comm = Some(comm);
        id.state = Phase::Connect;
        id.connection.our_psn = our_psn.get();
        id.connection.param = offer.param;
        id.connection.path_mtu = mtu.code();
        id.connection.ack_timeout = ack_timeout;
        state.pump_now(index);
        Ok(())
    }

    /// Accepts a request, or (without an offer) a reply.
    pub(crate) fn accept(&self, handle: u32, uid: u64, offer: Option<&Offer>) -> Result<(), Errno> {
        let mut state = self.state();
        let id = state.id(handle)?;
        if id.state != Phase::Connect {
            return Err(out_of_turn(id.state, "accept the id of an RDMA_CM_EVENT_CONNECT_REQUEST, not the listener"));
        }
        let our_psn = Psn::new(id.connection.our_psn);
        let (index, comm, is_datagram) = (id.device.ok_or(EINVAL)?, id.comm.ok_or(EINVAL)?, id.is_datagram());
        let device = state.devices.get_mut(index).ok_or(Errno(libc::ENODEV))?;
        let now = clock::now();
        let Some(offer) = offer else {
            device.cm.establish(comm).map_err(|_| EINVAL)?;
            state.pump_now(index);
            return Ok(());
        };
        if is_datagram {
            let private_data = padded(&offer.private_data).ok_or(EINVAL)?;
            let q_key = QKey(if offer.qkey == 0 { UDP_QKEY } else { offer.qkey });
            let answer =
                device.cm.answer_service(comm, SidrStatus::SUCCESS, Qpn::new(offer.param.qp_num), q_key, &private_data);
            answer.map_err(|_| EINVAL)?;
        } else {
            let rep = Rep {
                ids: Ids::default(),
                q_key: QKey(0),
                qpn: Qpn::new(offer.param.qp_num),
                eecn: 0,
                // The queue pair that answers was made ready with it before this call.
                starting_psn: our_psn,
                vendor_id: offer.ece.0,
                responder_resources: offer.param.responder_resources,
                initiator_depth: offer.param.initiator_depth,
                // `local_ca_ack_delay` of the device.
                target_ack_delay: 15,
                failover_accepted: 0,
                flow_control: offer.param.flow_control,
                rnr_retry_count: offer.param.rnr_retry_count,
                srq: offer.param.srq,
                ca_guid: u64::from_be(device.guid),
                private_data: padded(&offer.private_data).ok_or(EINVAL)?,
            };
            device.cm.accept(now, comm, &rep, offer.ece.1).map_err(|_| EINVAL)?;
            let connection = &mut state.id(handle)?.connection;
            connection.param.responder_resources = offer.param.responder_resources;
            connection.param.initiator_depth = offer.param.initiator_depth;
        }
        state.id(handle)?.uid = uid;
        state.pump_now(index);
        Ok(())
    }

    pub(crate) fn reject(&self, handle: u32, reason: u8, private_data: &[u8]) -> Result<(), Errno> {
        let mut state = self.state();
        let id = state.id(handle)?;
        let (index, comm, is_datagram) = (id.device.ok_or(EINVAL)?, id.comm.ok_or(EINVAL)?, id.is_datagram());
        let device = state.devices.get_mut(index).ok_or(Errno(libc::ENODEV))?;
        let done = if is_datagram {
            let private_data = padded(private_data).ok_or(EINVAL)?;
            device.cm.answer_service(comm, SidrStatus::REJECT, Qpn::default(), QKey(0), &private_data)
        } else {
            let private_data = padded(private_data).ok_or(EINVAL)?;
            let reason = if reason == 0 { RejReason::CONSUMER_DEFINED } else { RejReason(reason.into()) };
            device.cm.reject(comm, reason, &[], &private_data)
        };
        done.map_err(|_| EINVAL)?;
        state.pump_now(index);
        Ok(())
    }

    pub(crate) fn disconnect(&self, handle: u32) -> Result<(), Errno> {
        let mut state = self.state();
        let id = state.id(handle)?;
        let (Some(index), Some(comm)) = (id.device, id.comm) else { return Err(EINVAL) };
        let device = state.devices.get_mut(index).ok_or(Errno(libc::ENODEV))?;
        // It may have been ended by the peer, or never have begun: the kernel says nothing either.
        let _ = device.cm.disconnect(clock::now(), comm);
        state.pump_now(index);
        Ok(())
    }

    /// `IBV_EVENT_COMM_EST`, which the application has had from its queue pair.
    pub(crate) fn notify(&self, handle: u32, event: u32) -> Result<(), Errno> {
        let mut state = self.state();
        let id = state.id(handle)?;
        let (Some(index), Some(comm)) = (id.device, id.comm) else { return Err(EINVAL) };
        let device = state.devices.get_mut(index).ok_or(Errno(libc::ENODEV))?;
        if event != urxe_ffi::verbs::IBV_EVENT_COMM_EST {
            return Err(EINVAL);
        }
        device.cm.notice_communication(comm).map_err(|_| EINVAL)?;
        state.pump_now(index);
        Ok(())
    }
}

/// Private data with zeroes behind it; `None` if it is too long.
fn padded<const N: usize>(data: &[u8]) -> Option<[u8; N]> {
    let mut padded = [0; N];
    padded.get_mut(..data.len())?.copy_from_slice(data);
    Some(padded)
}

/// The IP header, the consumer's private data, and zeroes behind it; `None` if that is too long.
fn behind_header<const N: usize>(header: &IpHeader, data: &[u8]) -> Option<[u8; N]> {
    let mut room = [0; N];
    header.emit(room.first_chunk_mut()?);
    room.get_mut(IpHeader::LEN..IpHeader::LEN + data.len())?.copy_from_slice(data);
    Some(room)
}
