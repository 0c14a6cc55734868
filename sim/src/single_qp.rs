//! One queue pair whose peer is the test itself: packets in, packets out.
//!
//! ```
//! use urxe_sim::single_qp::{RQ_PSN, SingleQp};
//! use urxe_wire::{Ext, Operation};
//!
//! let mut qp = SingleQp::rts();
//! qp.recv(1, 64);
//! qp.gets(Operation::SendOnly, RQ_PSN, Ext::None, b"hello");
//! assert_eq!(qp.sent(), ["ACK 100"]);
//! ```

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use urxe_engine::ModifyError;
use urxe_engine::attr::{AttrMask, QpAttr};
use urxe_engine::endpoint::{Datagram, Event as NodeEvent, QpSetup, Received, Route, to_rts};
use urxe_engine::{
    Access, AsyncEvent, Cqe, Data, DropReason, Event, Instant, Paths, PostError, QpState, QpType, Recipient, RecvWr,
    SendFlags, SendOp, SendWr, Sge, SgeList, UdRecipient, WcStatus,
};
use urxe_wire::{
    Aeth, Bth, Credits, Deth, Ext, Header, Msn, Mtu, Opcode, Operation, Packet, Psn, QKey, Qpn, ROCE_PORT, RnrTimer,
    Syndrome, packet::Service, packet::pad_count,
};

use crate::memory::{Buffer, DEFAULT_PD};
use crate::node::{Node, NodeConfig};

/// The first PSN that the queue pair expects.
pub const RQ_PSN: u32 = 100;
/// The first PSN that the queue pair sends.
pub const SQ_PSN: u32 = 200;
/// Bytes of payload in a full packet.
pub const MTU: usize = 256;
/// The peer's number.
pub const PEER_QPN: Qpn = Qpn::new(0x00_BEEF);

/// The Q_Key of both ends.
pub const Q_KEY: QKey = QKey(0x1111_1111);

const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
const SOURCE_PORT: u16 = 0xC001;

/// A queue pair under the microscope.
pub struct SingleQp {
    /// Node in which it lives.
    pub node: Node,
    /// Number of the queue pair.
    pub qpn: Qpn,
    /// The present time.
    pub now: Instant,
    /// A buffer for work requests, 16 KiB.
    pub local: Buffer,
    /// A buffer that peers may do everything to, 16 KiB.
    pub remote: Buffer,
}

/// A packet that the queue pair sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sent {
    /// Headers.
    pub header: Header,
    /// Payload.
    pub payload: Vec<u8>,
}

/// In short: `SEND First 200`, `SEND Last 201 ?` (with AckReq), `ACK 99`, `RNR NAK 100`,
/// `NAK PsnSequenceError 100`.
impl fmt::Display for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bth = &self.header.bth;
        match (bth.opcode.operation(), &self.header.ext) {
            (Operation::Acknowledge, Ext::Aeth(Aeth { syndrome, .. })) => match syndrome {
                Syndrome::Ack(_) => f.write_str("ACK")?,
                Syndrome::RnrNak(_) => f.write_str("RNR NAK")?,
                Syndrome::Nak(code) => write!(f, "NAK {code:?}")?,
            },
            _ => f.write_str(bth.opcode.info().name)?,
        }
        write!(f, " {}", bth.psn)?;
        if bth.ack_req { f.write_str(" ?") } else { Ok(()) }
    }
}

impl PartialEq<&str> for Sent {
    fn eq(&self, text: &&str) -> bool {
        let shown = self.to_string();
        shown == *text
    }
}

impl SingleQp {
    /// The attributes it has unless others are asked for.
    #[must_use]
    pub fn attr() -> QpAttr {
        QpAttr {
            access: Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
            path_mtu: Mtu::Mtu256,
            dest_qpn: PEER_QPN,
            rq_psn: Psn::new(RQ_PSN),
            sq_psn: Psn::new(SQ_PSN),
            timeout: 14,
            retry_cnt: 3,
            rnr_retry: 3,
            min_rnr_timer: RnrTimer::new(12),
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            q_key: Q_KEY,
            ..QpAttr::default()
        }
    }

    /// A queue pair in RESET, after `change` to its setup and its node.
    #[must_use]
    pub fn reset(change: impl FnOnce(&mut QpSetup, &mut Node)) -> Self {
        let address = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
        let mut node = Node::new(address, NodeConfig::default());
        let [send_cq, recv_cq] = [(); 2].map(|()| node.verbs().create_cq(64));
        let mut setup = QpSetup::new(QpType::Rc, DEFAULT_PD, send_cq, recv_cq);
        change(&mut setup, &mut node);
        let qpn = node.create_qp(&setup);
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let local = node.memory_mut().register_new(1 << 14, Access::LOCAL_WRITE);
        let remote = node.memory_mut().register_new(1 << 14, access);
        node.nic().set_room(usize::MAX);
        Self { node, qpn, now: Instant::default(), local, remote }
    }

