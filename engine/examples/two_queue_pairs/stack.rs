//! The smallest surroundings of a queue pair: one buffer of memory, completions in a list, packets in a list.
//!
//! Needs no `std`: `conformance/no-std` compiles this file for a program without it.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::net::{IpAddr, SocketAddr};
use core::ops::Deref;

use urxe_engine::attr::{AttrMask, ModifyError, QpAttr};
use urxe_engine::{
    Access, AsyncEvent, Bind, BindError, Consumer, Cqe, Data, Fault, Host, Instant, Io, Key, Memory, Network, Pd,
    PostError, Progress, QpCap, QpConfig, QpState, QpType, QueuePair, RecvWr, Refusal, Region, RegionKind, RegionTable,
    Remote, SendFlags, SendOp, SendWr, Sge, SgeList, XrcDomain,
};
use urxe_wire::{Mtu, Packet, Psn, Qpn, RKey, ROCE_PORT, RnrTimer, grh, icrc};

/// The protection domain of everything here.
const PD: Pd = Pd(1);
/// The UDP source port of both ends.
const SOURCE_PORT: u16 = 0xC000;

/// A registered buffer. The engine names its bytes by offset, as if it lay at address 0.
#[derive(Debug)]
pub(crate) struct Buffer {
    bytes: RefCell<Vec<u8>>,
    regions: RefCell<RegionTable>,
    key: Cell<Key>,
}

impl Buffer {
    fn new(length: usize, seed: u64) -> Self {
        let mut regions = RegionTable::new(1, seed);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let region =
            |key| Region { key, pd: PD, access, iova: 0, length: length as u64, host: 0, kind: RegionKind::Memory };
        let key = regions.insert(region).expect("an empty table has room for one");
        Self { bytes: RefCell::new(vec![0; length]), regions: RefCell::new(regions), key: Cell::new(key) }
    }

    /// Lets `touch` at `length` bytes from `at` on.
    fn bytes<T>(&self, at: u64, length: usize, touch: impl FnOnce(&mut [u8]) -> T) -> Result<T, Fault> {
        let at = usize::try_from(at).map_err(|_| Fault)?;
        let end = at.checked_add(length).ok_or(Fault)?;
        self.bytes.borrow_mut().get_mut(at..end).map(touch).ok_or(Fault)
    }

    fn update(&self, at: u64, new: impl FnOnce(u64) -> u64) -> Result<u64, Fault> {
        self.bytes(at, 8, |word| {
            let old = word.try_into().map_or(0, u64::from_ne_bytes);
            word.copy_from_slice(&new(old).to_ne_bytes());
            old
        })
    }
}

impl Memory for Buffer {
    fn region(&self, key: Key) -> Option<impl Deref<Target = Region>> {
        self.regions.borrow().get(key).map(Arc::clone)
    }

    fn read(&self, from: u64, to: &mut [u8]) -> Result<(), Fault> {
        self.bytes(from, to.len(), |bytes| to.copy_from_slice(bytes))
    }

    fn write(&self, to: u64, from: &[u8]) -> Result<(), Fault> {
        self.bytes(to, from.len(), |bytes| bytes.copy_from_slice(from))
    }

    fn compare_swap(&self, at: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
        self.update(at, |old| if old == compare { swap } else { old })
    }

    fn fetch_add(&self, at: u64, add: u64) -> Result<u64, Fault> {
        self.update(at, |old| old.wrapping_add(add))
    }

    fn flush(&self, _at: u64, _length: u64, _persistent: bool) -> Result<(), Fault> {
        Ok(())
    }

    fn bind(&self, pd: Pd, qpn: Qpn, bind: &Bind) -> Result<(), BindError> {
        self.regions.borrow_mut().bind(pd, qpn, bind).map(drop)
    }

    fn undo_bind(&self, qpn: Qpn, bind: &Bind) {
        self.regions.borrow_mut().undo_bind(qpn, bind);
    }

    fn invalidate(&self, pd: Pd, qpn: Qpn, key: Key) -> Result<(), Refusal> {
        self.regions.borrow_mut().invalidate(pd, qpn, key).map(drop)
    }
}

/// A UDP datagram: addresses, and the bytes from the BTH to the ICRC.
#[derive(Debug)]
pub(crate) struct Datagram {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) bytes: Vec<u8>,
}

/// Packets on their way out.
#[derive(Debug)]
pub(crate) struct Outbox {
    from: SocketAddr,
    open: Option<Datagram>,
    sent: Vec<Datagram>,
}

impl Network for Outbox {
    type Route = SocketAddr;
    type Origin = Origin;

