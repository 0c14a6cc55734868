//! Opening a device.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, RwLock, Weak};

use urxe_net::direct::Export;
use urxe_net::{Interface, Port, PortError, Receiver};
use urxe_status::Counters;

use super::rx::Token;
use super::tx_contexts::Contexts;
use super::{Device, FinalCounters, TxContext};
use crate::backpressure::Backpressure;
use crate::groups::Groups;
use crate::host::{Inside, PendingNotifications, Sender};
use crate::interceptor::{self, Interceptor};
use crate::memory::kept::Kept;
use crate::memory::regions::Regions;
use crate::memory::shared_pages;
use crate::moderation::Moderated;
use crate::port_events::PortEvents;
use crate::progress::policy::ProgressPolicy;
use crate::progress::sleep_deadline::{Deadline, SleepDeadline};
use crate::raw::Raw;
use crate::run_queue::RunQueue;
use crate::srq::XrcSrqs;
use crate::timers::Timers;
use crate::xrc::client::Client;
use crate::xrc::listeners::Server;
use crate::xrc::rx_queue::RxQueue;
use crate::{limits, lock, sanitizer};

/// Settings of a device.
#[derive(Default)]
pub struct OpenOptions<'a> {
    /// Packets to other processes of this host go through shared memory where they can.
    pub shares_memory: bool,
    /// Requesters and targets of this host reach each other's memory without packets, where packets would go through shared
    /// memory.
    pub is_direct: bool,
    /// XDP takes raw frames away from the host's network stack.
    pub uses_xdp: bool,
    /// Seed that makes memory keys hard to guess.
    pub key_seed: u64,
    /// Queue pairs may keep ACKs back on purpose (`urxe_engine::quirks`).
    pub has_quirks: bool,
    /// Receiver of the last values of the counters.
    pub final_counters: Option<FinalCounters>,
    /// Layer that sees what happens.
    pub interceptor: Option<MakeInterceptor<'a>>,
}

/// Parts of a device that is opened.
struct Parts<'a> {
    name: &'a str,
    port: Arc<Port>,
    receiver: Receiver,
    regions: Arc<Regions>,
    export: Option<Arc<Export>>,
    xrc_srqs: Arc<XrcSrqs>,
    counters: Arc<Counters>,
    interceptor: Option<Arc<dyn Interceptor>>,
    touches_packets: bool,
    uses_xdp: bool,
    has_quirks: bool,
    final_counters: Option<FinalCounters>,
    primary: Option<Weak<Device>>,
}

/// Function that makes the interceptor of a device on this interface with these regions.
pub type MakeInterceptor<'a> = &'a mut dyn FnMut(&Interface, &Arc<Regions>) -> Option<Arc<dyn Interceptor>>;

impl Device {
    /// Opens the device's sockets.
    ///
    /// # Errors
    /// The port cannot be had, or the system refuses a descriptor.
    pub fn open(name: &str, interface: Interface, options: OpenOptions<'_>) -> Result<Self, PortError> {
        let OpenOptions { shares_memory, is_direct, uses_xdp, key_seed, has_quirks, final_counters, interceptor } =
            options;
        let open = if shares_memory { Port::open_sharing_memory } else { Port::open };
        let (port, mut receiver) = open(interface)?;
        let port = Arc::new(port);
        let xrc_srqs = Arc::new(XrcSrqs::new(Client::new(&port)));
        let regions = Arc::new(Regions::new(limits::KEYS as usize, key_seed).with(xrc_srqs.client()));
        let interceptor = interceptor.and_then(|make| make(&port.interface(), &regions));
        // Whoever looks at packets or memory accesses, or keeps back what is owed, is to see them.
        let is_observed = interceptor::active(&interceptor).is_some_and(|interceptor| interceptor.needs_packets());
        let may_be_direct = is_direct && shares_memory && !is_observed && !has_quirks && !sanitizer::is_watched();
        let export = may_be_direct.then(|| Export::new(&shared_pages::file()?)).and_then(Result::ok).map(Arc::new);
        if let Some(export) = &export {
            regions.show_by(export);
            port.offer(export);
            receiver.import(&port);
        }
        let touches_packets = interceptor.as_ref().is_some_and(|interceptor| interceptor.touches_packets());
        if touches_packets {
            port.keep_icrcs();
        }
        let parts = Parts {
            name,
            port,
            receiver,
            regions,
            export,
            xrc_srqs,
            counters: Arc::default(),
            interceptor,
            touches_packets,
            uses_xdp,
            has_quirks,
            final_counters,
            primary: None,
        };
        Self::assemble(parts)
    }

