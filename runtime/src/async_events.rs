//! Asynchronous events of one verbs object, and how many of them the application must acknowledge.

use std::sync::{Arc, Mutex};

use super::lock;
use crate::event::{EventSink, EventType};

/// Asynchronous events of one verbs object, which the application knows by its address.
#[derive(Debug)]
pub struct AsyncEvents {
    file: Arc<dyn EventSink>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The address; 0 when there is nothing behind it any more.
    handle: u64,
    reported: u32,
}

impl AsyncEvents {
    /// Events of the object at `handle`; `file` is its context's.
    pub const fn new(file: Arc<dyn EventSink>, handle: u64) -> Self {
        Self { file, state: Mutex::new(State { handle, reported: 0 }) }
    }

    /// Whether the application knows the object by this address.
    pub fn is_of(&self, handle: u64) -> bool {
        lock(&self.state).handle == handle
    }

    /// Raises an event, unless the object is retired.
    pub fn raise(&self, event_type: EventType) {
        let mut state = lock(&self.state);
        if state.handle != 0 {
            state.reported = state.reported.wrapping_add(1);
            self.file.async_event(state.handle, event_type);
        }
    }

    /// Ends the events of the object, and discards those not read yet. Returns how many the application has read, each of which it
    /// must acknowledge (`ibv_ack_async_event(3)`).
    pub fn retire(&self) -> u32 {
        let mut state = lock(&self.state);
        let unread = self.file.discard(std::mem::take(&mut state.handle));
        state.reported.wrapping_sub(u32::try_from(unread).unwrap_or(u32::MAX))
    }
}
