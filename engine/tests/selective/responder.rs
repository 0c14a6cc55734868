//! Responder: requests that are kept behind a gap, and WRITEs that are stored before their turn.

use std::time::Duration;

use urxe_engine::QpState;
use urxe_sim::single_qp::{MTU, RQ_PSN, SQ_PSN, SingleQp};
use urxe_wire::{Ext, Operation as O, RKey, Reth, SelectiveAck};

use crate::{OK, able_on, agreed, gets_offer, sacks};

//= spec/selective.md#sel-004
//= type=test
//# A request behind a gap MUST be kept, carried out in its turn, and acknowledged by a selective acknowledgement as long as
//# one before it is missing.
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

/// A queue pair on two paths whose peer has selective repeat as well.
fn agreed_on_two_paths() -> SingleQp {
    let mut qp = able_on(2, RQ_PSN, SQ_PSN);
    gets_offer(&mut qp, false);
    qp.sent();
    qp
}

/// A SEND of one packet arrives, and asks for an acknowledgement or not.
fn gets_send(qp: &mut SingleQp, psn: u32, asks: bool) {
    qp.gets_changed(O::SendOnly, psn, Ext::None, b"message", |bth| bth.ack_req = asks);
}

/// A selective acknowledgement tells of many packets, unless the peer asks for it, or packets of one path are the third behind a new gap.
#[test]
fn many_are_told_of_together() {
    let told = |paths: u8, asks: Option<u32>| {
        let mut qp = able_on(paths, RQ_PSN, SQ_PSN);
        gets_offer(&mut qp, false);
        qp.sent();
        let mut sent = Vec::new();
        for psn in RQ_PSN + 1..=RQ_PSN + 40 {
            gets_send(&mut qp, psn, asks == Some(psn));
            sent.extend(sacks(&mut qp).iter().map(|(_, ranges)| ranges[0].1 - RQ_PSN));
        }
        sent
    };
    assert_eq!(told(1, None), [3, 19, 35]);
    assert_eq!(told(1, Some(RQ_PSN + 20)), [3, 19, 20, 36]);
    assert_eq!(told(2, None), [16, 32]);
    assert_eq!(told(2, Some(RQ_PSN + 20)), [16, 20, 36]);
}

/// Packets that fill a part of a gap are told of as those behind it, and no ACK says the same.
#[test]
fn on_several_paths_parts_of_a_gap_are_told_of_together() {
    let mut qp = agreed_on_two_paths();
    (1..=16).for_each(|id| qp.recv(id, 64));
    gets_send(&mut qp, RQ_PSN + 50, true);
    assert_eq!(sacks(&mut qp), [(RQ_PSN, vec![(RQ_PSN + 50, RQ_PSN + 50)])]);
    for psn in RQ_PSN..RQ_PSN + 15 {
        gets_send(&mut qp, psn, false);
        assert_eq!(qp.sent(), [""; 0], "{psn}");
    }
    gets_send(&mut qp, RQ_PSN + 15, false);
    assert_eq!(qp.sent(), ["Selective Acknowledge 116"]);
}

/// Few packets are told of in time: the requester would take them for lost. Also where nothing is sent yet.
#[test]
fn on_several_paths_a_few_are_told_of_in_time() {
    for state in [QpState::Rtr, QpState::Rts] {
        let mut qp = SingleQp::reset(|setup, _| setup.selective_paths = 2);
        qp.go_to(state, &SingleQp::attr());
        gets_offer(&mut qp, false);
        qp.recv(1, 64);
        qp.sent();
        for psn in [RQ_PSN + 2, RQ_PSN, RQ_PSN + 3] {
            gets_send(&mut qp, psn, false);
            assert_eq!(qp.sent(), [""; 0], "{state:?}: {psn}");
        }
        assert_eq!(qp.timeout(), Some(Duration::from_micros(100)), "{state:?}");
        qp.elapse(Duration::from_micros(99));
        assert_eq!(qp.sent(), [""; 0], "{state:?}");
        qp.elapse(Duration::from_micros(1));
        assert_eq!(sacks(&mut qp), [(RQ_PSN + 1, vec![(RQ_PSN + 2, RQ_PSN + 3)])], "{state:?}");
        assert_eq!(qp.timeout(), None, "{state:?}");
    }
}

