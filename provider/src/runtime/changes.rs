//! Asynchronous events of the port and the device: what every context is told (`ibv_get_async_event(3)`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use urxe_ffi::verbs as v;
use urxe_net::Change;

use super::lock;
use crate::kernel::event_file::{Event, EventFile};

/// The number of the only port.
const PORT: u64 = 1;

/// Who is told of what happens to a device.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    files: Mutex<Vec<Weak<EventFile>>>,
    /// Completion channels.
    channels: Mutex<Vec<Weak<EventFile>>>,
    /// The device can do nothing any more.
    failed: AtomicBool,
    /// It is not there any more.
    gone: AtomicBool,
}

/// Those of every device that is open.
static ALL: Mutex<Vec<Weak<Listeners>>> = Mutex::new(Vec::new());

/// Something of ours has panicked: what it was at may be half done, so nothing goes on.
pub(crate) fn devices_failed() {
    let all: Vec<_> = lock(&ALL).iter().filter_map(Weak::upgrade).collect();
    for listeners in all {
        listeners.fail();
    }
}

impl Listeners {
    pub(crate) fn new() -> Arc<Self> {
        let new = Arc::default();
        let mut all = lock(&ALL);
        all.retain(|listeners| listeners.strong_count() > 0);
        all.push(Arc::downgrade(&new));
        new
    }

    /// From now on, whoever reads this file.
    pub(crate) fn add(&self, file: &Arc<EventFile>) {
        let mut files = lock(&self.files);
        files.retain(|file| file.strong_count() > 0);
        files.push(Arc::downgrade(file));
    }

    /// A completion channel, which ends with the device.
    pub(crate) fn add_channel(&self, file: &Arc<EventFile>) {
        let mut channels = lock(&self.channels);
        channels.retain(|file| file.strong_count() > 0);
        channels.push(Arc::downgrade(file));
    }

    /// The device is about to be gone, which rdma_cm's ids hear of before anything fails.
    pub(crate) fn leave(&self) {
        self.gone.store(true, Ordering::Release);
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
                self.fail();
            }
        }
    }

    /// Tells of what did not happen, because somebody wants to know how a program takes it.
    pub(crate) fn pretend(&self, event_type: v::ibv_event_type) {
        match event_type {
            v::IBV_EVENT_DEVICE_FATAL => self.fail(),
            _ => self.raise(event_type),
        }
    }

    /// The device was taken out: after what has been told, reading a file fails, as the kernel's do when it
    /// disassociates a device (`ib_uverbs_event_read` gives EIO).
    pub(crate) fn take_out(&self) {
        self.fail();
        let channels = std::mem::take(&mut *lock(&self.channels));
        let files = std::mem::take(&mut *lock(&self.files));
        for file in files.into_iter().chain(channels).filter_map(|file| file.upgrade()) {
            file.end();
        }
    }

    /// The device can do nothing any more.
    pub(super) fn fail(&self) {
        if !self.failed.swap(true, Ordering::AcqRel) {
            self.raise(v::IBV_EVENT_DEVICE_FATAL);
        }
    }

    /// Whether it was said so.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Whether the device is not there any more.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    fn raise(&self, event_type: v::ibv_event_type) {
        let files: Vec<_> = lock(&self.files).iter().filter_map(Weak::upgrade).collect();
        for file in files {
            file.push(Event::Async { element: PORT, event_type });
        }
    }
}
