//! Requests to subnet administration on behalf of ids, and what becomes of their answers.

use std::sync::Arc;

use urxe_runtime::subnet::Answer;
use urxe_wire::mad::MAD_LEN;
use urxe_wire::mad::sa::{self, Record};

use super::membership::Join;
use super::{Manager, State};
use crate::mad::Mads;

/// Request that waits for its answer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Query {
    /// An id joins a group.
    Join(Join),
    /// The Q_Key of IPoIB's groups.
    IpoibKey,
    /// The services that this id has asked for.
    Services(u32),
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
    /// Takes an answer of subnet administration.
    pub(super) fn handle_answer(&self, index: usize, answer: &Answer) {
        let mut state = self.state();
        let requests = state.handle_answer(index, answer);
        drop(state);
        requests.iter().for_each(Request::send);
    }

    /// The port's memberships have ended: ids that are in groups are told.
    pub(super) fn memberships_ended(&self, index: usize) {
        self.state().memberships_ended(index);
    }
}

impl State {
    /// A request about a record, by the port of the device: its mask is `mask`.
    pub(super) fn request(
        &mut self,
        index: usize,
        method: u8,
        kind: Record,
        mask: u64,
        record: &[u8],
        query: Option<Query>,
    ) -> Option<Request> {
        let mads = Arc::clone(self.devices.get(index)?.shared.mads());
        self.last_query = self.last_query.wrapping_add(1) & 0x7FFF_FFFF;
        let number = self.last_query;
        if let Some(query) = query {
            self.queries.insert((index, number), query);
        }
        Some(Request { mads, query: number, datagram: sa::request(method, kind, mask, record) })
    }

    fn handle_answer(&mut self, index: usize, answer: &Answer) -> Vec<Request> {
        let Some(query) = self.queries.remove(&(index, answer.query)) else { return Vec::new() };
        let message = answer.message.as_deref();
        match query {
            Query::Join(join) => self.handle_join(index, join, message).into_iter().collect(),
            Query::IpoibKey => {
                self.handle_ipoib_key(index, message);
                Vec::new()
            }
            Query::Services(handle) => {
                self.handle_services(handle, message);
                Vec::new()
            }
        }
    }
}
