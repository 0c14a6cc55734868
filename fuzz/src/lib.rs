//! Common parts of the targets: one queue pair, and a peer whose every choice is the fuzzer's.

pub mod memory;

use std::net::IpAddr;
use std::time::Duration;

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use urxe_engine::attr::{AttrMask, QpAttr};
use urxe_engine::congestion::{Algorithm, CongestionSettings};
use urxe_engine::endpoint::Route;
use urxe_engine::{Key, MigrationState, Paths, QpState, Remote, SendOp, WcOpcode};
use urxe_sim::single_qp::{MTU, PEER_QPN, SingleQp};
use urxe_wire::opcode::{HeaderSet, Role};
use urxe_wire::packet::pad_count;
use urxe_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Ext, Feth, FlushLevel, Header, Ieth, ImmDt, Msn, Opcode, Operation, Packet, Psn,
    RKey, Reth, SelectiveAck, SelectiveOffer, Syndrome, Transport,
};

/// Receive requests are numbered from here on, send requests from 0.
const RECVS: u64 = 1 << 32;
/// A queue pair's queues, at most.
const QUEUE: u64 = 40;
/// Packets that one `transmit` may send: four READs of 16 KiB and 64 replays, a window of requests, and those of selective
/// repeat.
const MOST_SENT: usize = (4 + 64) * 64 + 128 + 4;

/// The peer's addresses on the paths of a connection, and another's.
const ADDRESSES: [IpAddr; 3] = [
    IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2)),
    IpAddr::V4(std::net::Ipv4Addr::new(10, 1, 0, 2)),
    IpAddr::V4(std::net::Ipv4Addr::new(10, 2, 0, 2)),
];

const FLUSH: Feth = Feth { global_visibility: true, persistence: false, level: FlushLevel::Range };

/// Half of the queue pair that is attacked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// Requests come in.
    Responder,
    /// Responses come in, to requests of its own.
    Completer,
}

/// A queue pair under attack, and what must stay true.
pub struct Siege {
    qp: SingleQp,
    target: Target,
    /// Memory that no work request and no key names.
    outside: u64,
    /// The next number of each queue that may complete.
    next: [u64; 2],
    posted: [u64; 2],
}

impl Siege {
    /// A queue pair in RTS, with the paths, the congestion control and the alternate path that the bytes say.
    ///
    /// # Errors
    /// The bytes are at their end.
    pub fn new(target: Target, u: &mut Unstructured<'_>) -> Result<Self> {
        let selective_paths = u.int_in_range(0..=3)?;
        let (_, algorithm) = *u.choose(&Algorithm::ALL)?;
        let congestion = CongestionSettings { ecn: u.arbitrary()?, algorithm, line_rate: 1000, ..CongestionSettings::NONE };
        let mut qp = SingleQp::reset(|setup, _| {
            setup.selective_paths = selective_paths;
            setup.congestion = congestion;
        });
        qp.go_to(QpState::Rts, &Self::attr());
        let outside = qp.node.memory_mut().map(4096);
        Ok(Self { qp, target, outside, next: [0, RECVS], posted: [0, RECVS] })
    }

    fn attr() -> QpAttr {
        QpAttr { retry_cnt: 7, rnr_retry: 7, ..SingleQp::attr() }
    }

    /// Sends all that may be sent.
    fn transmit(&mut self) {
        self.qp.node.transmit(self.qp.now);
        assert!(self.take_sent() <= MOST_SENT);
    }

    /// Takes packets that were sent, which go to the peer and are whole. Returns how many.
    fn take_sent(&mut self) -> usize {
        let sent = self.qp.node.nic().take_sent();
        for datagram in &sent {
            assert!(datagram.has_right_icrc() && ADDRESSES.contains(&datagram.to.ip()));
            let packet = Packet::parse(&datagram.bytes).expect("it sends packets");
            assert_eq!(packet.bth().dest_qp, PEER_QPN);
        }
        sent.len()
    }

