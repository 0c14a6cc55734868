//! A peer that sends anything: the queue pair does not panic, touches no memory that it may not, completes each
//! work request at most once and in order, and does not answer more than it was asked.

use std::net::{IpAddr, Ipv4Addr};

use urxe_engine::attr::{AttrMask, QpAttr};
use urxe_engine::congestion::{Algorithm, CongestionSettings};
use urxe_engine::endpoint::Route;
use urxe_engine::rng::Rng;
use urxe_engine::{MigrationState, Paths, QpState, Remote, SendOp, WcOpcode};
use urxe_sim::single_qp::{MTU, SingleQp};
use urxe_wire::opcode::HeaderSet;
use urxe_wire::packet::pad_count;
use urxe_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Ext, Feth, Header, Ieth, ImmDt, Msn, Opcode, Operation, Psn, RKey, Reth,
    SelectiveAck, SelectiveOffer, Syndrome, Transport,
};

/// The peer's addresses on the paths of a connection, and another's.
const ADDRESSES: [IpAddr; 3] = [
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)),
    IpAddr::V4(Ipv4Addr::new(10, 1, 0, 2)),
    IpAddr::V4(Ipv4Addr::new(10, 2, 0, 2)),
];

const REMOTE: Remote = Remote { addr: 0x1000, r_key: RKey(0x77) };

fn small(rng: &mut Rng, bound: u32) -> u32 {
    u32::try_from(rng.below(u64::from(bound))).unwrap()
}

fn one_of<T: Copy>(rng: &mut Rng, choices: &[T]) -> T {
    choices[usize::try_from(rng.below(choices.len() as u64)).unwrap()]
}

fn rc_operations() -> Vec<Operation> {
    (0..=u8::MAX)
        .filter_map(Opcode::from_u8)
        .filter(|opcode| opcode.transport() == Transport::Rc)
        .map(Opcode::operation)
        .collect()
}

struct Peer {
    rng: Rng,
    operations: Vec<Operation>,
}

impl Peer {
    fn reth(&mut self, qp: &SingleQp, payload: usize) -> Reth {
        let rng = &mut self.rng;
        let offset = one_of(rng, &[0, 8, 100, qp.remote.length - 256, qp.remote.length, u64::MAX - qp.remote.addr]);
        let payload = u32::try_from(payload).unwrap();
        let some = small(rng, 3000);
        Reth {
            va: qp.remote.addr.wrapping_add(offset),
            r_key: RKey(one_of(rng, &[qp.remote.key.0, qp.remote.key.0, qp.remote.key.0, qp.local.key.0, 0])),
            dma_len: one_of(rng, &[payload, payload, some, 0, 1 << 31, u32::MAX]),
        }
    }

    fn aeth(&mut self) -> Aeth {
        let byte =
            one_of(&mut self.rng, &[0x1F, 0x1F, 0x00, 0x03, 0x0A, 0x1E, 0x21, 0x3F, 0x60, 0x61, 0x62, 0x63, 0x64]);
        Aeth { syndrome: Syndrome::from_u8(byte).unwrap(), msn: Msn::new(small(&mut self.rng, 1 << 24)) }
    }

