//! rdma_cm ids: what the kernel's `rdma_cm` and `rdma_ucm` modules keep for librdmacm.
//!
//! ```text
//! kernel/ucma  commands ─▶ Manager ─▶ urxe_engine::cm (a Cm for each device) ─▶ runtime/gsi  datagrams to QP1
//!              events  ◀─ Channel ◀─
//! ```
//!
//! One lock holds all ids and connections of the process: it is taken inside the receive token, and nothing that ends
//! a device's thread may happen under it.

mod address;
mod administration;
pub(crate) mod channel;
pub(crate) mod commands;
pub(crate) mod connect;
pub(crate) mod event;
mod explained;
pub(crate) mod groups;
pub(crate) mod id;
mod ids;
mod list;
pub(crate) mod membership;
mod messages;
mod port_space;
pub(crate) mod query;
mod removal;
pub(crate) mod service_records;
pub(crate) mod services;

use std::collections::HashMap;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once};

use urxe_engine::Instant;
use urxe_engine::cm::{Cm, Ends, Transmit};
use urxe_net::{Interface, LastWill};
use urxe_wire::cm::{CmMad, CommId};
use urxe_wire::{Gid, Lid, Psn, Qpn, mgid};

use crate::device;
use crate::kernel::{Errno, call_depth};
use crate::verbs::lid;
use crate::verbs::shared_device::SharedDevice;
use administration::Query;
use channel::Channel;
use event::Address;
use id::Id;
use ids::Ids;
pub(crate) use list::Listed;
use urxe_runtime::device::TxContext;
use urxe_runtime::fork::Generation;
use urxe_runtime::gsi::{self, Gsi};
use urxe_runtime::subnet::{AdministrationClient, Answer};
use urxe_runtime::{clock, lock};

const EINVAL: Errno = Errno(libc::EINVAL);

/// The ids of this process.
pub(crate) struct Manager {
    generation: Generation,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    devices: Vec<Device>,
    ids: Ids,
    /// Open channels: without any, no device is needed.
    channels: usize,
    random: u64,
    /// Requests to subnet administration that wait for their answer, by device and number, and the last number.
    queries: HashMap<(usize, u32), Query>,
    last_query: u32,
}

/// A device, and the connections on it.
struct Device {
    shared: Arc<SharedDevice>,
    guid: u64,
    cm: Cm,
    names: HashMap<CommId, u32>,
    psn: Psn,
    /// Q_Key of IPoIB's groups, as far as subnet administration has told it: of InfiniBand.
    ipoib_key: Option<u32>,
}

impl Device {
    fn interface(&self) -> Arc<Interface> {
        self.shared.device().net().interface()
    }

    fn gid_index(&self, gid: &Gid) -> u8 {
        let index = self.interface().gid_index(gid);
        index.and_then(|index| u8::try_from(index).ok()).unwrap_or_default()
    }

    /// The address handle from one GID of the network to another.
    fn address(&self, local: &Gid, remote: &Gid, tclass: u8) -> Address {
        let port = self.shared.device().net();
        let interface = port.interface();
        let dgid = interface.shown_gid(remote);
        let (dlid, is_global) = if !interface.link_layer().is_infiniband() {
            (Lid::NONE, true)
        } else if remote.ip().is_multicast() {
            (mgid::mlid(&dgid), true)
        } else {
            let dlid = lid::of_peer(port, remote);
            (dlid, dlid == Lid::NONE)
        };
        Address { dgid, sgid_index: self.gid_index(local), tclass, dlid, is_global }
    }

    /// A name for a connection that nobody on this host has: a QPN of ours, and eight bits that differ each time.
    fn new_comm_id(&self, random: u64) -> Result<CommId, Errno> {
        let qpn = self.shared.device().net().alloc_qpn().map_err(|error| crate::verbs::diagnostics::no_qpn(&error))?;
        let [high, ..] = random.to_ne_bytes();
        Ok(CommId(u32::from(high) << 24 | qpn.get()))
    }
}

impl State {
    fn id(&mut self, handle: u32) -> Result<&mut Id, Errno> {
        let id = self.ids.get_mut(handle).ok_or(Errno(libc::ENOENT))?;
        // `ucma_get_ctx` of the kernel's ucma.c.
        if id.state == id::State::Removed { Err(Errno(libc::ENXIO)) } else { Ok(id) }
    }