    /// Carries out the calls that the bytes encode until there are none left.
    ///
    /// # Errors
    /// The bytes are at their end.
    ///
    /// # Panics
    /// If something is not as it must be.
    pub fn run(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        while !u.is_empty() {
            self.step(u)?;
            self.check();
        }
        Ok(())
    }

    fn step(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        match u.int_in_range(0..=17)? {
            0..=1 => self.post_send(u)?,
            2 => self.post_recv(u)?,
            3 => {
                let wait = self.qp.timeout().unwrap_or(Duration::from_millis(1));
                self.qp.elapse(wait);
            }
            4 => {
                self.qp.node.nic().set_room(u.int_in_range(0..=100)?);
                self.transmit();
                self.qp.node.nic().set_room(usize::MAX);
            }
            5 if u.ratio(1, 4)? => {
                let to = *u.choose(&[QpState::Err, QpState::Sqd, QpState::Reset])?;
                // A transition that is not there is refused.
                let _ = self.qp.modify(to, AttrMask::NONE, &Self::attr());
            }
            6 => self.acknowledge_selectively(u)?,
            7 => self.notify(u)?,
            8 => self.change_paths(u)?,
            _ => self.attack(u)?,
        }
        if matches!(self.qp.state(), QpState::Err | QpState::Reset) {
            self.check();
            self.qp.modify(QpState::Reset, AttrMask::NONE, &Self::attr()).expect("RESET can always be reached");
            self.qp.go_to(QpState::Rts, &Self::attr());
        } else if self.qp.state() == QpState::Sqd && u.ratio(1, 4)? {
            self.qp.modify(QpState::Rts, AttrMask::NONE, &Self::attr()).expect("SQD can be left");
        }
        Ok(())
    }

    fn post_send(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let remote = Remote { addr: 0x1000, r_key: RKey(0x77) };
        let ops = [
            SendOp::Send,
            SendOp::Write(remote),
            SendOp::Read(remote),
            SendOp::FetchAdd { remote, add: 1 },
            SendOp::CompareSwap { remote, compare: 1, swap: 2 },
            SendOp::AtomicWrite(remote),
            SendOp::WriteWithImmediate(remote, ImmDt([1; 4])),
            SendOp::SendWithImmediate(ImmDt([2; 4])),
            SendOp::SendWithInvalidate(remote.r_key),
            SendOp::Flush { remote, length: 64, how: FLUSH },
            // Nobody has it: the queue pair ends in its turn.
            SendOp::LocalInvalidate(Key(0)),
        ];
        let op = u.choose(&ops)?;
        let length = if op.is_atomic() || matches!(op, SendOp::AtomicWrite(_)) { 8 } else { u.int_in_range(0..=4000)? };
        if self.posted[0] < self.next[0] + QUEUE {
            // A full queue refuses it.
            let data = urxe_engine::Data::Gather(self.qp.sges(length));
            let flags = urxe_engine::SendFlags { signaled: true, fence: u.ratio(1, 4)?, solicited: false };
            let to = urxe_engine::Recipient::Peer;
            let wr = urxe_engine::SendWr { wr_id: self.posted[0], op: op.clone(), data, flags, to };
            if self.qp.post_wr(wr).is_ok() {
                self.posted[0] += 1;
            }
        }
        Ok(())
    }

    fn post_recv(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let buffers = self.qp.sges(u.int_in_range(0..=1000)?);
        if self.qp.recv_wr(urxe_engine::RecvWr { wr_id: self.posted[1], buffers }).is_ok() {
            self.posted[1] += 1;
        }
        Ok(())
    }

    /// A congestion notification.
    fn notify(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let bth = Bth { becn: u.ratio(7, 8)?, ..Bth::new(Opcode::CNP, self.qp.qpn, Psn::new(0)) };
        let payload = if u.ratio(1, 8)? { u.int_in_range(0..=20)? } else { 0 };
        self.arrives(u, bth, Ext::CnpReserved, &vec![0xEE; payload])
    }

