//! Raw Ethernet: queue pairs and work queues that send and receive frames, and the flow rules between them and the
//! interface.
//!
//! A process has one packet socket to send and one receive ring for all raw queues of a device. Whoever has the receive
//! token looks into the ring, asks the [rules](urxe_engine::flow), and copies each frame to where it belongs. The union of
//! the rules is in the kernel as a filter.
//!
//! Locks, after the receive token: the ring, the table of rules, then a queue. Whoever changes rules holds a lock of their own
//! meanwhile, and that of the table for moments: the kernel may take long over a membership.

mod datagram;
mod dispatch;
mod pacing;
mod qp;
mod rate;
mod recv_queue;
mod send_queue;
mod stage;
mod target;

use std::io;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use urxe_engine::flow::{Class, FlowTable, Rule, RuleId, filter, xdp};
use urxe_net::Port;
use urxe_net::raw::{Instruction, MacAddress, RawRx, RawRxSocket, RawTx};

use super::{lock, try_lock};
use pacing::Paced;

pub use qp::{RawQp, RawQpConfig};
pub use rate::RateLimit;
pub use recv_queue::{RecvQueue, RecvState};
pub use stage::{RawSend, Stage, Tso};
pub use target::{Destination, FlowCounters, Rss, Target};

/// Bits of what there is to look after.
const RULES: u8 = 1;
const BLOCKED: u8 = 2;

/// Raw frames of a device.
#[derive(Debug, Default)]
pub struct Raw {
    /// XDP takes frames away from the host.
    uses_xdp: bool,
    tx: Mutex<Option<Arc<RawTx>>>,
    rx: Mutex<Option<RawRx>>,
    /// The socket of the ring, held while rules are changed.
    socket: Mutex<Option<Arc<RawRxSocket>>>,
    flows: RwLock<FlowTable<Destination>>,
    /// Reasons to look at raw frames: [`RULES`], so that frames may come, and [`BLOCKED`] queue pairs.
    active: AtomicU8,
    /// Queue pairs whose frames found no room.
    blocked: Mutex<Blocked>,
    /// Queue pairs whose frames wait for their time.
    paced: Mutex<Paced>,
}

/// A rule in force.
#[derive(Debug)]
pub struct Flow {
    id: RuleId,
    address: Option<MacAddress>,
}

impl Raw {
    pub(super) fn new(uses_xdp: bool) -> Self {
        Self { uses_xdp, ..Self::default() }
    }

    /// Returns the sending side, which the first call opens.
    ///
    /// # Errors
    /// `PermissionDenied` without CAP_NET_RAW; what else the system refuses.
    pub fn tx(&self, port: &Port) -> io::Result<Arc<RawTx>> {
        let mut tx = lock(&self.tx);
        if let Some(tx) = &*tx {
            return Ok(Arc::clone(tx));
        }
        let new = Arc::new(port.open_raw_tx()?);
        // The ring comes with it, as a queue pair that waits for room is seen to by whoever looks into the ring.
        let rx = port.open_raw_rx()?;
        *lock(&self.socket) = Some(Arc::clone(rx.socket()));
        *lock(&self.rx) = Some(rx);
        *tx = Some(Arc::clone(&new));
        Ok(new)
    }

    /// Puts a rule in force. Frames that it takes are its target's when this returns.
    ///
    /// # Errors
    /// The error of the system call: with XDP, `PermissionDenied` without CAP_BPF and CAP_NET_ADMIN, and `ResourceBusy` if another
    /// process has rules on the interface.
    pub fn add_flow(&self, port: &Port, rule: Rule<Destination>) -> io::Result<Flow> {
        let socket = lock(&self.socket);
        let socket = socket.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let flow = self.begin(port, socket).and_then(|()| self.add(socket, rule, port.interface().mac()));
        if flow.is_err() {
            self.rest();
        }
        flow
    }

    /// Has what the first rule needs.
    fn begin(&self, port: &Port, socket: &RawRxSocket) -> io::Result<()> {
        if self.has_rules() {
            return Ok(());
        }
        let xdp =
            (self.uses_xdp && socket.longest_taken().is_none()).then(|| port.open_xdp(xdp::OFFSETS)).transpose()?;
        let mut rx = lock(&self.rx);
        let rx = rx.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        if let Some(xdp) = xdp {
            rx.set_xdp(xdp);
        }
        rx.watch(true)
    }

    /// If there are no rules, waits for no frame.
    fn rest(&self) {
        if !self.has_rules()
            && let Some(rx) = &mut *lock(&self.rx)
        {
            let _ = rx.watch(false);
        }
    }

    fn add(&self, socket: &RawRxSocket, rule: Rule<Destination>, own: [u8; 6]) -> io::Result<Flow> {
        let address = address(&rule, own);
        if let Some(address) = address {
            socket.join(address)?;
        }
        let id = self.change(|flows| flows.insert(rule));
        if let Err(refused) = set_filter(socket, &self.rules()) {
            self.change(|flows| flows.remove(id));
            let _ = set_filter(socket, &self.rules());
            if let Some(address) = address {
                socket.leave(address);
            }
            return Err(refused);
        }
        Ok(Flow { id, address })
    }

