//! Requests that a host carries out without packets.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Deref;

use urxe_engine::congestion::{Algorithm, CongestionSettings, Parameters};
use urxe_engine::endpoint::{
    CqId, Datagram, EndpointHost, HeapMemory, Outbox, Received, Route, connected_attr, to_rts,
};
use urxe_engine::{
    AckTimer, Bind, BindError, Data, DirectOutcome, DirectRequest, Endpoint, Fault, Instant, Invalidation, Io, Key,
    Memory, Pd, Progress, QpCap, QpConfig, QpSetup, QpState, QpType, QueuePair, Refusal, Region, Remote, SendOp,
    SendWr, Sge, SgeList, WcStatus,
};
use urxe_wire::packet::Service;
use urxe_wire::{
    Aeth, Bth, Credits, Ext, Header, Msn, Mtu, Opcode, Operation, Psn, Qpn, RKey, ROCE_PORT, Syndrome, Transport,
};

const REMOTE: Remote = Remote { addr: 0x1000, r_key: RKey(0x77) };
const OWN: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
const NOW: Instant = Instant::from_nanos(1);

/// Memory whose host reaches the peer's.
struct Reaching {
    memory: HeapMemory,
    outcome: Cell<DirectOutcome>,
    /// First PSN and packets of each request that it was asked for.
    asked: RefCell<Vec<(u32, u32)>>,
}

impl Memory for Reaching {
    fn reaches_peer(&self) -> bool {
        true
    }

    fn carry_out(&self, request: &DirectRequest<'_>) -> DirectOutcome {
        self.asked.borrow_mut().push((request.psn.get(), request.packets));
        self.outcome.get()
    }

    fn region(&self, key: Key) -> Option<impl Deref<Target = Region>> {
        self.memory.region(key)
    }

    fn read(&self, from: u64, to: &mut [u8]) -> Result<(), Fault> {
        self.memory.read(from, to)
    }

    fn write(&self, to: u64, from: &[u8]) -> Result<(), Fault> {
        self.memory.write(to, from)
    }

    fn compare_swap(&self, at: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
        self.memory.compare_swap(at, compare, swap)
    }

    fn fetch_add(&self, at: u64, add: u64) -> Result<u64, Fault> {
        self.memory.fetch_add(at, add)
    }

    fn flush(&self, at: u64, length: u64, persistent: bool) -> Result<(), Fault> {
        self.memory.flush(at, length, persistent)
    }

    fn bind(&self, pd: Pd, qpn: Qpn, bind: &Bind) -> Result<(), BindError> {
        self.memory.bind(pd, qpn, bind)
    }

    fn undo_bind(&self, qpn: Qpn, bind: &Bind) {
        self.memory.undo_bind(qpn, bind);
    }

    fn invalidate(&self, pd: Pd, qpn: Qpn, key: Key, how: Invalidation) -> Result<(), Refusal> {
        self.memory.invalidate(pd, qpn, key, how)
    }
}

impl Reaching {
    fn new(outcome: DirectOutcome) -> Self {
        Self { memory: HeapMemory::new(1), outcome: Cell::new(outcome), asked: RefCell::default() }
    }
}

fn request(wr_id: u64, op: SendOp, length: u32) -> SendWr {
    let elements = [Sge { addr: 0x1000, length, l_key: 5 }];
    let list = SgeList::new(if length == 0 { &[] } else { &elements });
    SendWr { wr_id, op, data: Data::Gather(list), ..SendWr::default() }
}

/// One end, whose host does so with each request.
struct End {
    endpoint: Endpoint<Reaching>,
    cq: CqId,
    qpn: Qpn,
}

impl End {
    fn new(qp_type: QpType, outcome: DirectOutcome) -> Self {
        Self::with(qp_type, outcome, CongestionSettings::NONE)
    }

