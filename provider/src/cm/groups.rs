//! Groups: on RoCE, a matter of names; on InfiniBand, joined by subnet administration (`cma_join_ib_multicast` of the kernel's
//! cma.c).

use std::net::IpAddr;

use urxe_wire::mad::Mad;
use urxe_wire::mad::field::Field;
use urxe_wire::mad::sa::{self, Record, member};
use urxe_wire::{Gid, Lid, PKey, mgid};

use super::administration::{Query, Request};
use super::event::{Address, Event, Kind, Param, UdParam};
use super::id::{Id, State as Phase};
use super::membership::{Join, Joined, Role};
use super::port_space::{PortSpace, UDP_QKEY};
use super::{EINVAL, Manager, State};
use crate::kernel::Errno;

/// Q_Key of IPoIB's groups where nobody gives another (opensm's default).
const IPOIB_QKEY: u32 = 0x0B1B;
/// Components of every request to join: MGID, PortGID, JoinState, P_Key.
const JOIN: u64 = member::JOIN | member::HAS_MGID | 1 << 7;
/// Queue pair that datagrams to groups are for.
const MULTICAST_QPN: u32 = 0x00FF_FFFF;

/// A group, as a program names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GroupName {
    /// An IP group, of which an MGID is made.
    Ip(IpAddr),
    /// An MGID: of a `sockaddr_ib`, or an IPv6 address with the signature of one.
    Mgid(Gid),
}

impl GroupName {
    /// The MGID (`cma_set_mgid` of the kernel's cma.c).
    fn mgid(self, space: PortSpace) -> Gid {
        match self {
            Self::Mgid(mgid) => mgid,
            Self::Ip(ip) if space == PortSpace::Ipoib => mgid::of_ip(ip),
            Self::Ip(ip) => mgid::of_rdma_cm(ip),
        }
    }

    /// The GID of the network that packets on RoCE go to.
    fn on_network(self) -> Option<Gid> {
        match self {
            Self::Mgid(mgid) => mgid::ipv4_group(&mgid).map(|group| Gid::from(IpAddr::from(group))),
            Self::Ip(ip) => Some(Gid::from(ip)),
        }
    }
}

impl Manager {
    /// Joins a group. On RoCE, who receives attaches its queue pair; on InfiniBand the event comes with the answer of
    /// subnet administration.
    pub(crate) fn join(&self, handle: u32, uid: u64, name: GroupName, role: Role) -> Result<u32, Errno> {
        let mut state = self.state();
        let id = state.id(handle)?;
        let index = id.device.ok_or(EINVAL)?;
        if !matches!(id.state, Phase::AddrBound | Phase::AddrResolved) || !id.is_datagram() {
            return Err(EINVAL);
        }
        let (local, tos, space) = (id.local_gid(), id.tos, id.space);
        let device = state.devices.get(index).ok_or(Errno(libc::ENODEV))?;
        if !device.interface().link_layer().is_infiniband() {
            let address = device.address(&local, &name.on_network().ok_or(EINVAL)?, tos);
            let new = state.ids.join(handle, uid).ok_or(Errno(libc::ENOMEM))?;
            state.tell_joined(new, 0, UdParam { qp_num: MULTICAST_QPN, qkey: UDP_QKEY, address });
            return Ok(new);
        }
        let mgid = name.mgid(space);
        if !mgid.octets().starts_with(&[0xFF]) {
            return Err(EINVAL);
        }
        let is_ipoib = space == PortSpace::Ipoib;
        let group = state.ids.join(handle, uid).ok_or(Errno(libc::ENOMEM))?;
        // Groups of IPoIB have their own Q_Key, whoever has made them.
        let q_key = if is_ipoib { None } else { Some(UDP_QKEY) };
        let request = state.ask_to_join(index, local, Join { group, mgid, role, may_make: is_ipoib }, q_key);
        drop(state);
        request.iter().for_each(Request::send);
        Ok(group)
    }

