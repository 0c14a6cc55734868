//! Two devices in one process, without libibverbs: RC messages between them, over UDP and through shared memory.

use std::io;
use std::net::IpAddr;
use std::process::Command;
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, JoinHandle};

use urxe_engine::attr::{AttrMask, QpAttr};
use urxe_engine::congestion::CongestionSettings;
use urxe_engine::{
    Access, CompletionQueue, Cqe, Data, Key, Pd, QpCap, QpConfig, QpState, QpType, RecvWr, Region, RegionKind, Remote,
    SendOp, SendWr, Sge, SgeList, WcStatus,
};
use urxe_net::{Destination, Interface};
use urxe_runtime::async_events::AsyncEvents;
use urxe_runtime::cq::Cq;
use urxe_runtime::device::{Device, OpenOptions};
use urxe_runtime::event::{EventSink, EventType};
use urxe_runtime::qp::Qp;
use urxe_runtime::{fork, progress};
use urxe_wire::{Gid, Mtu, Psn, Qpn, RKey, RnrTimer};

const PD: Pd = Pd(1);
const LOOPBACK: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

/// Runs `f` in a thread that is alone in a new network namespace with `lo` up.
fn in_namespace(f: impl FnOnce() + Send) {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: no pointer involved; only the calling thread changes its namespace.
            let rc = unsafe { libc::unshare(libc::CLONE_NEWNET) };
            assert_eq!(rc, 0, "a network namespace: {} (these tests need root)", io::Error::last_os_error());
            let up = Command::new("ip").args(["link", "set", "lo", "up"]).status().expect("iproute2 is installed");
            assert!(up.success());
            f();
        });
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Event file that keeps asynchronous events.
#[derive(Debug, Default)]
struct Events(Mutex<Vec<(u64, EventType)>>);

impl EventSink for Events {
    fn completion(&self, _cq: u64) {}

    fn async_event(&self, element: u64, event_type: EventType) {
        self.0.lock().unwrap().push((element, event_type));
    }

    fn discard(&self, element: u64) -> usize {
        let mut events = self.0.lock().unwrap();
        let before = events.len();
        events.retain(|(of, _)| *of != element);
        before - events.len()
    }

    fn refill(&self) {}

    fn end(&self) {}
}

/// A device with its background thread, and one RC queue pair with a buffer.
struct Node {
    port: Arc<Device>,
    thread: Option<JoinHandle<()>>,
    events: Arc<Events>,
    cq: Arc<Cq>,
    qp: Arc<Qp>,
    key: Key,
    buffer: Box<[u64]>,
}

const WORDS: usize = 8192;

