//! SQD: what has begun completes, nothing else begins, and the event tells of it.

use urxe_engine::attr::{AttrMask, QpAttr};
use urxe_engine::{AsyncEvent, QpState, Remote, SendOp};
use urxe_sim::NodeEvent;
use urxe_sim::single_qp::{RQ_PSN, SQ_PSN, SingleQp};
use urxe_wire::{Aeth, Credits, Ext, Msn, Operation as O, RKey, Syndrome};

const REMOTE: Remote = Remote { addr: 0, r_key: RKey(1) };

fn drain(qp: &mut SingleQp) {
    let attr = QpAttr { sqd_notify: true, ..SingleQp::attr() };
    qp.modify(QpState::Sqd, AttrMask::EN_SQD_ASYNC_NOTIFY, &attr).unwrap();
}

//= spec/states.md#qps-006
//= type=test
//# In SQD no new request MUST be begun, and SQ_DRAINED be raised when asked for and all begun have completed.
#[test]
fn draining_lets_what_has_begun_complete_and_tells() {
    let mut qp = SingleQp::rts();
    qp.post(1, SendOp::Send, 10_000);
    qp.sent();
    drain(&mut qp);
    qp.post(2, SendOp::Send, 4);
    assert!(qp.node.qp(qp.qpn).is_draining());
    for psn in (SQ_PSN + 3..SQ_PSN + 39).step_by(4) {
        qp.gets_ack(psn);
        qp.sent();
    }
    assert_eq!(qp.async_events(), []);
    qp.gets_ack(SQ_PSN + 39);
    let log = qp.log();
    let events = log.iter().filter(|event| matches!(event, NodeEvent::Async(_, AsyncEvent::SqDrained)));
    assert_eq!(events.count(), 1);
    assert!(!qp.node.qp(qp.qpn).is_draining());
    assert_eq!(qp.sent(), [""; 0], "what had not begun waits");
    // Attributes may be changed now, and that is no other drain.
    qp.modify(QpState::Sqd, AttrMask::RETRY_CNT, &QpAttr { retry_cnt: 1, ..SingleQp::attr() }).unwrap();
    assert_eq!(qp.async_events(), []);
    qp.modify(QpState::Rts, AttrMask::NONE, &SingleQp::attr()).unwrap();
    assert_eq!(qp.sent(), ["SEND Only 240 ?"]);
}

#[test]
fn draining_an_idle_queue_tells_at_once() {
    let mut qp = SingleQp::rts();
    drain(&mut qp);
    assert_eq!(qp.async_events(), [AsyncEvent::SqDrained]);
}

#[test]
fn draining_does_not_tell_unless_asked() {
    let mut qp = SingleQp::rts();
    qp.modify(QpState::Sqd, AttrMask::NONE, &SingleQp::attr()).unwrap();
    assert_eq!(qp.async_events(), []);
}

/// Each modify asks for the event anew.
#[test]
fn an_event_that_was_asked_for_once_is_not_told_twice() {
    let mut qp = SingleQp::rts();
    drain(&mut qp);
    assert_eq!(qp.async_events(), [AsyncEvent::SqDrained]);
    qp.modify(QpState::Rts, AttrMask::NONE, &SingleQp::attr()).unwrap();
    qp.modify(QpState::Sqd, AttrMask::NONE, &SingleQp::attr()).unwrap();
    assert_eq!(qp.async_events(), []);
}

#[test]
fn back_to_rts_ends_draining() {
    let mut qp = SingleQp::rts();
    qp.post(1, SendOp::Send, 4);
    qp.sent();
    drain(&mut qp);
    assert!(qp.node.qp(qp.qpn).is_draining());
    qp.modify(QpState::Rts, AttrMask::NONE, &SingleQp::attr()).unwrap();
    assert!(!qp.node.qp(qp.qpn).is_draining());
    qp.gets_ack(SQ_PSN);
    assert_eq!(qp.async_events(), []);
}

/// A READ that waits for a responder resource has its PSNs, but nothing of it has been sent.
//= spec/states.md#qps-006
//= type=test
//# In SQD no new request MUST be begun, and SQ_DRAINED be raised when asked for and all begun have completed.
#[test]
fn a_request_that_waits_for_a_resource_has_not_begun() {
    let mut qp = SingleQp::with(|attr| attr.max_rd_atomic = 1);
    let read = SendOp::Read(Remote { addr: 0, r_key: RKey(1) });
    qp.post(1, read, 4);
    qp.post(2, read, 4);
    assert_eq!(qp.sent(), ["RDMA READ Request 200 ?"]);
    drain(&mut qp);
    let aeth = Ext::Aeth(Aeth { syndrome: Syndrome::Ack(Credits::INVALID), msn: Msn::new(1) });
    qp.gets(O::ReadResponseOnly, SQ_PSN, aeth, &[0; 4]);
    assert!(qp.sent().is_empty());
    assert_eq!(qp.async_events(), [AsyncEvent::SqDrained]);
    qp.modify(QpState::Rts, AttrMask::NONE, &SingleQp::attr()).unwrap();
    assert_eq!(qp.sent(), ["RDMA READ Request 201 ?"]);
}

#[test]
fn a_draining_queue_still_answers_and_tries_again() {
    let mut qp = SingleQp::rts();
    qp.post(1, SendOp::Send, 4);
    qp.sent();
    drain(&mut qp);
    qp.recv(2, 4);
    qp.gets(O::SendOnly, RQ_PSN, Ext::None, b"x");
    qp.elapse(qp.timeout().unwrap());
    assert_eq!(qp.sent(), ["ACK 100", "SEND Only 200 ?"]);
}

#[test]
fn an_ack_that_comes_with_the_last_response_is_not_needed() {
    // A drain ends with a READ response as well as with an ACK.
    let mut qp = SingleQp::rts();
    qp.post(1, SendOp::Read(REMOTE), 4);
    qp.sent();
    drain(&mut qp);
    let aeth = Aeth { syndrome: Syndrome::Ack(Credits::INVALID), msn: Msn::default() };
    qp.gets(O::ReadResponseOnly, SQ_PSN, Ext::Aeth(aeth), b"read");
    assert_eq!(qp.async_events(), [AsyncEvent::SqDrained]);
}
