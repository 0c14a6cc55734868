//! Turns peers' CM messages into the application's events (the kernel's `cma_ib_handler` and `cma_sidr_rep_handler`).

use std::net::SocketAddr;
use std::time::Duration;

use urxe_engine::Instant;
use urxe_engine::cm::{Ends, Event as CmEvent, Verdict};
use urxe_wire::cm::{CmMad, CommId, IpHeader, Message, Rep, Req, ServiceId, SidrRep, SidrStatus, TransportService};
use urxe_wire::{Gid, Mtu};

use super::commands::low;
use super::event::{Address, ConnParam, Event, Kind, Param, UdParam};
use super::id::{IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_RECV, Id, State as Phase};
use super::ids::Ids;
use super::{Device, State};

/// Between taking a port and listening at it nothing happens but the processor's being taken away.
const SOON: Duration = Duration::from_secs(1);

impl State {
    /// Takes a message. A new request that `is_refused` is not told to a listener: the port's owner found none in time, and
    /// the peer may have heard so.
    pub(super) fn handle_message(&mut self, index: usize, now: Instant, ends: Ends, mad: &CmMad, is_refused: bool) {
        let random = self.random();
        let from_this_host = self.has_address(ends.remote);
        let Self { devices, ids, .. } = self;
        let Some(device) = devices.get_mut(index) else { return };
        let Device { cm, shared, names, .. } = device;
        let mut decide = |message: &Message| {
            let listener = if is_refused { None } else { addressee(ids, message, ends.local, from_this_host) };
            let Some((listener, id)) = listener else { return Verdict::Refuse };
            match id.state {
                Phase::Listen if id.backlog > 0 => {}
                // Whoever has just taken a port is about to listen at it: the request comes again.
                Phase::AddrBound if id.bound_at.is_none_or(|at| now.since(at) > SOON) => return Verdict::Refuse,
                _ => return Verdict::Ignore,
            }
            if !ids.has_room() {
                return Verdict::Ignore;
            }
            let Ok(qpn) = shared.device().net().alloc_qpn() else { return Verdict::Ignore };
            if let Some(id) = ids.get_mut(listener) {
                id.backlog -= 1;
            }
            let [high, ..] = random.to_ne_bytes();
            let comm = CommId(u32::from(high) << 24 | qpn.get());
            // Until its own id is made, the connection has its listener's.
            names.insert(comm, listener);
            Verdict::Take(comm)
        };
        cm.handle(now, ends, mad, &mut decide);
    }

    /// Handles an event of a connection.
    pub(super) fn handle_event(&mut self, index: usize, comm: CommId, event: CmEvent) {
        if event == CmEvent::Gone {
            self.forget_name(index, comm);
            return;
        }
        let Some(handle) = self.devices.get(index).and_then(|device| device.names.get(&comm).copied()) else { return };
        match event {
            CmEvent::Request(req) => self.on_request(index, comm, handle, &req),
            CmEvent::ServiceRequest(req) => {
                let source = IpHeader::parse(req.private_data.first_chunk().unwrap_or(&[0; IpHeader::LEN]));
                let Some(header) = source else { return };
                let data = req.private_data.get(IpHeader::LEN..).unwrap_or_default().to_vec();
                let child = self.new_child(index, comm, handle, &header, req.service_id, IBV_QPT_UD);
                let param = UdParam { qp_num: 0, qkey: 0, address: self.address_of(index, child) };
                self.announce(handle, child, Param::Ud(param), data);
            }
            CmEvent::Reply(rep) => self.on_reply(handle, &rep),
            CmEvent::Established(private_data) => {
                self.tell(handle, Kind::Established, 0, None, private_data.to_vec());
            }
            CmEvent::ServiceReply(rep) => self.on_service_reply(index, handle, &rep),
            CmEvent::Rejected(rej) => {
                if let Ok(id) = self.id(handle) {
                    id.state = Phase::Disconnect;
                }
                self.explain_event(handle, Kind::Rejected, i32::from(rej.reason.0), None);
                self.tell(handle, Kind::Rejected, i32::from(rej.reason.0), None, rej.private_data.to_vec());
            }
            CmEvent::Unreachable => {
                if let Ok(id) = self.id(handle) {
                    id.state = Phase::Disconnect;
                }
                self.explain_event(handle, Kind::Unreachable, -libc::ETIMEDOUT, None);
                self.tell(handle, Kind::Unreachable, -libc::ETIMEDOUT, None, Vec::new());
            }
            CmEvent::Disconnected(how, private_data) => {
                if let Ok(id) = self.id(handle) {
                    id.state = Phase::Disconnect;
                }
                let status = if how == urxe_engine::cm::Disconnect::Unanswered { -libc::ETIMEDOUT } else { 0 };
                self.tell(handle, Kind::Disconnected, status, None, private_data.to_vec());
            }
            CmEvent::TimeWaitExit => self.tell(handle, Kind::TimewaitExit, 0, None, Vec::new()),
            CmEvent::Gone => {}
        }
    }

