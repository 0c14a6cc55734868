//! Asynchronous events of the port and the device: what every context is told (`ibv_get_async_event(3)`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use urxe_net::LinkEvent;

use super::lock;
use crate::event::{EventSink, EventType};

/// The number of the only port.
const PORT: u64 = 1;

/// Receivers of a device's port events.
#[derive(Debug, Default)]
pub struct PortEvents {
    files: Mutex<Vec<Weak<dyn EventSink>>>,
    /// Completion channels.
    channels: Mutex<Vec<Weak<dyn EventSink>>>,
    /// The device can do nothing any more.
    failed: AtomicBool,
    /// The device has been removed.
    gone: AtomicBool,
}

/// Receivers of every open device.
static ALL: Mutex<Vec<Weak<PortEvents>>> = Mutex::new(Vec::new());

/// Fails all devices after a panic of the library: what it was at may be half done, so nothing goes on.
pub fn devices_failed() {
    let all: Vec<_> = lock(&ALL).iter().filter_map(Weak::upgrade).collect();
    for listeners in all {
        listeners.fail();
    }
}

impl PortEvents {
    /// Makes the events of a new device, which nothing receives yet.
    #[must_use]
    pub fn new() -> Arc<Self> {
        let new = Arc::default();
        let mut all = lock(&ALL);
        all.retain(|listeners| listeners.strong_count() > 0);
        all.push(Arc::downgrade(&new));
        new
    }

    /// Adds a file whose readers are told from now on.
    pub fn add(&self, file: &Arc<dyn EventSink>) {
        let mut files = lock(&self.files);
        files.retain(|file| file.strong_count() > 0);
        files.push(Arc::downgrade(file));
    }

    /// Adds a completion channel, which ends when the device is taken out.
    pub fn add_channel(&self, file: &Arc<dyn EventSink>) {
        let mut channels = lock(&self.channels);
        channels.retain(|file| file.strong_count() > 0);
        channels.push(Arc::downgrade(file));
    }

    /// Marks the device as gone, before anything fails: ids of rdma_cm see it first.
    pub fn leave(&self) {
        self.gone.store(true, Ordering::Release);
    }

    /// Raises the event that a change of the interface calls for.
    pub fn tell(&self, change: LinkEvent) {
        match change {
            LinkEvent::Gids => self.raise(EventType::GidChange),
            // A matter of queue pairs.
            LinkEvent::Paths => {}
            LinkEvent::Up => self.raise(EventType::PortActive),
            LinkEvent::Down => self.raise(EventType::PortError),
            // As when the kernel's rxe loses its interface: the device is gone.
            LinkEvent::Gone => {
                self.raise(EventType::PortError);
                self.fail();
            }
        }
    }

    /// Raises an event without its cause, for fault injection.
    pub fn pretend(&self, event_type: EventType) {
        match event_type {
            EventType::DeviceFatal => self.fail(),
            _ => self.raise(event_type),
        }
    }

    /// Takes the device out: raises DEVICE_FATAL, and ends all files. Once the events are read, reading fails, as of the kernel's
    /// files when it disassociates a device (`ib_uverbs_event_read` gives EIO).
    pub fn take_out(&self) {
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
            self.raise(EventType::DeviceFatal);
        }
    }

    /// Whether the device has failed.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Whether the device is not there any more.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    pub(super) fn raise(&self, event_type: EventType) {
        let files: Vec<_> = lock(&self.files).iter().filter_map(Weak::upgrade).collect();
        for file in files {
            file.async_event(PORT, event_type);
        }
    }
}
