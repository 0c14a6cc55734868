//! Context of the packet being handled: one thread reports everything about a packet, before it takes the next.

use std::cell::RefCell;

use urxe_engine::fault::ResponderFault;
use urxe_engine::{BindError, SendOp, WcStatus};
use urxe_wire::Qpn;

use super::arrived::Arrived;
use super::capture::Received;
use super::fmt::Refused;

/// Packet that this thread handles, and reports about it.
#[derive(Debug, Default)]
pub(super) struct PacketContext {
    /// A packet is being handled.
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

thread_local! {
    static CONTEXT: RefCell<PacketContext> = RefCell::new(PacketContext::default());
}

/// Lets `act` at this thread's context; not while the thread ends.
pub(super) fn with<T: Default>(act: impl FnOnce(&mut PacketContext) -> T) -> T {
    CONTEXT.try_with(|context| act(&mut context.borrow_mut())).unwrap_or_default()
}
