//! A UD queue pair of an InfiniBand port, for datagrams of IPoIB.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use rustix::event::{EventfdFlags, eventfd};
use urxe_engine::attr::{AttrMask, QpAttr};
use urxe_engine::congestion::CongestionSettings;
use urxe_engine::{
    Access, AckTimer, CompletionQueue, Data, Key, Pd, QpCap, QpConfig, QpState, QpType, RecvWr, Region, RegionKind,
    SendWr, Sge, SgeList, UdRecipient, WcStatus,
};
use urxe_net::{Destination, Interface, Route};
use urxe_runtime::async_events::AsyncEvents;
use urxe_runtime::cq::Cq;
use urxe_runtime::device::{Device, OpenOptions};
use urxe_runtime::event::{EventSink, EventType};
use urxe_runtime::qp::Qp;
use urxe_runtime::subnet::{AdministrationClient, Answer, PortAgent};
use urxe_runtime::{fork, progress};
use urxe_wire::mad::MAD_LEN;
use urxe_wire::{Gid, Lid, Mtu, QKey, Qpn, grh};

use super::frame::HardwareAddress;
use super::memberships;

const PD: Pd = Pd(1);

/// Handle of the queue pair and of its completion queue, which nobody else sees.
const HANDLE: u64 = 1;

/// Requests in each queue.
const DEPTH: u32 = 256;

/// Peers and groups with a route; more begin anew.
const MOST_ROUTES: usize = 2048;

/// Completions that are taken at once, and how many times in a turn: then something else gets its turn.
const BATCH: usize = 64;
const BATCHES: usize = 4;

/// Sender of a datagram, as its packet says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sender {
    pub(super) qpn: Qpn,
    /// Source GID of the GRH, if there is one.
    pub(super) gid: Option<Gid>,
    pub(super) lid: Lid,
}

impl Sender {
    /// Whether the sender has this hardware address. `lid_of` gives the LID of a GID, with which a sender without a GRH is known.
    pub(super) fn has(&self, address: HardwareAddress, lid_of: impl FnOnce(&Gid) -> Lid) -> bool {
        let is_gid = match self.gid {
            Some(gid) => gid == address.gid,
            None => self.lid != Lid::NONE && self.lid == lid_of(&address.gid),
        };
        is_gid && self.qpn == address.qpn
    }
}

/// Descriptor that is readable when there are completions, answers of subnet administration, or another administration.
#[derive(Debug)]
struct Wake {
    fd: OwnedFd,
    answers: Mutex<Vec<Answer>>,
    is_renewed: AtomicBool,
}

impl Wake {
    fn wake(&self) {
        // Full is as good: it is readable.
        let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
    }
}

impl AdministrationClient for Wake {
    fn answered(&self, answer: Answer) {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).push(answer);
        self.wake();
    }

    fn memberships_ended(&self) {
        self.is_renewed.store(true, Ordering::Release);
        self.wake();
    }
}

impl EventSink for Wake {
    fn completion(&self, _cq: u64) {
        self.wake();
    }

    fn async_event(&self, _element: u64, event_type: EventType) {
        use EventType::{ClientReregister, LidChange, PortActive, SmChange};
        if matches!(event_type, ClientReregister | SmChange | LidChange | PortActive) {
            self.is_renewed.store(true, Ordering::Release);
            self.wake();
        }
    }

    fn discard(&self, _element: u64) -> usize {
        0
    }

    fn refill(&self) {}

    fn end(&self) {}
}

/// The queue pair and what it needs.
pub(super) struct Link {
    device: Arc<Device>,
    thread: Option<JoinHandle<()>>,
    wake: Arc<Wake>,
    cq: Arc<Cq>,
    qp: Arc<Qp>,
    key: Key,
    /// A slot for each receive request.
    memory: Box<[AtomicU8]>,
    slot: usize,
    mtu: Mtu,
    agent: Arc<PortAgent>,
    /// Q_Key of the broadcast group: there is none before the port has joined.
    q_key: Option<QKey>,
    routes: HashMap<(Gid, Qpn), Arc<Route>>,
    own: HardwareAddress,
}

