//! Commands of librdmacm, but for those of [connections](super::connect). The states and errnos are those of the kernel's `cma.c` and `ucma.c`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use super::address::source_towards;
use super::administration::Request;
use super::channel::Channel;
use super::event::{ConnParam, Event, Kind, Param};
use super::explained::out_of_turn;
use super::id::{IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND, Id, State as Phase};
use super::port_space::PortSpace;
use super::{EINVAL, Manager, State};
use crate::kernel::Errno;
use urxe_runtime::clock;

/// Requests that may wait when the application says no number, or a larger one (`max_backlog` of ucma.c).
const MAX_BACKLOG: u32 = 1024;

impl Manager {
    pub(crate) fn create_id(&self, channel: &Arc<Channel>, uid: u64, space: u16, qp_type: u8) -> Result<u32, Errno> {
        let space = PortSpace::from_number(space).ok_or(EINVAL)?;
        let qp_type = match space {
            PortSpace::Tcp => match qp_type {
                IBV_QPT_UC | IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV => qp_type,
                _ => IBV_QPT_RC,
            },
            PortSpace::Udp | PortSpace::Ipoib => IBV_QPT_UD,
            PortSpace::Ib => qp_type,
        };
        self.state().ids.insert(Id::new(Arc::clone(channel), uid, space, qp_type)).ok_or(Errno(libc::ENOMEM))
    }

    /// Destroys an id; answers how many of its events the application has got.
    pub(crate) fn destroy_id(&self, handle: u32) -> Result<u32, Errno> {
        let mut state = self.state();
        let id = state.ids.remove(handle).ok_or(Errno(libc::ENOENT))?;
        let events = id.channel.extract(|event| event.handle == handle || event.counted_by == handle);
        if let (Some(device), Some(comm)) = (id.device, id.comm) {
            if let Some(device) = state.devices.get_mut(device) {
                device.cm.release(clock::now(), comm);
            }
            state.pump_now(device);
        }
        let children: Vec<u32> = events
            .iter()
            .filter(|event| event.kind == Kind::ConnectRequest && event.handle != handle)
            .map(|event| event.handle)
            .collect();
        let reported = id.events_reported;
        let (device, local) = (id.device, id.local_gid());
        let groups = id.groups.iter().filter_map(|group| group.joined);
        let left: Vec<_> = groups.filter_map(|joined| state.ask_to_leave(device?, local, joined)).collect();
        // Its names close sockets, nothing more.
        drop(id);
        drop(state);
        left.iter().for_each(Request::send);
        for child in children {
            let _ = self.destroy_id(child);
        }
        Ok(reported)
    }

    pub(crate) fn bind(&self, handle: u32, address: SocketAddr) -> Result<(), Errno> {
        self.open_devices();
        self.state().bind(handle, address)
    }

    /// Binds to any GID, which is bound to nothing: librdmacm finds out that way whether AF_IB is known here, as it is to
    /// kernels, and asks in that family then. Ids with such an address can do nothing on RoCE but be destroyed; kernels
    /// let them listen.
    pub(crate) fn bind_any_ib(&self, handle: u32) -> Result<(), Errno> {
        let mut state = self.state();
        let id = state.id(handle)?;
        if id.state != Phase::Idle {
            return Err(EINVAL);
        }
        id.state = Phase::AddrBound;
        Ok(())
    }

