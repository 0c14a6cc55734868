//! Asynchronous events of one verbs object, and how many of them the application must acknowledge.

use std::sync::{Arc, Mutex};

use urxe_ffi::verbs::ibv_event_type;

use super::lock;
use crate::kernel::event_file::{Event, EventFile};

/// The asynchronous events of an object that an application knows by an address.
#[derive(Debug)]
pub(crate) struct AsyncEvents {
    file: Arc<EventFile>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The address; 0 when there is nothing behind it any more.
    handle: u64,
    reported: u32,
}

impl AsyncEvents {
    /// Of the object at `handle`; `file` is its context's.
    pub(crate) const fn new(file: Arc<EventFile>, handle: u64) -> Self {
        Self { file, state: Mutex::new(State { handle, reported: 0 }) }
    }

    /// Whether the application knows the object by this address.
    pub(crate) fn is_of(&self, handle: u64) -> bool {
        lock(&self.state).handle == handle
    }

    /// Tells the application.
    pub(crate) fn raise(&self, event_type: ibv_event_type) {
        let mut state = lock(&self.state);
        if state.handle != 0 {
            state.reported = state.reported.wrapping_add(1);
            self.file.push(Event::Async { element: state.handle, event_type });
        }
    }

    /// No more events; those not read yet are taken back. Returns how many the application has read, each of which it
    /// must acknowledge.
    pub(crate) fn retire(&self) -> u32 {
        let mut state = lock(&self.state);
        let unread = self.file.discard(std::mem::take(&mut state.handle));
        state.reported.wrapping_sub(u32::try_from(unread).unwrap_or(u32::MAX))
    }
}
