//! Memberships in groups, by subnet administration: asked for, told, asked for again (RFC 4391, section 5).
//!
//! The broadcast group comes first: the others have its properties. Where nobody has made it, it is made here.

use std::collections::{BTreeMap, HashMap};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use urxe_wire::mad::sa::{self, Record, member};
use urxe_wire::mad::{MAD_LEN, Mad};
use urxe_wire::{Gid, Lid, Mtu, PKey, QKey, mgid};

/// Time from a refusal to the next request, the first and the longest (`IPOIB_MAX_BACKOFF_SECONDS` of the kernel's ipoib.h).
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(16);

/// Q_Key of the broadcast group where nobody gives another (opensm's default).
pub(super) const Q_KEY: QKey = QKey(0x0B1B);

/// `JoinState`: full member.
const FULL: u64 = 1;

/// Components of a request for any group: MGID, PortGID, JoinState, P_Key;
const JOIN: u64 = member::JOIN | member::HAS_MGID | 1 << 7;
/// of one that makes the broadcast group;
const MAKE: u64 = JOIN | member::CREATE;
/// and of one for another group, with the properties of the broadcast group: MTU, rate and hop limit, too.
const LIKE_BROADCAST: u64 = MAKE | 0b11 << 4 | 0b11 << 8 | 1 << 14;

/// Bytes of an `MCMemberRecord`.
const LEN: usize = Record::Member.len();

/// Properties of a group, as subnet administration has told them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Group {
    pub(super) q_key: QKey,
    pub(super) mtu: Mtu,
    pub(super) mlid: Lid,
    record: [u8; LEN],
}

impl Group {
    /// Reads the record of a membership in this group; `None` if it is none.
    fn parse(mgid: Gid, record: &[u8]) -> Option<Self> {
        let record: [u8; LEN] = *record.first_chunk()?;
        let mlid = member::MLID.get_u16(&record);
        let is_it = member::MGID.slice(&record) == mgid.octets() && (0xC000..0xFFFF).contains(&mlid);
        let mtu = Mtu::from_code(u8::try_from(member::MTU.1.get(&record)).ok()?)?;
        let q_key = QKey(u32::try_from(member::Q_KEY.get(&record)).ok()?);
        is_it.then_some(Self { q_key, mtu, mlid: Lid(mlid), record })
    }
}

/// State of a membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// To be asked for at this time.
    Due(Instant),
    Asked,
    Joined,
}

#[derive(Clone, Copy, Debug)]
struct Membership {
    state: State,
    /// The next request makes the group.
    makes: bool,
    wait: Duration,
    /// The last answer, which holds until there is another.
    group: Option<Group>,
}

/// Change that an answer brings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// The port is a member.
    Joined(Gid, Group),
    /// The port is none, for now: the status, or `None` if nobody has answered.
    Refused(Gid, Option<u16>),
}

/// Request that waits for its answer.
#[derive(Clone, Copy, Debug)]
enum Query {
    Join(Gid),
    Leave,
}

/// Memberships of a port.
#[derive(Debug)]
pub(super) struct Memberships {
    own: Gid,
    all: BTreeMap<Gid, Membership>,
    queries: HashMap<u32, Query>,
    /// Groups to leave.
    left: Vec<Gid>,
    query: u32,
}

/// MGID of the broadcast group.
pub(super) fn broadcast() -> Gid {
    mgid::of_ipv4(Ipv4Addr::BROADCAST)
}

impl Memberships {
    /// Memberships of the port with this GID: the broadcast group is wanted at once.
    pub(super) fn new(now: Instant, own: Gid) -> Self {
        let mut new = Self { own, all: BTreeMap::new(), queries: HashMap::new(), left: Vec::new(), query: 0 };
        new.want(now, broadcast());
        new
    }

    fn want(&mut self, now: Instant, mgid: Gid) {
        let wanted = Membership { state: State::Due(now), makes: false, wait: FIRST_WAIT, group: None };
        self.all.entry(mgid).or_insert(wanted);
    }

