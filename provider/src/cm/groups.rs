//! Groups: on RoCE, a matter of names; on InfiniBand, joined by subnet administration (`cma_join_ib_multicast` of the kernel's
//! cma.c).

use std::net::SocketAddr;
use std::sync::Arc;

use urxe_runtime::subnet::Answer;
use urxe_wire::mad::sa::{self, Record, member};
use urxe_wire::mad::{MAD_LEN, Mad};
use urxe_wire::{Gid, Lid, PKey, mgid};

use super::commands::UDP_QKEY;
use super::event::{Address, Event, Kind, Param, UdParam};
use super::id::{PortSpace, State as Phase};
use super::{EINVAL, Manager, State};
use crate::kernel::Errno;
use crate::mad::Mads;

/// Q_Key of IPoIB's groups where nobody gives another (opensm's default).
pub(super) const IPOIB_QKEY: u32 = 0x0B1B;
/// `JoinState`: full member.
const FULL: u64 = 1;
/// Components of every request to join: MGID, PortGID, JoinState, P_Key.
const JOIN: u64 = member::JOIN | member::HAS_MGID | 1 << 7;
/// Queue pair that datagrams to groups are for.
const MULTICAST_QPN: u32 = 0x00FF_FFFF;

/// Join that waits for the answer of subnet administration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Query {
    /// Handle of the group.
    group: u32,
    mgid: Gid,
    /// A second request is to follow, which makes the group.
    may_make: bool,
}

/// Request to subnet administration, to be sent once the lock of the ids is released.
pub(super) struct Request {
    mads: Arc<Mads>,
    query: u32,
    datagram: [u8; MAD_LEN],
}

impl Request {
    pub(super) fn send(&self) {
        self.mads.ask(self.query, &self.datagram);
    }
}

impl Manager {
    /// Joins a group. On RoCE, who receives attaches its queue pair; on InfiniBand the event comes with the answer of
    /// subnet administration.
    pub(crate) fn join(&self, handle: u32, uid: u64, group: SocketAddr) -> Result<u32, Errno> {
        let mut state = self.state();
        let id = state.id(handle)?;
        let index = id.device.ok_or(EINVAL)?;
        if !matches!(id.state, Phase::AddrBound | Phase::AddrResolved) || !id.is_datagram() {
            return Err(EINVAL);
        }
        let (local, tos, space) = (id.local_gid(), id.tos, id.space);
        let device = state.devices.get(index).ok_or(Errno(libc::ENODEV))?;
        if !device.interface().link_layer().is_infiniband() {
            let address = device.address(&local, &Gid::from(group.ip()), tos);
            let new = state.ids.join(handle, uid).ok_or(Errno(libc::ENOMEM))?;
            state.tell_joined(new, 0, UdParam { qp_num: MULTICAST_QPN, qkey: UDP_QKEY, address });
            return Ok(new);
        }
        let is_ipoib = space == PortSpace::Ipoib;
        let mgid = if is_ipoib { mgid::of_ip(group.ip()) } else { mgid::of_rdma_cm(group.ip()) };
        let new = state.ids.join(handle, uid).ok_or(Errno(libc::ENOMEM))?;
        // Groups of IPoIB have their own Q_Key, whoever has made them.
        let q_key = if is_ipoib { None } else { Some(UDP_QKEY) };
        let request = state.ask_to_join(index, local, Query { group: new, mgid, may_make: is_ipoib }, q_key);
        drop(state);
        request.iter().for_each(Request::send);
        Ok(new)
    }

    /// Leaves a group; answers how many of its events the application has got.
    pub(crate) fn leave(&self, group: u32) -> Result<u32, Errno> {
        let mut state = self.state();
        let (left, id) = state.ids.leave(group).ok_or(Errno(libc::ENOENT))?;
        id.channel.extract(|event| event.counted_by == group);
        let (index, local) = (id.device, id.local_gid());
        let request = left.mgid.and_then(|mgid| state.ask_to_leave(index?, local, mgid));
        drop(state);
        request.iter().for_each(Request::send);
        Ok(left.events_reported)
    }

    /// Takes an answer of subnet administration.
    pub(super) fn handle_answer(&self, index: usize, answer: &Answer) {
        let mut state = self.state();
        let request = state.handle_answer(index, answer);
        drop(state);
        request.iter().for_each(Request::send);
    }
}