    fn attack(&mut self, qp: &mut SingleQp) {
        let operation = one_of(&mut self.rng, &self.operations);
        let info = operation.info();
        let len = one_of(&mut self.rng, &[0, 1, 8, MTU - 1, MTU, MTU, MTU, MTU + 4]);
        let ext = match info.headers {
            HeaderSet::None => Ext::None,
            HeaderSet::Reth => Ext::Reth(self.reth(qp, len)),
            HeaderSet::RethImmDt => Ext::RethImmDt(self.reth(qp, len), ImmDt([1; 4])),
            HeaderSet::ImmDt => Ext::ImmDt(ImmDt([2; 4])),
            HeaderSet::Ieth => Ext::Ieth(Ieth { r_key: RKey(3) }),
            HeaderSet::AtomicEth => {
                let Reth { va, r_key, .. } = self.reth(qp, 8);
                Ext::AtomicEth(AtomicEth { va, r_key, swap_add: 1, compare: 0 })
            }
            HeaderSet::Aeth => Ext::Aeth(self.aeth()),
            HeaderSet::AethAtomicAckEth => Ext::AethAtomicAckEth(self.aeth(), AtomicAckEth { original: 5 }),
            HeaderSet::FethReth => Ext::FethReth(Feth::parse(&[0; 4]).unwrap(), self.reth(qp, len)),
            HeaderSet::CnpReserved | HeaderSet::SelectiveOffer | HeaderSet::SelectiveAck => {
                unreachable!("not of RC")
            }
        };
        let attr = qp.node.qp(qp.qpn).attr();
        let near = if info.role == urxe_wire::opcode::Role::Request {
            attr.rq_psn
        } else {
            attr.sq_psn.sub(small(&mut self.rng, 12))
        };
        let psn = match self.rng.below(8) {
            0..=4 => near,
            5 => near.sub(small(&mut self.rng, 8)),
            6 => near.add(small(&mut self.rng, 8)),
            _ => Psn::new(small(&mut self.rng, 1 << 24)),
        };
        if self.rng.below(2) == 0 {
            qp.gets(operation, psn.get(), ext, &vec![0xEE; len]);
            return;
        }
        // By any path, with any of the bits that speak of paths and of congestion.
        let bth = Bth::new(Opcode::new(Transport::Rc, operation).unwrap(), qp.qpn, psn);
        let [ack_req, mig_req, fecn, becn] = [(); 4].map(|()| self.rng.below(2) == 0);
        let bth = Bth { pad_count: pad_count(len), ack_req, mig_req, fecn, becn, ..bth };
        let header = Header::new(bth, ext);
        if self.rng.below(4) == 0 {
            qp.gets_marked(&header, &vec![0xEE; len]);
        } else {
            qp.gets_from(one_of(&mut self.rng, &ADDRESSES), &header, &vec![0xEE; len]);
        }
    }

    /// A congestion notification, or the consumer moves the connection.
    fn notify_or_migrate(&mut self, qp: &mut SingleQp) {
        let rng = &mut self.rng;
        match rng.below(4) {
            0 => {
                qp.node.path_failed(qp.now, qp.qpn);
            }
            1 => {
                let states = [MigrationState::Rearm, MigrationState::Migrated, MigrationState::Armed];
                let attr = QpAttr { path_mig_state: one_of(rng, &states), alt_timeout: 14, ..SingleQp::attr() };
                let mask = AttrMask::PATH_MIG_STATE;
                let gives_path = rng.below(2) == 0;
                let mask = if gives_path { mask.with(AttrMask::ALT_PATH) } else { mask };
                let alternate = gives_path.then(|| Route { to: one_of(rng, &ADDRESSES), source_port: 0xC002 });
                let _ = qp.node.modify(qp.now, qp.qpn, qp.state(), mask, &attr, Paths { primary: None, alternate });
            }
            _ => {
                let bth = Bth { becn: rng.below(8) > 0, ..Bth::new(Opcode::CNP, qp.qpn, Psn::new(0)) };
                let payload = vec![0xEE; one_of(rng, &[0, 0, 0, 4, 20])];
                qp.gets_from(one_of(rng, &ADDRESSES), &Header::new(bth, Ext::CnpReserved), &payload);
            }
        }
    }
}

impl Peer {
    /// An offer, or an acknowledgement of any packets.
    fn acknowledge_selectively(&mut self, qp: &mut SingleQp) {
        let rng = &mut self.rng;
        let (opcode, ext, len) = match rng.below(4) {
            0 => {
                let offer = SelectiveOffer { answer: rng.below(2) == 0, window: one_of(rng, &[0, 1, 64, u16::MAX]) };
                (Opcode::SELECTIVE_OFFER, Ext::SelectiveOffer(offer), 0)
            }
            _ => {
                let ack = SelectiveAck { duplicates: one_of(rng, &[0, 1, 2, 1 << 31, u32::MAX]) };
                (Opcode::SELECTIVE_ACK, Ext::SelectiveAck(ack), one_of(rng, &[0, 4, 4, 4, 8, 256, 260, 3]))
            }
        };
        let near = qp.node.qp(qp.qpn).attr().sq_psn.sub(small(rng, 24));
        let psn = if rng.below(8) == 0 { Psn::new(small(rng, 1 << 24)) } else { near };
        let sparse = one_of(rng, &[0, 1, 0x80, 0xFF]);
        let bitmap: Vec<u8> =
            (0..len).map(|at| if at < 2 { u8::try_from(small(rng, 256)).unwrap() } else { sparse }).collect();
        let header = Header::new(Bth::new(opcode, qp.qpn, psn), ext);
        qp.gets_from("10.0.0.2".parse().unwrap(), &header, &bitmap);
    }
}

