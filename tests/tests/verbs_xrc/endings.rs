//! Processes and SRQs that end, or stop for a while.

use std::fs;
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::verbs::child::Child;
use urxe_tests::verbs::memory::pattern;
use urxe_tests::verbs::{Op, Options, Pair, RecvWr, SendWr, Status};
use urxe_tests::{Stderr, World, in_world, in_world_over_udp, in_world_with, wait_until};

use crate::FILE;
use crate::owner::{DESTROY, END, Owner, received};
use crate::part::{MEMORY, Part};

/// The SRQ of a process that is gone is not there (IBA annex A14); those of others go on.
//= spec/hosts.md#net-011
//= type=test
//# An XRC SRQ whose process has ended MUST be refused as one that is not there, and nothing MUST hang.
#[test]
fn an_owner_that_is_killed() {
    in_world(|| {
        let (mut one, mut other) = (Owner::of(FILE)?, Owner::of(FILE)?);
        let part = Part::of(FILE)?;
        let options = Options::default();
        let [to_one, to_other, midway] = [part.pair(&options)?, part.pair(&options)?, part.pair(&options)?];
        for (owner, ends) in [(&mut one, &to_one), (&mut other, &to_other)] {
            owner.post(0, 8, 1)?;
            ends.succeed(&part, &owner.send(&part, 0, 8))?;
            ensure!(owner.next()?.wr_id == 1);
        }
        // In the middle of a message: it is long enough to be under way for a while.
        let write = || SendWr::new(Op::Write(one.at(0)), &[part.mr.sge(0, MEMORY)]).to_srq(one.srq);
        midway.initiator.post_sends(&(0..30).map(|_| write()).collect::<Vec<_>>())?;
        part.cq.next()?;
        one.child.signal(libc::SIGKILL)?;
        let mut statuses: Vec<_> = part.cq.take(29)?.into_iter().map(|wc| wc.status).collect();
        if statuses.iter().all(|status| *status == Status::SUCCESS) {
            // All were through before the signal.
            statuses.push(midway.complete(&part, &write())?);
        }
        let failed = statuses.iter().position(|status| *status != Status::SUCCESS).context("all were written")?;
        ensure!(statuses[failed] == Status::REM_INV_REQ_ERR, "{statuses:?}");
        part.context.expect_event(v::IBV_EVENT_QP_REQ_ERR, midway.target.address())?;
        ensure!(to_one.complete(&part, &one.send(&part, 0, 8))? == Status::REM_INV_REQ_ERR);
        other.post(0, 8, 2)?;
        to_other.succeed(&part, &other.send(&part, 0, 8))?;
        ensure!(other.next()?.wr_id == 2);
        drop(one);
        other.end()
    });
}

/// A stopped owner has no receives; when it goes on, so do messages.
#[test]
fn an_owner_that_is_stopped() {
    in_world(|| {
        // First here: who opens the device first is the port's owner, and new flows wait for one that is stopped.
        let part = Part::of(FILE)?;
        let mut owner = Owner::of(FILE)?;
        let ends = part.pair(&Options::default())?;
        for wr_id in 0..8 {
            owner.post(0, 8, wr_id)?;
        }
        owner.child.stop()?;
        let impatient = part.pair(&Options { rnr_retry: 1, ..Options::default() })?;
        let status = impatient.complete(&part, &owner.send(&part, 0, 8))?;
        ensure!(status == Status::RNR_RETRY_EXC_ERR, "{status:?}");
        let write = SendWr::new(Op::Write(owner.at(0)), &[part.mr.sge(0, 8)]).to_srq(owner.srq);
        let writer = part.pair(&Options::default())?;
        let status = writer.complete(&part, &write)?;
        ensure!(status == Status::RETRY_EXC_ERR, "{status:?}");
        ends.initiator.post_send(&owner.send(&part, 0, 8))?;
        ensure!(part.cq.poll(1)?.is_empty());
        owner.child.signal(libc::SIGCONT)?;
        ensure!(part.cq.next()?.status == Status::SUCCESS);
        // No WQE was lost to what was asked and not waited for.
        ensure!(owner.next()?.wr_id == 0);
        for wr_id in 1..8 {
            ends.succeed(&part, &owner.send(&part, 0, 8))?;
            let arrived = owner.next()?;
            ensure!(arrived.wr_id == wr_id, "{arrived:?}");
        }
        owner.end()
    });
}

/// Part of its rate that a queue pair keeps beside a stopped owner.
const KEPT: f64 = 0.95;
/// Fewest turns of messages beside a stopped owner of which the median is taken.
const LEAST_TURNS: usize = 3;
/// Most turns until the rate is shown to be kept.
const MOST_TURNS: usize = 40;
/// Messages between two readings of the clock.
const RUN: u32 = 32;