    /// The consumer gives an alternate path or a state of migration, or the path in use is known to be down.
    fn change_paths(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        if u.ratio(1, 3)? {
            self.qp.node.path_failed(self.qp.now, self.qp.qpn);
            return Ok(());
        }
        let path_mig_state = *u.choose(&[MigrationState::Rearm, MigrationState::Migrated, MigrationState::Armed])?;
        let (mask, alternate) = if u.arbitrary()? {
            // One that differs in its port only, too.
            let route = Route { to: *u.choose(&ADDRESSES)?, source_port: 0xC002 };
            (AttrMask::PATH_MIG_STATE.with(AttrMask::ALT_PATH), Some(route))
        } else {
            (AttrMask::PATH_MIG_STATE, None)
        };
        let attr = QpAttr { path_mig_state, alt_timeout: 14, ..Self::attr() };
        // A state that it cannot have is refused.
        let paths = Paths { primary: None, alternate };
        let _ = self.qp.node.modify(self.qp.now, self.qp.qpn, self.qp.state(), mask, &attr, paths);
        Ok(())
    }

    /// A packet arrives, by any path, with any of the bits that speak of paths and of congestion.
    fn arrives(&mut self, u: &mut Unstructured<'_>, bth: Bth, ext: Ext, payload: &[u8]) -> Result<()> {
        let plain = Header::new(bth, ext);
        if u.ratio(1, 2)? {
            self.qp.gets_from(ADDRESSES[0], &plain, payload);
        } else {
            let header = Header::new(Bth { mig_req: u.arbitrary()?, fecn: u.arbitrary()?, ..bth }, ext);
            if u.ratio(1, 4)? {
                self.qp.gets_marked(&header, payload);
            } else {
                self.qp.gets_from(*u.choose(&ADDRESSES)?, &header, payload);
            }
        }
        // Nothing leaves at once but a notification.
        assert!(self.take_sent() <= 1);
        Ok(())
    }

    /// An offer of selective repeat, or an acknowledgement of any packets.
    fn acknowledge_selectively(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let (opcode, ext, len) = if u.ratio(1, 3)? {
            let offer = SelectiveOffer { answer: u.arbitrary()?, window: u.arbitrary()? };
            (Opcode::SELECTIVE_OFFER, Ext::SelectiveOffer(offer), 0)
        } else {
            let ack = SelectiveAck { duplicates: u.arbitrary()? };
            (Opcode::SELECTIVE_ACK, Ext::SelectiveAck(ack), u.int_in_range(0..=260)?)
        };
        let near = self.qp.node.qp(self.qp.qpn).attr().sq_psn.sub(u.int_in_range(0..=64)?);
        let psn = if u.ratio(1, 8)? { Psn::new(u.arbitrary()?) } else { near };
        let bitmap = u.bytes(len)?.to_vec();
        self.arrives(u, Bth::new(opcode, self.qp.qpn, psn), ext, &bitmap)
    }

    /// A packet of the peer: legal in itself, and otherwise whatever the fuzzer wants.
    fn attack(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let role = if self.target == Target::Responder { Role::Request } else { Role::Response };
        let wanted = |byte: &u8| {
            Opcode::from_u8(*byte)
                .is_some_and(|opcode| opcode.transport() == Transport::Rc && opcode.info().role == role)
        };
        let bytes: Vec<u8> = (0..=u8::MAX).filter(wanted).collect();
        let Some(operation) = Opcode::from_u8(*u.choose(&bytes)?).map(Opcode::operation) else { return Ok(()) };
        let length = match u.int_in_range(0..=3)? {
            0 => u.int_in_range(0..=2 * MTU)?,
            1 => 0,
            _ => MTU,
        };
        let ext = self.ext(u, operation, length)?;
        let attr = self.qp.node.qp(self.qp.qpn).attr();
        let near = if role == Role::Request { attr.rq_psn } else { attr.sq_psn.sub(1) };
        let psn = match u.int_in_range(0..=7)? {
            0..=4 => near,
            5 => near.sub(u.int_in_range(0..=140)?),
            6 => near.add(u.int_in_range(0..=8)?),
            _ => near.add(u.int_in_range(0..=0xFF_FFFF)?),
        };
        let Some(opcode) = Opcode::new(Transport::Rc, operation) else { return Ok(()) };
        let (pad_count, ack_req) = (pad_count(length), role == Role::Request);
        let bth = Bth { pad_count, ack_req, becn: u.ratio(1, 8)?, ..Bth::new(opcode, self.qp.qpn, psn) };
        self.arrives(u, bth, ext, &vec![0xEE; length])
    }