/// Work requests of each queue complete in the order they were posted in, each at most once.
struct Order {
    next: [u64; 2],
}

impl Order {
    fn check(&mut self, qp: &mut SingleQp) {
        for cqe in qp.cqes() {
            // Of a failure the opcode says no more than which queue it was (and not even that is promised).
            let queue = usize::from(cqe.wr_id >= 1 << 32);
            if cqe.opcode == WcOpcode::Recv || cqe.opcode == WcOpcode::RecvRdmaWithImm {
                assert_eq!(queue, 1);
            }
            assert!(cqe.wr_id >= self.next[queue], "{cqe:?} completed twice, or out of order");
            self.next[queue] = cqe.wr_id + 1;
        }
    }
}

fn siege(seed: u64, selective_paths: u8, congestion: CongestionSettings) {
    let mut peer = Peer { rng: Rng::new(seed), operations: rc_operations() };
    let attr = QpAttr { retry_cnt: 7, rnr_retry: 7, ..SingleQp::attr() };
    let mut qp = SingleQp::reset(|setup, _| (setup.selective_paths, setup.congestion) = (selective_paths, congestion));
    qp.go_to(QpState::Rts, &attr);
    let mut order = Order { next: [0, 1 << 32] };
    let outside = qp.node.memory_mut().map(4096);
    let [mut sends, mut recvs] = [0, 1 << 32];
    for _ in 0..200 {
        match peer.rng.below(16) {
            0 => {
                let op = one_of(
                    &mut peer.rng,
                    &[
                        SendOp::Send,
                        SendOp::Write(REMOTE),
                        SendOp::Read(REMOTE),
                        SendOp::FetchAdd { remote: REMOTE, add: 1 },
                    ],
                );
                let len = if op.is_atomic() { 8 } else { small(&mut peer.rng, 4000) };
                if sends < 40 {
                    qp.post(sends, op, len);
                    sends += 1;
                }
            }
            1 if recvs < (1 << 32) + 40 => {
                qp.recv(recvs, small(&mut peer.rng, 1000));
                recvs += 1;
            }
            2 => {
                if let Some(wait) = qp.timeout() {
                    qp.elapse(wait);
                }
            }
            3..=5 if selective_paths > 0 => peer.acknowledge_selectively(&mut qp),
            6 if congestion.ecn => peer.notify_or_migrate(&mut qp),
            _ => peer.attack(&mut qp),
        }
        if peer.rng.below(3) == 0 {
            qp.node.nic().set_room(100_000);
            qp.node.transmit(qp.now);
            let sent = qp.node.nic().take_sent().len();
            // A READ of all 16 KiB is 64 packets; there are four resources and four replays, or 64 with selective repeat; and a
            // window of requests.
            let reads = if selective_paths > 0 { 4 + 64 } else { 8 };
            assert!(sent <= reads * 64 + 128 + 4, "seed {seed}: {sent} packets at once");
        }
        order.check(&mut qp);
        if qp.state() == QpState::Err {
            qp.modify(QpState::Reset, AttrMask::NONE, &SingleQp::attr()).unwrap();
            qp.go_to(QpState::Rts, &attr);
        }
    }
    assert_eq!(qp.node.memory().violations(), [], "seed {seed}");
    assert!(qp.node.memory().holds(outside, &[0; 4096]));
}

//= spec/responder.md#rsp-023
//= type=test
//# A flood of duplicates MUST NOT make anything grow.
#[test]
fn sieges() {
    for seed in 0..4_000 {
        siege(seed, 0, CongestionSettings::NONE);
        let paths = 1 + u8::try_from(seed % 3).unwrap();
        siege(seed, paths, CongestionSettings::NONE);
        let (_, algorithm) = Algorithm::ALL[usize::try_from(seed % 3).unwrap()];
        siege(seed, paths, CongestionSettings { ecn: true, algorithm, line_rate: 1000, ..CongestionSettings::NONE });
    }
}