/// Time that the calling thread has waited for a processor.
fn preempted() -> Duration {
    // Nanoseconds that it ran, and that it waited (Documentation/scheduler/sched-stats.rst).
    let schedstat = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let waited = schedstat.split_whitespace().nth(1).and_then(|waited| waited.parse().ok());
    Duration::from_nanos(waited.unwrap_or_default())
}

/// Exchanges messages until `is_over`, which learns how long it has taken so far. Returns messages a second, and how long it has taken. Time
/// in which the thread waited for a processor counts for nothing; time in which it waited for a lock, a packet or a timer counts.
fn rate(
    mut exchange: impl FnMut() -> Result<()>,
    mut is_over: impl FnMut(Duration) -> Result<bool>,
) -> Result<(f64, Duration)> {
    let (began, preempted_before) = (Instant::now(), preempted());
    let mut messages = 0;
    loop {
        for _ in 0..RUN {
            exchange()?;
        }
        messages += RUN;
        let took = began.elapsed().saturating_sub(preempted() - preempted_before);
        if is_over(took)? {
            return Ok((f64::from(messages) / took.as_secs_f64(), took));
        }
    }
}

/// Whether the median of the turns' ratios shows that the rate is kept.
fn shows_that_the_rate_is_kept(ratios: &[f64]) -> bool {
    let mut sorted = ratios.to_vec();
    sorted.sort_by(f64::total_cmp);
    ratios.len() >= LEAST_TURNS && sorted[(sorted.len() - 1) / 2] >= KEPT
}

#[test]
fn a_rate_is_kept_in_most_turns_or_it_is_not() {
    for (ratios, is_kept) in [
        (&[1.0, 0.98, 1.01][..], true),
        // Others had the processors' caches for two of the turns.
        (&[0.7, 0.96, 1.1, 0.8, 1.0], true),
        (&[1.0, 1.0], false),
        (&[0.94; 20], false),
        // A stall in most turns.
        (&[0.1, 1.0, 0.1, 1.0, 0.1, 1.0], false),
    ] {
        assert_eq!(shows_that_the_rate_is_kept(ratios), is_kept, "{ratios:?}");
    }
}

/// While its process waits for a stopped owner, other queue pairs of the process go on, at the rate that they have without one.
/// What they send goes through sockets: inside the process it needs no receive token.
///
/// Rates are by the time that the thread had the processor or waited for the process, so they are the same on a busy machine. Turns
/// beside a stopped owner alternate with others, and are tried again as long as the median is not what it should be.
fn a_stopped_owner_delays_no_other_queue_pair(most: usize) -> Result<()> {
    let part = Part::of(FILE)?;
    let beside = Pair::on(&part.context, &Options::default())?;
    let (local, remote) = (beside.near.region(8)?, beside.far.region(8)?);
    let exchange = || -> Result<()> {
        beside.far.qp.post_recv(&RecvWr::new(0, &[remote.sge(0, 8)]))?;
        let wc = beside.near.complete(&SendWr::new(Op::Send, &[local.sge(0, 8)]))?;
        ensure!(wc.status == Status::SUCCESS && beside.far.recv_cq.next()?.status == Status::SUCCESS, "{wc:?}");
        Ok(())
    };
    let alone = |long: Duration| -> Result<f64> {
        let is_over = |took| {
            ensure!(part.cq.poll(1)?.is_empty());
            Ok(took >= long)
        };
        Ok(rate(exchange, is_over)?.0)
    };
    let mut before = alone(Duration::from_millis(100))?;
    let mut ratios = Vec::new();
    for _ in 0..most {
        let owner = Owner::of(FILE)?;
        let impatient = part.pair(&Options { rnr_retry: 1, ..Options::default() })?;
        owner.child.stop()?;
        // After the fork the first store to each page copies it: that is no work of the owner's being stopped.
        for _ in 0..8 * RUN {
            exchange()?;
        }
        impatient.initiator.post_send(&owner.send(&part, 0, 8))?;
        let mut failed = None;
        let is_over = |_| {
            failed = part.cq.poll(1)?.pop();
            Ok(failed.is_some())
        };
        let (with, took) = rate(exchange, is_over)?;
        ensure!(failed.as_ref().is_some_and(|wc| wc.status == Status::RNR_RETRY_EXC_ERR), "{failed:?}");
        owner.child.signal(libc::SIGCONT)?;
        owner.end()?;
        let after = alone(took)?;
        ratios.push(2.0 * with / (before + after));
        before = after;
        if shows_that_the_rate_is_kept(&ratios) {
            return Ok(());
        }
    }
    anyhow::bail!("messages beside a stopped owner, as a part of those without one: {ratios:.3?}")
}

