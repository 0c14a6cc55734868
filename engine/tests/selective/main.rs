//! Selective repeat: what is kept behind a gap, what is sent again, and what a hostile peer cannot change.

mod probes;
mod requester;
mod responder;

use std::collections::BTreeSet;

use urxe_engine::{DropReason, QpState, Remote, SendOp, WcStatus};
use urxe_sim::single_qp::{PEER_QPN, RQ_PSN, SQ_PSN, SingleQp};
use urxe_wire::{
    Bitmap, Bth, Ext, Header, Opcode, Operation as O, Psn, RKey, Reth, SelectiveAck, SelectiveOffer, Syndrome,
};

const OK: WcStatus = WcStatus::Success;
const REMOTE: Remote = Remote { addr: 0x1234_5678_9ABC, r_key: RKey(0x77) };
const PEER: &str = "10.0.0.2";

/// A queue pair that may have selective repeat, and begins with these PSNs.
fn able(rq_psn: u32, sq_psn: u32) -> SingleQp {
    able_on(1, rq_psn, sq_psn)
}

fn able_on(paths: u8, rq_psn: u32, sq_psn: u32) -> SingleQp {
    let mut qp = SingleQp::reset(|setup, _| setup.selective_paths = paths);
    let attr = urxe_engine::attr::QpAttr { rq_psn: Psn::new(rq_psn), sq_psn: Psn::new(sq_psn), ..SingleQp::attr() };
    qp.go_to(QpState::Rts, &attr);
    qp
}

/// A queue pair whose peer has selective repeat as well.
fn agreed() -> SingleQp {
    let mut qp = able(RQ_PSN, SQ_PSN);
    gets_offer(&mut qp, true);
    qp.log();
    qp
}

fn gets_own(qp: &mut SingleQp, opcode: Opcode, psn: u32, ext: Ext, payload: &[u8]) {
    let header = Header::new(Bth::new(opcode, qp.qpn, Psn::new(psn)), ext);
    qp.gets_from(PEER.parse().unwrap(), &header, payload);
}

fn gets_offer(qp: &mut SingleQp, answer: bool) {
    let offer = SelectiveOffer { answer, window: 64 };
    gets_own(qp, Opcode::SELECTIVE_OFFER, 0, Ext::SelectiveOffer(offer), &[]);
}

/// A selective acknowledgement arrives: `missing`, and how far behind it those are that arrived.
fn gets_sack(qp: &mut SingleQp, missing: u32, arrived: &[u32]) {
    let mut bitmap = vec![0; Bitmap::len_for(arrived.iter().max().map_or(0, |&last| last as usize))];
    arrived.iter().for_each(|&behind| Bitmap::set(&mut bitmap, behind as usize));
    let ack = Ext::SelectiveAck(SelectiveAck { duplicates: 0 });
    gets_own(qp, Opcode::SELECTIVE_ACK, missing, ack, &bitmap);
}

/// A selective acknowledgement arrives: nothing before `missing` is, and so many requests came more than once.
fn gets_duplicates(qp: &mut SingleQp, missing: u32, duplicates: u32) {
    gets_own(qp, Opcode::SELECTIVE_ACK, missing, Ext::SelectiveAck(SelectiveAck { duplicates }), &[]);
}

/// Selective acknowledgements among what is sent: the PSN that is missing, and ranges that arrived.
fn sacks(qp: &mut SingleQp) -> Vec<(u32, Vec<(u32, u32)>)> {
    let sent = qp.sent();
    let own = sent.iter().filter(|sent| sent.header.bth.opcode == Opcode::SELECTIVE_ACK);
    own.map(|sent| {
        assert_eq!(sent.header.bth.dest_qp, PEER_QPN);
        let missing = sent.header.bth.psn;
        let ranges = Bitmap::new(&sent.payload).unwrap().ranges(missing);
        (missing.get(), ranges.map(|(first, last)| (first.get(), last.get())).collect())
    })
    .collect()
}

//= spec/selective.md#sel-001
//= type=test
//# An offer MUST be answered by one that says it is the answer, which is not answered.
#[test]
fn offers_are_answered_once() {
    let mut qp = able(RQ_PSN, SQ_PSN);
    gets_offer(&mut qp, false);
    let sent = qp.sent();
    assert_eq!(sent.len(), 1);
    assert!(matches!(sent[0].header.ext, Ext::SelectiveOffer(SelectiveOffer { answer: true, window: 1.. })));
    gets_offer(&mut qp, true);
    assert_eq!(qp.sent(), [""; 0]);
}

//= spec/selective.md#sel-003
//= type=test
//# Where selective repeat is off, offers and selective acknowledgements MUST change nothing and not be answered.
#[test]
fn without_it_nothing_is_answered() {
    let mut qp = SingleQp::rts();
    for wr_id in 0..20 {
        qp.post(wr_id, SendOp::Write(REMOTE), 10);
    }
    let sent = qp.sent();
    assert!(sent.iter().all(|sent| sent.header.bth.opcode.operation() == O::WriteOnly));
    gets_offer(&mut qp, false);
    gets_sack(&mut qp, SQ_PSN + 1, &[1, 2]);
    assert_eq!(qp.drops(), [DropReason::Transport, DropReason::Transport]);
    assert_eq!(qp.sent(), [""; 0]);
    // A gap is told as ever.
    qp.recv(1, 64);
    qp.gets(O::SendOnly, RQ_PSN + 1, Ext::None, b"late");
    assert_eq!(qp.sent(), ["NAK PsnSequenceError 100"]);
}

