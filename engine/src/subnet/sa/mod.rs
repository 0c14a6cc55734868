//! Built-in subnet administration (IBA 15): records of what the process knows, multicast groups, services, and reports.

mod groups;
mod records;
mod services;

use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use urxe_wire::mad::field::{Field, data_mut};
use urxe_wire::mad::node::notice;
use urxe_wire::mad::sa::{self, Record, inform};
use urxe_wire::mad::{MAD_LEN, Mad, Rmpp};
use urxe_wire::{Lid, Qpn};

use super::announcement::GROUP_LEN;
use super::{Output, Refusal, Subnet};
use crate::mad::Address;
use crate::time::Instant;
use groups::Groups;
use services::Services;

/// Subscriptions to traps.
const SUBSCRIPTIONS: usize = 64;
/// Records that are too many for one answer.
const RECORDS: usize = 65536;
/// How long a report waits for its answer.
const REPORT_TIMEOUT: Duration = Duration::from_secs(1);
/// Trap number of a subscription to all traps.
const ALL_TRAPS: u64 = 0xFFFF;

/// A status other than success.
type Failure = u16;

/// Registrations of this host's programs, and of other hosts by their announcements.
#[derive(Debug, Default)]
pub(super) struct Administration {
    groups: Groups,
    services: Services,
    subscriptions: Vec<Subscription>,
}

/// A subscription to reports of a trap.
#[derive(Debug)]
struct Subscription {
    to: Address,
    trap: u64,
    /// Programs of a host share an address and a queue pair: a subscription for each that has not ended its own.
    count: u32,
    /// Transaction of the last report.
    transaction_id: u64,
}

/// A request to subnet administration.
struct Request<'a> {
    header: Mad,
    mask: u64,
    wanted: &'a [u8],
}

impl Administration {
    /// Takes groups of the host with this LID and GID.
    ///
    /// # Errors
    /// If one of them can be none, or there is no room.
    pub(super) fn hear<'a>(
        &mut self,
        now: Instant,
        host: (Lid, [u8; 16]),
        own: Lid,
        groups: impl Iterator<Item = &'a [u8; GROUP_LEN]>,
    ) -> Result<(), Refusal> {
        self.groups.hear(now, host, own, groups)
    }

    /// The host has gone.
    pub(super) fn forget(&mut self, lid: Lid) {
        self.groups.forget(lid);
    }

    /// Ends what is too old. The owner of the own port's address knows its groups, the other processes hear of them.
    pub(super) fn expire(&mut self, now: Instant, own: Lid, is_owner: bool) {
        self.services.expire(now);
        self.groups.expire(now, own, is_owner);
    }

    /// Has groups of a port count as told now.
    pub(super) fn renew(&mut self, now: Instant, lid: Lid) {
        self.groups.renew(now, lid);
    }

    /// Datagrams that tell of the groups of the own port.
    pub(super) fn announcements(&self, own: Lid) -> Vec<[u8; MAD_LEN]> {
        self.groups.announcements(own)
    }
}

/// The response to a request: one record, or a table of them in segments.
fn response(message: &[u8], header: &Mad, result: &Result<Vec<Vec<u8>>, Failure>, distance: usize) -> Vec<u8> {
    let is_table = matches!(header.method, sa::METHOD_GET_TABLE | sa::METHOD_GET_MULTI | sa::METHOD_GET_TRACE_TABLE);
    let records = result.as_ref().map_or(&[][..], Vec::as_slice);
    let len = sa::DATA + records.len() * distance;
    let mut response = vec![0; if is_table { len } else { len.max(MAD_LEN) }];
    for (to, from) in response.iter_mut().zip(message).take(sa::DATA) {
        *to = *from;
    }
    let method = match header.method {
        Mad::METHOD_SET => Mad::METHOD_GET,
        method => method,
    } | Mad::RESPONSE;
    if let Some(start) = response.first_chunk_mut() {
        Mad { method, status: result.as_ref().err().copied().unwrap_or(0), ..*header }.emit(start);
    }
    // No RMPP but for tables; nobody learns of a key.
    Field::bytes(Mad::LEN, Rmpp::LEN).put_slice(&mut response, &[0; Rmpp::LEN]);
    sa::SM_KEY.put(&mut response, 0);
    if is_table {
        Field::bytes(Mad::LEN, 3)
            .put_slice(&mut response, &[Rmpp::VERSION, Rmpp::DATA, Rmpp::NO_RESPONSE_TIME | Rmpp::ACTIVE]);
        sa::OFFSET.put(&mut response, (distance / 8) as u64);
    }
    let places = response.get_mut(sa::DATA..).unwrap_or_default().chunks_mut(distance.max(1));
    for (to, record) in places.zip(records) {
        for (to, from) in to.iter_mut().zip(record) {
            *to = *from;
        }
    }
    response
}