    /// Sets the groups that are wanted beside the broadcast group. Returns those that were joined and are wanted no more.
    pub(super) fn follow(&mut self, now: Instant, wanted: &[Gid]) -> Vec<Gid> {
        let is_over = |mgid: &Gid| *mgid != broadcast() && !wanted.contains(mgid);
        let over: Vec<Gid> = self.all.keys().copied().filter(is_over).collect();
        let left: Vec<Gid> = over.into_iter().filter(|mgid| self.end(*mgid)).collect();
        for mgid in wanted {
            self.want(now, *mgid);
        }
        left
    }

    /// Ends a membership; returns whether there was one.
    fn end(&mut self, mgid: Gid) -> bool {
        let was_member = self.all.remove(&mgid).is_some_and(|membership| membership.group.is_some());
        if was_member {
            self.left.push(mgid);
        }
        was_member
    }

    /// Ends all memberships.
    pub(super) fn leave(&mut self) {
        let all: Vec<Gid> = self.all.keys().copied().collect();
        for mgid in all {
            self.end(mgid);
        }
    }

    /// Whether nothing waits for an answer.
    pub(super) fn is_settled(&self) -> bool {
        self.queries.is_empty() && self.left.is_empty()
    }

    /// Has every membership asked for anew: another administration may not know of it. What was told before holds until then.
    pub(super) fn renew(&mut self, now: Instant) {
        for membership in self.all.values_mut() {
            (membership.state, membership.makes, membership.wait) = (State::Due(now), false, FIRST_WAIT);
        }
        // Answers to what was asked before say nothing about that.
        self.queries.retain(|_, query| matches!(query, Query::Leave));
    }

    /// The next request to subnet administration, with its number.
    pub(super) fn poll_request(&mut self, now: Instant) -> Option<(u32, [u8; MAD_LEN])> {
        let mut record = [0; LEN];
        member::PORT_GID.put_slice(&mut record, &self.own.octets());
        member::JOIN_STATE.put(&mut record, FULL);
        let (query, method, mask) = if let Some(mgid) = self.left.pop() {
            member::MGID.put_slice(&mut record, &mgid.octets());
            (Query::Leave, sa::METHOD_DELETE, member::JOIN | member::HAS_MGID)
        } else {
            let all = self.all.get(&broadcast());
            let like = all.and_then(|all| all.group.filter(|_| all.state == State::Joined));
            let is_due = |(mgid, membership): &(&Gid, &mut Membership)| {
                let is_time = matches!(membership.state, State::Due(at) if at <= now);
                is_time && (like.is_some() || **mgid == broadcast())
            };
            let (mgid, membership) = self.all.iter_mut().find(is_due)?;
            membership.state = State::Asked;
            member::MGID.put_slice(&mut record, &mgid.octets());
            member::P_KEY.put(&mut record, PKey::DEFAULT.0.into());
            let mask = match like.filter(|_| *mgid != broadcast()) {
                Some(Group { record: like, .. }) => {
                    put_properties(&like, &mut record);
                    LIKE_BROADCAST
                }
                None if membership.makes => {
                    member::Q_KEY.put(&mut record, Q_KEY.0.into());
                    MAKE
                }
                None => JOIN,
            };
            (Query::Join(*mgid), Mad::METHOD_SET, mask)
        };
        self.query = self.query.wrapping_add(1) & 0x7FFF_FFFF;
        self.queries.insert(self.query, query);
        Some((self.query, sa::request(method, Record::Member, mask, &record)))
    }

    /// Takes the answer to a request; `None` if nobody has answered.
    pub(super) fn answered(&mut self, now: Instant, query: u32, answer: Option<&[u8]>) -> Option<Change> {
        let Query::Join(mgid) = self.queries.remove(&query)? else { return None };
        let told = answer.map(sa::response);
        let group = told.and_then(Result::ok).and_then(|record| Group::parse(mgid, record));
        let Some(membership) = self.all.get_mut(&mgid) else {
            // It is not wanted any more.
            self.left.extend(group.map(|_| mgid));
            return None;
        };
        if let Some(group) = group {
            *membership = Membership { state: State::Joined, makes: false, wait: FIRST_WAIT, group: Some(group) };
            return Some(Change::Joined(mgid, group));
        }
        let status = told.and_then(Result::err);
        if status == Some(sa::STATUS_INSUFFICIENT_COMPONENTS) && !membership.makes && mgid == broadcast() {
            // There is none.
            (membership.state, membership.makes) = (State::Due(now), true);
            return None;
        }
        self.fail(now, mgid);
        Some(Change::Refused(mgid, status))
    }

