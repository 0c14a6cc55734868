//! Requests to subnet administration that this process makes for itself: an interface of IPoIB, or rdma_cm, joins a group.

use std::collections::HashSet;
use std::fmt::Debug;

use urxe_wire::mad::Mad;

/// Bit of the transaction ids, which those of reports do not have: they begin at zero.
const OWN: u32 = 1 << 31;

/// Client of subnet administration within the process.
pub trait AdministrationClient: Send + Sync + Debug {
    /// Takes the answer to a request. Called without a lock of the port's agents held.
    fn answered(&self, answer: Answer);
}

/// Answer of subnet administration, or its absence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The number that the client gave.
    pub query: u32,
    /// The response, with its headers; `None` if nobody has answered.
    pub message: Option<Vec<u8>>,
}

/// Requests that wait for their answer, and answers that wait for their client.
#[derive(Debug, Default)]
pub(super) struct Queries {
    waiting: HashSet<u32>,
    answers: Vec<Answer>,
}

impl Queries {
    /// The lower half of the transaction id of a request: the upper one is the agent's.
    pub(super) const fn transaction_id(query: u32) -> u64 {
        (query | OWN) as u64
    }

    /// The request of a transaction.
    fn of(&self, header: &Mad) -> Option<u32> {
        let [.., a, b, c, d] = header.transaction_id.to_be_bytes();
        let query = u32::from_be_bytes([a, b, c, d]) ^ OWN;
        (header.class == Mad::CLASS_SUBN_ADM && self.waiting.contains(&query)).then_some(query)
    }

    /// Notes a request. One that was not sent has no answer.
    pub(super) fn asked(&mut self, query: u32, is_sent: bool) {
        if is_sent {
            self.waiting.insert(query & !OWN);
        } else {
            self.answers.push(Answer { query, message: None });
        }
    }

    /// Takes a message if it is the answer to a request; returns any other.
    pub(super) fn answered(&mut self, message: Vec<u8>) -> Option<Vec<u8>> {
        let header = message.first_chunk().and_then(Mad::parse).filter(Mad::is_response);
        let Some(query) = header.and_then(|header| self.of(&header)) else { return Some(message) };
        self.waiting.remove(&query);
        self.answers.push(Answer { query, message: Some(message) });
        None
    }

    /// Notes that nobody has answered the request with this header.
    pub(super) fn timed_out(&mut self, header: &Mad) {
        if let Some(query) = self.of(header) {
            self.waiting.remove(&query);
            self.answers.push(Answer { query, message: None });
        }
    }

    /// Has all requests that wait go without an answer.
    pub(super) fn give_up(&mut self) {
        self.answers.extend(self.waiting.drain().map(|query| Answer { query, message: None }));
    }

    pub(super) fn take_answers(&mut self) -> Vec<Answer> {
        std::mem::take(&mut self.answers)
    }
}

#[cfg(test)]
mod tests {
    use urxe_wire::mad::sa;

    use super::*;

    fn message(method: u8, transaction_id: u64) -> Vec<u8> {
        let mut bytes = [0; Mad::LEN];
        let header = Mad::new(Mad::CLASS_SUBN_ADM, sa::VERSION, method, sa::Record::Member as u16);
        Mad { transaction_id, ..header }.emit(&mut bytes);
        bytes.to_vec()
    }

    #[test]
    fn each_request_has_one_answer() {
        let mut queries = Queries::default();
        for (query, is_sent) in [(1, true), (2, true), (3, true), (4, false)] {
            queries.asked(query, is_sent);
        }
        let response = |query| message(Mad::METHOD_GET | Mad::RESPONSE, 0xAB << 32 | Queries::transaction_id(query));
        assert_eq!(queries.answered(response(1)), None);
        assert_eq!(queries.answered(response(1)), Some(response(1)), "answered before");
        let request = message(Mad::METHOD_SET, Queries::transaction_id(2));
        assert_eq!(queries.answered(request.clone()), Some(request.clone()), "of another program");
        let report = message(Mad::METHOD_GET | Mad::RESPONSE, 0xAB << 32 | 2);
        assert_eq!(queries.answered(report.clone()), Some(report), "the answer to a report");
        queries.timed_out(&Mad::parse(request.first_chunk().unwrap()).unwrap());
        queries.give_up();
        let answers: Vec<_> =
            queries.take_answers().into_iter().map(|answer| (answer.query, answer.message.is_some())).collect();
        assert_eq!(answers, [(4, false), (1, true), (2, false), (3, false)]);
        assert!(queries.take_answers().is_empty());
    }
}