    fn ext(&self, u: &mut Unstructured<'_>, operation: Operation, length: usize) -> Result<Ext> {
        Ok(match operation.info().headers {
            HeaderSet::None | HeaderSet::CnpReserved | HeaderSet::SelectiveOffer | HeaderSet::SelectiveAck => Ext::None,
            HeaderSet::Reth => Ext::Reth(self.reth(u, length)?),
            HeaderSet::RethImmDt => Ext::RethImmDt(self.reth(u, length)?, ImmDt(u.arbitrary()?)),
            HeaderSet::ImmDt => Ext::ImmDt(ImmDt(u.arbitrary()?)),
            HeaderSet::Ieth => Ext::Ieth(Ieth { r_key: RKey(u.arbitrary()?) }),
            HeaderSet::AtomicEth => {
                let Reth { va, r_key, .. } = self.reth(u, 8)?;
                Ext::AtomicEth(AtomicEth { va, r_key, swap_add: u.arbitrary()?, compare: u.arbitrary()? })
            }
            HeaderSet::Aeth => Ext::Aeth(aeth(u)?),
            HeaderSet::AethAtomicAckEth => Ext::AethAtomicAckEth(aeth(u)?, AtomicAckEth { original: u.arbitrary()? }),
            HeaderSet::FethReth => {
                let feth = Feth::parse(&[0, 0, 0, u.int_in_range(0..=0x1F)?]).expect("levels 0 and 1 exist");
                Ext::FethReth(feth, self.reth(u, length)?)
            }
        })
    }

    fn reth(&self, u: &mut Unstructured<'_>, length: usize) -> Result<Reth> {
        let remote = &self.qp.remote;
        let offset = match u.int_in_range(0..=3)? {
            0 => u.arbitrary()?,
            1 => remote.length.wrapping_add(u.int_in_range(0..=16)?).wrapping_sub(8),
            _ => u64::from(u.arbitrary::<u16>()?),
        };
        let r_key = match u.int_in_range(0..=7)? {
            0 => u.arbitrary()?,
            1 => self.qp.local.key.0,
            _ => remote.key.0,
        };
        let dma_len = match u.int_in_range(0..=3)? {
            0 => u.arbitrary()?,
            1 => u.int_in_range(0..=3000)?,
            _ => u32::try_from(length).unwrap_or(u32::MAX),
        };
        Ok(Reth { va: remote.addr.wrapping_add(offset), r_key: RKey(r_key), dma_len })
    }

    /// Requests complete in order and at most once, and nobody touched what is not theirs.
    fn check(&mut self) {
        for cqe in self.qp.cqes() {
            let queue = usize::from(cqe.wr_id >= RECVS);
            if matches!(cqe.opcode, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm) {
                assert_eq!(queue, 1);
            }
            assert!((self.next[queue]..self.posted[queue]).contains(&cqe.wr_id), "{cqe:?} again, or out of order");
            self.next[queue] = cqe.wr_id + 1;
        }
        assert_eq!(self.qp.node.memory().violations(), []);
        assert!(self.qp.node.memory().holds(self.outside, &[0; 4096]));
    }
}

fn aeth(u: &mut Unstructured<'_>) -> Result<Aeth> {
    let syndrome = Syndrome::from_u8(u.arbitrary()?).unwrap_or(Syndrome::Ack(urxe_wire::Credits::INVALID));
    Ok(Aeth { syndrome, msn: Msn::new(u.int_in_range(0..=0xFF_FFFF)?) })
}