    fn on_request(&mut self, index: usize, comm: CommId, listener: u32, req: &Req) {
        let Some(header) = req.private_data.first_chunk().and_then(IpHeader::parse) else { return };
        let Some(qp_type) = responder_of(req.service) else { return };
        let child = self.new_child(index, comm, listener, &header, req.service_id, qp_type);
        let our_psn = low(self.random()) & 0x00FF_FFFF;
        let (mtu, options) = self.devices.get(index).map_or((1, 0), |device| {
            let mtu = Mtu::within(device.interface().path_mtu().into()).min(req.path_mtu);
            (mtu.code(), device.cm.attribute_modifier(comm))
        });
        // Each end's resources are the other's depth.
        let param = ConnParam {
            qp_num: req.qpn.get(),
            srq: req.srq,
            responder_resources: req.initiator_depth,
            initiator_depth: req.responder_resources,
            flow_control: req.flow_control,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
        };
        if let Ok(id) = self.id(child) {
            id.connection.our_psn = our_psn;
            id.connection.peer_psn = req.starting_psn.get();
            id.connection.param = param;
            id.connection.path_mtu = mtu;
            id.connection.ack_timeout = req.primary.ack_timeout;
            id.connection.ece = (req.vendor_id, options);
            id.tos = req.primary.traffic_class;
        }
        let data = req.private_data.get(IpHeader::LEN..).unwrap_or_default().to_vec();
        self.announce(listener, child, Param::Conn(param), data);
    }

    fn new_child(
        &mut self,
        index: usize,
        comm: CommId,
        listener: u32,
        header: &IpHeader,
        service_id: u64,
        qp_type: u8,
    ) -> u32 {
        let mut child = 0;
        let port = ServiceId(service_id).parts().map_or(0, |(_, port)| port);
        if let Some(parent) = self.ids.get(listener) {
            let mut id = Id::new(std::sync::Arc::clone(&parent.channel), 0, parent.space, qp_type);
            id.state = Phase::Connect;
            id.src = Some(SocketAddr::new(header.addresses.dst(), port));
            id.dst = Some(SocketAddr::new(header.addresses.src(), header.src_port));
            id.device = Some(index);
            id.comm = Some(comm);
            id.tos = parent.tos;
            // There was room when the request was taken; 0 is nobody's.
            child = self.ids.insert(id).unwrap_or_default();
        }
        if let Some(device) = self.devices.get_mut(index) {
            device.names.insert(comm, child);
        }
        child
    }

    fn announce(&mut self, listener: u32, child: u32, param: Param, private_data: Vec<u8>) {
        let ece = self.ids.get(child).map_or((0, 0), |id| id.connection.ece);
        let Some(parent) = self.ids.get(listener) else { return };
        parent.channel.push(Event {
            handle: child,
            counted_by: listener,
            uid: parent.uid,
            kind: Kind::ConnectRequest,
            status: 0,
            param,
            private_data,
            ece,
        });
    }