    pub(crate) fn listen(&self, handle: u32, backlog: i32) -> Result<(), Errno> {
        self.open_devices();
        let mut state = self.state();
        if state.id(handle)?.state == Phase::Idle {
            state.bind(handle, SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0))?;
        }
        let id = state.id(handle)?;
        if id.state != Phase::AddrBound {
            return Err(out_of_turn(id.state, "bind before listening, with an id that does nothing else"));
        }
        let wanted = u32::try_from(backlog).unwrap_or_default();
        id.backlog = if wanted == 0 || wanted > MAX_BACKLOG { MAX_BACKLOG } else { wanted };
        let (space, src, v6_only, unclaimed) = (id.space, id.src.ok_or(EINVAL)?, id.v6_only, id.claims.is_empty());
        if unclaimed {
            let (_, claims) = state.claim(space, src, v6_only)?;
            state.id(handle)?.claims = claims;
        }
        state.id(handle)?.state = Phase::Listen;
        Ok(())
    }

    pub(crate) fn resolve_addr(&self, handle: u32, src: Option<SocketAddr>, dst: SocketAddr) -> Result<(), Errno> {
        self.open_devices();
        let mut state = self.state();
        if state.id(handle)?.state == Phase::Idle
            && let Some(src) = src
        {
            state.bind(handle, src)?;
        }
        let id = state.id(handle)?;
        if !matches!(id.state, Phase::Idle | Phase::AddrBound) {
            return Err(out_of_turn(id.state, "resolve an address once, with an id of its own for each connection"));
        }
        let bound = id.src;
        // To any GID.
        if id.state == Phase::AddrBound && bound.is_none() {
            return Err(EINVAL);
        }
        if bound.is_some_and(|bound| bound.is_ipv4() != dst.is_ipv4() && !bound.ip().is_unspecified()) {
            return Err(EINVAL);
        }
        // The wildcard as a destination is this host (`cma_resolve_loopback`).
        let dst = if dst.ip().is_unspecified() {
            let local: IpAddr = if dst.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
            SocketAddr::new(local, dst.port())
        } else {
            dst
        };
        let (bound_device, any) = (id.device, state.is_any(dst.ip()));
        let from = bound.map(|bound| bound.ip()).filter(|ip| !ip.is_unspecified());
        let (source, device, loopback) = if any {
            // `cma_resolve_loopback`: by the device that the id is bound to, or by the first.
            let (device, address) = state.loopback_device(dst.ip(), bound_device).ok_or(Errno(libc::ENODEV))?;
            let own = from.filter(|_| bound_device.is_some());
            (Some(own.unwrap_or(dst.ip())), Some(device), Some(own.unwrap_or(address)))
        } else {
            let source = source_towards(dst, from);
            (source, source.and_then(|ip| state.device_of(ip)), None)
        };
        let port = match bound.map(|bound| bound.port()) {
            Some(port) if port != 0 => port,
            _ => state.ephemeral_port(),
        };
        let id = state.id(handle)?;
        let (kind, status) = match (source, device) {
            (Some(ip), Some(device)) => {
                id.src = Some(with_scope_of(ip, port, dst));
                id.dst = Some(dst);
                id.device = Some(device);
                id.loopback = loopback;
                id.state = Phase::AddrResolved;
                (Kind::AddrResolved, 0)
            }
            (None, _) => (Kind::AddrError, -libc::ENETUNREACH),
            (_, None) => (Kind::AddrError, -libc::ENODEV),
        };
        if status != 0 {
            id.state = Phase::AddrBound;
            id.src = id.src.or(Some(SocketAddr::new(unspecified_like(dst), port)));
            state.ids.took_port(handle);
            state.explain_event(handle, kind, status, Some(dst));
        }
        // Queue pairs of `RDMA_PS_IPOIB` are made next: with the Q_Key of IPoIB's groups (`cma_set_qkey` of the kernel's cma.c).
        let space = state.id(handle)?.space;
        let wanted = device.filter(|_| status == 0);
        if let Some(request) = wanted.and_then(|device| state.ask_for_ipoib_key(device, space)) {
            state.id(handle)?.waits_for_key = true;
            drop(state);
            request.send();
            return Ok(());
        }
        state.tell(handle, kind, status, None, Vec::new());
        Ok(())
    }

    pub(crate) fn resolve_route(&self, handle: u32) -> Result<(), Errno> {
        let mut state = self.state();
        let id = state.id(handle)?;
        if id.state != Phase::AddrResolved {
            return Err(out_of_turn(id.state, "wait for RDMA_CM_EVENT_ADDR_RESOLVED of rdma_resolve_addr first"));
        }
        id.state = Phase::RouteResolved;
        state.tell(handle, Kind::RouteResolved, 0, None, Vec::new());
        Ok(())
    }

    /// Queues an event of the application's or librdmacm's own (`ucma_write_cm_event` of the kernel's ucma.c).
    pub(crate) fn write_event(&self, handle: u32, event: u32, status: u32, arg: u64) -> Result<(), Errno> {
        let known = [Kind::User, Kind::Internal];
        let kind = known.into_iter().find(|kind| *kind as u32 == event).ok_or(EINVAL)?;
        let mut state = self.state();
        let id = state.id(handle)?;
        id.channel.push(Event {
            handle,
            counted_by: handle,
            uid: id.uid,
            kind,
            status: status.cast_signed(),
            param: Param::Arg(arg),
            private_data: Vec::new(),
            ece: (0, 0),
        });
        Ok(())
    }

    /// Moves an id, with its events, to another channel; answers how many of its events the application has got.
    pub(crate) fn migrate(&self, handle: u32, to: &Arc<Channel>) -> Result<u32, Errno> {
        let mut state = self.state();
        let id = state.id(handle)?;
        let from = std::mem::replace(&mut id.channel, Arc::clone(to));
        let reported = id.events_reported;
        for event in from.extract(|event| event.counted_by == handle) {
            to.push(event);
        }
        Ok(reported)
    }

    pub(crate) fn set_option(&self, handle: u32, level: u32, name: u32, value: &[u8]) -> Result<(), Errno> {
        let mut state = self.state();
        let id = state.id(handle)?;
        let byte = || if let [byte] = value { Ok(*byte) } else { Err(EINVAL) };
        let flag = || value.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes) != 0).ok_or(EINVAL);
        let before_bind = matches!(id.state, Phase::Idle | Phase::AddrBound);
        match (level, name) {
            // RDMA_OPTION_ID_TOS
            (0, 0) => id.tos = byte()?,
            // RDMA_OPTION_ID_REUSEADDR, _AFONLY
            (0, 1) if before_bind => id.reuse = flag()?,
            (0, 2) if before_bind => id.v6_only = flag()?,
            // RDMA_OPTION_ID_ACK_TIMEOUT
            (0, 3) => id.ack_timeout = Some(byte()?.min(31)),
            // RDMA_OPTION_IB_PATH: the route is given instead of resolved.
            (1, 1) if id.state == Phase::AddrResolved => {
                id.state = Phase::RouteResolved;
                state.tell(handle, Kind::RouteResolved, 0, None, Vec::new());
            }
            (0, 1 | 2) | (1, 1) => return Err(EINVAL),
            _ => return Err(Errno(libc::ENOSYS)),
        }
        Ok(())
    }

    /// The next event of the channel: EAGAIN if there is none.
    pub(crate) fn next_event(&self, channel: &Channel) -> Result<Event, Errno> {
        let mut state = self.state();
        let event = channel.pop().ok_or(Errno(libc::EAGAIN))?;
        if event.kind == Kind::ConnectRequest
            && let Ok(listener) = state.id(event.counted_by)
        {
            listener.backlog += 1;
        }
        if let Some(id) = state.ids.get_mut(event.counted_by) {
            id.events_reported += 1;
        } else if let Some(id) = state.ids.get_mut(event.handle) {
            id.events_reported += 1;
            let group = id.groups.iter_mut().find(|group| group.handle == event.counted_by);
            if let Some(group) = group {
                group.events_reported += 1;
            }
        }
        Ok(event)
    }
}