impl Link {
    /// Opens the port on an interface, and a queue pair.
    pub(super) fn open(name: &str, interface: Interface) -> Result<Self> {
        let (mtu, gid) = (
            Mtu::within(interface.path_mtu().into()),
            interface.gid(0).with_context(|| format!("the port has no GID: give {name} an IP address"))?,
        );
        let options = OpenOptions { shares_memory: true, key_seed: seed()?, ..OpenOptions::default() };
        let device = Arc::new(Device::open(name, interface, options)?);
        fork::remember(&device);
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let wake = Arc::new(Wake { fd, answers: Mutex::default(), is_renewed: AtomicBool::new(false) });
        // The owner of the address answers for the port of the host.
        let agent = PortAgent::start(&device, wake.clone());
        let thread = Some(progress::start(Arc::clone(&device))?);
        let sink: Arc<dyn EventSink> = wake.clone();
        device.tell_changes(&sink);
        let queue = CompletionQueue::with_quirks(2 * DEPTH as usize, Default::default());
        let cq = Arc::new(Cq::new(queue, Some(Arc::clone(&sink)), Arc::clone(&sink)));
        // Without a handle nobody is told.
        cq.set_handle(HANDLE);
        let slot = (grh::LEN + mtu.bytes()).next_multiple_of(64);
        let memory: Box<[AtomicU8]> = (0..slot * DEPTH as usize).map(|_| AtomicU8::new(0)).collect();
        let (host, length) = (memory.as_ptr() as u64, memory.len() as u64);
        let kind = RegionKind::Memory;
        let make = |key| Region { key, pd: PD, access: Access::LOCAL_WRITE, iova: 0, length, host, kind };
        let key = device.regions().insert(make).ok().context("no memory key")?;
        device.net().report_headers();
        let config = QpConfig {
            congestion: CongestionSettings::NONE,
            ack_timer: AckTimer::Specified,
            selective: None,
            qpn: device.net().alloc_qpn()?,
            qp_type: QpType::Ud,
            pd: PD,
            cap: QpCap {
                max_send_wr: DEPTH,
                max_recv_wr: DEPTH,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: u32::try_from(mtu.bytes()).unwrap_or(0),
            },
            sq_sig_all: false,
            send_cq: Some(Arc::clone(&cq)),
            recv_cq: Some(Arc::clone(&cq)),
            srq: None,
            xrcd: None,
            window: device.window(),
            port_mtu: mtu,
            quirks: Default::default(),
            counters: Vec::new(),
        };
        let own = HardwareAddress { qpn: config.qpn, gid };
        let qp = Qp::new(&device, config, AsyncEvents::new(sink, HANDLE));
        let routes = HashMap::new();
        let new = Self { device, thread, wake, cq, qp, key, memory, slot, mtu, agent, q_key: None, routes, own };
        new.start()?;
        Ok(new)
    }

    fn start(&self) -> Result<()> {
        let init = [AttrMask::PKEY_INDEX, AttrMask::PORT, AttrMask::QKEY];
        for (to, given) in [(QpState::Init, &init[..]), (QpState::Rtr, &[]), (QpState::Rts, &[AttrMask::SQ_PSN])] {
            self.modify(to, given, memberships::Q_KEY)?;
        }
        (0..DEPTH).for_each(|slot| self.post_recv(slot));
        Ok(())
    }

    fn modify(&self, to: QpState, given: &[AttrMask], q_key: QKey) -> Result<()> {
        let attr = QpAttr { q_key, ..QpAttr::default() };
        let mask = given.iter().fold(AttrMask::STATE, |mask, bit| mask.with(*bit));
        let modified =
            self.device.with_work(|work| self.qp.modify(work, |engine, io| engine.modify(io, to, mask, &attr, None)));
        modified.map_err(|error| anyhow::anyhow!("a queue pair to {to:?}: {error}"))
    }

    /// Sets the Q_Key that datagrams have from now on.
    pub(super) fn set_q_key(&mut self, q_key: QKey) -> Result<()> {
        if self.q_key.replace(q_key) != Some(q_key) {
            self.modify(QpState::Rts, &[AttrMask::QKEY], q_key)?;
        }
        Ok(())
    }

    /// Sends a request to subnet administration.
    pub(super) fn ask(&self, query: u32, request: &[u8; MAD_LEN]) {
        self.agent.ask(query, request);
    }