    /// SplitMix64, seeded by the clock: PSNs and names need only differ.
    fn random(&mut self) -> u64 {
        let mut rng = urxe_engine::rng::Rng::new(self.random ^ clock::now().as_nanos());
        self.random = rng.next_u64();
        self.random
    }

    /// Sends what the device's connections have to send, and tells what they have to tell.
    fn pump(&mut self, index: usize, work: &mut TxContext) {
        loop {
            let Some(device) = self.devices.get_mut(index) else { return };
            // First what is to be said if this process is killed as soon as its peer knows more.
            let net = device.shared.device().net();
            while let Some((comm, will)) = device.cm.poll_last_will() {
                match will {
                    Some(Transmit { ends: Ends { local, remote }, payload }) => {
                        net.set_last_will(LastWill { name: comm.0, local, remote, message: payload });
                    }
                    None => net.clear_last_will(comm.0),
                }
            }
            while let Some(transmit) = device.cm.poll_transmit() {
                let psn = device.psn;
                device.psn = psn.next();
                let ends = transmit.ends;
                gsi::send(work, device.shared.device().net(), psn, ends.local, ends.remote, &transmit.payload);
            }
            let Some((comm, event)) = device.cm.poll_event() else { break };
            self.handle_event(index, comm, event);
        }
        if let Some(device) = self.devices.get(index) {
            device.shared.device().set_gsi_timer(device.cm.poll_timeout());
        }
    }

    fn pump_now(&mut self, index: usize) {
        let Some(device) = self.devices.get(index).map(|device| Arc::clone(device.shared.device())) else { return };
        device.with_work(|work| self.pump(index, work));
    }

    fn forget_name(&mut self, index: usize, comm: CommId) {
        if let Some(device) = self.devices.get_mut(index) {
            device.names.remove(&comm);
            device.shared.device().net().free_qpn(Qpn::new(comm.0));
        }
    }
}

static MANAGER: AtomicPtr<Manager> = AtomicPtr::new(std::ptr::null_mut());

/// The manager of this process. A child of a fork gets a new one; the parent's is left alone there, for its lock may
/// be held for ever.
pub(crate) fn manager() -> &'static Manager {
    let current = MANAGER.load(Ordering::Acquire);
    // SAFETY: made by the box below, and never freed.
    if let Some(manager) = unsafe { current.as_ref() }
        && manager.generation == Generation::now()
    {
        return manager;
    }
    let new = Box::into_raw(Box::new(Manager { generation: Generation::now(), state: Mutex::default() }));
    match MANAGER.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: just made, and never freed from now on.
        Ok(_) => unsafe { &*new },
        Err(winner) => {
            // SAFETY: made above and seen by nobody; the winner's is never freed.
            unsafe {
                drop(Box::from_raw(new));
                &*winner
            }
        }
    }
}

impl Manager {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// A new event channel, and the application's end of it.
    pub(crate) fn open_channel(&self) -> Result<(Arc<Channel>, std::os::fd::OwnedFd), Errno> {
        let (channel, fd) = Channel::new()?;
        self.state().channels += 1;
        Ok((Arc::new(channel), fd))
    }

    /// The channel is closed: its ids go.
    pub(crate) fn close_channel(&self, channel: &Arc<Channel>) {
        let handles: Vec<u32> = {
            let state = self.state();
            let here = |id: &Id| Arc::ptr_eq(&id.channel, channel);
            state.ids.iter().filter(|(_, id)| here(id)).map(|(handle, _)| handle).collect()
        };
        for handle in handles {
            // It may have gone with another.
            let _ = self.destroy_id(handle);
        }
        let unused = {
            let mut state = self.state();
            state.channels -= 1;
            if state.channels == 0 { std::mem::take(&mut state.devices) } else { Vec::new() }
        };
        // Dropping a device ends its thread, which may wait for our lock: only now.
        for device in &unused {
            device.shared.device().set_gsi(None);
            device.shared.device().set_gsi_timer(None);
            device.shared.mads().set_client(None);
        }
        drop(unused);
    }