    /// Opens a shard of the device, one of so many.
    ///
    /// # Errors
    /// Any refusal of the system.
    pub(super) fn assemble_shard(self: &Arc<Self>, of: usize) -> Result<Self, PortError> {
        let (port, mut receiver) = self.port.open_shard(of)?;
        if let Some(export) = &self.export {
            port.offer(export);
            receiver.import(&port);
        }
        Self::assemble(Parts {
            name: &self.name,
            port: Arc::new(port),
            receiver,
            regions: Arc::clone(&self.regions),
            export: self.export.clone(),
            xrc_srqs: Arc::clone(&self.xrc_srqs),
            counters: Arc::clone(&self.counters),
            interceptor: None,
            touches_packets: false,
            uses_xdp: false,
            has_quirks: self.has_quirks,
            // The device reports them.
            final_counters: None,
            primary: Some(Arc::downgrade(self)),
        })
    }

    fn assemble(parts: Parts<'_>) -> Result<Self, PortError> {
        let Parts {
            name,
            port,
            receiver,
            regions,
            export,
            xrc_srqs,
            counters,
            interceptor,
            touches_packets,
            uses_xdp,
            has_quirks,
            final_counters,
            primary,
        } = parts;
        let kick = eventfd().map_err(|source| PortError::os("make an eventfd", source))?;
        let policy = ProgressPolicy::new().map_err(|source| PortError::os("make a timer", source))?;
        let contexts = Arc::<Contexts>::default();
        regions.keep_by(Arc::<Contexts>::downgrade(&contexts));
        let new = Self {
            name: name.to_owned(),
            token: Mutex::new(Token::new(receiver)),
            port,
            shards: RwLock::default(),
            primary,
            qps: RwLock::default(),
            regions,
            export,
            groups: Groups::default(),
            raw: Raw::new(uses_xdp),
            timers: Timers::new(),
            moderated: Moderated::new(),
            unfinished: RunQueue::default(),
            has_unfinished: AtomicBool::new(false),
            backpressure: Backpressure::default(),
            contexts,
            inside: Mutex::default(),
            carried_out: Mutex::default(),
            is_settled: AtomicBool::new(false),
            counters,
            interceptor,
            touches_packets,
            final_counters,
            has_quirks,
            listeners: PortEvents::new(),
            xrc_srqs,
            server: Server::default(),
            xrc_rx: RxQueue::default(),
            overran: Mutex::default(),
            has_overran: AtomicBool::new(false),
            gsi: RwLock::new(None),
            gsi_timer: Deadline::never(),
            mads: RwLock::new(None),
            mad_timer: Deadline::never(),
            raw_timer: Deadline::never(),
            kick: kick.into(),
            sleep_deadline: SleepDeadline::none(),
            policy,
            exits: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        };
        lock(&new.token).work = Some(new.new_work(None));
        Ok(new)
    }

    /// A context; one that is lent by a lock says in `kept` which region it keeps.
    pub(super) fn new_work(&self, kept: Option<&Arc<Kept>>) -> TxContext {
        let interceptor = self.interceptor.clone();
        let notifications =
            PendingNotifications::new(Arc::clone(&self.counters), Arc::clone(&self.xrc_srqs), interceptor.clone());
        let inside = Inside::default();
        lock(&self.inside).push(Arc::clone(&inside.traffic));
        let memory = self.memory();
        lock(&self.carried_out).push(Arc::clone(memory.direct()));
        TxContext {
            sender: Sender::new(Arc::clone(&self.port), interceptor),
            memory: match kept {
                Some(kept) => memory.keeping(Arc::clone(kept)),
                None => memory,
            },
            notifications,
            inside,
        }
    }
}

fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: new, and ours.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
