//! Context of the packet being handled: one thread reports everything about a packet, before it takes the next.

use std::cell::RefCell;

use urxe_engine::fault::ResponderFault;
use urxe_engine::{BindError, SendOp, WcStatus};
use urxe_runtime::per_thread::PerThread;
use urxe_wire::Qpn;

use super::arrived::Arrived;
use super::capture::Received;
use super::fmt::Refused;

/// Packet that this thread handles, and reports about it.
#[derive(Debug, Default)]
pub(super) struct PacketContext {
    /// A packet is being handled that is captured, with comments.
    pub(super) receiving: bool,
    /// The packet, for the capture.
    pub(super) packet: Option<Received>,
    /// Headers of the packet, for explanations.
    pub(super) arrived: Option<Arrived>,
    /// Comments about the packet.
    pub(super) comments: Vec<String>,
    /// The access that was refused last.
    pub(super) refused: Option<Refused>,
    /// The bind that failed last.
    pub(super) unbound: Option<BindError>,
    /// The responder's fault, and how it was described.
    pub(super) fault: Option<(ResponderFault, String)>,
    /// Queue pair whose next completion is an error only because somebody asked for it.
    pub(super) asked_for: Option<Qpn>,
    /// The request that is about to complete with an error.
    pub(super) failed: Option<(SendOp, u32, WcStatus)>,
}

impl PacketContext {
    /// Begins a packet that no capture wants: what was reported of the one before is forgotten.
    pub(super) fn begin(&mut self, arrived: Option<Arrived>) {
        if !self.is_empty() {
            *self = Self::default();
        }
        self.arrived = arrived;
    }

    /// Whether nothing but headers is in here.
    fn is_empty(&self) -> bool {
        let Self { receiving, packet, arrived: _, comments, refused, unbound, fault, asked_for, failed } = self;
        !receiving
            && packet.is_none()
            && comments.is_empty()
            && refused.is_none()
            && unbound.is_none()
            && fault.is_none()
            && asked_for.is_none()
            && failed.is_none()
    }
}

static CONTEXT: PerThread<RefCell<PacketContext>> = PerThread::new();
/// Contexts put aside, the last one on top. As many as turns are nested: a few.
static SUSPENDED: PerThread<RefCell<Vec<PacketContext>>> = PerThread::new();

/// Puts this thread's context aside, and begins an empty one.
pub(super) fn suspend() {
    let context = with(std::mem::take);
    SUSPENDED.with(|suspended| suspended.borrow_mut().push(context));
}

/// Takes up the context that was put aside last.
pub(super) fn resume() {
    let before = SUSPENDED.with(|suspended| suspended.borrow_mut().pop()).flatten().unwrap_or_default();
    with(|context| *context = before);
}

/// Lets `act` at this thread's context.
pub(super) fn with<T: Default>(act: impl FnOnce(&mut PacketContext) -> T) -> T {
    CONTEXT.with(|context| act(&mut context.borrow_mut())).unwrap_or_default()
}
