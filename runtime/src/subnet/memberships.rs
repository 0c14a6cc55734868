//! Memberships of the port in groups that clients of this process have asked for.
//!
//! Requests about one group go out one after the other, each when the one before has its answer: they may be lost and sent again, and
//! a leave that overtakes a join would end it. What is joined is told to another owner of the port's address, who would leave it.

use std::collections::{BTreeMap, HashMap, VecDeque};

use urxe_engine::subnet::PortMembership;
use urxe_wire::Gid;
use urxe_wire::mad::sa::{self, Record, member};
use urxe_wire::mad::{MAD_LEN, Mad};

use super::queries::{Asker, Done};

/// Requests about memberships.
#[derive(Debug, Default)]
pub(super) struct Memberships {
    /// By group: the request that is on its way, and those that wait for it.
    queues: HashMap<Gid, VecDeque<(Asker, [u8; MAD_LEN])>>,
    /// By group: the request that has joined it, with all join states.
    joined: BTreeMap<Gid, [u8; MAD_LEN]>,
}

fn states(request: &[u8; MAD_LEN]) -> u64 {
    member::JOIN_STATE.get(request.get(sa::DATA..).unwrap_or_default())
}

fn with_states(mut request: [u8; MAD_LEN], states: u64) -> [u8; MAD_LEN] {
    if let Some(record) = request.get_mut(sa::DATA..) {
        member::JOIN_STATE.put(record, states);
    }
    request
}

/// A leave of what a request joins.
fn undone(request: &[u8; MAD_LEN]) -> [u8; MAD_LEN] {
    let record = request.get(sa::DATA..sa::DATA + Record::Member.len()).unwrap_or_default();
    sa::request(sa::METHOD_DELETE, Record::Member, member::JOIN | member::HAS_MGID, record)
}

impl Memberships {
    /// Takes a request. Returns whether it goes out now.
    pub(super) fn push(&mut self, mgid: Gid, asker: Asker, request: &[u8; MAD_LEN]) -> bool {
        let queue = self.queues.entry(mgid).or_default();
        queue.push_back((asker, *request));
        queue.len() == 1
    }

    /// Notes how a request about a membership has ended. Returns the next one about the group.
    pub(super) fn done(&mut self, done: &Done) -> Option<(Asker, [u8; MAD_LEN])> {
        let membership = PortMembership::of_request(&done.request)?;
        let mgid = membership.mgid();
        let joins = membership.is_join();
        let known = self.joined.get(&mgid).map_or(0, states);
        let is_granted = done.message.as_deref().is_some_and(|message| sa::response(message).is_ok());
        if joins && is_granted {
            self.joined.insert(mgid, with_states(done.request, known | states(&done.request)));
        } else if !joins {
            match known & !states(&done.request) {
                0 => drop(self.joined.remove(&mgid)),
                left => drop(self.joined.entry(mgid).and_modify(|request| *request = with_states(*request, left))),
            }
        }
        let queue = self.queues.get_mut(&mgid)?;
        queue.pop_front();
        if joins && done.message.is_none() && states(&done.request) & known == 0 {
            // It may have been granted all the same.
            queue.push_front((Asker::Nobody, undone(&done.request)));
        }
        let next = queue.front().copied();
        if next.is_none() {
            self.queues.remove(&mgid);
        }
        next
    }

    /// Forgets what is joined: whoever is in a group asks for it anew.
    pub(super) fn end(&mut self) {
        self.joined.clear();
    }

    /// Requests that tell another owner what is joined. Groups that requests are on their way for are told of by these.
    pub(super) fn claims(&self) -> Vec<(Gid, [u8; MAD_LEN])> {
        self.joined.iter().map(|(mgid, request)| (*mgid, *request)).collect()
    }

    /// Takes out the requests that have not gone out yet.
    pub(super) fn give_up(&mut self) -> Vec<Done> {
        let all = self.queues.drain().flat_map(|(_, queue)| queue.into_iter().skip(1));
        all.map(|(asker, request)| Done { asker, request, message: None }).collect()
    }
}

