//! Selective repeat: what is kept behind a gap, what is sent again, and what a hostile peer cannot change.

use std::collections::BTreeSet;
use std::time::Duration;

use urxe_engine::endpoint::Event as NodeEvent;
use urxe_engine::{Access, Bind, DropReason, Event, Key, QpState, Remote, SendOp, WcStatus, WindowType};
use urxe_sim::memory::DEFAULT_PD;
use urxe_sim::single_qp::{MTU, PEER_QPN, RQ_PSN, SQ_PSN, SingleQp};
use urxe_wire::{
    Aeth, AtomicAckEth, Bitmap, Bth, Credits, Ext, Header, Msn, Opcode, Operation as O, Psn, RKey, Reth, RnrTimer,
    SelectiveAck, SelectiveOffer, Syndrome,
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

/// One whose peer has it as well.
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

//= spec/selective.md#sel-004
//= type=test
//# A request behind a gap MUST be kept, carried out in its turn, and acknowledged by a selective acknowledgement.
#[test]
fn requests_behind_a_gap_are_carried_out_in_their_turn() {
    let mut qp = agreed();
    let reth = Reth { va: qp.remote.addr, r_key: RKey(qp.remote.key.0), dma_len: 3 * 256 };
    let bytes = |qp: &SingleQp| qp.node.memory().peek(qp.remote.addr, 3 * 256).to_vec();
    let before = bytes(&qp);
    qp.gets(O::WriteLast, RQ_PSN + 2, Ext::None, &[3; MTU]);
    qp.gets(O::SendOnly, RQ_PSN + 4, Ext::None, b"behind");
    assert_eq!(sacks(&mut qp), [(RQ_PSN, vec![(RQ_PSN + 2, RQ_PSN + 2), (RQ_PSN + 4, RQ_PSN + 4)])]);
    qp.gets(O::WriteMiddle, RQ_PSN + 1, Ext::None, &[2; MTU]);
    assert_eq!(bytes(&qp), before, "the last byte comes last");
    assert_eq!(sacks(&mut qp), [(RQ_PSN, vec![(RQ_PSN + 1, RQ_PSN + 2), (RQ_PSN + 4, RQ_PSN + 4)])]);
    qp.recv(7, 64);
    qp.gets(O::WriteFirst, RQ_PSN, Ext::Reth(reth), &[1; MTU]);
    assert_eq!(bytes(&qp), [[1; MTU], [2; MTU], [3; MTU]].concat());
    assert_eq!(qp.completed(), [], "the SEND is still behind a gap");
    let sent = qp.sent();
    // The ACK alone would tell that PSN 100 has come, perhaps when it was sent again, and not that PSN 104 had before.
    assert_eq!(sent, ["Selective Acknowledge 103", "ACK 102"]);
    qp.gets(O::SendOnly, RQ_PSN + 3, Ext::None, b"the gap");
    assert_eq!(qp.completed(), [(7, OK)], "the next has no receive");
    assert_eq!(qp.sent()[0], "RNR NAK 104");
    qp.recv(8, 64);
    qp.gets(O::SendOnly, RQ_PSN + 4, Ext::None, b"behind");
    assert_eq!(qp.completed(), [(8, OK)]);
}

//= spec/selective.md#sel-011
//= type=test
//# Bytes of a WRITE MAY be stored before those in front of them, if they are of neither its first nor its last packet,
//# all requests from the one under way to it are WRITEs whose memory was checked, and nothing in front of them is to be
//# stored at the same place.
#[test]
fn the_middle_of_a_write_is_stored_at_once() {
    let mut qp = agreed();
    let reth = Reth { va: qp.remote.addr, r_key: RKey(qp.remote.key.0), dma_len: 5 * 256 };
    let shown =
        |qp: &SingleQp| (0..6).map(|nth| qp.node.memory().peek(qp.remote.addr + 256 * nth, 1)[0]).collect::<Vec<_>>();
    let mut expected = shown(&qp);
    qp.gets(O::WriteFirst, RQ_PSN, Ext::Reth(reth), &[1; MTU]);
    qp.gets(O::WriteMiddle, RQ_PSN + 2, Ext::None, &[3; MTU]);
    (expected[0], expected[2]) = (1, 3);
    assert_eq!(shown(&qp), expected);
    // Its last packet waits, and so does what is behind the message.
    qp.gets(O::WriteLast, RQ_PSN + 4, Ext::None, &[5; MTU]);
    let next = Reth { va: qp.remote.addr + 5 * 256, ..reth };
    qp.gets(O::WriteFirst, RQ_PSN + 5, Ext::Reth(next), &[6; MTU]);
    qp.gets(O::WriteMiddle, RQ_PSN + 6, Ext::None, &[7; MTU]);
    assert_eq!(shown(&qp), expected);
    // A copy of what is stored changes nothing, whatever it brings.
    qp.gets(O::WriteMiddle, RQ_PSN + 2, Ext::None, &[9; MTU]);
    qp.gets(O::WriteMiddle, RQ_PSN + 3, Ext::None, &[4; MTU]);
    expected[3] = 4;
    assert_eq!(shown(&qp), expected);
    qp.gets(O::WriteMiddle, RQ_PSN + 1, Ext::None, &[2; MTU]);
    assert_eq!(shown(&qp), [1, 2, 3, 4, 5, 6]);
    assert_eq!(qp.sent()[0], "ACK 106");
}

/// The next WRITE is stored early too, where the one under way stores nothing any more.
#[test]
fn the_middle_of_the_next_write_is_stored_at_once() {
    // Two messages of four packets. The second packet of the first one is missing, and its last has to wait.
    for (first_block, stored) in [(4, Some(5)), (0, None), (1, Some(2)), (2, None)] {
        let mut qp = agreed();
        let reth = |block: usize| Reth {
            va: qp.remote.addr + (256 * block) as u64,
            r_key: RKey(qp.remote.key.0),
            dma_len: 4 * 256,
        };
        let (near, far) = (reth(0), reth(first_block));
        let shown = |qp: &SingleQp| {
            (0..8).map(|nth| qp.node.memory().peek(qp.remote.addr + 256 * nth, 1)[0]).collect::<Vec<_>>()
        };
        qp.gets(O::WriteFirst, RQ_PSN, Ext::Reth(near), &[1; MTU]);
        qp.gets(O::WriteMiddle, RQ_PSN + 2, Ext::None, &[3; MTU]);
        qp.gets(O::WriteLast, RQ_PSN + 3, Ext::None, &[4; MTU]);
        let before = shown(&qp);
        // Without its first packet nobody knows where it goes.
        qp.gets(O::WriteMiddle, RQ_PSN + 6, Ext::None, &[7; MTU]);
        assert_eq!(shown(&qp), before);
        qp.gets(O::WriteFirst, RQ_PSN + 4, Ext::Reth(far), &[5; MTU]);
        assert_eq!(shown(&qp), before);
        qp.gets(O::WriteMiddle, RQ_PSN + 5, Ext::None, &[6; MTU]);
        let early = shown(&qp);
        let differ: Vec<_> = (0..8).filter(|&at| early[at] != before[at]).collect();
        assert_eq!(differ, Vec::from_iter(stored), "from block {first_block} on");
        qp.gets(O::WriteLast, RQ_PSN + 7, Ext::None, &[8; MTU]);
        assert_eq!(shown(&qp), early);
        qp.gets(O::WriteMiddle, RQ_PSN + 1, Ext::None, &[2; MTU]);
        let mut wanted = [[1, 2, 3, 4], [0; 4]].concat();
        wanted.splice(first_block..first_block + 4, [5, 6, 7, 8]);
        assert_eq!(shown(&qp)[..first_block + 4], wanted[..first_block + 4]);
        assert_eq!(qp.sent()[0], "ACK 107");
    }
}

/// WRITEs behind the next one are stored early too, where all requests in front of them are known and leave the place alone.
#[test]
fn the_middle_of_a_later_write_is_stored_at_once() {
    type Reths<'a> = &'a dyn Fn(u64, u32) -> Reth;
    // Requests between the WRITE under way and the last one, `None` being a packet that is missing.
    type Between = fn(Reths<'_>) -> Vec<Option<(O, Ext, usize)>>;
    let cases: [(&str, Between, bool); 9] = [
        (
            "a WRITE",
            |reth| {
                let (middle, last) = ((O::WriteMiddle, Ext::None, MTU), (O::WriteLast, Ext::None, MTU));
                vec![Some((O::WriteFirst, Ext::Reth(reth(4, 3)), MTU)), Some(middle), Some(last)]
            },
            true,
        ),
        (
            "a WRITE that misses a packet",
            |reth| vec![Some((O::WriteFirst, Ext::Reth(reth(4, 3)), MTU)), None, Some((O::WriteLast, Ext::None, MTU))],
            true,
        ),
        (
            "a WRITE that misses a packet for the same place",
            |reth| vec![Some((O::WriteFirst, Ext::Reth(reth(8, 3)), MTU)), None, Some((O::WriteLast, Ext::None, MTU))],
            false,
        ),
        (
            "a WRITE without its first packet",
            |_| vec![None, Some((O::WriteMiddle, Ext::None, MTU)), Some((O::WriteLast, Ext::None, MTU))],
            false,
        ),
        ("a WRITE of one packet", |reth| vec![Some((O::WriteOnly, Ext::Reth(reth(4, 1)), MTU))], true),
        ("one to the same place", |reth| vec![Some((O::WriteOnly, Ext::Reth(reth(9, 1)), MTU))], false),
        (
            "one that will be refused",
            |reth| vec![Some((O::WriteOnly, Ext::Reth(Reth { va: 1, ..reth(4, 1) }), MTU))],
            false,
        ),
        ("a SEND", |_| vec![Some((O::SendOnly, Ext::None, MTU))], false),
        ("a READ", |reth| vec![Some((O::ReadRequest, Ext::Reth(reth(4, 1)), 0))], false),
    ];
    for (what, between, is_stored) in cases {
        let mut qp = agreed();
        let (addr, r_key) = (qp.remote.addr, RKey(qp.remote.key.0));
        let reth = |block: u64, packets: u32| Reth { va: addr + 256 * block, r_key, dma_len: packets * 256 };
        let byte = |qp: &SingleQp, block: u64| qp.node.memory().peek(addr + 256 * block, 1)[0];
        let before = byte(&qp, 9);
        qp.gets(O::WriteFirst, RQ_PSN, Ext::Reth(reth(0, 3)), &[1; MTU]);
        qp.gets(O::WriteLast, RQ_PSN + 2, Ext::None, &[3; MTU]);
        let mut psn = RQ_PSN + 3;
        let mut is_whole = true;
        for packet in between(&reth) {
            match packet {
                Some((operation, ext, len)) => qp.gets(operation, psn, ext, &vec![5; len]),
                None => is_whole = false,
            }
            psn += 1;
        }
        qp.gets(O::WriteFirst, psn, Ext::Reth(reth(8, 3)), &[8; MTU]);
        qp.gets(O::WriteMiddle, psn + 1, Ext::None, &[9; MTU]);
        qp.gets(O::WriteLast, psn + 2, Ext::None, &[10; MTU]);
        assert_eq!(byte(&qp, 9), if is_stored { 9 } else { before }, "behind {what}");
        assert_eq!((byte(&qp, 8), byte(&qp, 10)), (before, before), "behind {what}");
        qp.gets(O::WriteMiddle, RQ_PSN + 1, Ext::None, &[2; MTU]);
        if is_stored && is_whole {
            assert_eq!([8, 9, 10].map(|block| byte(&qp, block)), [8, 9, 10], "behind {what}");
            assert_eq!(qp.sent().len(), 1, "all is acknowledged at once, behind {what}");
            assert_eq!(qp.state(), QpState::Rts);
        }
    }
}

/// Early bytes are those of packets that will be the message's if the peer says the truth, and no others.
#[test]
fn packets_that_contradict_their_message_are_not_stored() {
    let reth = |qp: &SingleQp| Reth { va: qp.remote.addr, r_key: RKey(qp.remote.key.0), dma_len: 3 * 256 };
    // In the place of the last packet, and behind it.
    for psn in [RQ_PSN + 2, RQ_PSN + 3] {
        let mut qp = agreed();
        qp.gets(O::WriteFirst, RQ_PSN, Ext::Reth(reth(&qp)), &[1; MTU]);
        let before = qp.node.memory().peek(qp.remote.addr, 5 * 256);
        qp.gets(O::WriteMiddle, psn, Ext::None, &[3; MTU]);
        assert_eq!(qp.node.memory().peek(qp.remote.addr, 5 * 256), before);
        qp.gets(O::WriteMiddle, RQ_PSN + 1, Ext::None, &[2; MTU]);
        if psn == RQ_PSN + 2 {
            assert_eq!(qp.sent(), ["NAK InvalidRequest 102"]);
        }
    }
    // Of another kind, and of another length.
    let mut qp = agreed();
    qp.gets(O::WriteFirst, RQ_PSN, Ext::Reth(Reth { dma_len: 8 * 256, ..reth(&qp) }), &[1; MTU]);
    let before = qp.node.memory().peek(qp.remote.addr, 8 * 256);
    qp.gets(O::SendMiddle, RQ_PSN + 2, Ext::None, &[3; MTU]);
    qp.gets(O::WriteMiddle, RQ_PSN + 3, Ext::None, &[3; MTU - 4]);
    assert_eq!(qp.node.memory().peek(qp.remote.addr, 8 * 256), before);
    // Of the next message, whose memory ends too early.
    let mut qp = agreed();
    qp.gets(O::WriteFirst, RQ_PSN, Ext::Reth(reth(&qp)), &[1; MTU]);
    let beyond = Reth { va: qp.remote.addr + 3 * 256, dma_len: 1 << 30, ..reth(&qp) };
    qp.gets(O::WriteFirst, RQ_PSN + 3, Ext::Reth(beyond), &[4; MTU]);
    let before = qp.node.memory().peek(qp.remote.addr, 8 * 256);
    qp.gets(O::WriteMiddle, RQ_PSN + 4, Ext::None, &[5; MTU]);
    assert_eq!(qp.node.memory().peek(qp.remote.addr, 8 * 256), before);
    // Where the region has gone meanwhile, the first packet that comes in its turn is refused.
    let mut qp = agreed();
    qp.gets(O::WriteFirst, RQ_PSN, Ext::Reth(Reth { dma_len: 8 * 256, ..reth(&qp) }), &[1; MTU]);
    qp.node.memory_mut().deregister(qp.remote.key);
    qp.gets(O::WriteMiddle, RQ_PSN + 2, Ext::None, &[3; MTU]);
    assert_eq!(sacks(&mut qp), [(RQ_PSN + 1, vec![(RQ_PSN + 2, RQ_PSN + 2)])]);
    qp.gets(O::WriteMiddle, RQ_PSN + 1, Ext::None, &[2; MTU]);
    assert_eq!(qp.sent(), ["NAK RemoteAccessError 101"]);
}

/// Duplicates of what is kept change nothing and are told.
#[test]
fn duplicates_of_what_is_kept_are_counted() {
    let mut qp = agreed();
    qp.recv(1, 64);
    qp.recv(2, 64);
    for _ in 0..3 {
        qp.gets(O::SendOnly, RQ_PSN + 1, Ext::None, b"kept");
    }
    let sent = qp.sent();
    assert!(matches!(sent[0].header.ext, Ext::SelectiveAck(SelectiveAck { duplicates: 2 })), "{:?}", sent[0]);
    qp.gets(O::SendOnly, RQ_PSN, Ext::None, b"first");
    assert_eq!(qp.completed(), [(1, OK), (2, OK)]);
}

/// News that later ones have overtaken take nothing back.
#[test]
fn late_news_change_nothing() {
    let late: [fn(&mut SingleQp); 2] = [
        |qp| gets_sack(qp, SQ_PSN + 5, &[1]),
        |qp| {
            qp.gets_aeth(SQ_PSN + 5, Syndrome::RnrNak(RnrTimer::new(1)));
            assert_eq!(qp.drops(), [DropReason::GhostAck]);
        },
    ];
    for late in late {
        let mut qp = agreed();
        qp.post(1, SendOp::Read(REMOTE), 4 * 256);
        qp.post(2, SendOp::Write(REMOTE), 4 * 256);
        assert_eq!(qp.sent().len(), 5);
        // All requests were carried out; the responses are still under way.
        qp.gets_ack(SQ_PSN + 7);
        assert_eq!(qp.sent(), ["RDMA READ Request 200 ?"], "an acknowledgement has overtaken them");
        late(&mut qp);
        assert_eq!(qp.sent(), [""; 0]);
        let aeth = || Ext::Aeth(Aeth { syndrome: Syndrome::Ack(Credits::INVALID), msn: Msn::default() });
        qp.gets(O::ReadResponseFirst, SQ_PSN, aeth(), &[1; MTU]);
        qp.gets(O::ReadResponseMiddle, SQ_PSN + 1, Ext::None, &[2; MTU]);
        qp.gets(O::ReadResponseMiddle, SQ_PSN + 2, Ext::None, &[3; MTU]);
        qp.gets(O::ReadResponseLast, SQ_PSN + 3, aeth(), &[4; MTU]);
        assert_eq!(qp.completed(), [(1, OK), (2, OK)]);
        assert_eq!(qp.timeout(), None, "nothing is outstanding");
    }
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

//= spec/selective.md#sel-007
//= type=test
//# Only what is missing MUST be sent again.
#[test]
fn only_what_is_missing_is_sent_again() {
    let mut qp = agreed();
    qp.post(1, SendOp::Write(REMOTE), 20 * 256);
    assert_eq!(qp.sent().len(), 20);
    gets_sack(&mut qp, SQ_PSN + 4, &[1, 2, 3, 5, 6, 7, 8, 9]);
    assert_eq!(qp.sent(), ["RDMA WRITE Middle 204 ?", "RDMA WRITE Middle 208 ?"]);
    // The news again, and older ones: all is said.
    gets_sack(&mut qp, SQ_PSN + 4, &[1, 2, 3, 5, 6, 7, 8, 9]);
    gets_sack(&mut qp, SQ_PSN + 4, &[1, 2]);
    assert_eq!(qp.sent(), [""; 0]);
    gets_sack(&mut qp, SQ_PSN + 8, &[1, 2, 3, 4, 5]);
    assert_eq!(qp.sent(), [""; 0], "it is under way");
    gets_sack(&mut qp, SQ_PSN + 14, &[]);
    qp.gets_ack(SQ_PSN + 19);
    let log = qp.log();
    let count = |wanted: fn(&Event) -> bool| {
        log.iter().filter(|event| matches!(event, NodeEvent::Trace(_, event) if wanted(event))).count()
    };
    assert_eq!(count(|event| matches!(event, Event::SentAgain { .. })), 2);
    assert_eq!(count(|event| matches!(event, Event::Lost { packets: 2 })), 1);
    let completed =
        |event: &NodeEvent| matches!(event, NodeEvent::Completed(_, cqe) if (cqe.wr_id, cqe.status) == (1, OK));
    assert!(log.iter().any(completed));
    assert_eq!(qp.timeout(), None);
}

/// A local operation has no packets: what is missing behind one is a WRITE's.
#[test]
fn write_missing_behind_a_local_operation_is_sent_again() {
    let mut qp = agreed();
    let memory = qp.node.memory_mut();
    let region = memory.register_new(64, Access::LOCAL_WRITE | Access::MW_BIND);
    let window = memory.alloc_window(DEFAULT_PD, WindowType::Two);
    let (new_key, access) = (Key(window.0 ^ 1), Access::REMOTE_READ);
    qp.post(1, SendOp::Write(REMOTE), 10);
    qp.post(
        2,
        SendOp::BindWindow(Bind { window, new_key, region: region.key, access, addr: region.addr, length: 8 }),
        0,
    );
    qp.post(3, SendOp::Write(REMOTE), 6 * 256);
    assert_eq!(qp.sent().len(), 7);
    gets_sack(&mut qp, SQ_PSN, &[2, 3, 4, 5, 6]);
    assert_eq!(qp.sent(), ["RDMA WRITE Only 200 ?", "RDMA WRITE First 201 ?"]);
    qp.gets_ack(SQ_PSN + 6);
    assert_eq!(qp.completed(), [(1, OK), (2, OK), (3, OK)]);
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

/// A packet that is but late is not sent again, once packets were seen to be late.
#[test]
fn late_packets_are_waited_for() {
    let mut qp = agreed();
    qp.post(1, SendOp::Write(REMOTE), 4 * 256);
    qp.sent();
    qp.elapse(Duration::from_micros(400));
    gets_sack(&mut qp, SQ_PSN, &[1, 2]);
    assert_eq!(qp.sent(), [""; 0], "two may have overtaken it");
    qp.elapse(Duration::from_micros(50));
    qp.gets_ack(SQ_PSN + 3);
    assert_eq!(qp.completed(), [(1, OK)]);
    qp.post(2, SendOp::Write(REMOTE), 12 * 256);
    qp.sent();
    qp.elapse(Duration::from_micros(400));
    gets_sack(&mut qp, SQ_PSN + 4, &[1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(qp.sent(), [""; 0], "it was late before");
    let wait = qp.timeout().expect("it looks again");
    assert!(wait >= Duration::from_micros(50) && wait < Duration::from_millis(1), "{wait:?}");
    qp.elapse(wait);
    assert_eq!(qp.sent(), ["RDMA WRITE First 204 ?"]);
}

/// A packet seems to be late as long as the program had no processor to take the news. A loss does not cost that time later.
#[test]
fn lateness_counts_no_more_than_a_round_trip() {
    let mut qp = agreed();
    for (wr_id, psn) in [(0, SQ_PSN), (1, SQ_PSN + 4)] {
        qp.post(wr_id, SendOp::Write(REMOTE), 4 * 256);
        qp.sent();
        qp.elapse(Duration::from_micros(40));
        if wr_id == 1 {
            gets_sack(&mut qp, psn, &[1, 2]);
            assert_eq!(qp.sent(), [""; 0], "two may have overtaken it");
            // Nothing runs meanwhile.
            qp.now = qp.now + Duration::from_millis(10);
        }
        qp.gets_ack(psn + 3);
        assert_eq!(qp.completed(), [(wr_id, OK)]);
    }
    for wr_id in 2..4 {
        qp.post(wr_id, SendOp::Write(REMOTE), 12 * 256);
        let first = qp.sent()[0].header.bth.psn.get();
        qp.elapse(Duration::from_micros(40));
        gets_sack(&mut qp, first, &[1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(qp.sent(), [""; 0], "it may be late");
        let wait = qp.timeout().expect("it looks again");
        assert!(wait < Duration::from_millis(3), "{wait:?}");
        qp.elapse(wait);
        assert_eq!(qp.sent().len(), 1);
        qp.gets_ack(first + 11);
    }
}

//= spec/selective.md#sel-008
//= type=test
//# A selective acknowledgement of what was never sent, or of a part of a READ, MUST change nothing and be counted.
#[test]
fn hostile_ranges_change_nothing() {
    let mut qp = agreed();
    qp.post(1, SendOp::Write(REMOTE), 4 * 256);
    qp.post(2, SendOp::Read(REMOTE), 4 * 256);
    assert_eq!(qp.sent().len(), 5);
    let invalid = DropReason::InvalidSelectiveAck;
    for (missing, arrived, reason) in [
        // Beyond what was sent, by one and by far.
        (SQ_PSN, vec![8], invalid),
        (SQ_PSN, vec![1, 2, 2048], invalid),
        (SQ_PSN + 9, vec![], invalid),
        (SQ_PSN + 0x7F_FFFF, vec![1], invalid),
        // Within a READ.
        (SQ_PSN, vec![5], invalid),
        (SQ_PSN + 3, vec![1, 2], invalid),
        (SQ_PSN + 5, vec![], invalid),
        // Before everything.
        (SQ_PSN - 1, vec![2], DropReason::GhostAck),
        (SQ_PSN.wrapping_sub(0x80_0000) & 0xFF_FFFF, vec![1], DropReason::GhostAck),
    ] {
        gets_sack(&mut qp, missing, &arrived);
        assert_eq!(qp.drops(), [reason], "{missing} {arrived:?}");
        assert_eq!(qp.sent(), [""; 0], "{missing} {arrived:?}");
    }
    let ack = Ext::SelectiveAck(SelectiveAck { duplicates: u32::MAX });
    gets_own(&mut qp, Opcode::SELECTIVE_ACK, SQ_PSN, ack, &[0xFF; 260]);
    gets_own(&mut qp, Opcode::SELECTIVE_ACK, SQ_PSN, ack, &[0xFF; 7]);
    assert_eq!(qp.drops(), [invalid, invalid]);
    assert_eq!((qp.sent(), qp.state()), (vec![], QpState::Rts));
    // It goes on as if nothing had been.
    gets_sack(&mut qp, SQ_PSN + 1, &[1, 2, 3]);
    assert_eq!(qp.sent(), ["RDMA WRITE Middle 201 ?"]);
}

//= spec/selective.md#sel-009
//= type=test
//# READ responses and results of atomics MUST be taken in any order, and requests complete in theirs.
#[test]
fn responses_come_in_any_order() {
    let mut qp = agreed();
    let aeth = || Aeth { syndrome: Syndrome::Ack(Credits::INVALID), msn: Msn::default() };
    qp.post(1, SendOp::Read(REMOTE), 4 * 256);
    qp.post(2, SendOp::FetchAdd { remote: Remote { addr: 0x1000, ..REMOTE }, add: 1 }, 8);
    qp.post(3, SendOp::Write(REMOTE), 10);
    assert_eq!(qp.sent().len(), 3);
    qp.gets_ack(SQ_PSN + 5);
    let result = Ext::AethAtomicAckEth(aeth(), AtomicAckEth { original: 41 });
    qp.gets(O::AtomicAcknowledge, SQ_PSN + 4, result, &[]);
    qp.gets(O::ReadResponseLast, SQ_PSN + 3, Ext::Aeth(aeth()), &[4; MTU]);
    qp.gets(O::ReadResponseFirst, SQ_PSN, Ext::Aeth(aeth()), &[1; MTU]);
    assert_eq!(qp.completed(), []);
    // What is missing is asked for, alone.
    let sent = qp.sent();
    assert_eq!(sent.len(), 1);
    let Ext::Reth(reth) = sent[0].header.ext else { panic!("{:?}", sent[0]) };
    assert_eq!((sent[0].header.bth.psn.get(), reth.va, reth.dma_len), (SQ_PSN + 1, REMOTE.addr + 256, 2 * 256));
    qp.gets(O::ReadResponseLast, SQ_PSN + 2, Ext::Aeth(aeth()), &[3; MTU]);
    qp.gets(O::ReadResponseFirst, SQ_PSN + 1, Ext::Aeth(aeth()), &[2; MTU]);
    assert_eq!(qp.completed(), [(1, OK), (2, OK), (3, OK)]);
    let bytes = qp.node.memory().peek(qp.local.addr + 256, 3 * 256).to_vec();
    assert_eq!(bytes, [[2; MTU], [3; MTU], [4; MTU]].concat());
    assert_eq!(qp.timeout(), None);
}

/// A peer that is off its processor for a while is asked again and again, long before the ACK timeout.
#[test]
fn probes_last_until_the_ack_timeout() {
    let mut qp = agreed();
    // The round trip is known, and that packets are lost.
    for (wr_id, psn) in [(1, SQ_PSN), (2, SQ_PSN + 10)] {
        qp.post(wr_id, SendOp::Write(REMOTE), 10 * 256);
        assert_eq!(qp.sent().len(), 10);
        assert!(qp.timeout().is_some());
        qp.elapse(Duration::from_micros(50));
        if wr_id == 2 {
            gets_sack(&mut qp, psn, &[1, 2, 3, 4, 5]);
            assert_eq!(qp.sent(), ["RDMA WRITE First 210 ?"]);
        }
        qp.gets_ack(psn + 9);
    }
    qp.post(3, SendOp::Write(REMOTE), 10);
    assert_eq!(qp.sent().len(), 1);
    let (end, mut probes) = (qp.now + Duration::from_millis(60), 0);
    while let Some(wait) = qp.timeout().filter(|wait| qp.now + *wait < end) {
        qp.elapse(wait);
        probes += qp.sent().len();
    }
    assert!((13..=18).contains(&probes), "{probes} probes in 60 ms; the ACK timeout is 67 ms");
    qp.gets_ack(SQ_PSN + 20);
    assert_eq!(qp.completed(), [(1, OK), (2, OK), (3, OK)]);
}

/// A peer that was off its processor takes up where it stopped. The probe is behind what it takes, and has overtaken nothing.
#[test]
fn a_late_peer_is_sent_nothing_again_but_the_probe() {
    for together in [true, false] {
        let mut qp = agreed();
        // The round trip is known, and that packets are lost.
        for (wr_id, psn) in [(1, SQ_PSN), (2, SQ_PSN + 10)] {
            qp.post(wr_id, SendOp::Write(REMOTE), 10 * 256);
            assert_eq!(qp.sent().len(), 10);
            qp.elapse(Duration::from_micros(50));
            if wr_id == 2 {
                gets_sack(&mut qp, psn, &[1, 2, 3, 4, 5]);
                assert_eq!(qp.sent(), ["RDMA WRITE First 210 ?"]);
            }
            qp.gets_ack(psn + 9);
        }
        qp.post(3, SendOp::Write(REMOTE), 20 * 256);
        assert_eq!(qp.sent().len(), 20);
        let wait = qp.timeout().expect("it probes");
        qp.elapse(wait);
        assert_eq!(qp.sent(), ["RDMA WRITE First 220 ?"]);
        qp.elapse(Duration::from_micros(50));
        if together {
            qp.gets_ack(SQ_PSN + 25);
            assert_eq!(qp.sent(), [""; 0], "the others are under way");
        } else {
            // It was lost, and what is behind it as well; the last two were overtaken by too few to tell.
            qp.gets_ack(SQ_PSN + 20);
            assert_eq!(qp.sent().len(), 17);
        }
    }
}

/// A probe in vain says that the peer was slow, and nothing of the order of packets: what three overtake is lost as before.
#[test]
fn a_probe_in_vain_is_no_reordering() {
    let mut qp = agreed();
    // The round trip is known, and that packets are lost.
    for (wr_id, psn) in [(1, SQ_PSN), (2, SQ_PSN + 10)] {
        qp.post(wr_id, SendOp::Write(REMOTE), 10 * 256);
        assert_eq!(qp.sent().len(), 10);
        qp.elapse(Duration::from_micros(50));
        if wr_id == 2 {
            gets_sack(&mut qp, psn, &[1, 2, 3, 4, 5]);
            assert_eq!(qp.sent(), ["RDMA WRITE First 210 ?"]);
        }
        qp.gets_ack(psn + 9);
    }
    // Duplicates in all, and those of this turn.
    for (duplicates, probes, psn) in [(2, 2, SQ_PSN + 20), (3, 1, SQ_PSN + 30)] {
        qp.post(3, SendOp::Write(REMOTE), 10 * 256);
        assert_eq!(qp.sent().len(), 10);
        for _ in 0..probes {
            let wait = qp.timeout().expect("it probes");
            qp.elapse(wait);
            assert_eq!(qp.sent().len(), 1);
        }
        qp.log();
        qp.gets_ack(psn + 9);
        gets_duplicates(&mut qp, psn + 10, duplicates);
        let in_vain = NodeEvent::Trace(qp.qpn, Event::SentInVain { packets: probes });
        assert!(qp.log().contains(&in_vain), "{probes} probes in vain");
    }
    qp.post(4, SendOp::Write(REMOTE), 10 * 256);
    assert_eq!(qp.sent().len(), 10);
    gets_sack(&mut qp, SQ_PSN + 40, &[1, 2, 3]);
    assert_eq!(qp.sent(), ["RDMA WRITE First 240 ?"]);
    // Another packet in vain is.
    qp.gets_ack(SQ_PSN + 49);
    gets_duplicates(&mut qp, SQ_PSN + 50, 4);
    qp.post(5, SendOp::Write(REMOTE), 10 * 256);
    assert_eq!(qp.sent().len(), 10);
    gets_sack(&mut qp, SQ_PSN + 50, &[1, 2, 3]);
    assert_eq!(qp.sent(), [""; 0], "it may be late");
}

/// Peers tell of READs by responses alone: a response to what was sent behind a probe ends it, and a later packet in vain is none of it.
#[test]
fn a_response_ends_the_probes_before_it() {
    let mut qp = agreed();
    // The round trip is known, and that packets are lost.
    for (wr_id, psn) in [(1, SQ_PSN), (2, SQ_PSN + 10)] {
        qp.post(wr_id, SendOp::Write(REMOTE), 10 * 256);
        assert_eq!(qp.sent().len(), 10);
        qp.elapse(Duration::from_micros(50));
        if wr_id == 2 {
            gets_sack(&mut qp, psn, &[1, 2, 3, 4, 5]);
            assert_eq!(qp.sent(), ["RDMA WRITE First 210 ?"]);
        }
        qp.gets_ack(psn + 9);
    }
    let aeth = || Ext::Aeth(Aeth { syndrome: Syndrome::Ack(Credits::INVALID), msn: Msn::default() });
    // The first request was lost, and is asked for again; the second is behind it.
    for (wr_id, psn) in [(3, SQ_PSN + 20), (4, SQ_PSN + 21)] {
        qp.post(wr_id, SendOp::Read(REMOTE), 256);
        assert_eq!(qp.sent().len(), 1);
        if wr_id == 3 {
            let wait = qp.timeout().expect("it probes");
            qp.elapse(wait);
            assert_eq!(qp.sent().len(), 1);
        }
        qp.gets(O::ReadResponseOnly, psn, aeth(), &[1; MTU]);
    }
    // A packet that was only late is sent again: packets are known to be late from then on.
    for (wr_id, psn, is_resent) in [(5, SQ_PSN + 22, true), (6, SQ_PSN + 32, false)] {
        qp.post(wr_id, SendOp::Write(REMOTE), 10 * 256);
        assert_eq!(qp.sent().len(), 10);
        gets_sack(&mut qp, psn, &[1, 2, 3]);
        assert_eq!(qp.sent().len(), usize::from(is_resent), "{wr_id}");
        qp.gets_ack(psn + 9);
        gets_duplicates(&mut qp, psn + 10, 1);
    }
    assert_eq!(qp.completed(), [(1, OK), (2, OK), (3, OK), (4, OK), (5, OK), (6, OK)]);
}

/// A receiver that is not ready has kept what is behind: that is not sent again.
#[test]
fn after_an_rnr_nak_the_refused_request_alone_is_sent_again() {
    let mut qp = agreed();
    for wr_id in 1..5 {
        qp.post(wr_id, SendOp::Send, 10);
    }
    assert_eq!(qp.sent().len(), 4);
    let timer = RnrTimer::new(1);
    qp.gets_aeth(SQ_PSN + 1, Syndrome::RnrNak(timer));
    assert_eq!(qp.completed(), [(1, OK)]);
    assert_eq!(qp.sent(), [""; 0]);
    qp.elapse(timer.duration());
    assert_eq!(qp.sent(), ["SEND Only 201 ?"]);
    qp.gets_ack(SQ_PSN + 3);
    assert_eq!(qp.completed(), [(2, OK), (3, OK), (4, OK)]);
}

/// A receiver that is not ready has got what it refuses: the path has lost nothing.
#[test]
fn rnr_naks_are_no_loss_of_the_path() {
    let mut qp = able_on(2, RQ_PSN, SQ_PSN);
    gets_offer(&mut qp, true);
    let timer = RnrTimer::new(1);
    for psn in (SQ_PSN..SQ_PSN + 80).step_by(4) {
        for wr_id in 0..4 {
            qp.post(wr_id, SendOp::Send, 10);
        }
        assert_eq!(qp.sent().len(), 4);
        // Packets of the second path alone.
        if psn / 16 % 2 == 1 {
            qp.gets_aeth(psn, Syndrome::RnrNak(timer));
            gets_sack(&mut qp, psn, &[1, 2, 3]);
            qp.elapse(timer.duration());
            assert_eq!(qp.sent().len(), 1);
        }
        qp.gets_ack(psn + 3);
    }
    let left = |event: &NodeEvent| matches!(event, NodeEvent::Trace(_, Event::LeftPath { .. }));
    assert!(!qp.log().iter().any(left));
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

/// A refusal that overtakes responses fails its own request, when those before it are answered.
#[test]
fn a_refusal_waits_for_responses_before_it() {
    let mut qp = agreed();
    let aeth = Aeth { syndrome: Syndrome::Ack(Credits::INVALID), msn: Msn::default() };
    qp.post(1, SendOp::Read(REMOTE), 10);
    qp.post(2, SendOp::Write(REMOTE), 10);
    qp.sent();
    qp.gets_aeth(SQ_PSN + 1, Syndrome::Nak(urxe_wire::NakCode::RemoteAccessError));
    assert_eq!((qp.completed(), qp.state()), (vec![], QpState::Rts));
    qp.gets(O::ReadResponseOnly, SQ_PSN, Ext::Aeth(aeth), &[1; 10]);
    assert_eq!(qp.completed(), [(1, OK), (2, WcStatus::RemoteAccessError)]);
}

/// A receiver that was not ready once too often fails its own request, when those before it are answered.
#[test]
fn the_last_rnr_nak_waits_for_responses_before_it() {
    let mut qp = agreed();
    let aeth = Aeth { syndrome: Syndrome::Ack(Credits::INVALID), msn: Msn::default() };
    qp.post(1, SendOp::Read(REMOTE), 10);
    qp.post(2, SendOp::Send, 10);
    qp.sent();
    let timer = RnrTimer::new(1);
    for _ in 0..SingleQp::attr().rnr_retry {
        qp.gets_aeth(SQ_PSN + 1, Syndrome::RnrNak(timer));
        qp.elapse(timer.duration());
        assert!(qp.sent().iter().any(|sent| *sent == "SEND Only 201 ?"));
    }
    qp.gets_aeth(SQ_PSN + 1, Syndrome::RnrNak(timer));
    assert_eq!((qp.completed(), qp.state()), (vec![], QpState::Rts));
    qp.gets(O::ReadResponseOnly, SQ_PSN, Ext::Aeth(aeth), &[1; 10]);
    assert_eq!(qp.completed(), [(1, OK), (2, WcStatus::RnrRetryExceededError)]);
}