    fn is_from(route: &SocketAddr, origin: &Origin) -> bool {
        route.ip() == origin.from
    }

    fn network_header(origin: &Origin, len: usize) -> [u8; 40] {
        grh::network_header(origin.from, origin.to, grh::Fields { tclass: 0, hop_limit: 64 }, len)
    }

    fn packet(&mut self, route: &SocketAddr, len: usize) -> Option<&mut [u8]> {
        Some(&mut self.open.insert(Datagram { from: self.from, to: *route, bytes: vec![0; len] }).bytes)
    }

    fn commit(&mut self) {
        if let Some(mut datagram) = self.open.take() {
            let flow = icrc::Flow::new(datagram.from, datagram.to);
            let icrc = icrc::compute(&flow, 0, &datagram.bytes);
            datagram.bytes.extend_from_slice(&icrc.to_le_bytes());
            self.sent.push(datagram);
        }
    }
}

/// Addresses of a packet that arrived.
#[derive(Debug)]
pub(crate) struct Origin {
    from: IpAddr,
    to: IpAddr,
}

/// Completions in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct Completions(pub(crate) Vec<Cqe>);

impl Consumer for Completions {
    type Cq = ();
    type Srq = ();
    type Counter = ();

    fn complete(&mut self, _cq: &(), cqe: Cqe) {
        self.0.push(cqe);
    }

    fn count(&mut self, _counter: &(), _succeeded: bool) {}

    fn take_recv(&mut self, _srq: &()) -> Option<RecvWr> {
        None
    }

    fn srq_pd(&self, _srq: &()) -> Pd {
        PD
    }

    fn xrc_srq(&self, _domain: XrcDomain, _number: Qpn) -> Option<()> {
        None
    }

    fn complete_xrc(&mut self, _srq: &(), cqe: Cqe) {
        self.0.push(cqe);
    }

    fn async_event(&mut self, _qpn: Qpn, _event: AsyncEvent) {}
}

/// The types above, under one name.
#[derive(Debug)]
pub(crate) enum Surroundings {}

impl Host for Surroundings {
    type Memory = Buffer;
    type Network = Outbox;
    type Consumer = Completions;
    type Clock = Instant;
    type Quirks = ();
}

/// A queue pair with its surroundings.
pub(crate) struct Stack {
    qp: QueuePair<Surroundings>,
    memory: Buffer,
    network: Outbox,
    pub(crate) completions: Completions,
    pub(crate) now: Instant,
}