#[test]
fn an_owner_that_is_stopped_delays_no_other_queue_pair() {
    in_world_over_udp(|| a_stopped_owner_delays_no_other_queue_pair(MOST_TURNS));
}

/// Devices that explain failures: so `urxe run` starts programs, unless it is told otherwise.
#[test]
fn an_owner_that_is_stopped_delays_no_other_queue_pair_under_urxe_run() {
    let as_urxe_run_does = |world: &World| {
        world.host().set_env("URXE_LOOPBACK", "udp");
        world.host().set_env("URXE_EXPLAIN", "failure");
        Ok(())
    };
    in_world_with(as_urxe_run_does, || a_stopped_owner_delays_no_other_queue_pair(MOST_TURNS));
}

/// A refusal is explained to the requester, though a thread of its own handles the packet.
#[test]
fn an_owner_that_is_gone_is_explained() {
    let explaining = |world: &World| {
        world.host().set_env("URXE_EXPLAIN", "1");
        Ok(())
    };
    in_world_with(explaining, || {
        let mut stderr = Stderr::catch()?;
        let part = Part::of(FILE)?;
        let mut owner = Owner::of(FILE)?;
        owner.post(0, 8, 1)?;
        let ends = part.pair(&Options::default())?;
        ends.succeed(&part, &owner.send(&part, 0, 8))?;
        let late = owner.send(&part, 0, 8);
        owner.end()?;
        ensure!(stderr.explanations()?.is_empty());
        ensure!(ends.complete(&part, &late)? == Status::REM_INV_REQ_ERR);
        let lines = stderr.explanations()?;
        let cause = "at the peer: the XRC domain has no SRQ of that number";
        ensure!(lines.iter().any(|line| line.contains(cause)), "{lines:#?}");
        Ok(())
    });
}

/// An owner that is stopped for a moment, in the middle of messages, delays them.
#[test]
fn an_owner_that_stops_now_and_then() {
    in_world(|| {
        let part = Part::of(FILE)?;
        let mut owner = Owner::of(FILE)?;
        // A second, eight times over.
        let ends = part.pair(&Options { timeout: 18, ..Options::default() })?;
        for round in 0..4 {
            part.mr.pages().write(0, &pattern(round, MEMORY));
            owner.post(0, MEMORY, round)?;
            ends.initiator.post_send(&owner.send(&part, 0, MEMORY))?;
            // Somewhere in its course.
            std::thread::sleep(Duration::from_millis(5 * round + 1));
            owner.child.stop()?;
            std::thread::sleep(Duration::from_millis(300));
            owner.child.signal(libc::SIGCONT)?;
            let wc = part.cq.next()?;
            ensure!(wc.status == Status::SUCCESS, "round {round}: {wc:?}");
            let arrived = owner.next()?;
            ensure!(arrived == received(&ends.target, round, MEMORY, None), "{arrived:?}");
            ensure!(owner.holds(0, MEMORY, round)?, "round {round}: bytes differ");
        }
        owner.end()
    });
}

/// Receives that a process has taken and not used return when it ends.
#[test]
fn a_sender_that_is_killed_leaves_the_receive() {
    in_world(|| {
        let mut child = Child::fork(|parent| {
            let [number] = parent.receive()?;
            let part = Part::of(FILE)?;
            let ends = part.pair(&Options::default())?;
            part.mr.pages().write(0, &[1; MEMORY]);
            let message = SendWr::new(Op::Send, &[part.mr.sge(0, MEMORY)]).to_srq(u32::try_from(number)?);
            ends.initiator.post_send(&message)?;
            let [_] = parent.receive()?;
            Ok(())
        })?;
        let part = Part::of(FILE)?;
        let srq = part.srq()?;
        srq.post_recv(&RecvWr::new(1, &[part.mr.sge(0, MEMORY)]))?;
        let number = srq.number()?;
        child.send(&[number.into()])?;
        wait_until("the message begins", || Ok(part.mr.pages().read(0, 1) == [1]))?;
        drop(child);
        // It may have been through by then: then there is a completion, and nothing to give back.
        let whole = part.mr.pages().read(MEMORY - 1, 1) == [1];
        let ends = part.pair(&Options::default())?;
        if whole {
            ensure!(part.cq.next()?.wr_id == 1);
            srq.post_recv(&RecvWr::new(1, &[part.mr.sge(0, MEMORY)]))?;
        }
        ends.initiator.post_send(&SendWr::new(Op::Send, &[part.mr.sge(0, 8)]).to_srq(number).id(2))?;
        let mut ids: Vec<_> = part.cq.take(2)?.into_iter().map(|wc| (wc.wr_id, wc.status)).collect();
        ids.sort_by_key(|(id, _)| *id);
        ensure!(ids == [(1, Status::SUCCESS), (2, Status::SUCCESS)], "{ids:?}");
        Ok(())
    });
}