    /// Leaves a group; answers how many of its events the application has got.
    pub(crate) fn leave(&self, group: u32) -> Result<u32, Errno> {
        let mut state = self.state();
        let (left, id) = state.ids.leave(group).ok_or(Errno(libc::ENOENT))?;
        id.channel.extract(|event| event.counted_by == group);
        let (index, local) = (id.device, id.local_gid());
        let request = left.joined.and_then(|joined| state.ask_to_leave(index?, local, joined));
        drop(state);
        request.iter().for_each(Request::send);
        Ok(left.events_reported)
    }
}

impl State {
    fn member_record(&self, index: usize, mgid: Gid, local: Gid, role: Role) -> Option<[u8; Record::Member.len()]> {
        let interface = self.devices.get(index)?.interface();
        let mut record = [0; Record::Member.len()];
        member::MGID.put_slice(&mut record, &mgid.octets());
        member::PORT_GID.put_slice(&mut record, &interface.shown_gid(&local).octets());
        member::JOIN_STATE.put(&mut record, role as u64);
        Some(record)
    }

    /// A request to join a group: with a Q_Key, one that makes it if there is none.
    fn ask_to_join(&mut self, index: usize, local: Gid, join: Join, q_key: Option<u32>) -> Option<Request> {
        let mask = if q_key.is_some() { JOIN | member::CREATE } else { JOIN };
        let mut record = self.member_record(index, join.mgid, local, join.role)?;
        member::P_KEY.put(&mut record, PKey::DEFAULT.0.into());
        member::Q_KEY.put(&mut record, q_key.unwrap_or_default().into());
        self.request(index, Mad::METHOD_SET, Record::Member, mask, &record, Some(Query::Join(join)))
    }

    /// A request to leave a group, unless another id of the process is in it in the same role.
    pub(super) fn ask_to_leave(&mut self, index: usize, local: Gid, joined: Joined) -> Option<Request> {
        let has = |id: &Id| id.device == Some(index) && id.groups.iter().any(|group| group.joined == Some(joined));
        let is_in = self.ids.iter().any(|(_, id)| has(id));
        let record = self.member_record(index, joined.mgid, local, joined.role).filter(|_| !is_in)?;
        let mask = member::JOIN | member::HAS_MGID;
        self.request(index, sa::METHOD_DELETE, Record::Member, mask, &record, None)
    }

    /// Tells the id of an answer; returns what is to be asked next.
    pub(super) fn handle_join(&mut self, index: usize, join: Join, message: Option<&[u8]>) -> Option<Request> {
        let Join { group, mgid, role, .. } = join;
        let told = message.map(sa::response);
        let (handle, local, space) = match self.ids.member(group) {
            Some((handle, id)) => (handle, id.local_gid(), id.space),
            // The group was left before the answer came.
            None => {
                let record = told.and_then(Result::ok)?;
                let local = member::PORT_GID.slice(record).try_into().ok()?;
                return self.ask_to_leave(index, Gid::new(local), Joined { mgid, role });
            }
        };
        if join.may_make && told == Some(Err(sa::STATUS_INSUFFICIENT_COMPONENTS)) {
            let q_key = Some(self.ipoib_key(index));
            return self.ask_to_join(index, local, Join { may_make: false, ..join }, q_key);
        }
        let mut address = Address { dgid: mgid, is_global: true, ..Address::default() };
        if let Some(device) = self.devices.get(index) {
            address.sgid_index = device.gid_index(&device.interface().shown_gid(&local));
        }
        let (status, qkey) = match told {
            Some(Ok(record)) => {
                let byte = |field: Field| u8::try_from(field.get(record)).unwrap_or_default();
                address.dlid = Lid(member::MLID.get_u16(record));
                address.tclass = byte(member::TRAFFIC_CLASS);
                (0, u32::try_from(member::Q_KEY.get(record)).unwrap_or_default())
            }
            // `ib_sa_mcmember_rec_callback` of the kernel's sa_query.c.
            Some(Err(_)) => (-libc::EINVAL, 0),
            None => (-libc::ETIMEDOUT, 0),
        };
        if status == 0 {
            self.ids.set_joined(group, Some(Joined { mgid, role }));
            if space == PortSpace::Ipoib
                && let Some(device) = self.devices.get_mut(index)
            {
                device.ipoib_key = Some(qkey);
            }
        } else {
            self.explain_event(handle, Kind::MulticastError, status, None);
        }
        self.tell_joined(group, status, UdParam { qp_num: MULTICAST_QPN, qkey, address });
        None
    }