impl State {
    /// A request about a group, by the port of the device: its mask is `mask`, and `fill` adds components.
    fn request(
        &mut self,
        index: usize,
        method: u8,
        mask: u64,
        mgid: Gid,
        local: Gid,
        fill: impl FnOnce(&mut [u8]),
    ) -> Option<Request> {
        let device = self.devices.get(index)?;
        let mut record = [0; Record::Member.len()];
        member::MGID.put_slice(&mut record, &mgid.octets());
        member::PORT_GID.put_slice(&mut record, &device.interface().shown_gid(&local).octets());
        member::JOIN_STATE.put(&mut record, FULL);
        fill(&mut record);
        let mads = Arc::clone(device.shared.mads());
        self.last_query = self.last_query.wrapping_add(1) & 0x7FFF_FFFF;
        Some(Request { mads, query: self.last_query, datagram: sa::request(method, Record::Member, mask, &record) })
    }

    /// A request to join a group: with a Q_Key, one that makes it if there is none.
    fn ask_to_join(&mut self, index: usize, local: Gid, query: Query, q_key: Option<u32>) -> Option<Request> {
        let mask = if q_key.is_some() { JOIN | member::CREATE } else { JOIN };
        let request = self.request(index, Mad::METHOD_SET, mask, query.mgid, local, |record| {
            member::P_KEY.put(record, PKey::DEFAULT.0.into());
            member::Q_KEY.put(record, q_key.unwrap_or_default().into());
        })?;
        self.queries.insert((index, request.query), query);
        Some(request)
    }

    /// A request to leave a group, unless another id of the process is in it: the membership is the port's.
    pub(super) fn ask_to_leave(&mut self, index: usize, local: Gid, mgid: Gid) -> Option<Request> {
        let is_in = self
            .ids
            .iter()
            .any(|(_, id)| id.device == Some(index) && id.groups.iter().any(|group| group.mgid == Some(mgid)));
        let mask = member::JOIN | member::HAS_MGID;
        if is_in { None } else { self.request(index, sa::METHOD_DELETE, mask, mgid, local, |_| {}) }
    }

    /// Tells the id of an answer; returns what is to be asked next.
    fn handle_answer(&mut self, index: usize, answer: &Answer) -> Option<Request> {
        let query = self.queries.remove(&(index, answer.query))?;
        let told = answer.message.as_deref().map(sa::response);
        let (handle, local) = match self.ids.member(query.group) {
            Some((handle, id)) => (handle, id.local_gid()),
            // The group was left before the answer came.
            None => {
                let local =
                    told.and_then(Result::ok).map(|record| member::PORT_GID.slice(record).try_into().ok())??;
                return self.ask_to_leave(index, Gid::new(local), query.mgid);
            }
        };
        if query.may_make && told == Some(Err(sa::STATUS_INSUFFICIENT_COMPONENTS)) {
            return self.ask_to_join(index, local, Query { may_make: false, ..query }, Some(IPOIB_QKEY));
        }
        let mut address = Address { dgid: query.mgid, is_global: true, ..Address::default() };
        if let Some(device) = self.devices.get(index) {
            address.sgid_index = device.gid_index(&device.interface().shown_gid(&local));
        }
        let (status, qkey) = match told {
            Some(Ok(record)) => {
                let byte = |field: urxe_wire::mad::field::Field| u8::try_from(field.get(record)).unwrap_or_default();
                address.dlid = Lid(member::MLID.get_u16(record));
                address.tclass = byte(member::TRAFFIC_CLASS);
                (0, u32::try_from(member::Q_KEY.get(record)).unwrap_or_default())
            }
            // `ib_sa_mcmember_rec_callback` of the kernel's sa_query.c.
            Some(Err(_)) => (-libc::EINVAL, 0),
            None => (-libc::ETIMEDOUT, 0),
        };
        if status == 0 {
            self.ids.set_mgid(query.group, query.mgid);
        } else {
            self.explain_event(handle, Kind::MulticastError, status, None);
        }
        self.tell_joined(query.group, status, UdParam { qp_num: MULTICAST_QPN, qkey, address });
        None
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
