//! Devices of tests, in network namespaces of their own.

use std::io;
use std::net::IpAddr;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::{self, JoinHandle};

use urxe_engine::attr::{AttrMask, QpAttr};
use urxe_engine::congestion::CongestionSettings;
use urxe_engine::{
    Access, CompletionQueue, Cqe, Data, Key, Pd, QpCap, QpConfig, QpState, QpType, RecvWr, Region, RegionKind, Remote,
    SendOp, SendWr, Sge, SgeList,
};
use urxe_net::{Destination, Interface};
use urxe_runtime::async_events::AsyncEvents;
use urxe_runtime::cq::Cq;
use urxe_runtime::device::{Device, OpenOptions};
use urxe_runtime::event::{EventSink, EventType};
use urxe_runtime::qp::Qp;
use urxe_runtime::{fork, progress};
use urxe_wire::{Gid, Mtu, Psn, Qpn, RKey, RnrTimer};

pub(crate) const PD: Pd = Pd(1);
pub(crate) const LOOPBACK: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

/// Taken by each test; alone by a test of what the process counts.
pub(crate) static TESTS: RwLock<()> = RwLock::new(());

/// Runs `f` as [`in_new_namespace`] does, while other tests may run.
pub(crate) fn in_namespace(f: impl FnOnce() + Send) {
    let _beside_others = TESTS.read().unwrap_or_else(PoisonError::into_inner);
    in_new_namespace(f);
}

