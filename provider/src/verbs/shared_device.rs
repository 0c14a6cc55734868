//! A device that the contexts that opened it in a process share, and its thread.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::panic::catch_unwind;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use urxe_diag::{self, Observer};
use urxe_engine::SelectiveRepeat;
use urxe_engine::congestion::CongestionSettings;
use urxe_net::{Interface, PortError};
use urxe_options::Sharding;
use urxe_runtime::device::{Device, OpenOptions};
use urxe_runtime::fork::{self, Generation};
use urxe_runtime::interceptor::Interceptor;
use urxe_runtime::memory::regions::Regions;
use urxe_runtime::{clock, lock, progress};

use crate::kernel::Errno;
use crate::mad::Mads;
use crate::status::final_counters;
use crate::verbs::quota::Quotas;
use crate::verbs::shards::{Shards, ThreadNumber};
use crate::verbs::xrcd::XrcDomains;

/// A device and its thread; its contexts in one process share it.
pub(crate) struct SharedDevice {
    name: String,
    generation: Generation,
    pub(super) device: Arc<Device>,
    thread: Mutex<Option<JoinHandle<()>>>,
    shards: Shards,
    /// Without it nobody can ask how the device is.
    status: Option<crate::status::Server>,
    pub(super) xrc_domains: XrcDomains,
    pub(super) quotas: Arc<Quotas>,
    mads: Arc<Mads>,
    /// Congestion control of every queue pair.
    pub(super) congestion: CongestionSettings,
    pub(super) selective_repeat: Option<SelectiveRepeat>,
}

impl Drop for SharedDevice {
    fn drop(&mut self) {
        if self.generation != Generation::now() {
            // In a child: the thread is not here, and the device's locks may be held for ever. Nor may its handle be
            // dropped, which would detach a thread of the child's own that has got the same stack.
            std::mem::forget(self.thread.get_mut().map(Option::take));
            self.shards.forget();
            return;
        }
        self.shards.close();
        let is_lost = self.device.has_lost_descriptors();
        urxe_runtime::xrc::close(&self.device);
        if let Some(observer) = urxe_diag::of(&self.device) {
            observer.check_leftovers(&self.device);
        }
        // Nobody is to count it twice. First, as who answers last may take a while, and others on the address wait for what comes here.
        drop(self.status.take());
        let hears = self.device.request_stop();
        // A thread that panicked has nothing left to end. One that cannot be woken sleeps on, and ends should it wake.
        let _ = lock(&self.thread).take().filter(|_| hears).map(JoinHandle::join);
        if !is_lost {
            // What this process has said last to others on the address may be in there: a refusal, before its end.
            self.device.pass_on();
        }
        self.device.settle();
        // Now, and not with the last reference: a queue pair that was not destroyed has one for ever, and other processes
        // would wait for a port owner that does nothing any more.
        fork::close(&self.device);
    }
}

/// Prints what is only known at the program's end.
fn at_last() {
    // Called by C.
    let _ = catch_unwind(urxe_diag::explain::tell_hits);
}

static OPEN: Mutex<Vec<std::sync::Weak<SharedDevice>>> = Mutex::new(Vec::new());

/// Why a device cannot be opened.
#[derive(Debug)]
pub(crate) enum OpenError {
    /// The sockets cannot be had.
    Port(PortError),
    /// The system refuses something else.
    System(Errno),
    /// The environment asks for what makes no sense.
    Settings(urxe_diag::settings::Mistake),
}

