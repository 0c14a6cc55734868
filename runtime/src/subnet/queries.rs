//! Requests to subnet administration that this process makes for itself: an interface of IPoIB, or rdma_cm, joins a group; or
//! the owner of the address asks for another process of the host.

use std::collections::HashMap;
use std::fmt::Debug;

use urxe_engine::subnet::PortMembership;
use urxe_net::random_u32;
use urxe_wire::mad::{MAD_LEN, Mad, subnet_vendor};

/// Bit of the transaction ids, which those of reports do not have: they begin at zero.
const OWN: u32 = 1 << 31;

/// Client of subnet administration within the process.
pub trait AdministrationClient: Send + Sync + Debug {
    /// Takes the answer to a request. Called without a lock of the port's agents held.
    fn answered(&self, answer: Answer);

    /// Memberships of the port in groups have ended, as its subnet's manager or its LID is another: who wants to be in them asks
    /// again (`mcast_groups_event` of the kernel's multicast.c). Called without a lock of the port's agents held.
    fn memberships_ended(&self);
}

/// Answer of subnet administration, or its absence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The number that the client gave.
    pub query: u32,
    /// The response, with its headers; `None` if nobody has answered.
    pub message: Option<Vec<u8>>,
}

/// Recipient of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Asker {
    /// The client, which knows it by this number.
    Client(u32),
    /// Another process of the host, by this number of the subnet's.
    Process(u32),
    /// No recipient: the answer is of no interest.
    Nobody,
}

/// Request, once there is an answer or none will come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Done {
    pub(super) asker: Asker,
    pub(super) request: [u8; MAD_LEN],
    /// The response of an administration.
    pub(super) message: Option<Vec<u8>>,
}

/// Requests that wait for their answer, and those that have it.
#[derive(Debug, Default)]
pub(super) struct Queries {
    /// By transaction: the lower half of the transaction id, whose upper one is the agent's.
    waiting: HashMap<u32, (Asker, [u8; MAD_LEN])>,
    done: Vec<Done>,
}

impl Queries {
    /// A transaction that no other request has, and that nobody guesses.
    pub(super) fn new_transaction(&self) -> u32 {
        loop {
            let transaction = random_u32() | OWN;
            if !self.waiting.contains_key(&transaction) {
                return transaction;
            }
        }
    }

    /// Takes out the request of a transaction.
    fn take(&mut self, header: &Mad) -> Option<(Asker, [u8; MAD_LEN])> {
        let [.., a, b, c, d] = header.transaction_id.to_be_bytes();
        let is_ours = matches!(header.class, Mad::CLASS_SUBN_ADM | subnet_vendor::CLASS);
        is_ours.then(|| self.waiting.remove(&u32::from_be_bytes([a, b, c, d]))).flatten()
    }

    /// Notes a request. One that was not sent has no answer.
    pub(super) fn asked(&mut self, asker: Asker, request: &[u8; MAD_LEN], transaction: u32, is_sent: bool) {
        if is_sent {
            self.waiting.insert(transaction, (asker, *request));
        } else {
            self.done.push(Done { asker, request: *request, message: None });
        }
    }

    /// Takes a message if it is the answer to a request; returns any other.
    pub(super) fn answered(&mut self, message: Vec<u8>) -> Option<Vec<u8>> {
        let header = message.first_chunk().and_then(Mad::parse).filter(Mad::is_response);
        let Some((asker, request)) = header.and_then(|header| self.take(&header)) else { return Some(message) };
        let of_owner = message.first_chunk().and_then(PortMembership::parse);
        let message = of_owner.map_or(message, |membership| membership.to_administration().to_vec());
        self.done.push(Done { asker, request, message: Some(message) });
        None
    }

    /// Notes that nobody has answered the request with this header.
    pub(super) fn timed_out(&mut self, header: &Mad) {
        if let Some((asker, request)) = self.take(header) {
            self.done.push(Done { asker, request, message: None });
        }
    }

    /// Has all requests that wait go without an answer.
    pub(super) fn give_up(&mut self) {
        let all = self.waiting.drain();
        self.done.extend(all.map(|(_, (asker, request))| Done { asker, request, message: None }));
    }

    pub(super) fn take_done(&mut self) -> Vec<Done> {
        std::mem::take(&mut self.done)
    }
}

#[cfg(test)]
mod tests {
    use urxe_wire::mad::sa;

    use super::*;

    fn message(method: u8, transaction_id: u64) -> Vec<u8> {
        let mut bytes = [0; MAD_LEN];
        let header = Mad::new(Mad::CLASS_SUBN_ADM, sa::VERSION, method, sa::Record::Member as u16);
        Mad { transaction_id, ..header }.put(&mut bytes);
        bytes.to_vec()
    }

    #[test]
    fn each_request_has_one_answer() {
        let mut queries = Queries::default();
        let request: [u8; MAD_LEN] = message(Mad::METHOD_SET, 0).try_into().unwrap();
        let transactions: Vec<u32> = (1..=4)
            .map(|query| {
                let transaction = queries.new_transaction();
                queries.asked(Asker::Client(query), &request, transaction, query < 4);
                transaction
            })
            .collect();
        let message = |method, query: usize| message(method, 0xAB << 32 | u64::from(transactions[query - 1]));
        let response = |query| message(Mad::METHOD_GET | Mad::RESPONSE, query);
        assert_eq!(queries.answered(response(1)), None);
        assert_eq!(queries.answered(response(1)), Some(response(1)), "answered before");
        let request = message(Mad::METHOD_SET, 2);
        assert_eq!(queries.answered(request.clone()), Some(request.clone()), "of another program");
        let report = self::message(Mad::METHOD_GET | Mad::RESPONSE, 0xAB << 32 | 2);
        assert_eq!(queries.answered(report.clone()), Some(report), "the answer to a report");
        queries.timed_out(&Mad::parse(request.first_chunk().unwrap()).unwrap());
        queries.give_up();
        let done: Vec<_> = queries.take_done().into_iter().map(|done| (done.asker, done.message.is_some())).collect();
        let client = Asker::Client;
        assert_eq!(done, [(client(4), false), (client(1), true), (client(2), false), (client(3), false)]);
        assert!(queries.take_done().is_empty());
    }

    #[test]
    fn transactions_are_not_counted_up() {
        let queries = Queries::default();
        let transactions: Vec<u32> = (0..4).map(|_| queries.new_transaction()).collect();
        assert!(transactions.windows(2).all(|pair| pair[0].abs_diff(pair[1]) > 1), "{transactions:x?}");
        assert!(transactions.iter().all(|transaction| transaction & OWN != 0));
    }
}