    fn with(qp_type: QpType, outcome: DirectOutcome, congestion: CongestionSettings) -> Self {
        let mut endpoint = Endpoint::new(OWN, Reaching::new(outcome), 1);
        let cq = endpoint.create_cq(16);
        let setup = QpSetup { sq_sig_all: true, congestion, ..QpSetup::new(qp_type, Pd(1), cq, cq) };
        let qpn = endpoint.create_qp(&setup);
        let route = Route { to: PEER, source_port: 0xC000 };
        endpoint.connect(NOW, qpn, &connected_attr(Qpn::new(2)), Some(route)).unwrap();
        Self { endpoint, cq, qpn }
    }

    fn post(&mut self, wr_id: u64, op: SendOp, length: u32) {
        self.post_at(NOW, wr_id, op, length);
    }

    fn post_at(&mut self, now: Instant, wr_id: u64, op: SendOp, length: u32) {
        self.endpoint.post_send(now, self.qpn, request(wr_id, op, length), None).unwrap();
    }

    /// Packets that leave.
    fn packets(&mut self) -> usize {
        self.packets_at(NOW)
    }

    fn packets_at(&mut self, now: Instant) -> usize {
        std::iter::from_fn(|| self.endpoint.poll_transmit(now)).count()
    }

    fn completed(&mut self) -> Vec<(u64, WcStatus)> {
        std::iter::from_fn(|| self.endpoint.poll_cq(self.cq)).map(|cqe| (cqe.wr_id, cqe.status)).collect()
    }

    fn asked(&self) -> Vec<(u32, u32)> {
        self.endpoint.memory().asked.take()
    }

    /// An ACK of all up to this PSN arrives.
    fn acknowledge(&mut self, psn: u32) {
        let opcode = Opcode::new(Transport::Rc, Operation::Acknowledge).unwrap();
        let ext = Ext::Aeth(Aeth { syndrome: Syndrome::Ack(Credits::INVALID), msn: Msn::default() });
        self.gets(Header { bth: Bth::new(opcode, self.qpn, Psn::new(psn)), service: Service::Connected, ext });
    }

    /// A CNP arrives.
    fn notify(&mut self) {
        let bth = Bth { becn: true, ..Bth::new(Opcode::CNP, self.qpn, Psn::new(0)) };
        self.gets(Header::new(bth, Ext::CnpReserved));
    }

    fn gets(&mut self, header: Header) {
        let mut bytes = vec![0; header.len()];
        header.emit(&mut bytes);
        let [from, to] = [PEER, OWN].map(|address| SocketAddr::new(address, ROCE_PORT));
        let received = self.endpoint.handle_datagram(NOW, &Datagram::with_icrc(from, to, bytes));
        assert!(matches!(received, Received::Delivered(_)), "{received:?}");
    }

    fn next_psn(&self) -> u32 {
        self.endpoint.qp(self.qpn).unwrap().attr().sq_psn.get()
    }
}

/// A queue pair without an endpoint, whose completions are an end's.
fn connected(end: &mut End, qp_type: QpType) -> QueuePair<EndpointHost<Reaching, ()>> {
    let (address, cq) = (end.endpoint.address(), Some(end.cq));
    let cap = QpCap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let mut qp = QueuePair::<EndpointHost<Reaching, ()>>::new(QpConfig {
        qpn: Qpn::new(7),
        qp_type,
        pd: Pd(1),
        cap,
        sq_sig_all: true,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        xrcd: None,
        window: 16,
        congestion: CongestionSettings::NONE,
        ack_timer: AckTimer::Specified,
        selective: None,
        port_mtu: Mtu::Mtu1024,
        quirks: (),
        counters: Vec::new(),
    });
    let (memory, mut network) = (Reaching::new(DirectOutcome::Done), Outbox::new(address));
    let mut io = Io { clock: &NOW, memory: &memory, network: &mut network, consumer: end.endpoint.queues_mut() };
    for (to, mask) in to_rts(qp_type) {
        let route = Route { to: address, source_port: 0xC000 };
        qp.modify(&mut io, to, mask, &connected_attr(Qpn::new(2)), Some(route)).unwrap();
    }
    qp
}

