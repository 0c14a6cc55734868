//! Built-in subnet administration (IBA 15): records of what the process knows, multicast groups, services, and reports.

mod broker;
mod groups;
mod join;
mod port_group;
mod records;
mod select;
mod services;
mod subscriptions;
mod tables;

use alloc::vec;
use alloc::vec::Vec;

use urxe_wire::mad::field::Field;
use urxe_wire::mad::sa::{self, Record};
use urxe_wire::mad::{MAD_LEN, Mad, Rmpp};
use urxe_wire::{Gid, Lid};

use super::announcement::{GroupKind, ToldGroup};
use super::{Output, Refusal, Subnet};
use crate::mad::{Address, AgentId};
use crate::time::Instant;
use broker::Broker;
use groups::Groups;
use services::Services;
use subscriptions::Subscription;

/// Records that are too many for one answer.
const RECORDS: usize = 65536;

/// A status other than success.
type Failure = u16;

/// Registrations of this host's programs, and of other hosts by their announcements.
#[derive(Debug, Default)]
pub(super) struct Administration {
    groups: Groups,
    services: Services,
    subscriptions: Vec<Subscription>,
    broker: Broker,
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
        host: (Lid, Gid),
        own: Lid,
        groups: impl Iterator<Item = &'a ToldGroup> + Clone,
    ) -> Result<(), Refusal> {
        if host.0 == own {
            groups.clone().for_each(|group| self.broker.hear(now, group, host.1));
        }
        // What a program administers, it knows.
        let here = groups.filter(|group| group.kind != GroupKind::Elsewhere);
        self.groups.hear(now, host, own, here.map(|group| &group.record))
    }

    /// The host has gone.
    pub(super) fn forget(&mut self, lid: Lid) {
        self.groups.forget(lid);
    }

    /// Forgets the groups of the own port: whoever is in one joins it anew.
    pub(super) fn forget_own(&mut self, own: Lid) {
        self.groups.forget(own);
        self.broker.clear();
    }

    /// Forgets groups of the own port that a program administers from now on. Returns whether there were any.
    pub(super) fn groups_are_elsewhere(&mut self, own: Lid) -> bool {
        let has_some = self.groups.of_port(own).chain(self.broker.records()).next().is_some();
        self.groups.forget(own);
        has_some
    }

    /// Ends what is too old. The owner of the own port's address knows its groups, the other processes hear of them.
    pub(super) fn expire(&mut self, now: Instant, own: Lid, is_owner: bool) {
        self.services.expire(now);
        self.groups.expire(now, own, is_owner);
        self.broker.expire(now, is_owner);
    }

    /// The process answers for the port from now on, or does so no more.
    pub(super) fn set_owner(&mut self, now: Instant, own: Lid, is_owner: bool) {
        self.groups.renew(now, own);
        self.broker.set_owner(now, is_owner);
    }

    /// Groups of the own port, as the other processes of the host, and other hosts, are told of them.
    pub(super) fn told_groups(&self, own: Lid) -> Vec<ToldGroup> {
        let here = self.groups.of_port(own).map(|record| {
            let kind = if self.broker.has(record) { GroupKind::OfProcesses } else { GroupKind::OfPort };
            ToldGroup { record: *record, kind }
        });
        let elsewhere =
            self.broker.records().filter(|record| self.groups.get(groups::mgid_of(&record[..]), own).is_none());
        let elsewhere = elsewhere.map(|record| ToldGroup { record: *record, kind: GroupKind::Elsewhere });
        here.chain(elsewhere).collect()
    }

    /// Number of groups that a port is in.
    #[cfg(test)]
    pub(super) fn groups_of(&self, lid: Lid) -> usize {
        self.groups.of_port(lid).count()
    }

    /// Time of the next timeout.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.broker.poll_timeout()
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
        // Whoever has another key is of another subnet, or guesses.
        let is_trusted = match sa::SM_KEY.get(message) {
            0 => false,
            sa::DEFAULT_SM_KEY => true,
            _ => return Err(Refusal::Key),
        };
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
            (Some(Record::Member), Mad::METHOD_SET) => {
                self.join(now, &request, Some(AgentId::of(header.transaction_id)))
            }
            (Some(Record::Member), sa::METHOD_DELETE) => self.leave(now, &request),
            (Some(Record::Service), Mad::METHOD_SET) => self.administration.services.register(now, &request),
            (Some(Record::Service), sa::METHOD_DELETE) => self.administration.services.remove(&request),
            // Which partitions a port is in is for those to know whom the manager trusts.
            (Some(Record::PKeyTable), _) if !is_trusted => Err(sa::STATUS_INVALID),
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
            Record::InformInfo => self.subscriptions(request),
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
}

fn class_port_info() -> Vec<u8> {
    use sa::class_port_info::{BASE_VERSION, CAPABILITY_MASK, CAPABILITY_MASK_2, CLASS_VERSION, LEN, RESPONSE_TIME};
    /// Multicast groups are joined by UD (IBA 15.2.3.1: bit 9).
    const CAPABILITIES: u64 = 1 << 9;
    /// Full members that only send (`IB_SA_CAP_MASK2_SENDONLY_FULL_MEM_SUPPORT` of the kernel's ib_sa.h).
    const CAPABILITIES_2: u64 = 1 << 1;
    let mut info = vec![0; LEN];
    for (field, value) in [
        (BASE_VERSION, 1),
        (CLASS_VERSION, sa::VERSION.into()),
        (CAPABILITY_MASK, CAPABILITIES),
        (CAPABILITY_MASK_2, CAPABILITIES_2),
        (RESPONSE_TIME, 18),
    ] {
        field.put(&mut info, value);
    }
    info
}