    /// A queue pair of another service in RTS.
    #[must_use]
    pub fn of(qp_type: QpType) -> Self {
        let mut single_qp = Self::reset(|setup, _| setup.qp_type = qp_type);
        single_qp.go_to(QpState::Rts, &Self::attr());
        single_qp
    }

    /// The service.
    #[must_use]
    pub fn qp_type(&self) -> QpType {
        self.node.qp(self.qpn).config().qp_type
    }

    /// A queue pair in RTS.
    #[must_use]
    pub fn rts() -> Self {
        Self::with(|_| {})
    }

    /// A queue pair in RTS, after `change` to its attributes.
    #[must_use]
    pub fn with(change: impl FnOnce(&mut QpAttr)) -> Self {
        let mut attr = Self::attr();
        change(&mut attr);
        let mut single_qp = Self::reset(|_, _| {});
        single_qp.go_to(QpState::Rts, &attr);
        single_qp
    }

    /// Takes it from RESET up to `state`, with everything that it needs on the way.
    ///
    /// # Panics
    /// If a step is refused.
    pub fn go_to(&mut self, state: QpState, attr: &QpAttr) {
        let connected = self.qp_type() != QpType::Ud;
        for (to, mask) in to_rts(self.qp_type()) {
            let route = (connected && to == QpState::Rtr).then_some(Route { to: PEER, source_port: SOURCE_PORT });
            self.node.modify(self.now, self.qpn, to, mask, attr, route).expect("everything is given");
            if to == state {
                break;
            }
        }
        self.node.verbs().take_log();
    }

    /// `ibv_modify_qp(3)` without address vector.
    ///
    /// # Errors
    /// As [`urxe_engine::QueuePair::modify`].
    pub fn modify(&mut self, to: QpState, mask: AttrMask, attr: &QpAttr) -> Result<(), ModifyError> {
        self.node.modify(self.now, self.qpn, to, mask, attr, Paths { primary: None, alternate: None })
    }

    /// The state.
    #[must_use]
    pub fn state(&self) -> QpState {
        self.node.qp(self.qpn).state()
    }

    // --- work requests -------------------------------------------------------------------------------------

    /// The first `len` bytes of [`local`](Self::local).
    #[must_use]
    pub fn sges(&self, len: u32) -> SgeList {
        SgeList::new(&[Sge { addr: self.local.addr, length: len, l_key: self.local.key.0 }])
    }

    /// Posts a signaled send request with the first `len` bytes of [`local`](Self::local).
    ///
    /// # Panics
    /// If it is refused.
    pub fn post(&mut self, wr_id: u64, op: SendOp, len: u32) {
        let flags = SendFlags { signaled: true, ..SendFlags::default() };
        let data = Data::Gather(self.sges(len));
        self.post_wr(SendWr { wr_id, op, data, flags, to: Recipient::Peer }).expect("it is posted");
    }

    /// Posts a send request.
    ///
    /// # Errors
    /// As [`urxe_engine::QueuePair::post_send`].
    pub fn post_wr(&mut self, wr: SendWr) -> Result<(), PostError> {
        if self.qp_type() == QpType::Ud {
            return self.post_to(wr, PEER_QPN, Q_KEY);
        }
        self.node.post_send(self.now, self.qpn, wr)
    }

    /// Posts a send request on UD to a queue pair of the peer's host.
    ///
    /// # Errors
    /// As [`urxe_engine::QueuePair::post_send`].
    pub fn post_to(&mut self, wr: SendWr, qpn: Qpn, q_key: QKey) -> Result<(), PostError> {
        let route = Route { to: PEER, source_port: SOURCE_PORT };
        self.node.post_datagram(self.now, self.qpn, wr, UdRecipient { route, qpn, q_key, lid_routed: false })
    }

    /// Posts a receive of the first `len` bytes of [`local`](Self::local).
    ///
    /// # Panics
    /// If it is refused.
    pub fn recv(&mut self, wr_id: u64, len: u32) {
        let buffers = self.sges(len);
        self.recv_wr(RecvWr { wr_id, buffers }).expect("it is posted");
    }

    /// Posts a receive request.
    ///
    /// # Errors
    /// As [`urxe_engine::QueuePair::post_recv`].
    pub fn recv_wr(&mut self, wr: RecvWr) -> Result<(), PostError> {
        self.node.post_recv(self.now, self.qpn, wr)
    }

    // --- packets -------------------------------------------------------------------------------------------

    /// A packet of the peer arrives; requests on RC ask for an ACK.
    pub fn gets(&mut self, operation: Operation, psn: u32, ext: Ext, payload: &[u8]) {
        self.gets_changed(operation, psn, ext, payload, |_| {});
    }