impl SharedDevice {
    /// Opens the device, or shares it.
    pub(crate) fn open(name: &str, netdev: &str) -> Result<Arc<Self>, OpenError> {
        let _no_fork = fork::put_off();
        let mut open = lock(&OPEN);
        let generation = Generation::now();
        open.retain(|open| open.strong_count() > 0);
        // One whose interface was removed is no more. The name may be another device's by now.
        let mine = |open: &Arc<Self>| open.name == name && open.generation == generation && !open.device.is_gone();
        if let Some(shared) = open.iter().filter_map(std::sync::Weak::upgrade).find(mine) {
            return Ok(shared);
        }
        urxe_diag::settings::get().as_ref().map_err(|mistake| OpenError::Settings(mistake.clone()))?;
        let interface = crate::device::interface(netdev).map_err(OpenError::Port)?;
        let deterministic = crate::device::deterministic();
        if let Some(seed) = deterministic {
            clock::make_virtual();
            urxe_net::make_predictable(seed);
        }
        let (keys, status, agents) = match deterministic {
            Some(seed) => (seed, seed, seed),
            None => (random_seed()?, random_seed()?, random_seed()?),
        };
        fork::set_hooks(fork::Hooks {
            at_exit: crate::status::hang_up,
            at_last,
            in_child: crate::status::close_in_child,
        });
        let mut observe = |interface: &Interface, regions: &Arc<Regions>| {
            Observer::new(name, interface, regions).map(|observer| observer as Arc<dyn Interceptor>)
        };
        let options = OpenOptions {
            shares_memory: crate::device::shares_memory(),
            is_direct: crate::device::is_direct(),
            uses_xdp: crate::device::uses_xdp(),
            key_seed: keys,
            has_quirks: urxe_diag::quirks::is_on(),
            final_counters: Some(|name, counters| final_counters::add(name, counters)),
            interceptor: Some(&mut observe),
        };
        let congestion = crate::device::congestion(&interface);
        let device = Arc::new(Device::open(name, interface, options).map_err(OpenError::Port)?);
        fork::remember(&device);
        if let Some(name) = keeper_of_last_wills() {
            device.net().name_last_will_keeper(&name);
        }
        if congestion.ecn {
            device.net().report_marks();
        }
        let sharding = if deterministic.is_some() { Sharding::Queues(1) } else { crate::device::sharding() };
        let quotas = Arc::new(Quotas::new(device.net().most_qpns()));
        let shared = Arc::new(Self {
            status: match deterministic {
                Some(_) => None,
                None => crate::status::Server::start(name, &device, &quotas, status).ok(),
            },
            name: name.to_owned(),
            generation,
            xrc_domains: XrcDomains::shared(device.xrc_srqs().client()),
            quotas,
            mads: Mads::start(&device, agents),
            congestion,
            selective_repeat: crate::device::selective_repeat(),
            shards: Shards::new(sharding, congestion.ecn, &device),
            device,
            thread: Mutex::default(),
        });
        // From here on, whatever fails takes along what has begun.
        if deterministic.is_none() {
            let thread = progress::start(Arc::clone(&shared.device));
            let thread = thread.map_err(|e| OpenError::System(Errno(e.raw_os_error().unwrap_or(libc::EAGAIN))))?;
            *lock(&shared.thread) = Some(thread);
        }
        open.push(Arc::downgrade(&shared));
        Ok(shared)
    }

    /// The interface of the device `name`, if this process has it open. `None` as well while somebody opens a device: the caller may
    /// be the one.
    pub(crate) fn interface_of(name: &str) -> Option<Arc<Interface>> {
        let mine =
            |open: &Arc<Self>| open.name == name && open.generation == Generation::now() && !open.device.is_gone();
        // Dropped last: where it is the last of its kind it closes the device, which takes time, and forks.
        let shared;
        // A child of fork(2) would find the list locked for ever.
        let _no_fork = fork::try_put_off()?;
        {
            let open = OPEN.try_lock().ok()?;
            shared = open.iter().filter_map(std::sync::Weak::upgrade).find(mine)?;
        }
        Some(shared.device.net().interface())
    }

    /// The device's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Agents for management datagrams.
    pub(crate) const fn mads(&self) -> &Arc<Mads> {
        &self.mads
    }

    /// Device for the queue pairs of another completion queue, which a thread uses: a shard, or `None` for this one.
    pub(crate) fn next_shard(&self, thread: ThreadNumber) -> Option<Arc<Device>> {
        self.shards.next(&self.device, lock(&self.thread).as_ref(), thread)
    }

    /// Returns the device of the runtime.
    pub(crate) const fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

/// Name of the keeper of last wills that `urxe run` has started: that of the folder around the one shown.
fn keeper_of_last_wills() -> Option<String> {
    let outer = Path::new(OsStr::from_bytes(urxe_preload::folder()?)).parent()?;
    outer.file_name().map(|name| name.to_string_lossy().into_owned())
}

/// Eight bytes that a peer cannot guess.
fn random_seed() -> Result<u64, OpenError> {
    let mut seed = [0; 8];
    let mut file = std::fs::File::open("/dev/urandom").map_err(|_| OpenError::System(Errno::last()))?;
    file.read_exact(&mut seed).map_err(|_| OpenError::System(Errno(libc::EIO)))?;
    Ok(u64::from_ne_bytes(seed))
}