    fn on_reply(&mut self, handle: u32, rep: &Rep) {
        let Ok(id) = self.id(handle) else { return };
        let param = ConnParam {
            qp_num: rep.qpn.get(),
            srq: rep.srq,
            responder_resources: rep.initiator_depth,
            initiator_depth: rep.responder_resources,
            flow_control: rep.flow_control,
            retry_count: id.connection.param.retry_count,
            rnr_retry_count: rep.rnr_retry_count,
        };
        id.connection.peer_psn = rep.starting_psn.get();
        id.connection.param = param;
        id.connection.ece.0 = rep.vendor_id;
        self.tell(handle, Kind::ConnectResponse, 0, Some(Param::Conn(param)), rep.private_data.to_vec());
    }

    fn on_service_reply(&mut self, index: usize, handle: u32, rep: &SidrRep) {
        let address = self.address_of(index, handle);
        let param = UdParam { qp_num: rep.qpn.get(), qkey: rep.q_key.0, address };
        let data = rep.private_data.to_vec();
        if rep.status == SidrStatus::SUCCESS {
            self.tell(handle, Kind::Established, 0, Some(Param::Ud(param)), data);
        } else {
            if let Ok(id) = self.id(handle) {
                id.state = Phase::Disconnect;
            }
            self.explain_event(handle, Kind::Unreachable, i32::from(rep.status.0), None);
            self.tell(handle, Kind::Unreachable, i32::from(rep.status.0), Some(Param::Ud(param)), data);
        }
    }

    fn address_of(&self, index: usize, handle: u32) -> Address {
        let (Some(device), Some(id)) = (self.devices.get(index), self.ids.get(handle)) else {
            return Address::default();
        };
        device.address(&id.local_gid(), &id.remote_gid(), id.tos)
    }
}

/// The type of the queue pair that answers a request for a service; nothing here has RD.
const fn responder_of(service: TransportService) -> Option<u8> {
    match service {
        TransportService::Rc => Some(IBV_QPT_RC),
        TransportService::Uc => Some(IBV_QPT_UC),
        TransportService::Xrc => Some(IBV_QPT_XRC_RECV),
        TransportService::Rd => None,
    }
}

/// Returns the id that has the port of a request which came to `local`. The id is bound; it may not be listening.
pub(super) fn addressee<'a>(
    ids: &'a Ids,
    message: &Message,
    local: Gid,
    from_this_host: bool,
) -> Option<(u32, &'a Id)> {
    let (service_id, private_data, qp_type) = match message {
        Message::Req(req) => (req.service_id, &req.private_data[..], responder_of(req.service)?),
        Message::SidrReq(req) => (req.service_id, &req.private_data[..], IBV_QPT_UD),
        _ => return None,
    };
    let to = IpHeader::parse(private_data.first_chunk()?)?.addresses.dst();
    let (space, port) = ServiceId(service_id).parts()?;
    // The addresses in there must be those that it travelled between, as the kernel's `validate_net_dev` has it.
    if Gid::from(to) != local {
        return None;
    }
    let fits = |id: &Id| {
        let Some(src) = id.src else { return false };
        matches!(id.state, Phase::Listen | Phase::AddrBound)
            && id.space.number() == space
            // As the kernel's `cma_ib_check_req_qp_type`: who serves datagrams is not asked for a connection, nor the other
            // way round.
            //= spec/connections.md#cm-014
            //# A request for another service than the listener's MUST be refused.
            && id.qp_type == qp_type
            && match src.ip() {
                // Bound to a loopback address that no device has, it listens at all addresses, as kernels have it, but
                // to this host only: the kernel would let the network in.
                //= spec/connections.md#cm-015
                //# A listener at a loopback address MUST be reached from its own host only.
                ip if ip.is_loopback() && id.device.is_none() => {
                    from_this_host && (ip.is_ipv4() == to.is_ipv4() || ip.is_ipv6() && !id.v6_only)
                }
                ip if !ip.is_unspecified() => ip == to,
                ip if ip.is_ipv4() => to.is_ipv4(),
                _ => to.is_ipv6() || !id.v6_only,
            }
    };
    let candidates = ids.at_port(port).filter(|(_, id)| fits(id));
    // Several may share a port (`RDMA_OPTION_ID_REUSEADDR`), one of them may listen.
    candidates.max_by_key(|(_, id)| id.state == Phase::Listen)
}