    /// Tells ids that are in groups of a port that they are in them no more (`process_group_error` of the kernel's multicast.c).
    pub(super) fn memberships_ended(&mut self, index: usize) {
        if let Some(device) = self.devices.get_mut(index) {
            device.ipoib_key = None;
        }
        let of_port = self.ids.iter().filter(|(_, id)| id.device == Some(index));
        let joined = of_port.flat_map(|(_, id)| id.groups.iter().filter(|group| group.joined.is_some()));
        let all: Vec<u32> = joined.map(|group| group.handle).collect();
        for group in all {
            self.ids.set_joined(group, None);
            let param = UdParam { qp_num: 0, qkey: 0, address: Address::default() };
            self.tell_joined(group, -libc::ENETRESET, param);
        }
    }

    /// Q_Key of IPoIB's groups: that of the broadcast group, where it is known.
    pub(super) fn ipoib_key(&self, index: usize) -> u32 {
        self.devices.get(index).and_then(|device| device.ipoib_key).unwrap_or(IPOIB_QKEY)
    }

    /// A request for the Q_Key of IPoIB's broadcast group, for an id that has asked for an address; `None` if that need not wait.
    pub(super) fn ask_for_ipoib_key(&mut self, index: usize, space: PortSpace) -> Option<Request> {
        let device = self.devices.get(index)?;
        let is_needed = space == PortSpace::Ipoib && device.interface().link_layer().is_infiniband();
        if !is_needed || device.ipoib_key.is_some() {
            return None;
        }
        let mut record = [0; Record::Member.len()];
        member::MGID.put_slice(&mut record, &mgid::of_ipv4(std::net::Ipv4Addr::BROADCAST).octets());
        let query = Some(Query::IpoibKey);
        self.request(index, sa::METHOD_GET_TABLE, Record::Member, member::HAS_MGID, &record, query)
    }

    /// Takes the Q_Key of IPoIB's groups. Ids that have waited for it have their address.
    pub(super) fn handle_ipoib_key(&mut self, index: usize, message: Option<&[u8]>) {
        let record = message.and_then(|message| sa::response(message).ok());
        // Without a broadcast group there is no key yet: the next one asks again.
        let key = record.filter(|record| record.len() >= Record::Member.len()).map(|record| member::Q_KEY.get(record));
        if let (Some(device), Some(key)) = (self.devices.get_mut(index), key) {
            device.ipoib_key = u32::try_from(key).ok();
        }
        let waiting: Vec<u32> = self
            .ids
            .iter()
            .filter(|(_, id)| id.device == Some(index) && id.waits_for_key)
            .map(|(handle, _)| handle)
            .collect();
        for handle in waiting {
            if let Ok(id) = self.id(handle) {
                id.waits_for_key = false;
            }
            self.tell(handle, Kind::AddrResolved, 0, None, Vec::new());
        }
    }

    /// Puts the event of a join into the id's channel.
    fn tell_joined(&mut self, group: u32, status: i32, param: UdParam) {
        let Some((handle, id)) = self.ids.member(group) else { return };
        let Some(uid) = id.groups.iter().find(|joined| joined.handle == group).map(|joined| joined.uid) else { return };
        id.channel.push(Event {
            handle,
            counted_by: group,
            uid,
            kind: if status == 0 { Kind::MulticastJoin } else { Kind::MulticastError },
            status,
            param: Param::Ud(param),
            private_data: Vec::new(),
            ece: (0, 0),
        });
    }
}