/// Runs `f` in a thread that is alone in a new network namespace with `lo` up.
pub(crate) fn in_new_namespace(f: impl FnOnce() + Send) {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: no pointer involved; only the calling thread changes its namespace.
            let rc = unsafe { libc::unshare(libc::CLONE_NEWNET) };
            assert_eq!(
                rc,
                0,
                "a network namespace: {} (these tests need root or user namespaces)",
                io::Error::last_os_error()
            );
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
pub(crate) struct Events(pub(crate) Mutex<Vec<(u64, EventType)>>);

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

/// A device, perhaps with its background thread, and one RC queue pair with a buffer.
pub(crate) struct Node {
    pub(crate) device: Arc<Device>,
    pub(crate) thread: Option<JoinHandle<()>>,
    pub(crate) events: Arc<Events>,
    pub(crate) cq: Arc<Cq>,
    pub(crate) qp: Arc<Qp>,
    pub(crate) key: Key,
    pub(crate) buffer: Box<[u64]>,
}

pub(crate) const WORDS: usize = 8192;

/// Rights of peers, at regions and queue pairs.
fn rights() -> Access {
    Access::REMOTE_WRITE | Access::REMOTE_READ | Access::FLUSH_GLOBAL
}

/// Opens a device that nobody makes progress for but the test.
pub(crate) fn open(options: OpenOptions<'_>) -> Arc<Device> {
    let interface = Interface::by_name("lo").unwrap();
    Arc::new(Device::open("test", interface, options).unwrap())
}

impl Node {
    pub(crate) fn new(seed: u64, shares_memory: bool) -> Self {
        Self::opened(OpenOptions { shares_memory, key_seed: seed, ..OpenOptions::default() }, WORDS)
    }

    /// A device with its background thread, and a queue pair with a buffer of so many words.
    pub(crate) fn opened(options: OpenOptions<'_>, words: usize) -> Self {
        let device = open(options);
        fork::remember(&device);
        let thread = Some(progress::start(Arc::clone(&device)).unwrap());
        let mut node = Self::with_words(&device, words);
        node.thread = thread;
        node
    }

    /// Another queue pair on a device that is open, with a CQ and a buffer of its own.
    pub(crate) fn on(device: &Arc<Device>) -> Self {
        Self::with_words(device, WORDS)
    }

    /// Another queue pair as [`on`](Self::on) makes it, with a buffer of so many words.
    pub(crate) fn with_words(device: &Arc<Device>, words: usize) -> Self {
        let device = Arc::clone(device);
        let events = Arc::<Events>::default();
        let cq = Arc::new(Cq::new(CompletionQueue::with_quirks(64, Default::default()), None, events.clone()));
        let buffer = vec![0_u64; words].into_boxed_slice();
        let host = buffer.as_ptr() as u64;
        let access = Access::LOCAL_WRITE | rights();
        let length = 8 * words as u64;
        let make = |key| Region { key, pd: PD, access, iova: 0, length, host, kind: RegionKind::Memory };
        let key = device.regions().insert(make).unwrap();
        let config = QpConfig {
            congestion: CongestionSettings::NONE,
            ack_timer: urxe_engine::AckTimer::Specified,
            selective: None,
            qpn: device.net().alloc_qpn().unwrap(),
            qp_type: QpType::Rc,
            pd: PD,
            cap: QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 },
            sq_sig_all: true,
            send_cq: Some(Arc::clone(&cq)),
            recv_cq: Some(Arc::clone(&cq)),
            srq: None,
            xrcd: None,
            window: device.window(),
            port_mtu: Mtu::Mtu4096,
            quirks: Default::default(),
            counters: Vec::new(),
        };
        let qp = Qp::new(&device, config, AsyncEvents::new(events.clone(), 7));
        Self { device, thread: None, events, cq, qp, key, buffer }
    }

    pub(crate) fn connect(&self, peer: Qpn) {
        self.connect_with(peer, Mtu::Mtu1024);
    }

    pub(crate) fn connect_with(&self, peer: Qpn, path_mtu: Mtu) {
        let attr = QpAttr {
            access: rights(),
            path_mtu,
            dest_qpn: peer,
            rq_psn: Psn::new(0),
            sq_psn: Psn::new(0),
            // A second: tests count packets, and a thread that waits for its processor is no reason to send them again.
            timeout: 18,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: RnrTimer::new(1),
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            ..QpAttr::default()
        };
        let gid = Gid::from(LOOPBACK);
        let to = Destination { local: gid, remote: gid, dest_qpn: peer, flow_label: 0, tclass: 0, hop_limit: 0 };
        let route = self.device.net().route_inside(&to).unwrap();
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
            self.device.with_work(|work| {
                self.qp.modify(work, |engine, io| engine.modify(io, to, mask, &attr, route)).unwrap();
            });
        }
    }

    pub(crate) fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: offset, length, l_key: self.key.0 }
    }

    pub(crate) fn post_send(&self, op: SendOp, offset: u64, length: u32) {
        self.post_send_of(op, self.sge(offset, length));
    }

    /// Posts a request with memory of any node of the device.
    pub(crate) fn post_send_of(&self, op: SendOp, sge: Sge) {
        self.post(op, &[sge]);
    }

    /// Posts a request with these buffers.
    pub(crate) fn post(&self, op: SendOp, buffers: &[Sge]) {
        let wr = SendWr { wr_id: 1, op, data: Data::Gather(SgeList::new(buffers)), ..SendWr::default() };
        self.device.with_work(|work| self.qp.post_send(work, |engine, io| engine.post_send(io, wr, None))).unwrap();
    }

    pub(crate) fn post_recv(&self, offset: u64, length: u32) {
        let buffers = SgeList::new(&[self.sge(offset, length)]);
        let wr = RecvWr { wr_id: 2, buffers };
        self.device.with_work(|work| self.qp.post_recv(work, |engine, io| engine.post_recv(io, wr))).unwrap();
    }

    /// Polls until there is a completion.
    pub(crate) fn completion(&self) -> Cqe {
        let mut found = None;
        while found.is_none() {
            if self.cq.poll(1, |cqe| found = Some(*cqe)) == 0 {
                self.device.polled(false);
            }
        }
        found.unwrap()
    }

    pub(crate) fn count(&self, name: &str) -> u64 {
        self.device.all_counters().find(|(counter, _)| *counter == name).unwrap().1
    }

    pub(crate) fn remote(&self, offset: u64) -> Remote {
        Remote { addr: offset, r_key: RKey(self.key.0) }
    }

    /// Copy of a word of the buffer, which a peer may be writing.
    pub(crate) fn word(&self, index: usize) -> u64 {
        // SAFETY: within the buffer; peers write it by other threads.
        unsafe { std::ptr::read_volatile(&raw const self.buffer[index]) }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.qp.close(7);
        self.device.regions().remove(self.key).unwrap();
        if let Some(thread) = self.thread.take() {
            self.device.request_stop();
            thread.join().unwrap();
            fork::close(&self.device);
        }
    }
}