#[test]
fn direct_requests_take_psns_and_no_packets() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut end = End::new(qp_type, DirectOutcome::Done);
        for (wr_id, length) in [(1, 10), (2, 3000), (3, 0)] {
            end.post(wr_id, SendOp::Write(REMOTE), length);
        }
        assert_eq!(end.packets(), 0);
        assert_eq!(end.completed(), [1, 2, 3].map(|wr_id| (wr_id, WcStatus::Success)));
        assert_eq!(end.asked(), [(0, 1), (1, 3), (4, 1)]);
        assert_eq!(end.next_psn(), 5);
        assert_eq!(end.endpoint.next_timeout(), None);
    }
}

/// Requests complete without another call, and a list is as long as the queue at most.
#[test]
fn requests_are_carried_out_while_they_are_posted() {
    let mut end = End::new(QpType::Rc, DirectOutcome::Done);
    let memory = Reaching::new(DirectOutcome::Done);
    let mut network = Outbox::new(end.endpoint.address());
    let mut qp = connected(&mut end, QpType::Rc);
    let room = u64::from(qp.config().cap.max_send_wr);
    for _ in 0..2 {
        assert!(qp.goes_straight());
        for wr_id in 0..=room {
            let mut io =
                Io { clock: &NOW, memory: &memory, network: &mut network, consumer: end.endpoint.queues_mut() };
            let posted = qp.post_send(&mut io, request(wr_id, SendOp::Write(REMOTE), 8), None);
            assert_eq!(posted.is_ok(), wr_id < room);
        }
        assert_eq!(end.completed(), (0..room).map(|wr_id| (wr_id, WcStatus::Success)).collect::<Vec<_>>());
        assert!(!qp.has_output() && qp.poll_timeout(&NOW).is_none());
        qp.end_posting();
    }
}

#[test]
fn a_call_that_posts_takes_a_turn_while_anything_waits() {
    let mut end = End::new(QpType::Rc, DirectOutcome::Done);
    let mut network = Outbox::new(end.endpoint.address());
    for (qp_type, outcome, op, is_idle) in [
        (QpType::Rc, DirectOutcome::Done, SendOp::Write(REMOTE), true),
        (QpType::Rc, DirectOutcome::Done, SendOp::Send, false),
        (QpType::Rc, DirectOutcome::ByPackets, SendOp::Write(REMOTE), false),
        (QpType::Uc, DirectOutcome::Done, SendOp::Write(REMOTE), false),
    ] {
        let memory = Reaching::new(outcome);
        let mut qp = connected(&mut end, qp_type);
        assert_eq!(qp.goes_straight(), qp_type == QpType::Rc);
        let mut io = Io { clock: &NOW, memory: &memory, network: &mut network, consumer: end.endpoint.queues_mut() };
        qp.post_send(&mut io, request(1, op, 0), None).unwrap();
        assert_eq!((qp.goes_straight(), qp.has_output()), (is_idle, !is_idle), "{op:?}");
        qp.transmit(&mut io);
        assert_eq!(qp.goes_straight(), is_idle, "outstanding");
    }
}

#[test]
fn others_go_by_packets_and_those_behind_them_wait() {
    let mut end = End::new(QpType::Rc, DirectOutcome::Done);
    end.post(1, SendOp::Send, 0);
    end.post(2, SendOp::Write(REMOTE), 0);
    assert_eq!((end.packets(), end.asked()), (2, vec![]), "a SEND is outstanding");
    let mut refused = End::new(QpType::Rc, DirectOutcome::ByPackets);
    refused.post(1, SendOp::Write(REMOTE), 0);
    assert_eq!((refused.packets(), refused.asked()), (1, vec![(0, 1)]));
    assert_eq!(refused.completed(), []);
}

/// A stream of WRITEs that began behind a SEND goes by packets, until one waits for their acknowledgement.
#[test]
fn a_stream_that_began_by_packets_comes_to_the_host() {
    let mut end = End::new(QpType::Rc, DirectOutcome::Done);
    end.post(0, SendOp::Send, 0);
    for wr_id in 1..=12 {
        end.post(wr_id, SendOp::Write(REMOTE), 0);
    }
    assert_eq!((end.packets(), end.asked()), (9, vec![]), "the SEND, and eight WRITEs");
    end.acknowledge(8);
    assert_eq!((end.packets(), end.asked().len()), (0, 4));
    assert_eq!(end.completed().len(), 13);
}