/// A queue pair that fails tells nothing any more, and has no time to do so.
#[test]
fn in_err_nothing_waits_to_be_told() {
    let mut qp = agreed_on_two_paths();
    gets_send(&mut qp, RQ_PSN + 2, false);
    assert!(qp.timeout().is_some());
    qp.node.fail(qp.now, qp.qpn);
    assert_eq!(qp.timeout(), None);
    qp.elapse(Duration::from_millis(1));
    assert_eq!(qp.sent(), [""; 0]);
}

/// An answer does not leave before the peer knows what is behind it.
#[test]
fn on_several_paths_an_ack_leaves_behind_what_is_kept() {
    let mut qp = agreed_on_two_paths();
    (1..=4).for_each(|id| qp.recv(id, 64));
    gets_send(&mut qp, RQ_PSN + 2, false);
    assert_eq!(qp.sent(), [""; 0], "it is told of with others");
    gets_send(&mut qp, RQ_PSN, true);
    assert_eq!(qp.sent(), ["Selective Acknowledge 101", "ACK 100"]);
    gets_send(&mut qp, RQ_PSN + 1, false);
    assert_eq!(qp.sent(), ["ACK 102"], "nothing is missing any more");
}

//= spec/selective.md#sel-013
//= type=test
//# With selective repeat an answer to a duplicate SHOULD leave before answers to requests behind it.
#[test]
fn missing_parts_of_a_read_are_answered_first() {
    let is_agreed = [agreed(), SingleQp::rts()];
    let [first, in_turn] = is_agreed.map(|mut qp| {
        let part = |qp: &SingleQp, nth: u64, packets: u32| {
            let (va, dma_len) = (qp.remote.addr + 256 * nth, packets * 256);
            Ext::Reth(Reth { va, r_key: RKey(qp.remote.key.0), dma_len })
        };
        let asks = |qp: &mut SingleQp, nth: u32, packets| {
            let ext = part(qp, nth.into(), packets);
            qp.gets(O::ReadRequest, RQ_PSN + nth, ext, &[]);
        };
        asks(&mut qp, 0, 3);
        assert_eq!(qp.sent().len(), 3);
        asks(&mut qp, 3, 2);
        asks(&mut qp, 2, 1);
        asks(&mut qp, 0, 1);
        qp.sent().iter().map(|sent| sent.header.bth.psn.get() - RQ_PSN).collect::<Vec<_>>()
    });
    assert_eq!((first, in_turn), (vec![2, 0, 3, 4], vec![3, 4, 2, 0]));
}

/// The rest of a response that is leaving is not answered twice: with all of it the requester would ask for more than there are responder
/// resources for.
#[test]
fn the_rest_of_a_response_that_leaves_is_no_duplicate() {
    const FIRST: u32 = 10;
    const SECOND: u32 = 50;
    let mut qp = agreed();
    let asks = |qp: &mut SingleQp, nth: u32, packets: u32| {
        let reth = Reth { va: qp.remote.addr, r_key: RKey(qp.remote.key.0), dma_len: packets * 256 };
        qp.gets(O::ReadRequest, RQ_PSN + nth, Ext::Reth(reth), &[]);
    };
    let psns = |qp: &mut SingleQp| qp.sent().iter().map(|sent| sent.header.bth.psn.get() - RQ_PSN).collect::<Vec<_>>();
    asks(&mut qp, 0, FIRST);
    asks(&mut qp, FIRST, SECOND);
    qp.node.nic().set_room(40);
    assert_eq!(psns(&mut qp), (0..40).collect::<Vec<_>>());
    asks(&mut qp, FIRST, SECOND);
    qp.node.nic().set_room(usize::MAX);
    assert_eq!(psns(&mut qp), (FIRST..FIRST + SECOND).collect::<Vec<_>>());
    assert_eq!(qp.sent(), [""; 0]);
}