impl Subnet {
    /// Answers a request of a program of this host to subnet administration.
    pub(super) fn administrate(&mut self, now: Instant, from: &Address, message: &[u8]) -> Result<(), Refusal> {
        let header = message.first_chunk().and_then(Mad::parse).ok_or(Refusal::Malformed)?;
        let wanted = message.get(sa::DATA..).ok_or(Refusal::Malformed)?;
        let request = Request { header, mask: sa::COMPONENT_MASK.get(message), wanted };
        let record = Record::new(header.attribute_id);
        let is_known = matches!(
            header.method,
            Mad::METHOD_GET | Mad::METHOD_SET | sa::METHOD_GET_TABLE | sa::METHOD_GET_MULTI | sa::METHOD_DELETE
        );
        if !is_known {
            let response = response(message, &header, &Err(Mad::STATUS_BAD_METHOD), 0);
            self.put(Output::Message(*from, response, None));
            return Err(Refusal::Malformed);
        }
        let mut distance = record.map_or(0, Record::distance);
        let result = match (record, header.method) {
            _ if header.class_version != sa::VERSION => Err(Mad::STATUS_BAD_VERSION),
            (None, Mad::METHOD_GET) if header.attribute_id == sa::CLASS_PORT_INFO => {
                distance = sa::class_port_info::LEN;
                Ok(vec![class_port_info()])
            }
            (None, Mad::METHOD_SET) if header.attribute_id == sa::INFORM_INFO => {
                distance = 40;
                self.subscribe(from, &request)
            }
            (None, sa::METHOD_GET_MULTI) if header.attribute_id == sa::MULTI_PATH => {
                distance = Record::Path.distance();
                self.multi_paths(&request)
            }
            (Some(Record::Member), Mad::METHOD_SET) => self.join(now, &request),
            (Some(Record::Member), sa::METHOD_DELETE) => self.leave(now, &request),
            (Some(Record::Service), Mad::METHOD_SET) => self.administration.services.register(now, &request),
            (Some(Record::Service), sa::METHOD_DELETE) => self.administration.services.remove(&request),
            (Some(record), Mad::METHOD_GET | sa::METHOD_GET_TABLE) => self.find(record, &request),
            _ => Err(Mad::STATUS_BAD_METHOD_ATTRIBUTE),
        };
        let response = response(message, &header, &result, distance);
        self.put(Output::Message(*from, response, None));
        Ok(())
    }

    /// Records that match a query. A `Get()` wants one.
    fn find(&mut self, record: Record, request: &Request<'_>) -> Result<Vec<Vec<u8>>, Failure> {
        let is_table = request.header.method == sa::METHOD_GET_TABLE;
        let mut found = match record {
            Record::Path => self.paths(request)?,
            Record::Member => self.administration.groups.find(request),
            Record::Service => self.administration.services.find(request),
            _ => self.records(record, request),
        };
        match found.len() {
            RECORDS.. => Err(sa::STATUS_NO_RESOURCES),
            0 if !is_table => Err(sa::STATUS_NO_RECORDS),
            // Of many paths one is as good as another.
            2.. if !is_table && record == Record::Path => {
                found.truncate(1);
                Ok(found)
            }
            2.. if !is_table => Err(sa::STATUS_TOO_MANY_RECORDS),
            _ => Ok(found),
        }
    }