impl State {
    fn bind(&mut self, handle: u32, address: SocketAddr) -> Result<(), Errno> {
        let id = self.id(handle)?;
        if id.state != Phase::Idle {
            return Err(out_of_turn(id.state, "bind an id once, before anything else"));
        }
        let (space, v6_only, reuse) = (id.space, id.v6_only, id.reuse);
        let device = if self.is_any(address.ip()) {
            None
        } else {
            Some(self.device_of(address.ip()).ok_or_else(|| self.no_device_has(address))?)
        };
        let (port, claims) = match (reuse, address.port()) {
            // Whoever listens takes it.
            (true, port) if port != 0 => (port, Vec::new()),
            _ => self.claim(space, address, v6_only).map_err(|errno| Self::port_is_taken(address, errno))?,
        };
        let mut address = address;
        address.set_port(port);
        let id = self.id(handle)?;
        (id.src, id.device, id.claims, id.state) = (Some(address), device, claims, Phase::AddrBound);
        id.bound_at = Some(clock::now());
        self.ids.took_port(handle);
        Ok(())
    }

    /// Puts an event into the id's channel, unless the application does not know the id yet.
    pub(super) fn tell(&mut self, handle: u32, kind: Kind, status: i32, param: Option<Param>, private_data: Vec<u8>) {
        let Ok(id) = self.id(handle) else { return };
        if id.uid == 0 {
            return;
        }
        let event = Event {
            handle,
            counted_by: handle,
            uid: id.uid,
            kind,
            status,
            param: param.unwrap_or(Param::Conn(ConnParam::default())),
            private_data,
            ece: id.connection.ece,
        };
        id.channel.push(event);
    }
}

pub(super) fn low(random: u64) -> u32 {
    let [a, b, c, d, ..] = random.to_ne_bytes();
    u32::from_ne_bytes([a, b, c, d])
}

fn unspecified_like(address: SocketAddr) -> IpAddr {
    if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

fn with_scope_of(ip: IpAddr, port: u16, other: SocketAddr) -> SocketAddr {
    match (ip, other) {
        (IpAddr::V6(ip), SocketAddr::V6(other)) => std::net::SocketAddrV6::new(ip, port, 0, other.scope_id()).into(),
        _ => SocketAddr::new(ip, port),
    }
}