//= spec/selective.md#sel-005
//= type=test
//# Offers MUST be few, and none be sent where nothing is lost or selective repeat is off.
#[test]
fn offers_are_few() {
    let offers = |qp: &mut SingleQp| {
        let is_offer = |sent: &urxe_sim::single_qp::Sent| sent.header.bth.opcode == Opcode::SELECTIVE_OFFER;
        qp.sent().into_iter().filter(is_offer).count()
    };
    // Sixteen packets at a time, of which none is lost, to a peer that does not know it.
    let mut qp = able(RQ_PSN, SQ_PSN);
    let (mut after, mut psn) = (Vec::new(), SQ_PSN);
    for wr_id in 0..4000 {
        qp.post(wr_id, SendOp::Write(REMOTE), 16 * 256);
        psn += 16;
        after.extend((0..offers(&mut qp)).map(|_| psn - SQ_PSN));
        qp.gets_ack((psn - 1) & 0xFF_FFFF);
    }
    // 64 packets behind the first, then 256, 1024 and so on.
    assert_eq!(after, [16, 80, 336, 1360, 5456, 21840]);
    let mut few = able(RQ_PSN, SQ_PSN);
    few.post(1, SendOp::Write(REMOTE), 15 * 256);
    assert_eq!(offers(&mut few), 0, "so few are soon sent again");
    few.gets_aeth(SQ_PSN + 3, Syndrome::Nak(urxe_wire::NakCode::PsnSequenceError));
    assert_eq!(offers(&mut few), 1, "a loss");
    let mut lossless = able(RQ_PSN, SQ_PSN);
    lossless.node.nic().promise_no_loss();
    lossless.post(1, SendOp::Write(REMOTE), 40 * 256);
    assert_eq!(offers(&mut lossless), 0);
}

/// PSNs wrap at 2^24, for responder and requester.
#[test]
fn gaps_at_the_end_of_all_psns() {
    let mut qp = able(0xFF_FFFE, 0xFF_FFFD);
    gets_offer(&mut qp, true);
    qp.recv(1, 64);
    qp.recv(2, 64);
    qp.recv(3, 64);
    qp.gets(O::SendOnly, 0, Ext::None, b"3");
    assert_eq!(sacks(&mut qp), [(0xFF_FFFE, vec![(0, 0)])]);
    qp.gets(O::SendOnly, 0xFF_FFFE, Ext::None, b"1");
    qp.gets(O::SendOnly, 0xFF_FFFF, Ext::None, b"2");
    assert_eq!(qp.completed(), [(1, OK), (2, OK), (3, OK)]);
    qp.sent();
    qp.post(9, SendOp::Write(REMOTE), 8 * 256);
    assert_eq!(qp.sent().len(), 8);
    gets_sack(&mut qp, 0xFF_FFFE, &[1, 3, 4, 5, 6]);
    assert_eq!(qp.sent(), ["RDMA WRITE Middle 16777214 ?", "RDMA WRITE Middle 0 ?"]);
    qp.gets_ack(4);
    assert_eq!(qp.completed(), [(9, OK)]);
}

/// An answer that is owed when the queue pair fails is owed no more.
#[test]
fn in_err_no_offer_is_answered() {
    let mut qp = able(RQ_PSN, SQ_PSN);
    gets_offer(&mut qp, false);
    assert!(qp.node.qp(qp.qpn).owes_answer());
    qp.node.fail(qp.now, qp.qpn);
    assert_eq!(qp.sent(), [""; 0]);
    assert!(!qp.node.qp(qp.qpn).owes_answer() && !qp.node.qp(qp.qpn).has_output());
}

/// Answers take one path until the requester has heard that it may take them in any order: it would go back for late ones.
#[test]
fn answers_take_several_paths_when_the_requester_has_heard_of_it() {
    let mut qp = able_on(2, RQ_PSN, SQ_PSN);
    let reth = Reth { va: qp.remote.addr, r_key: RKey(qp.remote.key.0), dma_len: 0 };
    let answer = |qp: &mut SingleQp, psns: std::ops::Range<u32>| {
        let mut ports = BTreeSet::new();
        for psn in psns {
            qp.gets(O::WriteOnly, psn, Ext::Reth(reth), &[]);
            qp.node.transmit(qp.now);
            ports.extend(qp.node.nic().take_sent().iter().map(|datagram| datagram.from.port()));
        }
        ports.len()
    };
    gets_offer(&mut qp, false);
    assert_eq!(answer(&mut qp, RQ_PSN..RQ_PSN + 1000), 1);
    assert_eq!(answer(&mut qp, RQ_PSN + 1000..RQ_PSN + 1100), 2);
}