impl Node {
    fn new(seed: u64, shares_memory: bool) -> Self {
        let interface = Interface::by_name("lo").unwrap();
        let options = OpenOptions { shares_memory, key_seed: seed, ..OpenOptions::default() };
        let port = Arc::new(Device::open("test", interface, options).unwrap());
        fork::remember(&port);
        let thread = Some(progress::start(Arc::clone(&port)).unwrap());
        let events = Arc::<Events>::default();
        let cq = Arc::new(Cq::new(CompletionQueue::with_quirks(64, Default::default()), None, events.clone()));
        let buffer = vec![0_u64; WORDS].into_boxed_slice();
        let host = buffer.as_ptr() as u64;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let length = 8 * WORDS as u64;
        let make = |key| Region { key, pd: PD, access, iova: 0, length, host, kind: RegionKind::Memory };
        let key = port.regions().insert(make).unwrap();
        let config = QpConfig {
            congestion: CongestionSettings::NONE,
            qpn: port.net().alloc_qpn().unwrap(),
            qp_type: QpType::Rc,
            pd: PD,
            cap: QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 },
            sq_sig_all: true,
            send_cq: Some(Arc::clone(&cq)),
            recv_cq: Some(Arc::clone(&cq)),
            srq: None,
            xrcd: None,
            window: port.window(),
            port_mtu: Mtu::Mtu4096,
            quirks: Default::default(),
            counters: Vec::new(),
        };
        let qp = Qp::new(&port, config, AsyncEvents::new(events.clone(), 7));
        Self { port, thread, events, cq, qp, key, buffer }
    }

    fn connect(&self, peer: Qpn) {
        let attr = QpAttr {
            access: Access::REMOTE_WRITE | Access::REMOTE_READ,
            path_mtu: Mtu::Mtu1024,
            dest_qpn: peer,
            rq_psn: Psn::new(0),
            sq_psn: Psn::new(0),
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: RnrTimer::new(1),
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            ..QpAttr::default()
        };
        let gid = Gid::from(LOOPBACK);
        let to = Destination { local: gid, remote: gid, dest_qpn: peer, flow_label: 0, tclass: 0, hop_limit: 0 };
        let route = self.port.net().route(&to).unwrap();
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
        let steps = [(QpState::Init, &init[..], None), (QpState::Rtr, &rtr, Some(route)), (QpState::Rts, &rts, None)];
        for (to, given, route) in steps {
            let mask = given.iter().fold(AttrMask::STATE, |mask, bit| mask.with(*bit));
            self.port.with_work(|work| {
                self.qp.modify(work, |engine, io| engine.modify(io, to, mask, &attr, route)).unwrap();
            });
        }
    }

    fn post_send(&self, op: SendOp, offset: u64, length: u32) {
        let sge = Sge { addr: offset, length, l_key: self.key.0 };
        let wr = SendWr { wr_id: 1, op, data: Data::Gather(SgeList::new(&[sge])), ..SendWr::default() };
        self.port.with_work(|work| self.qp.post_send(work, |engine, io| engine.post_send(io, wr, None))).unwrap();
    }

    fn post_recv(&self, offset: u64, length: u32) {
        let buffers = SgeList::new(&[Sge { addr: offset, length, l_key: self.key.0 }]);
        let wr = RecvWr { wr_id: 2, buffers };
        self.port.with_work(|work| self.qp.post_recv(work, |engine, io| engine.post_recv(io, wr))).unwrap();
    }

    /// Polls until there is a completion.
    fn completion(&self) -> Cqe {
        let mut found = None;
        while found.is_none() {
            if self.cq.poll(1, |cqe| found = Some(*cqe)) == 0 {
                self.port.polled(false);
            }
        }
        found.unwrap()
    }

    fn count(&self, name: &str) -> u64 {
        self.port.all_counters().find(|(counter, _)| *counter == name).unwrap().1
    }

    fn remote(&self, offset: u64) -> Remote {
        Remote { addr: offset, r_key: RKey(self.key.0) }
    }

    /// Copy of a word of the buffer, which a peer may be writing.
    fn word(&self, index: usize) -> u64 {
        // SAFETY: within the buffer; peers write it by other threads.
        unsafe { std::ptr::read_volatile(&raw const self.buffer[index]) }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.qp.close(7);
        self.port.regions().remove(self.key).unwrap();
        self.port.request_stop();
        self.thread.take().unwrap().join().unwrap();
        fork::close(&self.port);
    }
}

/// SEND, WRITE and READ in turn between two devices.
fn exchange(shares_memory: bool) {
    let (mut a, b) = (Node::new(1, shares_memory), Node::new(2, shares_memory));
    a.connect(b.qp.qpn());
    b.connect(a.qp.qpn());
    for (word, value) in a.buffer.iter_mut().zip(100..) {
        *word = value;
    }
    let all = u32::try_from(8 * WORDS).unwrap();

    b.post_recv(0, all);
    a.post_send(SendOp::Send, 0, 4096);
    let (sent, received) = (a.completion(), b.completion());
    assert_eq!((sent.status, received.status, received.byte_len), (WcStatus::Success, WcStatus::Success, 4096));
    assert_eq!((b.word(0), b.word(511), b.word(512)), (100, 611, 0));

    a.post_send(SendOp::Write(b.remote(0)), 0, all);
    assert_eq!(a.completion().status, WcStatus::Success);
    assert_eq!(b.word(WORDS - 1), 100 + WORDS as u64 - 1);

    b.post_send(SendOp::Read(a.remote(8)), 0, all - 8);
    assert_eq!(b.completion().status, WcStatus::Success);
    assert_eq!((b.word(0), b.word(WORDS - 2)), (101, 100 + WORDS as u64 - 1));
    for node in [&a, &b] {
        assert_eq!(node.count("tx_ring_runs") > 0, shares_memory, "the way the packets go");
        assert_eq!(node.count("rx_ring_runs") > 0, shares_memory, "the way the packets come");
    }
    assert!(a.events.0.lock().unwrap().is_empty() && b.events.0.lock().unwrap().is_empty());

    // Behind the end of the region.
    a.post_send(SendOp::Write(b.remote(8)), 0, all);
    assert_eq!(a.completion().status, WcStatus::RemoteAccessError);
    assert_eq!(a.qp.inspect(|engine| engine.state()), QpState::Err);
    while b.events.0.lock().unwrap().is_empty() {
        b.port.polled(false);
    }
    assert_eq!(*b.events.0.lock().unwrap(), [(7, EventType::QpAccessError)]);
}

#[test]
fn messages_go_over_udp() {
    in_namespace(|| exchange(false));
}

#[test]
fn messages_go_through_shared_memory() {
    in_namespace(|| exchange(true));
}

#[test]
fn a_closed_device_is_not_kept_alive() {
    in_namespace(|| {
        let node = Node::new(1, false);
        let port: Weak<Device> = Arc::downgrade(&node.port);
        drop(node);
        assert!(port.upgrade().is_none());
    });
}
