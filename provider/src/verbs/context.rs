//! An open device.

use std::any::Any;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::panic::catch_unwind;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use urxe_net::{Interface, PortError};
use urxe_wire::Gid;

use crate::kernel::Errno;
use crate::kernel::event_file::EventFile;
use crate::kernel::uverbs::{self, GidEntry, GidType};
use crate::mad::Mads;
use crate::status::final_counters;
use crate::verbs::diagnostics;
use crate::verbs::handles::Handles;
use crate::verbs::quota::Quotas;
use crate::verbs::tracked::Tracked;
use crate::verbs::xrcd::XrcDomains;
use urxe_diag::{self, Observer};
use urxe_engine::SelectiveRepeat;
use urxe_engine::congestion::CongestionSettings;
use urxe_explain::Verb;
use urxe_runtime::device::{Device, OpenOptions};
use urxe_runtime::event::EventSink;
use urxe_runtime::fork::{self, Generation};
use urxe_runtime::interceptor::Interceptor;
use urxe_runtime::limits;
use urxe_runtime::memory::regions::Regions;
use urxe_runtime::{clock, lock, progress};

/// An open device: what `ibv_open_device` gives.
pub(crate) struct Context {
    shared: Arc<SharedPort>,
    async_file: Arc<EventFile>,
    channels: Mutex<HashMap<RawFd, Arc<EventFile>>>,
    handles: Arc<Handles>,
    generation: Generation,
    number: u32,
    _tracked: Tracked,
}

/// A port and its thread; contexts of one device in one process share it.
pub(crate) struct SharedPort {
    name: String,
    generation: Generation,
    port: Arc<Device>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Without it nobody can ask how the device is.
    status: Option<crate::status::Server>,
    xrc_domains: XrcDomains,
    quotas: Arc<Quotas>,
    mads: Arc<Mads>,
    /// Of every queue pair.
    congestion: CongestionSettings,
    selective_repeat: Option<SelectiveRepeat>,
}

impl Drop for SharedPort {
    fn drop(&mut self) {
        if self.generation != Generation::now() {
            // In a child: the thread is not here, and the port's locks may be held for ever. Nor may its handle be
            // dropped, which would detach a thread of the child's own that has got the same stack.
            std::mem::forget(self.thread.get_mut().map(Option::take));
            return;
        }
        let is_lost = self.port.has_lost_descriptors();
        urxe_runtime::xrc::close(&self.port);
        if let Some(observer) = urxe_diag::of(&self.port) {
            observer.check_leftovers(&self.port);
        }
        let hears = self.port.request_stop();
        // A thread that panicked has nothing left to end. One that cannot be woken sleeps on, and ends should it wake.
        let _ = lock(&self.thread).take().filter(|_| hears).map(JoinHandle::join);
        if !is_lost {
            // What this process has said last to others on the address may be in there: a refusal, before its end.
            self.port.pass_on();
        }
        // Nobody is to count it twice.
        drop(self.status.take());
        self.port.settle();
        // Now, and not with the last reference: a queue pair that was not destroyed has one for ever, and other processes
        // would wait for a port owner that does nothing any more.
        fork::close(&self.port);
    }
}

/// Prints what is only known at the program's end.
fn at_last() {
    // Called by C.
    let _ = catch_unwind(urxe_diag::explain::tell_hits);
}

static OPEN: Mutex<Vec<std::sync::Weak<SharedPort>>> = Mutex::new(Vec::new());

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

