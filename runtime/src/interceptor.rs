//! One optional layer around a device that sees, and may change, its packets and events: captures, explanations, faults on
//! demand.
//!
//! A device without an [`Interceptor`] pays one untaken branch at each place that asks.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use urxe_engine::{AccessDenied, AsyncEvent, BindError, Cqe, Event, Instant, Region};
use urxe_net::{Datagram, Headers, Port, TxBatch};
use urxe_wire::{Qpn, icrc};

use crate::event::EventType;

/// A build without interceptors: the overhead of asking for one is the difference (`make cost`).
pub const UNOBSERVED: bool = cfg!(urxe_unobserved);

/// Returns the interceptor, unless this build has none.
#[inline]
pub(crate) const fn active(interceptor: &Option<Arc<dyn Interceptor>>) -> Option<&Arc<dyn Interceptor>> {
    if UNOBSERVED { None } else { interceptor.as_ref() }
}

/// Decision about a packet that has arrived.
#[derive(Debug)]
pub enum Verdict {
    /// The packet is processed.
    Accept,
    /// The packet is dropped, or held back by the interceptor.
    Drop,
    /// The packet counts as one with a wrong ICRC.
    Corrupt,
    /// Processes these bytes, ICRC included, instead of the packet.
    Replace(Vec<u8>),
}

/// A received packet that an interceptor has held back.
#[derive(Debug)]
pub struct HeldPacket {
    headers: Headers,
    expected_id: u16,
    flow: Option<icrc::Flow>,
    payload: Vec<u8>,
    is_refused: bool,
}

impl HeldPacket {
    /// Copies a packet.
    #[must_use]
    pub fn of(datagram: &Datagram<'_>) -> Self {
        Self {
            headers: *datagram.headers,
            expected_id: datagram.expected_id,
            flow: datagram.flow.cloned(),
            payload: datagram.payload.to_vec(),
            is_refused: datagram.is_refused,
        }
    }

    /// Returns the packet as it would have arrived.
    #[must_use]
    pub fn datagram(&self) -> Datagram<'_> {
        Datagram {
            headers: &self.headers,
            expected_id: self.expected_id,
            flow: self.flow.as_ref(),
            payload: &self.payload,
            is_refused: self.is_refused,
        }
    }
}

/// Event or removal that an interceptor lets happen to the device as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceEvent {
    /// An asynchronous event of the port or the device.
    Event(EventType),
    /// The device is removed, as by unloading a driver.
    Removal,
}

/// Observer of a device, which may change what it sees. Called by the thread at work, often with a queue pair's lock held:
/// an implementation takes no lock of the device and never blocks.
pub trait Interceptor: Any + Send + Sync + Debug {
    /// Whether packets may be changed, dropped or written down: all have ICRCs then, also those that go through shared
    /// memory, and a packet that was sent may not arrive. Does not change. Otherwise the interceptor is shown packets that
    /// have arrived and decides nothing: `verdict`, `arrivals`, `send`, `send_due`, `settle`, `take_broken`, `next_due` and
    /// `device_events` are not called.
    fn touches_packets(&self) -> bool;

    /// Whether the interceptor watches or changes requests that succeed: then all of them go by packets, and none straight to a
    /// peer's memory.
    fn needs_packets(&self) -> bool;

    /// An application has opened the device, for the first time or once more.
    fn opened(&self);

    /// A queue pair was created.
    fn created(&self, qpn: Qpn);

    /// A queue pair was destroyed.
    fn destroyed(&self, qpn: Qpn);

    /// A packet has arrived. An interceptor that does not [touch packets](Self::touches_packets) may be told of the first packet
    /// only of a run of a connected service. Until the next call, or [`settle`](Self::settle), what this thread reports belongs
    /// to this packet or run. A packet for an XRC SRQ of another process is told of twice: by the thread that receives it, and by
    /// the one that handles it. `known` looks whether its destination queue pair exists.
    fn received(&self, datagram: &Datagram<'_>, known: &dyn Fn() -> bool);

    /// Decides what becomes of the packet that was [`received`](Self::received) last.
    fn verdict(&self, datagram: &Datagram<'_>) -> Verdict;

    /// The packet that was [`received`](Self::received) last is one that had been held back.
    fn is_late(&self);

    /// Returns the packets that were held back and arrive now.
    fn arrivals(&self, now: Instant) -> Vec<HeldPacket>;

    /// Ends the context of the packet received last: later reports of this thread belong to no packet.
    fn settle(&self);

    /// Puts the context of the packet received last aside until [`resume`](Self::resume): meanwhile, this thread handles other
    /// packets, such as those between queue pairs of the process.
    fn suspend(&self);

    /// Ends the context of the packets received since [`suspend`](Self::suspend), and takes up the one before.
    fn resume(&self);

    /// Commits or drops the packet that is pending in `batch`, which queue pair `qpn` sends.
    fn send(&self, qpn: Qpn, batch: &mut TxBatch, port: &Port);

    /// Sends packets that were held back and are due.
    fn send_due(&self, now: Instant, batch: &mut TxBatch, port: &Port);

    /// A burst of packets is complete.
    fn flush(&self);

    /// The engine reports an event of a queue pair.
    fn event(&self, qpn: Qpn, event: &Event);

    /// An access to registered memory was refused; the event that follows from it comes in the same call.
    fn refused(&self, denied: &AccessDenied, region: Option<&Region>);

    /// A memory window could not be bound.
    fn bind_failed(&self, error: BindError);

    /// A completion is about to be added to its queue. True: its queue pair goes to the error state in the same turn, before
    /// anybody can ask for that state.
    fn completion(&self, cqe: &mut Cqe) -> bool;

    /// A completion queue of this capacity has lost a completion.
    fn overrun(&self, cqe: &Cqe, capacity: usize);

    /// An asynchronous event of a queue pair is about to be raised.
    fn async_event(&self, qpn: Qpn, event: AsyncEvent);

    /// Takes the queue pairs that are to go to the error state.
    fn take_broken(&self) -> Vec<Qpn>;

    /// Returns when there is something to do next.
    fn next_due(&self) -> Option<Instant>;

    /// Takes what happens to the device by `now`.
    fn device_events(&self, now: Instant) -> Vec<DeviceEvent>;

    /// The device is removed: packets are dropped from now on.
    fn removed(&self);
}
