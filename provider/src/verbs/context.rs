//! An open device.

use std::any::Any;
use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex};

use urxe_diag::{self, Observer};
use urxe_engine::SelectiveRepeat;
use urxe_engine::congestion::CongestionSettings;
use urxe_explain::Verb;
use urxe_net::Interface;
use urxe_runtime::device::Device;
use urxe_runtime::event::EventSink;
use urxe_runtime::fork::Generation;
use urxe_runtime::{limits, lock};
use urxe_wire::Gid;

use crate::kernel::Errno;
use crate::kernel::event_file::EventFile;
use crate::kernel::uverbs::{self, GidEntry, GidType};
use crate::verbs::diagnostics;
use crate::verbs::handles::Handles;
use crate::verbs::quota::Quotas;
use crate::verbs::shards::ThreadNumber;
use crate::verbs::shared_device::{OpenError, SharedDevice};
use crate::verbs::tracked::Tracked;
use crate::verbs::xrcd::XrcDomains;

/// An open device: what `ibv_open_device` gives.
pub(crate) struct Context {
    shared: Arc<SharedDevice>,
    async_file: Arc<EventFile>,
    channels: Mutex<HashMap<RawFd, Arc<EventFile>>>,
    handles: Arc<Handles>,
    generation: Generation,
    number: u32,
    _tracked: Tracked,
}

impl Context {
    /// Opens the device `name` on `netdev`. Also returns the file of asynchronous events for libibverbs.
    pub(crate) fn open(name: &str, netdev: &str) -> Result<(Arc<Self>, OwnedFd), OpenError> {
        let shared = SharedDevice::open(name, netdev)?;
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

    fn new(shared: Arc<SharedDevice>, async_file: EventFile, handles: Arc<Handles>) -> Arc<Self> {
        let async_file = Arc::new(async_file);
        let sink: Arc<dyn EventSink> = async_file.clone();
        shared.device.tell_changes(&sink);
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

    /// Returns the device of the runtime.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.shared.device
    }

    /// Device for the queue pairs of another completion queue, which a thread uses, where that is a shard.
    pub(crate) fn next_shard(&self, thread: ThreadNumber) -> Option<Arc<Device>> {
        self.shared.next_shard(thread)
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
        self.device().net().interface()
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
        urxe_diag::of(self.device())
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
        if self.device().has_failed() { Err(diagnostics::failed()) } else { Ok(()) }
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
        self.device().listen(&sink);
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
