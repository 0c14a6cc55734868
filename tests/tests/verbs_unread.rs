//! A program that had no processor for a while: what came meanwhile counts, however late it is read.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use urxe_tests::verbs::child::{Child, Parent};
use urxe_tests::verbs::{Many, Op, Options, PATIENCE, Qp, Remote, SendWr};
use urxe_tests::{in_world, in_world_over_udp};

/// So many queue pairs each wait for an ACK: more than are read at a time.
const COUNT: usize = 1000;

/// Eight seconds, and no second try: what is sent in time is not late on a busy machine either.
fn options() -> Options {
    Options { timeout: 21, retry_cnt: 0, ..Options::default() }
}

/// ACK timeout: 4.096 µs × 2^21.
const ACK_TIMEOUT: Duration = Duration::from_micros(8_589_934);

/// The writer goes on so long after its last queue pair should have given up,
const AFTERWARDS: Duration = Duration::from_millis(100);

/// and has sent to the first so long before it is stopped, at most. What is left of a second is for reading what has come
/// (`runtime/src/device/timers.rs`).
const AT_WORK: Duration = Duration::from_millis(400);

/// Bytes of the second WRITE.
const SECOND: u8 = 2;

/// One end of all connections: its queue pairs' numbers, then where its memory is.
fn introduction(many: &Many) -> Vec<u64> {
    let memory = many.mr.at(0);
    many.numbers().into_iter().map(u64::from).chain([memory.addr, u64::from(memory.rkey)]).collect()
}

/// Connects with the other end, and says where its memory is.
fn meet(many: &Many, introduction: &[u64; COUNT + 2]) -> Result<Remote> {
    let [peers @ .., addr, rkey] = introduction;
    let peers: Vec<u32> = peers.iter().map(|peer| u32::try_from(*peer)).collect::<Result<_, _>>()?;
    many.connect(&peers, &options())?;
    Ok(Remote { addr: *addr, rkey: u32::try_from(*rkey)? })
}

fn target(parent: &mut Parent) -> Result<()> {
    let many = Many::new(COUNT)?;
    parent.send(&introduction(&many))?;
    meet(&many, &parent.receive()?)?;
    parent.send(&[0])?;
    // Its program calls nothing of libibverbs' any more.
    let until = Instant::now() + PATIENCE;
    while many.mr.pages().read(0, COUNT) != [SECOND; COUNT] {
        ensure!(Instant::now() < until, "not everything was written");
        sleep(Duration::from_millis(5));
    }
    parent.send(&[0])?;
    parent.receive::<1>()?;
    Ok(())
}

fn writer(parent: &mut Parent) -> Result<()> {
    let many = Many::new(COUNT)?;
    parent.send(&introduction(&many))?;
    let remote = meet(&many, &parent.receive()?)?;
    // Each queue pair has a byte of its own.
    let write = |qp: &Qp, place: u64| {
        let at = Remote { addr: remote.addr + place, ..remote };
        qp.post_send(&SendWr::new(Op::Write(at), &[many.mr.sge(0, 1)]))
    };
    // Each has sockets of its own from now on, and needs nobody to forward to it.
    for (qp, place) in many.qps.iter().zip(0..) {
        write(qp, place)?;
        many.complete(1)?;
    }
    parent.send(&[0])?;
    parent.receive::<1>()?;
    many.mr.pages().write(0, &[SECOND]);
    many.qps.iter().zip(0..).try_for_each(|(qp, place)| write(qp, place))?;
    parent.send(&[0])?;
    many.complete(COUNT)
}

/// The target answers in time, but while the writer is stopped, for longer than it would wait. Tries until that comes about.
fn answers_lie_unread(patience: Duration) -> Result<()> {
    let until = Instant::now() + patience;
    while !attempt()? {
        ensure!(Instant::now() < until, "the writer never was stopped before it could have given up");
    }
    Ok(())
}

/// False if the writer was stopped so late that it may have given up before, or the target answers or the writer goes on too
/// late: others had the processors.
fn attempt() -> Result<bool> {
    let mut target = Child::fork(target)?;
    let mut writer = Child::fork(writer)?;
    let of_target = target.receive::<{ COUNT + 2 }>()?;
    let of_writer = writer.receive::<{ COUNT + 2 }>()?;
    target.send(&of_writer)?;
    target.receive::<1>()?;
    writer.send(&of_target)?;
    writer.receive::<1>()?;
    target.stop()?;
    let posted = Instant::now();
    writer.send(&[0])?;
    writer.receive::<1>()?;
    // It polls by now, and its background thread keeps away from what comes.
    sleep(Duration::from_millis(100));
    writer.stop()?;
    let at_work = posted.elapsed();
    if at_work > AT_WORK {
        return Ok(false);
    }
    target.signal(libc::SIGCONT)?;
    // All is written there, and the answers leave with the last of it.
    target.receive::<1>()?;
    if posted.elapsed() > ACK_TIMEOUT / 4 * 3 {
        return Ok(false);
    }
    sleep((at_work + ACK_TIMEOUT + AFTERWARDS).saturating_sub(posted.elapsed()));
    if posted.elapsed() > at_work + ACK_TIMEOUT + 2 * AFTERWARDS {
        return Ok(false);
    }
    writer.signal(libc::SIGCONT)?;
    writer.finish()?;
    target.send(&[0])?;
    target.finish()?;
    Ok(true)
}

//= spec/hosts.md#net-023
//= type=test
//# What has arrived SHOULD be read before a peer is taken for silent.
#[test]
fn answers_lie_in_memory() {
    in_world(|| answers_lie_unread(PATIENCE));
}

#[test]
fn answers_lie_in_sockets() {
    in_world_over_udp(|| answers_lie_unread(PATIENCE));
}