/// Where the host does not carry out what was waited for, the next wait comes later.
#[test]
fn waiting_for_a_host_that_refuses_is_tried_less_often() {
    let mut end = End::new(QpType::Rc, DirectOutcome::ByPackets);
    let mut streaks = Vec::new();
    let mut sent = 0;
    for wr_id in 0..60 {
        end.post(wr_id, SendOp::Write(REMOTE), 0);
    }
    while sent < 60 {
        let streak = end.packets();
        assert!(streak > 0, "{sent}");
        streaks.push(streak);
        sent += streak;
        end.acknowledge(u32::try_from(sent).unwrap() - 1);
    }
    assert_eq!(streaks, [8, 16, 32, 4]);
}

#[test]
fn an_answer_without_a_buffer_fails_its_request() {
    let mut end = End::new(QpType::Rc, DirectOutcome::Failed(WcStatus::LocalProtectionError));
    end.post(1, SendOp::FetchAdd { remote: REMOTE, add: 1 }, 8);
    assert_eq!(end.packets(), 0);
    assert_eq!(end.completed(), [(1, WcStatus::LocalProtectionError)]);
    assert_eq!(end.endpoint.qp(end.qpn).unwrap().state(), QpState::Err);
}

/// Many bytes are not carried out at once: the queue pair is asked again, and others have a turn before.
#[test]
fn long_requests_take_turns_with_others() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut end = End::new(qp_type, DirectOutcome::Done);
        let memory = Reaching::new(DirectOutcome::Done);
        let mut network = Outbox::new(end.endpoint.address());
        let mut qp = connected(&mut end, qp_type);
        let mut io = Io { clock: &NOW, memory: &memory, network: &mut network, consumer: end.endpoint.queues_mut() };
        for wr_id in 1..=3 {
            qp.post_send(&mut io, request(wr_id, SendOp::Write(REMOTE), 40 << 20), None).unwrap();
        }
        for (asked, progress) in [(1, Progress::More), (2, Progress::More), (3, Progress::Idle)] {
            assert_eq!(qp.transmit(&mut io), progress, "{qp_type:?}");
            assert_eq!(memory.asked.borrow().len(), asked);
        }
    }
}

/// A CNP limits the rate: what it would hold back is sent as packets until the rate is the link's again.
#[test]
fn a_limited_rate_is_kept_by_packets() {
    let settings = CongestionSettings {
        ecn: true,
        algorithm: Algorithm::Dcqcn,
        parameters: Parameters::default(),
        line_rate: 1000,
    };
    let later = NOW + std::time::Duration::from_hours(1);
    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut end = End::with(qp_type, DirectOutcome::Done, settings);
        end.post(1, SendOp::Write(REMOTE), 0);
        assert_eq!((end.packets(), end.asked().len()), (0, 1), "{qp_type:?}");
        end.notify();
        end.post(2, SendOp::Write(REMOTE), 0);
        assert_eq!((end.packets(), end.asked()), (1, vec![]), "{qp_type:?}: a limited rate");
        if qp_type == QpType::Rc {
            end.acknowledge(1);
        }
        // The first request finds that the limit has gone.
        end.post_at(later, 3, SendOp::Write(REMOTE), 0);
        if end.packets_at(later) > 0 && qp_type == QpType::Rc {
            end.acknowledge(2);
        }
        end.asked();
        end.post_at(later, 4, SendOp::Write(REMOTE), 0);
        assert_eq!((end.packets_at(later), end.asked().len()), (0, 1), "{qp_type:?}: an hour later");
        assert_eq!(end.completed(), [1, 2, 3, 4].map(|wr_id| (wr_id, WcStatus::Success)), "{qp_type:?}");
    }
}
