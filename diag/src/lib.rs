//! Diagnostics of a device, as one layer around it: captures, explanations, strict mode, fault injection.
//!
//! A device whose environment asks for none of it ([`settings`]) has no layer. Otherwise its [`Observer`] is the
//! [`Interceptor`](urxe_runtime::interceptor::Interceptor) of its [`Device`], and is told of packets, the engine's events and
//! completions by the thread at work.
//!
//! | module | holds |
//! |---|---|
//! | `capture` | packets with comments, as pcapng |
//! | [`explain`] | a line for each failed verb, completion and event |
//! | `strict` | what works here and may fail on a card |
//! | `fault_injector`, [`verbs`] | packets and verbs that fail as a script says |
//! | [`quirks`] | rare but legal behaviour, by seed |
//! | `packets`, `events` | packets that come and go, and what the engine reports of them |
//! | `packet_context`, `arrived`, [`fmt`] | what belongs to one packet, and its words |
//! | [`messages`] | text on standard error |
//! | `peers`, `notes` | what is known of the other ends, and what those on this host say |

mod armed;
mod arrived;
mod capture;
mod events;
pub mod explain;
mod fault_injector;
pub mod fmt;
mod intercept;
pub mod messages;
mod notes;
mod packet_context;
mod packets;
mod peers;
pub mod quirks;
pub mod settings;
mod strict;
pub mod verbs;

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use urxe_engine::{AccessDenied, QpState, QpType, Region};
use urxe_net::{Interface, Port};
use urxe_options::Format;
use urxe_wire::Qpn;

use fault_injector::FaultInjector;
use fmt::Refused;
pub use messages::complain;
use notes::NoteBox;
use packets::Announced;
pub use peers::Peer;
use peers::{Peers, ToldAll};
use strict::Strict;
pub use strict::{RecvQueue, Sender};
use urxe_runtime::device::Device;
use urxe_runtime::lock;
use urxe_runtime::memory::regions::Regions;

pub use urxe_runtime::interceptor::UNOBSERVED;

/// Returns the observer of a device, if the environment asks for one.
#[inline]
pub fn of(device: &Device) -> Option<&Observer> {
    let interceptor: &dyn Any = &**device.interceptor()?;
    interceptor.downcast_ref()
}

/// Sees one device of this process.
#[derive(Debug)]
pub struct Observer {
    device: String,
    interface: Interface,
    regions: Arc<Regions>,
    capture: Option<capture::Interface>,
    explain: Option<Format>,
    faults: Option<FaultInjector>,
    strict: Option<Strict>,
    peers: Mutex<Peers>,
    /// Queue pairs whose packets tell `peers` nothing new.
    told_all: ToldAll,
    /// A queue pair has had a note, or packets spoilt, since the device was opened.
    has_blame: AtomicBool,
    /// Comments for packets that will be sent.
    announced: Mutex<Vec<Announced>>,
    notes: NoteBox,
    /// When notes about datagrams are looked for next, in nanoseconds; never without UD queue pairs.
    look_for_notes: AtomicU64,
}

impl Observer {
    /// The observer of the device `name`, if there is anything to be seen.
    pub fn new(name: &str, interface: &Interface, regions: &Arc<Regions>) -> Option<Arc<Self>> {
        let settings = settings::get().as_ref().ok()?;
        let capture = settings.capture.as_ref().and_then(|capture| {
            let opened = capture::Interface::open(capture, name, interface.name());
            opened.map_err(|error| complain(&format_args!("no capture: {}: {error}", capture.path.display()))).ok()
        });
        let faults = settings.faults.clone().map(FaultInjector::new);
        let strict = settings.strict.map(|strictness| Strict::new(strictness.with_sites));
        if capture.is_none() && settings.explain.is_none() && faults.is_none() && strict.is_none() {
            return None;
        }
        Some(Arc::new(Self {
            device: name.to_owned(),
            interface: interface.clone(),
            regions: Arc::clone(regions),
            capture,
            explain: settings.explain,
            faults,
            strict,
            peers: Mutex::default(),
            told_all: ToldAll::default(),
            has_blame: AtomicBool::new(false),
            announced: Mutex::default(),
            notes: NoteBox::default(),
            look_for_notes: AtomicU64::new(u64::MAX),
        }))
    }

    fn device(&self) -> &str {
        &self.device
    }

    /// The application has connected or changed a queue pair.
    pub fn connected(&self, port: &Port, qpn: Qpn, peer: Peer) {
        if self.explain.is_some() && peer.state != QpState::Reset {
            self.notes.listen(port, qpn);
            if peer.qp_type == QpType::Ud {
                self.look_for_notes.store(0, Ordering::Relaxed);
            }
        }
        if peer.state == QpState::Reset {
            self.forget_sent(qpn);
            self.forget_recvs(RecvQueue::Own(qpn));
        }
        let mut peers = lock(&self.peers);
        peers.set(qpn, peer);
        self.told_all.remove(qpn);
    }

    /// A queue pair is no more.
    pub(crate) fn forgotten(&self, qpn: Qpn) {
        let mut peers = lock(&self.peers);
        peers.remove(qpn);
        self.told_all.remove(qpn);
        drop(peers);
        self.unmade(qpn);
        self.forget_sent(qpn);
        self.forget_recvs(RecvQueue::Own(qpn));
        self.forget_qp(qpn);
    }
}

/// An access was refused; the event that comes of it follows in the same call. For [`Memory`](urxe_engine::Memory).
pub(crate) fn refused(denied: &AccessDenied, region: Option<&Region>) {
    if is_on() {
        let refused = Refused { denied: *denied, region: region.cloned() };
        packet_context::with(|context| context.refused = Some(refused));
    }
}

/// A memory window could not be bound.
pub(crate) fn unbound(error: urxe_engine::BindError) {
    if is_on() {
        packet_context::with(|context| context.unbound = Some(error));
    }
}

/// Whether captures, explanations or strict mode are on in this process.
fn is_on() -> bool {
    settings::get()
        .as_ref()
        .is_ok_and(|settings| settings.capture.is_some() || settings.explain.is_some() || settings.strict.is_some())
}