    /// Answers of subnet administration.
    pub(super) fn take_answers(&self) -> Vec<Answer> {
        std::mem::take(&mut *self.wake.answers.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether another subnet manager has come, or the one that is there wants to be told all memberships anew.
    pub(super) fn is_renewed(&self) -> bool {
        self.wake.is_renewed.swap(false, Ordering::Acquire)
    }

    fn post_recv(&self, slot: u32) {
        let (addr, length) = (u64::from(slot) * self.slot as u64, u32::try_from(self.slot).unwrap_or(0));
        let wr = RecvWr { wr_id: slot.into(), buffers: SgeList::new(&[Sge { addr, length, l_key: self.key.0 }]) };
        // There is room: the request in this slot has completed.
        let _ = self.device.with_work(|work| self.qp.post_recv(work, |engine, io| engine.post_recv(io, wr)));
    }

    /// The hardware address.
    pub(super) const fn own(&self) -> HardwareAddress {
        self.own
    }

    /// Bytes of a datagram.
    pub(super) const fn mtu(&self) -> usize {
        self.mtu.bytes()
    }

    /// Sends a datagram to a queue pair or a group. What cannot be sent is lost. `shows_gid`: the recipient is to see the own GID.
    pub(super) fn send(&mut self, to: HardwareAddress, datagram: Vec<u8>, shows_gid: bool) {
        let (Some(q_key), Some(route)) = (self.q_key, self.route(to)) else { return };
        let is_group = to.qpn == Qpn::MULTICAST;
        let recipient = UdRecipient { route, qpn: to.qpn, q_key, lid_routed: !(is_group || shows_gid) };
        let wr = SendWr { data: Data::Inline(datagram.into()), ..SendWr::default() };
        // A full queue loses it, as a full transmit ring does.
        let _ = self
            .device
            .with_work(|work| self.qp.post_send(work, |engine, io| engine.post_send(io, wr, Some(recipient))));
    }

    fn route(&mut self, to: HardwareAddress) -> Option<Arc<Route>> {
        if let Some(route) = self.routes.get(&(to.gid, to.qpn)) {
            return Some(Arc::clone(route));
        }
        let way = Destination {
            local: self.own.gid,
            remote: to.gid,
            dest_qpn: to.qpn,
            flow_label: 0,
            tclass: 0,
            hop_limit: 0,
        };
        let route = self.device.net().route(&way).ok()?;
        if self.routes.len() >= MOST_ROUTES {
            self.routes.clear();
        }
        self.routes.insert((to.gid, to.qpn), Arc::clone(&route));
        Some(route)
    }

    /// Whether the sender of a datagram has this hardware address.
    pub(super) fn is_of(&self, sender: Sender, address: HardwareAddress) -> bool {
        let net = self.device.net();
        let interface = net.interface();
        sender.has(address, |gid| net.lids().lid_of(&interface, interface.network_gid(gid).ip()))
    }

    /// Takes datagrams that have come: each without the room for its GRH. Own ones to groups are left out. Returns whether there
    /// may be more; if not, the descriptor becomes readable when there are.
    pub(super) fn receive(&mut self, mut each: impl FnMut(&mut Self, Sender, &[u8])) -> bool {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.wake.fd, &mut count);
        self.cq.event_read();
        self.cq.arm(false);
        let mut completions = Vec::with_capacity(BATCH);
        for _ in 0..BATCHES {
            if self.cq.poll(BATCH, |cqe| completions.push(*cqe)) == 0 {
                return false;
            }
            for cqe in completions.drain(..) {
                if cqe.status != WcStatus::Success {
                    continue;
                }
                let slot = u32::try_from(cqe.wr_id).unwrap_or(0);
                let bytes = self.bytes(slot, cqe.byte_len as usize);
                self.post_recv(slot);
                let Some((header, datagram)) = bytes.split_at_checked(grh::LEN) else { continue };
                let own = self.own;
                let gid = header.get(8..24).and_then(|gid| Some(Gid::new(gid.try_into().ok()?)));
                let sender = Sender { qpn: cqe.src_qp, gid: gid.filter(|_| cqe.grh.is_some()), lid: cqe.slid };
                if (sender.gid, sender.qpn) != (Some(own.gid), own.qpn) {
                    each(self, sender, datagram);
                }
            }
        }
        true
    }

    /// Copies the start of a slot.
    fn bytes(&self, slot: u32, length: usize) -> Vec<u8> {
        let start = slot as usize * self.slot;
        let bytes = self.memory.get(start..start + length.min(self.slot)).unwrap_or_default();
        bytes.iter().map(|byte| byte.load(Ordering::Relaxed)).collect()
    }

    /// Receives what is sent to a group.
    pub(super) fn attach(&self, mgid: Gid) -> Result<()> {
        let joined = self.device.groups().attach(self.device.net(), mgid, self.own.qpn);
        joined.map_err(|error| anyhow::anyhow!("cannot receive from {mgid}: {error}"))
    }

    /// Receives no more what is sent to a group.
    pub(super) fn detach(&self, mgid: Gid) {
        self.device.groups().detach(mgid, self.own.qpn);
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.fd.as_fd()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.qp.close(HANDLE);
        let _ = self.device.regions().remove(self.key);
        self.device.request_stop();
        let _ = self.thread.take().map(JoinHandle::join);
        fork::close(&self.device);
    }
}

/// Eight bytes that a peer cannot guess.
fn seed() -> Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn senders_have_one_hardware_address() {
        let gid = |last| Gid::new([last; 16]);
        let lid_of = |gid: &Gid| Lid(u16::from(gid.octets()[0]));
        let address = HardwareAddress { qpn: Qpn::new(7), gid: gid(1) };
        let with_grh = Sender { qpn: Qpn::new(7), gid: Some(gid(1)), lid: Lid(1) };
        let without = Sender { gid: None, ..with_grh };
        for sender in [with_grh, without, Sender { lid: Lid::NONE, ..with_grh }] {
            assert!(sender.has(address, lid_of), "{sender:?}");
            assert!(!Sender { qpn: Qpn::new(8), ..sender }.has(address, lid_of), "another queue pair");
        }
        assert!(!Sender { gid: Some(gid(2)), ..with_grh }.has(address, lid_of));
        for lid in [2, 0].map(Lid) {
            assert!(!Sender { lid, ..without }.has(address, lid_of), "{lid}");
        }
        assert!(!Sender { lid: Lid::NONE, ..without }.has(address, |_| Lid::NONE), "no LID is nobody's");
    }
}
