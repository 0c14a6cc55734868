//! Targets that are killed while a requester copies to their memory, or from it.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use urxe_tests::descriptors::open_numbers;
use urxe_tests::verbs::child::{Child, Parent};
use urxe_tests::verbs::memory::{Mr, PAGE};
use urxe_tests::verbs::pair::works;
use urxe_tests::verbs::{Context as Device, End, Op, Options, PATIENCE, Pair, Remote, SendWr, Status};
use urxe_tests::wait_until;

use super::missing::{Missing, PRIVATE};
use super::{connect, counter, introduction, succeeds};

/// Bytes of the longest request that goes without packets.
const LONG: usize = 64 << 20;

/// A target with so much memory, which does nothing.
fn target(parent: &mut Parent) -> Result<()> {
    let options = Options::default();
    let end = End::new(&Device::open()?, &options)?;
    let memory = end.region(LONG)?;
    parent.send(&introduction(&end, memory.at(0)))?;
    connect(&end, parent.receive()?, &options)?;
    parent.send(&[0])?;
    // Until it is killed.
    parent.receive::<1>().map(drop)
}

/// A requester whose requests go straight to the target's memory.
struct Scene {
    child: Child,
    near: End,
    local: Mr,
    remote: Remote,
}

impl Scene {
    fn new() -> Result<Self> {
        let mut child = Child::fork(target)?;
        // 0.27 s: a killed target is given up soon. Of a living one no more is wanted than answers to the first requests.
        let options = Options { timeout: 16, ..Options::default() };
        let near = End::new(&Device::open()?, &options)?;
        let local = Mr::alloc(&near.pd, LONG, PRIVATE)?;
        let remote = connect(&near, child.receive()?, &options)?;
        child.send(&introduction(&near, local.at(0)))?;
        child.receive::<1>()?;
        wait_until("a request is direct", || {
            succeeds(&near, Op::Read(remote), &[local.sge(0, 8)])?;
            Ok(counter("direct_requests")? > 0)
        })?;
        Ok(Self { child, near, local, remote })
    }

    /// All of the target's memory, or of the requester's.
    fn request(&self, op: impl Fn(Remote) -> Op) -> SendWr {
        SendWr::new(op(self.remote), &[self.local.sge(0, LONG)])
    }
}

/// Shared files of processes that this one has mapped, by the lines of `/proc/self/maps`.
fn shared_mappings() -> Result<usize> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    Ok(maps.lines().filter(|line| line.contains("/memfd:urxe-direct")).count())
}

/// Descriptors and mappings that a process has once the devices that it had are closed.
#[derive(Debug, PartialEq)]
struct Left {
    descriptors: Vec<i32>,
    mappings: usize,
}

impl Left {
    fn now() -> Result<Self> {
        Ok(Self { descriptors: open_numbers()?, mappings: shared_mappings()? })
    }
}

/// Kills a target when its requester is in the middle of a request, which a page of the requester's own memory holds up. The request
/// succeeds, or finds that the target has gone, and so do the next ones, until that is found.
fn killed_in_a_copy(op: fn(Remote) -> Op) -> Result<()> {
    let scene = Scene::new()?;
    let before = counter("direct_requests")?;
    let missing = Missing::new(scene.local.pages(), LONG / 2)?;
    let wc = std::thread::scope(|scope| {
        let missing = missing;
        let requester = scope.spawn(|| scene.near.complete(&scene.request(op)));
        missing.is_touched()?;
        scene.child.signal(libc::SIGKILL)?;
        missing.come()?;
        requester.join().map_err(|_| anyhow::anyhow!("the requester panicked"))?
    })?;
    if wc.status == Status::SUCCESS {
        ensure!(counter("direct_requests")? == before + 1, "it went by packets, which nobody answers");
    }
    ends(&scene, op, wc.status)
}

/// Requests end with the target, and not with the process.
fn ends(scene: &Scene, op: fn(Remote) -> Op, mut status: Status) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    while status == Status::SUCCESS {
        ensure!(Instant::now() < until, "requests succeed without a peer");
        let wr = SendWr::new(op(scene.remote), &[scene.local.sge(0, PAGE)]);
        status = scene.near.complete(&wr)?.status;
    }
    ensure!(status == Status::RETRY_EXC_ERR, "{status:?}");
    works(&Pair::on(&scene.near.context, &Options::default())?).context("another pair of the device")
}

#[test]
fn targets_killed_in_the_middle_of_a_copy() {
    super::in_direct_world(|| {
        killed_in_a_copy(Op::Write)?;
        let before = Left::now()?;
        for op in [Op::Write, Op::Read] {
            killed_in_a_copy(op)?;
        }
        wait_until("the target's memory and descriptors are given back", || Ok(Left::now()? == before))
    });
}

/// A target is killed at any moment of a stream of WRITEs of 64 MiB: each that succeeded has gone without packets, the others fail, and the
/// requester goes on.
#[test]
fn targets_killed_amid_long_requests() {
    super::in_direct_world(|| {
        for round in 0..3 {
            let scene = Scene::new()?;
            let done = AtomicU64::new(0);
            let status = std::thread::scope(|scope| {
                let requester = scope.spawn(|| -> Result<Status> {
                    loop {
                        let wc = scene.near.complete(&scene.request(Op::Write))?;
                        if wc.status != Status::SUCCESS {
                            return Ok(wc.status);
                        }
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                });
                while done.load(Ordering::Relaxed) < 2 && !requester.is_finished() {
                    std::thread::yield_now();
                }
                // Some place in the request.
                std::thread::sleep(Duration::from_millis(round));
                scene.child.signal(libc::SIGKILL)?;
                requester.join().map_err(|_| anyhow::anyhow!("the requester panicked"))?
            })?;
            ends(&scene, Op::Write, status).with_context(|| format!("round {round}"))?;
        }
        Ok(())
    });
}