    /// Has a membership asked for again later.
    pub(super) fn fail(&mut self, now: Instant, mgid: Gid) {
        if let Some(membership) = self.all.get_mut(&mgid) {
            (membership.state, membership.makes) = (State::Due(now + membership.wait), false);
            membership.wait = (membership.wait * 2).min(LONGEST_WAIT);
        }
    }
}

/// Gives a record the properties of another group's.
fn put_properties(of: &[u8; LEN], to: &mut [u8; LEN]) {
    /// Selector: exactly.
    const EXACTLY: u64 = 2;
    for field in [
        member::Q_KEY,
        member::MTU.1,
        member::TRAFFIC_CLASS,
        member::P_KEY,
        member::RATE.1,
        member::SL,
        member::FLOW_LABEL,
        member::HOP_LIMIT,
    ] {
        field.copy(of, to);
    }
    member::MTU.0.put(to, EXACTLY);
    member::RATE.0.put(to, EXACTLY);
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Gid = Gid::new([0xFE; 16]);

    fn group() -> Gid {
        mgid::of_ipv4(Ipv4Addr::new(224, 0, 0, 1))
    }

    fn mask_and_group(request: &[u8; MAD_LEN]) -> (u8, u64, &[u8]) {
        (request[3], sa::COMPONENT_MASK.get(request), member::MGID.slice(&request[sa::DATA..]))
    }

    /// The answer to a request that is granted, with this Q_Key.
    fn granted(request: &[u8; MAD_LEN], q_key: u64) -> Vec<u8> {
        let mut answer = *request;
        let record = &mut answer[sa::DATA..];
        for (field, value) in [(member::Q_KEY, q_key), (member::MLID, 0xC005), (member::MTU.1, 2), (member::RATE.1, 3)]
        {
            field.put(record, value);
        }
        answer.to_vec()
    }

    fn refused(request: &[u8; MAD_LEN], status: u16) -> Vec<u8> {
        let mut answer = *request;
        answer[4..6].copy_from_slice(&status.to_be_bytes());
        answer.to_vec()
    }

    #[test]
    fn other_groups_are_like_the_broadcast_group() {
        let now = Instant::now();
        let mut memberships = Memberships::new(now, OWN);
        memberships.follow(now, &[group()]);
        let (query, request) = memberships.poll_request(now).unwrap();
        assert_eq!(mask_and_group(&request), (Mad::METHOD_SET, JOIN, &broadcast().octets()[..]));
        assert_eq!(memberships.poll_request(now), None, "the broadcast group comes first");
        let Some(Change::Joined(mgid, told)) = memberships.answered(now, query, Some(&granted(&request, 0x77))) else {
            panic!("joined")
        };
        assert_eq!((mgid, told.q_key, told.mtu, told.mlid), (broadcast(), QKey(0x77), Mtu::Mtu512, Lid(0xC005)));
        let (query, request) = memberships.poll_request(now).unwrap();
        assert_eq!(mask_and_group(&request), (Mad::METHOD_SET, LIKE_BROADCAST, &group().octets()[..]));
        let record = &request[sa::DATA..];
        assert_eq!((member::Q_KEY.get(record), member::MTU.1.get(record), member::RATE.0.get(record)), (0x77, 2, 2));
        assert_eq!((member::P_KEY.get(record), member::PORT_GID.slice(record)), (0xFFFF, &OWN.octets()[..]));
        assert!(memberships.answered(now, query, Some(&granted(&request, 0x77))).is_some());
        assert_eq!(memberships.poll_request(now), None);
        assert_eq!(memberships.follow(now, &[]), [group()]);
        let (query, request) = memberships.poll_request(now).unwrap();
        assert_eq!(request[3], sa::METHOD_DELETE);
        assert!(!memberships.is_settled());
        assert_eq!(memberships.answered(now, query, None), None);
        assert!(memberships.is_settled());
    }

    #[test]
    fn a_broadcast_group_that_nobody_has_is_made() {
        let now = Instant::now();
        let mut memberships = Memberships::new(now, OWN);
        let (query, request) = memberships.poll_request(now).unwrap();
        let none = refused(&request, sa::STATUS_INSUFFICIENT_COMPONENTS);
        assert_eq!(memberships.answered(now, query, Some(&none)), None);
        let (query, request) = memberships.poll_request(now).unwrap();
        assert_eq!(mask_and_group(&request).1, MAKE);
        assert_eq!(member::Q_KEY.get(&request[sa::DATA..]), u64::from(Q_KEY.0));
        let change = memberships.answered(now, query, Some(&none));
        assert_eq!(change, Some(Change::Refused(broadcast(), Some(sa::STATUS_INSUFFICIENT_COMPONENTS))));
    }

    #[test]
    fn refusals_are_asked_again_less_and_less_often() {
        let start = Instant::now();
        let mut memberships = Memberships::new(start, OWN);
        let mut now = start;
        for wait in [1, 2, 4, 8, 16, 16].map(Duration::from_secs) {
            let (query, request) = memberships.poll_request(now).unwrap();
            let answer = refused(&request, sa::STATUS_INVALID);
            assert!(matches!(memberships.answered(now, query, Some(&answer)), Some(Change::Refused(..))));
            assert_eq!(memberships.poll_request(now + wait - Duration::from_millis(1)), None);
            now += wait;
        }
        let (query, _) = memberships.poll_request(now).unwrap();
        assert_eq!(memberships.answered(now, query, None), Some(Change::Refused(broadcast(), None)));
    }

    #[test]
    fn memberships_last_until_they_are_renewed() {
        let now = Instant::now();
        let mut memberships = Memberships::new(now, OWN);
        let (query, request) = memberships.poll_request(now).unwrap();
        let answer = granted(&request, 1);
        assert!(memberships.answered(now, query, Some(&answer)).is_some());
        assert_eq!(memberships.answered(now, query, Some(&answer)), None, "a second answer");
        memberships.renew(now);
        let (late, _) = memberships.poll_request(now).unwrap();
        memberships.renew(now);
        let (query, request) = memberships.poll_request(now).unwrap();
        assert_eq!(memberships.answered(now, late, Some(&answer)), None, "asked of another administration");
        let Some(Change::Joined(_, told)) = memberships.answered(now, query, Some(&granted(&request, 2))) else {
            panic!("joined")
        };
        assert_eq!(told.q_key, QKey(2));
        memberships.leave();
        let (_, request) = memberships.poll_request(now).unwrap();
        assert_eq!(mask_and_group(&request).0, sa::METHOD_DELETE);
    }

    #[test]
    fn answers_about_other_groups_are_refusals() {
        let now = Instant::now();
        for (field, value) in [(member::MLID, 0x1234), (member::MTU.1, 0), (member::SCOPE, 3)] {
            let mut memberships = Memberships::new(now, OWN);
            let (query, request) = memberships.poll_request(now).unwrap();
            let mut answer = granted(&request, 1);
            field.put(&mut answer[sa::DATA..], value);
            let joins = matches!(memberships.answered(now, query, Some(&answer)), Some(Change::Joined(..)));
            assert_eq!(joins, field == member::SCOPE, "{field:?}");
        }
        // A group that is not wanted any more when the answer comes is left.
        let mut memberships = Memberships::new(now, OWN);
        let (query, request) = memberships.poll_request(now).unwrap();
        memberships.leave();
        assert_eq!(memberships.answered(now, query, Some(&granted(&request, 1))), None);
        assert_eq!(memberships.poll_request(now).unwrap().1[3], sa::METHOD_DELETE);
    }
}
