//! Asynchronous events of the port: what every context of the device is told (`ibv_get_async_event(3)`).

use std::sync::{Arc, Mutex, Weak};

use urxe_ffi::verbs as v;
use urxe_net::Change;

use super::lock;
use crate::kernel::event_file::{Event, EventFile};

/// The number of the only port.
const PORT: u64 = 1;

/// Who is told.
#[derive(Debug, Default)]
pub(crate) struct Listeners(Mutex<Vec<Weak<EventFile>>>);

impl Listeners {
    /// From now on, whoever reads this file.
    pub(crate) fn add(&self, file: &Arc<EventFile>) {
        let mut files = lock(&self.0);
        files.retain(|file| file.strong_count() > 0);
        files.push(Arc::downgrade(file));
    }

    /// Tells of a change.
    pub(crate) fn tell(&self, change: Change) {
        match change {
            Change::Gids => self.raise(v::IBV_EVENT_GID_CHANGE),
            Change::Up => self.raise(v::IBV_EVENT_PORT_ACTIVE),
            Change::Down => self.raise(v::IBV_EVENT_PORT_ERR),
            // As when the kernel's rxe loses its interface: the device is gone.
            Change::Gone => {
                self.raise(v::IBV_EVENT_PORT_ERR);
                self.raise(v::IBV_EVENT_DEVICE_FATAL);
            }
        }
    }

    /// Tells of an event.
    pub(crate) fn raise(&self, event_type: v::ibv_event_type) {
        let files: Vec<_> = lock(&self.0).iter().filter_map(Weak::upgrade).collect();
        for file in files {
            file.push(Event::Async { element: PORT, event_type });
        }
    }
}
