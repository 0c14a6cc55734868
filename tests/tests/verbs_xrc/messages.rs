//! Messages, and memory, by way of an SRQ of another process.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::in_world;
use urxe_tests::verbs::child::Child;
use urxe_tests::verbs::memory::pattern;
use urxe_tests::verbs::qp::CAP;
use urxe_tests::verbs::{Errno, Op, Options, RecvWr, SendWr, Status};

use crate::FILE;
use crate::owner::{ARM, Arrived, EVENT, FILL, LIMIT, LIMIT_EVENT, OVERRUN, Owner, QUIET, WORD, received};
use crate::part::{MEMORY, Part, ROOM};

//= spec/hosts.md#net-009
//= type=test
//# Processes of one user that open the same file on the same interface MUST share its XRC domain.
#[test]
fn messages_reach_the_srq_of_another_process() {
    in_world(|| {
        let mut owner = Owner::of(FILE)?;
        let part = Part::of(FILE)?;
        let ends = part.pair(&Options::default())?;
        part.mr.pages().write(0, &pattern(3, MEMORY));
        for (wr_id, length) in (0..).zip([0, 1, 8, 1023, 1024, 1025, 4096, 65_537, 1 << 20]) {
            part.mr.pages().write(0, &pattern(wr_id, length));
            owner.post(64, length + 1, wr_id)?;
            ends.succeed(&part, &owner.send(&part, 0, length)).with_context(|| format!("{length} bytes"))?;
            let arrived = owner.next()?;
            ensure!(arrived == received(&ends.target, wr_id, length, None), "{arrived:?}");
            ensure!(owner.holds(64, length, wr_id)?, "{length} bytes differ");
        }
        owner.post(0, 8, 99)?;
        let imm = SendWr::new(Op::SendImm(0x0102_0304), &[part.mr.sge(0, 8)]).to_srq(owner.srq);
        ends.succeed(&part, &imm)?;
        let arrived = owner.next()?;
        ensure!(arrived == received(&ends.target, 99, 8, Some(0x0102_0304)), "{arrived:?}");
        owner.end()
    });
}

/// More than the SRQ has WQEs for, at once: the rest waits, and all come in the order they were sent.
#[test]
fn many_messages_wait_for_receives() {
    in_world(|| {
        const MESSAGES: u64 = 300;
        let mut owner = Owner::of(FILE)?;
        let part = Part::of(FILE)?;
        let ends = part.pair(&Options::default())?;
        for number in 0..MESSAGES {
            let send = SendWr::new(Op::SendImm(u32::try_from(number)?), &[part.mr.sge(0, 100)]).to_srq(owner.srq);
            // It is signaled when the queue would be full otherwise.
            let send = if number % 32 == 31 { send } else { send.unsignaled() };
            while let Err(error) = ends.initiator.post_send(&send) {
                ensure!(error.errno == Errno(libc::ENOMEM), "{error:?}");
                owner.post(0, 100, number)?;
                let arrived = owner.next()?;
                ensure!(arrived.status == 0 && arrived.byte_len == 100, "{arrived:?}");
                part.cq.poll(8)?;
            }
        }
        owner.post(0, 100, 1)?;
        let mut last = owner.next()?.imm;
        while last != MESSAGES - 1 {
            owner.post(0, 100, 1)?;
            let next = owner.next()?.imm;
            ensure!(next == last + 1, "{next} after {last}");
            last = next;
        }
        owner.end()
    });
}

