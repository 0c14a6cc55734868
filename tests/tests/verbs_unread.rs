//! A program that had no processor for a while: what came meanwhile counts, however late it is read.

use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use urxe_tests::verbs::child::{Child, Parent};
use urxe_tests::verbs::{Many, Op, Options, Qp, Remote, SendWr};
use urxe_tests::{in_world, in_world_over_udp};

/// So many queue pairs each wait for an ACK: more than are read at a time.
const COUNT: usize = 1000;

/// Two seconds, and no second try.
fn options() -> Options {
    Options { timeout: 19, retry_cnt: 0, ..Options::default() }
}

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
    // Its program does nothing.
    parent.receive::<1>()?;
    Ok(())
}

fn writer(parent: &mut Parent) -> Result<()> {
    let many = Many::new(COUNT)?;
    parent.send(&introduction(&many))?;
    let remote = meet(&many, &parent.receive()?)?;
    let write = |qp: &Qp| qp.post_send(&SendWr::new(Op::Write(remote), &[many.mr.sge(0, 8)]));
    // Each has sockets of its own from now on, and needs nobody to forward to it.
    for qp in &many.qps {
        write(qp)?;
        many.complete(1)?;
    }
    parent.send(&[0])?;
    parent.receive::<1>()?;
    many.post(write)?;
    parent.send(&[0])?;
    many.complete(COUNT)
}

/// The target answers in time, but while the writer is stopped, for longer than it would wait.
fn answers_lie_unread(stopped: Duration) -> Result<()> {
    let mut target = Child::fork(target)?;
    let mut writer = Child::fork(writer)?;
    let of_target = target.receive::<{ COUNT + 2 }>()?;
    let of_writer = writer.receive::<{ COUNT + 2 }>()?;
    target.send(&of_writer)?;
    target.receive::<1>()?;
    writer.send(&of_target)?;
    writer.receive::<1>()?;
    target.stop()?;
    writer.send(&[0])?;
    writer.receive::<1>()?;
    // It polls by now, and its background thread keeps away from what comes.
    sleep(Duration::from_millis(100));
    writer.stop()?;
    target.signal(libc::SIGCONT)?;
    sleep(stopped);
    writer.signal(libc::SIGCONT)?;
    writer.finish()?;
    target.send(&[0])?;
    target.finish()
}

//= spec/hosts.md#net-023
//= type=test
//# What has arrived SHOULD be read before a peer is taken for silent.
#[test]
fn answers_lie_in_memory() {
    in_world(|| answers_lie_unread(Duration::from_millis(2500)));
}

#[test]
fn answers_lie_in_sockets() {
    in_world_over_udp(|| answers_lie_unread(Duration::from_millis(2500)));
}