    /// A packet of the peer arrives, after `change` to its BTH.
    ///
    /// # Panics
    /// If the service does not have the operation.
    pub fn gets_changed(
        &mut self,
        operation: Operation,
        psn: u32,
        ext: Ext,
        payload: &[u8],
        change: impl FnOnce(&mut Bth),
    ) {
        let transport = self.qp_type().transport();
        let opcode = Opcode::new(transport, operation).expect("the service has the operation");
        let mut bth = Bth::new(opcode, self.qpn, Psn::new(psn));
        bth.pad_count = pad_count(payload.len());
        bth.ack_req = self.qp_type().is_reliable() && opcode.info().role == urxe_wire::opcode::Role::Request;
        change(&mut bth);
        let service = match transport {
            urxe_wire::Transport::Ud => Service::Datagram(Deth { q_key: Q_KEY, src_qp: PEER_QPN, lid_routed: false }),
            _ => Service::Connected,
        };
        self.gets_from(PEER, &Header { bth, service, ext }, payload);
    }

    /// A packet arrives from `address`.
    ///
    /// # Panics
    /// If the packet is not one that a queue pair gets to see.
    pub fn gets_from(&mut self, address: IpAddr, header: &Header, payload: &[u8]) {
        self.gets_datagram(address, header, payload, false);
    }

    /// A packet of the peer arrives that has met congestion.
    ///
    /// # Panics
    /// If the packet is not one that a queue pair gets to see.
    pub fn gets_marked(&mut self, header: &Header, payload: &[u8]) {
        self.gets_datagram(PEER, header, payload, true);
    }

    fn gets_datagram(&mut self, address: IpAddr, header: &Header, payload: &[u8], is_marked: bool) {
        let mut bytes = vec![0; header.len()];
        header.emit(&mut bytes);
        bytes.extend_from_slice(payload);
        bytes.resize(bytes.len() + usize::from(pad_count(payload.len())), 0);
        let to = SocketAddr::new(self.node.address(), ROCE_PORT);
        let datagram = Datagram::with_icrc(SocketAddr::new(address, SOURCE_PORT), to, bytes);
        let datagram = Datagram { is_marked, ..datagram };
        assert_eq!(self.node.receive(self.now, &datagram), Received::Delivered(self.qpn));
    }

    /// An acknowledgement arrives.
    pub fn gets_aeth(&mut self, psn: u32, syndrome: Syndrome) {
        self.gets(Operation::Acknowledge, psn, Ext::Aeth(Aeth { syndrome, msn: Msn::default() }), &[]);
    }

    /// An ACK without credits arrives.
    pub fn gets_ack(&mut self, psn: u32) {
        self.gets_aeth(psn, Syndrome::Ack(Credits::INVALID));
    }

    /// Lets it send all that it may, and returns that.
    ///
    /// # Panics
    /// If it sends what cannot be parsed, or to somebody else than the peer.
    pub fn sent(&mut self) -> Vec<Sent> {
        self.node.transmit(self.now);
        let parse = |datagram: Datagram| {
            assert!(datagram.has_right_icrc() && datagram.to == SocketAddr::new(PEER, ROCE_PORT));
            let packet = Packet::parse(&datagram.bytes).expect("it sends packets");
            assert_eq!(packet.bth().dest_qp, PEER_QPN);
            Sent { header: packet.header, payload: packet.payload.to_vec() }
        };
        self.node.nic().take_sent().into_iter().map(parse).collect()
    }

    /// Time passes, and what is due is done.
    pub fn elapse(&mut self, time: Duration) {
        self.now = self.now + time;
        self.node.handle_timeouts(self.now);
    }

    /// Time until it wants to be called.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        self.node.poll_timeout().map(|at| at.since(self.now))
    }

    // --- what it tells -------------------------------------------------------------------------------------

    /// Takes the log of what happened since this or one of the following was called last.
    pub fn log(&mut self) -> Vec<NodeEvent> {
        self.node.verbs().take_log()
    }

    /// Completions of both queues, oldest first. Forgets the rest of the log.
    pub fn cqes(&mut self) -> Vec<Cqe> {
        let completed = |event| match event {
            NodeEvent::Completed(_, cqe) => Some(cqe),
            _ => None,
        };
        self.log().into_iter().filter_map(completed).collect()
    }

    /// Completions in short.
    pub fn completed(&mut self) -> Vec<(u64, WcStatus)> {
        self.cqes().into_iter().map(|cqe| (cqe.wr_id, cqe.status)).collect()
    }

    /// Asynchronous events. Forgets the rest of the log.
    pub fn async_events(&mut self) -> Vec<AsyncEvent> {
        let raised = |event| match event {
            NodeEvent::Async(_, event) => Some(event),
            _ => None,
        };
        self.log().into_iter().filter_map(raised).collect()
    }

    /// Why packets were thrown away. Forgets the rest of the log.
    pub fn drops(&mut self) -> Vec<DropReason> {
        let dropped = |event| match event {
            NodeEvent::Trace(_, Event::Dropped { reason, .. }) => Some(reason),
            _ => None,
        };
        self.log().into_iter().filter_map(dropped).collect()
    }
}
