//! A device that is taken out: its ids are told so, and can do nothing more but be destroyed.
//!
//! As `cma_process_remove` of the kernel's cma.c and `ucma_event_handler` of its ucma.c have it: every id that is bound to
//! the device gets the event, those that the application has not accepted yet go without a word, and one that listens
//! at every address goes on for the devices that are left.

use super::State;
use super::event::Kind;
use super::id::State as Phase;
use urxe_runtime::clock;

impl State {
    /// The device is gone; [`device_of`](State::device_of) does not find it any more.
    pub(super) fn remove_device(&mut self, index: usize) {
        let on_it = self.ids.iter().filter(|(_, id)| id.device == Some(index) && id.state != Phase::Removed);
        let mut handles: Vec<u32> = on_it.map(|(handle, _)| handle).collect();
        handles.sort_unstable();
        for handle in handles {
            self.explain_event(handle, Kind::DeviceRemoval, 0, None);
            self.tell(handle, Kind::DeviceRemoval, 0, None, Vec::new());
            let Some(id) = self.ids.get_mut(handle) else { continue };
            id.state = Phase::Removed;
            // The kernel destroys what is below the id at once: its port is free, its connection unknown.
            id.claims.clear();
            if let (Some(comm), Some(device)) = (id.comm.take(), self.devices.get_mut(index)) {
                device.cm.release(clock::now(), comm);
            }
        }
    }
}