/// IBA annex A14: what a request names is memory of the SRQ's protection domain.
#[test]
fn memory_is_of_the_srq_that_the_request_names() {
    in_world(|| {
        let mut owner = Owner::of(FILE)?;
        let part = Part::of(FILE)?;
        let ends = part.pair(&Options::default())?;
        let pages = Arc::clone(part.mr.pages());
        for (seed, length) in (1..).zip([1, 1024, 5000, 1 << 20]) {
            pages.write(0, &pattern(seed, length));
            let write = SendWr::new(Op::Write(owner.at(3)), &[part.mr.sge(0, length)]).to_srq(owner.srq);
            ends.succeed(&part, &write)?;
            ensure!(owner.holds(3, length, seed)?, "{length} bytes written");
            owner.tell(FILL, 3, length as u64, seed + 100)?;
            let read = SendWr::new(Op::Read(owner.at(3)), &[part.mr.sge(0, length)]).to_srq(owner.srq);
            ends.succeed(&part, &read)?;
            ensure!(pages.read(0, length) == pattern(seed + 100, length), "{length} bytes read");
        }
        // With immediate data, which takes a receive.
        pages.write(0, &pattern(7, 3000));
        let write = SendWr::new(Op::WriteImm(owner.at(0), 5), &[part.mr.sge(0, 3000)]).to_srq(owner.srq);
        owner.post(0, 0, 70)?;
        ends.succeed(&part, &write)?;
        let arrived = owner.next()?;
        let opcode = v::IBV_WC_RECV_RDMA_WITH_IMM.into();
        ensure!(arrived == Arrived { opcode, ..received(&ends.target, 70, 3000, Some(5)) }, "{arrived:?}");
        ensure!(owner.holds(0, 3000, 7)?);

        pages.write(0, &[0; 8]);
        let word = SendWr::new(Op::Write(owner.at(8)), &[part.mr.sge(0, 8)]).to_srq(owner.srq);
        ends.succeed(&part, &word)?;
        let add = SendWr::new(Op::FetchAdd { remote: owner.at(8), add: 40 }, &[part.mr.sge(0, 8)]).to_srq(owner.srq);
        for before in [0, 40] {
            ends.succeed(&part, &add)?;
            ensure!(pages.read_u64(0) == before);
        }
        let swap = Op::CmpSwp { remote: owner.at(8), compare: 80, swap: 9 };
        ends.succeed(&part, &SendWr::new(swap, &[part.mr.sge(0, 8)]).to_srq(owner.srq))?;
        ensure!(pages.read_u64(0) == 80 && owner.tell(WORD, 8, 0, 0)? == 9);

        // Another protection domain of the same process is none of its business.
        let write = SendWr::new(Op::Write(owner.stranger), &[part.mr.sge(0, 8)]).to_srq(owner.srq);
        ensure!(ends.complete(&part, &write)? == Status::REM_ACCESS_ERR);
        part.context.expect_event(v::IBV_EVENT_QP_ACCESS_ERR, ends.target.address())?;
        owner.end()
    });
}

#[test]
fn a_receive_that_is_too_small_fails_both() {
    in_world(|| {
        let mut owner = Owner::of(FILE)?;
        let part = Part::of(FILE)?;
        let ends = part.pair(&Options::default())?;
        owner.post(0, 2000, 4)?;
        owner.post(4096, 8, 5)?;
        ensure!(ends.complete(&part, &owner.send(&part, 0, 2001))? == Status::REM_INV_REQ_ERR);
        let arrived = owner.next()?;
        ensure!(arrived.wr_id == 4 && arrived.status == u64::from(v::IBV_WC_LOC_LEN_ERR), "{arrived:?}");
        // The SRQ goes on.
        let ends = part.pair(&Options::default())?;
        ends.succeed(&part, &owner.send(&part, 0, 8))?;
        ensure!(owner.next()?.wr_id == 5);
        owner.end()
    });
}

#[test]
fn without_a_receive_it_is_not_ready() {
    in_world(|| {
        let mut owner = Owner::of(FILE)?;
        let part = Part::of(FILE)?;
        let ends = part.pair(&Options { rnr_retry: 2, ..Options::default() })?;
        ensure!(ends.complete(&part, &owner.send(&part, 0, 8))? == Status::RNR_RETRY_EXC_ERR);
        let ends = part.pair(&Options::default())?;
        ends.initiator.post_send(&owner.send(&part, 0, 8))?;
        std::thread::sleep(Duration::from_millis(20));
        ensure!(part.cq.poll(1)?.is_empty(), "there is no receive");
        owner.post(0, 8, 5)?;
        ensure!(part.cq.next()?.status == Status::SUCCESS && owner.next()?.wr_id == 5);
        owner.end()
    });
}