    /// Takes a rule out of force. It takes no frame any more when this returns; those that it has taken may still wait for a
    /// receive.
    pub fn remove_flow(&self, flow: &Flow) {
        let socket = lock(&self.socket);
        if let Some(socket) = &*socket {
            let mut flows = self.rules();
            flows.remove(flow.id);
            // First, as what XDP takes while no rule wants it is nobody's. One that passes too much does no harm.
            let _ = set_filter(socket, &flows);
        }
        self.change(|flows| flows.remove(flow.id));
        let Some(socket) = &*socket else { return };
        if let Some(address) = flow.address {
            socket.leave(address);
        }
        self.rest();
    }

    fn change<R>(&self, change: impl FnOnce(&mut FlowTable<Destination>) -> R) -> R {
        let mut flows = self.flows.write().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut flows);
        self.set_active(RULES, !flows.is_empty());
        result
    }

    /// Returns a copy of the rules.
    fn rules(&self) -> FlowTable<Destination> {
        self.flows.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether there are rules: else no frame comes.
    fn has_rules(&self) -> bool {
        self.active.load(Ordering::Acquire) & RULES != 0
    }

    fn set_active(&self, bit: u8, is_set: bool) {
        if is_set {
            self.active.fetch_or(bit, Ordering::AcqRel);
        } else {
            self.active.fetch_and(!bit, Ordering::AcqRel);
        }
    }

    /// Whether there is anything to look at: all that devices pay without rules.
    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed) != 0
    }

    /// Whether frames may come, and have room to wait in the ring.
    pub(crate) fn leaves_frames(&self) -> bool {
        self.has_rules() && try_lock(&self.rx).is_none_or(|rx| rx.as_ref().is_some_and(RawRx::has_room))
    }

    /// Gives up the receiving socket, whose open file the ring's mapping would keep.
    pub(super) fn close(&self) {
        *lock(&self.socket) = None;
        *lock(&self.rx) = None;
    }

    /// Notes that a queue pair waits for room of the sending socket, which is watched from now on.
    fn block(&self, qp: &Arc<RawQp>, tx: &Arc<RawTx>) {
        let mut blocked = lock(&self.blocked);
        if blocked.watched.is_none() {
            tx.wait_for_room(true);
            blocked.watched = Some(Arc::clone(tx));
        }
        if !blocked.qps.iter().any(|other| std::ptr::eq(other.as_ptr(), Arc::as_ptr(qp))) {
            blocked.qps.push(Arc::downgrade(qp));
        }
        self.set_active(BLOCKED, true);
    }

    /// Takes the queue pairs that wait for room, and watches the sending socket no more: whoever finds no room again says so by
    /// [`block`](Self::block). Those that were destroyed meanwhile leave no watch behind.
    fn take_blocked(&self) -> Vec<Arc<RawQp>> {
        if self.active.load(Ordering::Acquire) & BLOCKED == 0 {
            return Vec::new();
        }
        let mut blocked = lock(&self.blocked);
        self.set_active(BLOCKED, false);
        if let Some(tx) = blocked.watched.take() {
            tx.wait_for_room(false);
        }
        let qps = std::mem::take(&mut blocked.qps);
        drop(blocked);
        qps.iter().filter_map(Weak::upgrade).collect()
    }
}

/// Has the kernel keep what no rule wants, and XDP take what rules that trap want.
fn set_filter(socket: &RawRxSocket, flows: &FlowTable<Destination>) -> io::Result<()> {
    let program = filter::program(flows.rules()).map(|program| {
        let plain = |of: &filter::Instruction| (of.code, of.if_true, of.if_false, of.operand);
        program.iter().map(plain).collect::<Vec<Instruction>>()
    });
    let sees_sent = flows.rules().any(|rule| rule.class == Class::Sniffer);
    socket.set_sees_sent(sees_sent)?;
    match socket.set_filter(program.as_deref()) {
        // The kernel's limit of memory for options (`net.core.optmem_max`).
        Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => socket.set_filter(None),
        result => result,
    }?;
    let Some(longest) = socket.longest_taken() else { return Ok(()) };
    match xdp::program(flows.rules(), longest) {
        None => socket.set_program(None),
        Some(program) => socket.set_program(Some(&|maps| {
            program.encode(|map| match map {
                xdp::Map::Offsets => maps.offsets,
                xdp::Map::Sockets => maps.sockets,
            })
        })),
    }
}

/// Queue pairs whose frames found no room. List and watch change together, under one lock.
#[derive(Debug, Default)]
struct Blocked {
    qps: Vec<Weak<RawQp>>,
    /// The socket that is watched for room.
    watched: Option<Arc<RawTx>>,
}

/// Returns what the interface must accept besides its own address for a rule.
fn address(rule: &Rule<Destination>, own: [u8; 6]) -> Option<MacAddress> {
    const GROUP: [u8; 6] = [1, 0, 0, 0, 0, 0];
    match rule.class {
        Class::MulticastDefault => Some(MacAddress::AllMulticast),
        Class::AllDefault | Class::Sniffer => Some(MacAddress::Any),
        Class::Normal => match rule.wanted.destination() {
            (mac, [0xff, 0xff, 0xff, 0xff, 0xff, 0xff]) if mac == own || mac == [0xff; 6] => None,
            (mac, [0xff, 0xff, 0xff, 0xff, 0xff, 0xff]) => Some(MacAddress::One(mac)),
            (GROUP, GROUP) => Some(MacAddress::AllMulticast),
            _ => Some(MacAddress::Any),
        },
    }
}