    /// Takes what is in the sockets. After a message to another process on the same address this passes it on: the
    /// program may end at once, without a word to us, and the message with it.
    pub(crate) fn look(&self) {
        // Not under our lock, which whoever receives takes.
        let devices: Vec<_> = self.state().devices.iter().map(|device| Arc::clone(device.shared.device())).collect();
        for device in devices {
            device.look();
        }
    }

    /// The program ends: its peers are told.
    fn release_all(&self) {
        let Ok(mut state) = self.state.try_lock() else { return };
        let connections: Vec<_> = state.ids.iter().filter_map(|(_, id)| Some((id.device?, id.comm?))).collect();
        for (index, comm) in connections {
            if let Some(device) = state.devices.get_mut(index) {
                device.cm.release(clock::now(), comm);
            }
            state.pump_now(index);
        }
    }

    /// Opens every device that there is. One that cannot be opened is as good as none.
    fn open_devices(&self) {
        if !self.state().devices.is_empty() {
            return;
        }
        let mut devices = Vec::new();
        for urxe_options::Device { name, netdev } in device::all() {
            if let Ok(shared) = SharedDevice::open(&name, &netdev) {
                let guid = device::guid(&name)
                    .unwrap_or_else(|| u64::from_ne_bytes(shared.device().net().interface().guid().octets()));
                let (cm, names, psn) = (Cm::new(), HashMap::new(), Psn::default());
                devices.push(Device { shared, guid, cm, names, psn, ipoib_key: None });
            }
        }
        let surplus = {
            static REGISTERED: Once = Once::new();
            // SAFETY: a function that stays loaded. It fails only without memory; then peers find out by themselves.
            REGISTERED.call_once(|| unsafe {
                libc::atexit(at_exit);
            });
            let mut state = self.state();
            if state.devices.is_empty() {
                for (index, device) in devices.iter().enumerate() {
                    let gsi = Arc::new(PortGsi { manager: self, index });
                    device.shared.mads().set_client(Some(gsi.clone()));
                    device.shared.device().set_gsi(Some(gsi));
                }
                std::mem::swap(&mut state.devices, &mut devices);
            }
            devices
        };
        drop(surplus);
    }
}

extern "C" fn at_exit() {
    // A signal handler that exits may have interrupted a command, whose locks stay taken. Last wills tell the peers.
    if call_depth::is_kernel_call_interrupted() {
        return;
    }
    let _ = std::panic::catch_unwind(|| {
        // SAFETY: managers are never freed.
        let manager = unsafe { MANAGER.load(Ordering::Acquire).as_ref() };
        if let Some(manager) = manager.filter(|manager| manager.generation == Generation::now()) {
            manager.release_all();
        }
    });
}

/// Handler of a port's CM messages, and of what subnet administration answers.
#[derive(Debug)]
struct PortGsi {
    manager: *const Manager,
    index: usize,
}

// SAFETY: managers are never freed, and `Sync`.
unsafe impl Send for PortGsi {}
// SAFETY: as above.
unsafe impl Sync for PortGsi {}

impl PortGsi {
    fn manager(&self) -> &Manager {
        // SAFETY: managers are never freed.
        unsafe { &*self.manager }
    }
}

impl Gsi for PortGsi {
    fn receive(&self, work: &mut TxContext, now: Instant, local: Gid, peer: Gid, mad: &CmMad, is_refused: bool) {
        let mut state = self.manager().state();
        state.handle_message(self.index, now, Ends { local, remote: peer }, mad, is_refused);
        state.pump(self.index, work);
    }

    fn handle_timeout(&self, now: Instant) {
        let mut state = self.manager().state();
        if let Some(device) = state.devices.get_mut(self.index) {
            device.cm.handle_timeout(now);
            state.pump_now(self.index);
        }
    }

    fn removed(&self, work: &mut TxContext) {
        let mut state = self.manager().state();
        state.remove_device(self.index);
        state.pump(self.index, work);
    }
}

impl AdministrationClient for PortGsi {
    fn answered(&self, answer: Answer) {
        self.manager().handle_answer(self.index, &answer);
    }

    fn memberships_ended(&self) {
        self.manager().memberships_ended(self.index);
    }
}

#[cfg(test)]
mod tests;