impl SharedPort {
    /// Opens the device, or shares it.
    pub(crate) fn open(name: &str, netdev: &str) -> Result<Arc<Self>, OpenError> {
        let _no_fork = fork::put_off();
        let mut open = lock(&OPEN);
        let generation = Generation::now();
        open.retain(|port| port.strong_count() > 0);
        // One whose interface was removed is no more. The name may be another device's by now.
        let mine = |port: &Arc<Self>| port.name == name && port.generation == generation && !port.port.is_gone();
        if let Some(port) = open.iter().filter_map(std::sync::Weak::upgrade).find(mine) {
            return Ok(port);
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
        let port = Arc::new(Device::open(name, interface, options).map_err(OpenError::Port)?);
        fork::remember(&port);
        if let Some(name) = keeper_of_last_wills() {
            port.net().name_last_will_keeper(&name);
        }
        if congestion.ecn {
            port.net().report_marks();
        }
        let quotas = Arc::new(Quotas::new(port.net().most_qpns()));
        let shared = Arc::new(Self {
            status: match deterministic {
                Some(_) => None,
                None => crate::status::Server::start(name, &port, &quotas, status).ok(),
            },
            name: name.to_owned(),
            generation,
            xrc_domains: XrcDomains::shared(port.xrc_srqs().client()),
            quotas,
            mads: Mads::start(&port, agents),
            congestion,
            selective_repeat: crate::device::selective_repeat(),
            port,
            thread: Mutex::default(),
        });
        // From here on, whatever fails takes along what has begun.
        if deterministic.is_none() {
            let thread = progress::start(Arc::clone(&shared.port));
            let thread = thread.map_err(|e| OpenError::System(Errno(e.raw_os_error().unwrap_or(libc::EAGAIN))))?;
            *lock(&shared.thread) = Some(thread);
        }
        open.push(Arc::downgrade(&shared));
        Ok(shared)
    }

    /// The interface of the device `name`, if this process has it open. `None` as well while somebody opens a device: the caller may
    /// be the one.
    pub(crate) fn interface_of(name: &str) -> Option<Arc<Interface>> {
        let mine = |port: &Arc<Self>| port.name == name && port.generation == Generation::now() && !port.port.is_gone();
        // Dropped last: where it is the last of its kind it closes the device, which takes time, and forks.
        let port;
        // A child of fork(2) would find the list locked for ever.
        let _no_fork = fork::try_put_off()?;
        {
            let open = OPEN.try_lock().ok()?;
            port = open.iter().filter_map(std::sync::Weak::upgrade).find(mine)?;
        }
        Some(port.port.net().interface())
    }

    /// The device's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Agents for management datagrams.
    pub(crate) const fn mads(&self) -> &Arc<Mads> {
        &self.mads
    }

    /// The port.
    pub(crate) const fn port(&self) -> &Arc<Device> {
        &self.port
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

impl Context {
    /// Opens the device `name` on `netdev`. Also returns the file of asynchronous events for libibverbs.
    pub(crate) fn open(name: &str, netdev: &str) -> Result<(Arc<Self>, OwnedFd), OpenError> {
        let shared = SharedPort::open(name, netdev)?;
        let (async_file, fd) = EventFile::new().map_err(OpenError::System)?;
        let context = Self::new(shared, async_file, Arc::default());
        Ok((context, fd))
    }

    /// Opens the device once more, with the objects of this context to import from. libibverbs asks for the file of
    /// asynchronous events by itself ([`uverbs::Device::alloc_async_fd`]).
    ///
    /// # Errors
    /// EIO in a child that inherited it.
    pub(crate) fn import(&self) -> Result<Arc<Self>, Errno> {
        self.check_alive()?;
        let (async_file, _) = EventFile::new()?;
        Ok(Self::new(Arc::clone(&self.shared), async_file, Arc::clone(&self.handles)))
    }

    fn new(shared: Arc<SharedPort>, async_file: EventFile, handles: Arc<Handles>) -> Arc<Self> {
        let async_file = Arc::new(async_file);
        let sink: Arc<dyn EventSink> = async_file.clone();
        shared.port.tell_changes(&sink);
        let mut number = 0;
        let tracked = shared.quotas.ctx.track(|ctxn| {
            number = ctxn;
            move || Some(vec![("ctxn", ctxn.into())])
        });
        Arc::new(Self {
            shared,
            async_file,
            channels: Mutex::new(HashMap::new()),
            handles,
            generation: Generation::now(),
            number,
            _tracked: tracked,
        })
    }

    /// Number among the open contexts of the device in this process.
    pub(crate) const fn number(&self) -> u32 {
        self.number
    }

    /// Returns the handles of domains, regions and device memory that can be imported.
    pub(crate) fn handles(&self) -> &Handles {
        &self.handles
    }

    /// The device's port.
    pub(crate) fn port(&self) -> &Arc<Device> {
        &self.shared.port
    }

    /// Congestion control of queue pairs.
    pub(crate) fn congestion(&self) -> CongestionSettings {
        self.shared.congestion
    }

    /// Selective repeat of queue pairs.
    pub(crate) fn selective_repeat(&self) -> Option<SelectiveRepeat> {
        self.shared.selective_repeat.clone()
    }

    /// `verb` waits for `missing` calls of `acknowledge`, perhaps for ever.
    pub(crate) fn complain(&self, verb: Verb, acknowledge: &str, missing: u32) {
        if let Some(observer) = self.observer() {
            observer.not_acknowledged(verb, acknowledge, missing);
        }
    }

    /// The device's XRC domains.
    pub(crate) fn xrc_domains(&self) -> &XrcDomains {
        &self.shared.xrc_domains
    }

    /// Limits of the numbers of objects.
    pub(crate) fn quotas(&self) -> &Quotas {
        &self.shared.quotas
    }

    /// The interface it sits on.
    pub(crate) fn interface(&self) -> Arc<Interface> {
        self.port().net().interface()
    }

    /// File that its asynchronous events go to.
    pub(crate) const fn async_file(&self) -> &Arc<EventFile> {
        &self.async_file
    }

    /// Returns the asynchronous event file as the runtime's sink.
    pub(crate) fn async_sink(&self) -> Arc<dyn EventSink> {
        self.async_file.clone()
    }

    /// Observer of the device, if the environment asks for one.
    pub(crate) fn observer(&self) -> Option<&Observer> {
        urxe_diag::of(self.port())
    }

    /// The completion channel that the application knows by `fd`.
    pub(crate) fn channel(&self, fd: RawFd) -> Option<Arc<EventFile>> {
        lock(&self.channels).get(&fd).cloned()
    }

    /// EIO in a child that inherited it: for what must go on when the device has failed, such as destroying.
    pub(crate) fn check_own(&self) -> Result<(), Errno> {
        if self.generation == Generation::now() { Ok(()) } else { Err(diagnostics::inherited()) }
    }

    /// EIO in a child that inherited it, and when the device has failed (`IBV_EVENT_DEVICE_FATAL`).
    pub(crate) fn check_alive(&self) -> Result<(), Errno> {
        self.check_own()?;
        if self.port().has_failed() { Err(diagnostics::failed()) } else { Ok(()) }
    }

    /// A row of the GID table.
    pub(crate) fn gid_row(&self, index: u32) -> Result<Gid, Errno> {
        if index >= limits::GID_TABLE {
            return Err(Errno(libc::EINVAL));
        }
        self.interface().gid(index as usize).ok_or(Errno(libc::ENODATA))
    }

    fn entry(&self, index: u32, gid: Gid) -> GidEntry {
        let interface = self.interface();
        let is_infiniband = interface.link_layer().is_infiniband();
        let gid_type = match is_infiniband {
            true => GidType::Ib,
            false if interface.gid_layout().is_roce_v1(index as usize) => GidType::RoceV1,
            false => GidType::RoceV2,
        };
        let netdev_ifindex = if is_infiniband { 0 } else { interface.netdev_of(&gid).0 };
        GidEntry { gid, index, port: 1, gid_type, netdev_ifindex }
    }
}

impl uverbs::Device for Context {
    fn create_comp_channel(&self) -> Result<OwnedFd, Errno> {
        self.check_alive()?;
        let (file, fd) = EventFile::new()?;
        let file = Arc::new(file);
        let sink: Arc<dyn EventSink> = file.clone();
        self.port().listen(&sink);
        lock(&self.channels).insert(fd.as_raw_fd(), file);
        Ok(fd)
    }

    fn alloc_async_fd(&self) -> Result<OwnedFd, Errno> {
        self.check_alive()?;
        self.async_file.another_end()
    }

    fn gid(&self, port: u32, index: u32) -> Result<GidEntry, Errno> {
        if port != 1 {
            return Err(Errno(libc::EINVAL));
        }
        self.gid_row(index).map(|gid| self.entry(index, gid))
    }

    fn gid_table(&self) -> Vec<GidEntry> {
        let interface = self.interface();
        let row = |index| Some(self.entry(u32::try_from(index).ok()?, interface.gid(index)?));
        (0..interface.gid_rows()).filter_map(row).collect()
    }

    fn before_close(&self, fd: RawFd) -> Option<Arc<dyn Any + Send + Sync>> {
        // In a child of fork(2) a lock might be held for ever.
        if self.generation != Generation::now() {
            return None;
        }
        let file: Arc<dyn Any + Send + Sync> = lock(&self.channels).remove(&fd)?;
        Some(file)
    }
}