impl Stack {
    /// An RC queue pair `qpn` at `address`, in RESET, with a buffer of `length` bytes.
    pub(crate) fn new(address: IpAddr, qpn: Qpn, length: usize) -> Self {
        let config = QpConfig {
            qpn,
            qp_type: QpType::Rc,
            pd: PD,
            cap: QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 },
            sq_sig_all: true,
            send_cq: Some(()),
            recv_cq: Some(()),
            srq: None,
            xrcd: None,
            window: 64,
            port_mtu: Mtu::Mtu1024,
            quirks: (),
            counters: Vec::new(),
        };
        Self {
            qp: QueuePair::new(config),
            memory: Buffer::new(length, u64::from(qpn.get())),
            network: Outbox { from: SocketAddr::new(address, SOURCE_PORT), open: None, sent: Vec::new() },
            completions: Completions::default(),
            now: Instant::default(),
        }
    }

    /// Connects the queue pair to `peer`, RESET to RTS.
    pub(crate) fn connect(&mut self, peer: IpAddr, peer_qpn: Qpn) -> Result<(), ModifyError> {
        let attr = QpAttr {
            access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
            path_mtu: Mtu::Mtu1024,
            dest_qpn: peer_qpn,
            rq_psn: Psn::new(0),
            sq_psn: Psn::new(0),
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: RnrTimer::new(12),
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            ..QpAttr::default()
        };
        let init = [AttrMask::PKEY_INDEX, AttrMask::PORT, AttrMask::ACCESS_FLAGS];
        let rtr = [
            AttrMask::AV,
            AttrMask::PATH_MTU,
            AttrMask::DEST_QPN,
            AttrMask::RQ_PSN,
            AttrMask::MAX_DEST_RD_ATOMIC,
            AttrMask::MIN_RNR_TIMER,
        ];
        let rts =
            [AttrMask::SQ_PSN, AttrMask::TIMEOUT, AttrMask::RETRY_CNT, AttrMask::RNR_RETRY, AttrMask::MAX_QP_RD_ATOMIC];
        let route = SocketAddr::new(peer, ROCE_PORT);
        let steps: [(QpState, &[AttrMask], Option<SocketAddr>); 3] =
            [(QpState::Init, &init, None), (QpState::Rtr, &rtr, Some(route)), (QpState::Rts, &rts, None)];
        for (to, given, route) in steps {
            let mask = given.iter().fold(AttrMask::STATE, |mask, bit| mask.with(*bit));
            self.drive(|qp, io| qp.modify(io, to, mask, &attr, route))?;
        }
        Ok(())
    }

    /// Writes `bytes` into the buffer at `offset`, as the application.
    pub(crate) fn poke(&self, offset: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.memory.write(offset, bytes)
    }

    /// Reads `length` bytes of the buffer at `offset`, as the application.
    pub(crate) fn peek(&self, offset: u64, length: usize) -> Result<Vec<u8>, Fault> {
        self.memory.bytes(offset, length, |bytes| bytes.to_vec())
    }

    /// Names the buffer's byte `offset` to the peer.
    pub(crate) fn remote(&self, offset: u64) -> Remote {
        Remote { addr: offset, r_key: RKey(self.memory.key.get().0) }
    }

    fn sge(&self, offset: u64, length: u32) -> SgeList {
        SgeList::new(&[Sge { addr: offset, length, l_key: self.memory.key.get().0 }])
    }

    /// Posts a send request over `length` bytes of the buffer at `offset`.
    pub(crate) fn post_send(&mut self, wr_id: u64, op: SendOp, offset: u64, length: u32) -> Result<(), PostError> {
        let data = Data::Gather(self.sge(offset, length));
        let wr = SendWr { wr_id, op, data, flags: SendFlags::default(), ..SendWr::default() };
        self.drive(|qp, io| qp.post_send(io, wr, None))
    }

    /// Posts a receive request over `length` bytes of the buffer at `offset`.
    pub(crate) fn post_recv(&mut self, wr_id: u64, offset: u64, length: u32) -> Result<(), PostError> {
        let buffers = self.sge(offset, length);
        self.drive(|qp, io| qp.post_recv(io, RecvWr { wr_id, buffers }))
    }

    /// Takes a datagram from the network. A wrong ICRC, or bytes that are no packet, are dropped.
    pub(crate) fn receive(&mut self, datagram: &Datagram) {
        let flow = icrc::Flow::new(datagram.from, datagram.to);
        if icrc::verify(&flow, 0, &datagram.bytes) != icrc::Check::Exact {
            return;
        }
        let Ok(packet) = Packet::parse(&datagram.bytes) else { return };
        let origin = Origin { from: datagram.from.ip(), to: datagram.to.ip() };
        self.drive(|qp, io| qp.handle_packet(io, &packet, &origin));
    }

    /// Sends what there is to send, and returns it.
    pub(crate) fn transmit(&mut self) -> Vec<Datagram> {
        while self.drive(|qp, io| qp.transmit(io)) == Progress::More {}
        core::mem::take(&mut self.network.sent)
    }

    /// Returns when [`handle_timeout`](Self::handle_timeout) is to be called.
    pub(crate) fn poll_timeout(&mut self) -> Option<Instant> {
        self.qp.poll_timeout(&self.now)
    }

    /// Handles the timers that are due.
    pub(crate) fn handle_timeout(&mut self) {
        self.drive(QueuePair::handle_timeout);
    }

    fn drive<T>(&mut self, act: impl FnOnce(&mut QueuePair<Surroundings>, &mut Io<'_, Surroundings>) -> T) -> T {
        let io = &mut Io {
            clock: &self.now,
            memory: &self.memory,
            network: &mut self.network,
            consumer: &mut self.completions,
        };
        act(&mut self.qp, io)
    }
}

/// Carries packets between two stacks until both are silent. `lost` decides about each; time goes on to the next
/// timeout where nothing is on its way and something is waited for.
pub(crate) fn exchange(a: &mut Stack, b: &mut Stack, mut lost: impl FnMut(&Datagram) -> bool) {
    loop {
        let (from_a, from_b) = (a.transmit(), b.transmit());
        if from_a.is_empty() && from_b.is_empty() {
            let Some(at) = [a.poll_timeout(), b.poll_timeout()].into_iter().flatten().min() else { return };
            for stack in [&mut *a, &mut *b] {
                stack.now = at;
                stack.handle_timeout();
            }
            continue;
        }
        for datagram in from_a {
            if !lost(&datagram) {
                b.receive(&datagram);
            }
        }
        for datagram in from_b {
            if !lost(&datagram) {
                a.receive(&datagram);
            }
        }
    }
}