/// The owner listens as long as it has an SRQ, and a second SRQ has it listen again.
#[test]
fn an_srq_that_is_destroyed() {
    in_world(|| {
        let open = || -> Result<usize> {
            Ok(fs::read_to_string("/proc/net/unix")?.lines().filter(|line| line.contains("@urxe/1/xrc/")).count())
        };
        let mut owner = Owner::of(FILE)?;
        let part = Part::of(FILE)?;
        let ends = part.pair(&Options::default())?;
        ensure!(open()? > 0);
        owner.post(0, 8, 1)?;
        ends.succeed(&part, &owner.send(&part, 0, 8))?;
        owner.tell(DESTROY, 0, 0, 0)?;
        ensure!(open()? == 0, "{}", fs::read_to_string("/proc/net/unix")?);
        ensure!(ends.complete(&part, &owner.send(&part, 0, 8))? == Status::REM_INV_REQ_ERR);
        for _ in 0..3 {
            let srq = part.srq()?;
            ensure!(open()? == 1);
            srq.destroy()?;
            ensure!(open()? == 0);
        }
        owner.child.send(&[END, 0, 0, 0])?;
        owner.child.finish()
    });
}

/// A line to whoever has an SRQ of this number, by somebody who says nothing.
fn call(number: u32) -> Result<OwnedFd> {
    // SAFETY: no pointers.
    let raw = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK, 0) };
    ensure!(raw >= 0, "socket: {}", std::io::Error::last_os_error());
    // SAFETY: new, and nobody else's.
    let line = unsafe { OwnedFd::from_raw_fd(raw) };
    let name = format!("\0urxe/1/xrc/{:04x}", number >> 8);
    // SAFETY: all-zero is a value of this plain C struct.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::sa_family_t::try_from(libc::AF_UNIX)?;
    for (to, from) in address.sun_path.iter_mut().zip(name.bytes()) {
        *to = std::ffi::c_char::from_ne_bytes([from]);
    }
    let length = libc::socklen_t::try_from(std::mem::offset_of!(libc::sockaddr_un, sun_path) + name.len())?;
    // SAFETY: an address of that length.
    let connected = unsafe { libc::connect(raw, (&raw const address).cast(), length) };
    ensure!(connected == 0, "connect: {}", std::io::Error::last_os_error());
    Ok(line)
}

/// An SRQ's owner keeps descriptors for the program: callers wait for a place.
#[test]
fn callers_that_say_nothing() {
    in_world(|| {
        const CALLERS: usize = 60;
        // Half of those that there may be.
        const LINES: usize = 48;
        let mut caller = Child::fork(|parent| {
            let [number] = parent.receive()?;
            let mut lines = (0..CALLERS).map(|_| call(u32::try_from(number)?)).collect::<Result<Vec<_>>>()?;
            parent.send(&[0])?;
            let [kept] = parent.receive()?;
            lines.truncate(usize::try_from(kept)?);
            let [_] = parent.receive()?;
            Ok(())
        })?;
        let limit = libc::rlimit { rlim_cur: 96, rlim_max: 96 };
        // SAFETY: a limit of this process' own.
        ensure!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } == 0);
        let part = Part::of(FILE)?;
        let srq = part.srq()?;
        let open = || -> Result<usize> { Ok(fs::read_dir("/proc/self/fd")?.count()) };
        let before = open()?;
        ensure!(before + LINES < 90, "{before} are open already, this shows nothing");
        caller.send(&[srq.number()?.into()])?;
        let [_] = caller.receive()?;
        wait_until("some are answered", || Ok(open()? >= before + LINES))?;
        ensure!(open()? == before + LINES, "{} lines", open()? - before);
        // Who leaves makes room for who waits, until nobody does.
        caller.send(&[1])?;
        wait_until("the others have gone", || Ok(open()? == before + 1))?;
        let mut owner = Owner::of(FILE)?;
        owner.post(0, 8, 1)?;
        let ends = part.pair(&Options::default())?;
        ends.succeed(&part, &owner.send(&part, 0, 8))?;
        owner.end()?;
        caller.send(&[0])?;
        caller.finish()
    });
}