/// Whether a request is about a membership: its group.
pub(super) fn group_of(request: &[u8; MAD_LEN]) -> Option<Gid> {
    let mgid = PortMembership::of_request(request)?.mgid();
    (!mgid.is_unspecified()).then_some(mgid)
}

/// A request about a membership, as the owner of the address takes it.
pub(super) fn for_owner(request: &[u8; MAD_LEN], transaction: u32) -> Option<Vec<u8>> {
    let membership = PortMembership { transaction_id: transaction.into(), ..PortMembership::of_request(request)? };
    Some(membership.to_datagram().to_vec())
}

/// A request of an administration, with this transaction.
pub(super) fn for_administration(request: &[u8; MAD_LEN], transaction: u32) -> Vec<u8> {
    let mut message = request.to_vec();
    Mad::put_transaction_id(&mut message, transaction.into());
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: Gid = Gid::new([0xFF; 16]);

    fn request(method: u8, states: u64) -> [u8; MAD_LEN] {
        let mut record = [0; Record::Member.len()];
        member::MGID.put_slice(&mut record, &GROUP.octets());
        member::JOIN_STATE.put(&mut record, states);
        sa::request(method, Record::Member, member::JOIN | member::HAS_MGID, &record)
    }

    fn done(asker: Asker, request: [u8; MAD_LEN], status: Option<u16>) -> Done {
        let message = status.map(|status| {
            let mut answer = request;
            answer[4..6].copy_from_slice(&status.to_be_bytes());
            answer.to_vec()
        });
        Done { asker, request, message }
    }

    #[test]
    fn requests_about_a_group_go_one_after_the_other() {
        let (join, leave) = (request(Mad::METHOD_SET, 1), request(sa::METHOD_DELETE, 1));
        let [first, second, third] = [1, 2, 3].map(Asker::Client);
        let mut memberships = Memberships::default();
        assert!(memberships.push(GROUP, first, &join));
        assert!(!memberships.push(GROUP, second, &leave) && !memberships.push(GROUP, third, &join));
        assert!(memberships.push(Gid::new([1; 16]), first, &join), "another group");
        assert_eq!(memberships.done(&done(first, join, Some(0))), Some((second, leave)));
        assert_eq!(memberships.claims(), [(GROUP, join)]);
        assert_eq!(memberships.done(&done(second, leave, Some(0))), Some((third, join)));
        assert!(memberships.claims().is_empty());
        assert_eq!(memberships.done(&done(third, join, Some(0x200))), None);
        assert!(memberships.claims().is_empty() && memberships.push(GROUP, first, &join));
        assert_eq!(memberships.give_up().len(), 0, "what is on its way has been given up elsewhere");
    }

    #[test]
    fn a_join_without_an_answer_is_taken_back() {
        let join = request(Mad::METHOD_SET, 1);
        let mut memberships = Memberships::default();
        memberships.push(GROUP, Asker::Client(1), &join);
        let (asker, leave) = memberships.done(&done(Asker::Client(1), join, None)).unwrap();
        assert_eq!((asker, leave[3]), (Asker::Nobody, sa::METHOD_DELETE));
        assert_eq!(memberships.done(&done(asker, leave, None)), None, "once");
        // Of one that is a member already, only an answer is missing.
        for status in [Some(0), None] {
            memberships.push(GROUP, Asker::Client(2), &join);
            assert_eq!(memberships.done(&done(Asker::Client(2), join, status)), None);
        }
        assert_eq!(memberships.claims(), [(GROUP, join)]);
        memberships.end();
        assert!(memberships.claims().is_empty());
    }

    #[test]
    fn join_states_add_up() {
        let mut memberships = Memberships::default();
        for (method, states, left) in
            [(Mad::METHOD_SET, 1, 1), (Mad::METHOD_SET, 8, 9), (sa::METHOD_DELETE, 1, 8), (sa::METHOD_DELETE, 8, 0)]
        {
            let request = request(method, states);
            memberships.push(GROUP, Asker::Nobody, &request);
            memberships.done(&done(Asker::Nobody, request, Some(0)));
            assert_eq!(memberships.claims().first().map_or(0, |(_, request)| super::states(request)), left);
        }
    }
}