    fn subscribe(&mut self, from: &Address, request: &Request<'_>) -> Result<Vec<Vec<u8>>, Failure> {
        let trap = inform::TRAP.get(request.wanted);
        let subscriptions = &mut self.administration.subscriptions;
        let qpn = Qpn::new(u32::try_from(inform::QPN.get(request.wanted)).unwrap_or_default());
        let to = Address { qpn: if qpn == Qpn::SMI { Qpn::GSI } else { qpn }, ..*from };
        let is_same = |other: &Subscription| (other.to.remote, other.to.qpn, other.trap) == (to.remote, to.qpn, trap);
        let at = subscriptions.iter().position(is_same);
        let is_full = subscriptions.len() >= SUBSCRIPTIONS;
        let known = at.and_then(|at| subscriptions.get_mut(at));
        match (known, inform::SUBSCRIBE.get(request.wanted) == 0) {
            (None, true) => return Err(sa::STATUS_INVALID),
            (Some(known), true) => {
                known.count -= 1;
                subscriptions.retain(|subscription| subscription.count > 0);
            }
            (Some(known), false) => known.count = known.count.saturating_add(1),
            (None, false) if is_full => return Err(sa::STATUS_NO_RESOURCES),
            (None, false) => subscriptions.push(Subscription { to, trap, count: 1, transaction_id: 0 }),
        }
        Ok(vec![request.wanted.iter().copied().take(36).collect()])
    }

    /// Ends the subscriptions that a report is for which nobody has answered: the program is gone.
    pub fn report_timed_out(&mut self, transaction_id: u64) {
        // The upper half is the sender's agent.
        let low_half = |id: u64| id & u64::from(u32::MAX);
        let is_it = |subscription: &Subscription| subscription.transaction_id == low_half(transaction_id);
        self.administration.subscriptions.retain(|subscription| !is_it(subscription));
    }

    /// Reports a trap about a GID to those that have subscribed to it.
    pub(super) fn report(&mut self, trap: u64, gid: &[u8; 16]) {
        let mut to = Vec::new();
        for subscription in &mut self.administration.subscriptions {
            if subscription.trap == trap || subscription.trap == ALL_TRAPS {
                self.activity = self.activity.wrapping_add(1);
                subscription.transaction_id = self.activity.into();
                to.push((subscription.to, subscription.transaction_id));
            }
        }
        for (to, transaction_id) in to {
            let mut message = [0; MAD_LEN];
            let header = Mad::new(Mad::CLASS_SUBN_ADM, sa::VERSION, Mad::METHOD_REPORT, sa::NOTICE);
            Mad { transaction_id, ..header }.put(&mut message);
            let data = data_mut(&mut message, sa::DATA);
            for (field, value) in [
                (notice::IS_GENERIC, 1),
                (notice::TYPE, notice::SUBNET_MANAGEMENT),
                (notice::PRODUCER, notice::PRODUCER_MANAGER),
                (notice::TRAP, trap),
                (notice::ISSUER_LID, self.sm_lid.0.into()),
            ] {
                field.put(data, value);
            }
            notice::GID.put_slice(data, gid);
            notice::ISSUER_GID.put_slice(data, gid);
            self.put(Output::Message(to, message.to_vec(), Some(REPORT_TIMEOUT)));
        }
    }
}

fn class_port_info() -> Vec<u8> {
    use sa::class_port_info::{BASE_VERSION, CAPABILITY_MASK, CLASS_VERSION, LEN, RESPONSE_TIME};
    let mut info = vec![0; LEN];
    /// Multicast groups are joined by UD (IBA 15.2.3.1: bit 9).
    const CAPABILITIES: u64 = 1 << 9;
    for (field, value) in
        [(BASE_VERSION, 1), (CLASS_VERSION, sa::VERSION.into()), (CAPABILITY_MASK, CAPABILITIES), (RESPONSE_TIME, 18)]
    {
        field.put(&mut info, value);
    }
    info
}