/// Channels, solicited events, the SRQ's limit, and a completion queue that overruns: all as for messages of one's own.
#[test]
fn events_are_raised_where_the_srq_is() {
    in_world(|| {
        let mut owner = Owner::of(FILE)?;
        let part = Part::of(FILE)?;
        let ends = part.pair(&Options::default())?;
        for wr_id in 0..4 {
            owner.post(0, 8, wr_id)?;
        }
        owner.tell(LIMIT, 3, 0, 0)?;
        owner.tell(ARM, 0, 0, 0)?;
        ends.succeed(&part, &owner.send(&part, 0, 8))?;
        owner.tell(EVENT, 0, 0, 0)?;
        ensure!(owner.next()?.wr_id == 0);
        owner.tell(ARM, 1, 0, 0)?;
        ends.succeed(&part, &owner.send(&part, 0, 8))?;
        owner.tell(LIMIT_EVENT, 0, 0, 0)?;
        ensure!(owner.next()?.wr_id == 1);
        owner.tell(QUIET, 0, 0, 0)?;
        ends.succeed(&part, &owner.send(&part, 0, 8).with(v::IBV_SEND_SOLICITED))?;
        owner.tell(EVENT, 0, 0, 0)?;
        ensure!(owner.next()?.wr_id == 2);
        // As many as its queue holds, and more: nobody takes them.
        for wr_id in 0..u64::from(ROOM) * 2 {
            owner.post(0, 8, wr_id)?;
            ends.succeed(&part, &owner.send(&part, 0, 8))?;
        }
        owner.tell(OVERRUN, 0, 0, 0)?;
        owner.end()
    });
}

/// Two processes that are each other's target: neither waits for the other's receiving thread.
#[test]
fn crosswise() {
    in_world(|| {
        const MESSAGES: u32 = 400;
        fn exchange(
            part: &Part,
            tell: impl FnOnce(u32) -> Result<()>,
            hear: impl FnOnce() -> Result<u32>,
        ) -> Result<()> {
            let srq = part.srq()?;
            let ends = part.pair(&Options { cap: v::ibv_qp_cap { max_send_wr: 32, ..CAP }, ..Options::default() })?;
            for id in 0..16 {
                srq.post_recv(&RecvWr::new(id, &[part.mr.sge(1 << 16, 5000)]))?;
            }
            tell(srq.number()?)?;
            let peer = hear()?;
            let (mut sent, mut done, mut came) = (0, 0, 0);
            while done < MESSAGES || came < MESSAGES {
                while sent < MESSAGES && sent - done < 16 {
                    let send = SendWr::new(Op::SendImm(sent), &[part.mr.sge(0, 5000)]).to_srq(peer).id(1000);
                    ends.initiator.post_send(&send)?;
                    sent += 1;
                }
                let wc = part.cq.next()?;
                ensure!(wc.status == Status::SUCCESS, "{wc:?} after {done} and {came}");
                if wc.wr_id == 1000 {
                    done += 1;
                } else {
                    ensure!(wc.imm == came && wc.byte_len == 5000, "{wc:?} after {came}");
                    came += 1;
                    srq.post_recv(&RecvWr::new(1, &[part.mr.sge(1 << 16, 5000)]))?;
                }
            }
            Ok(())
        }
        let child = Child::fork(|parent| {
            let part = Part::of(FILE)?;
            let parent = std::cell::RefCell::new(parent);
            let tell = |number: u32| parent.borrow_mut().send(&[number.into()]);
            let hear = || {
                let [number] = parent.borrow_mut().receive()?;
                Ok(u32::try_from(number)?)
            };
            exchange(&part, tell, hear)?;
            // Until the other end is through.
            let [_] = parent.borrow_mut().receive()?;
            Ok(())
        })?;
        let child = std::cell::RefCell::new(child);
        let part = Part::of(FILE)?;
        let tell = |number: u32| child.borrow_mut().send(&[number.into()]);
        let hear = || {
            let [number] = child.borrow_mut().receive()?;
            Ok(u32::try_from(number)?)
        };
        exchange(&part, tell, hear)?;
        let mut child = child.into_inner();
        child.send(&[0])?;
        child.finish()
    });
}
