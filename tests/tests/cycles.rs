//! Opening and closing, making and destroying, connecting and disconnecting again and again leaves nothing behind: no
//! memory, no descriptor, no thread. `URXE_CYCLES` says how often (1000).

use std::fs;

use anyhow::{Context as _, Result, ensure};
use urxe_tests::verbs::memory::ALL_ACCESS;
use urxe_tests::verbs::qp::Init;
use urxe_tests::verbs::{Channel, Context, Cq, Mr, Op, Options, Pair, Pd, Qp, RecvWr, SendWr, Srq, Status};
use urxe_tests::{in_world, memory_of_our_own, wait_until};

/// Memory that the allocator may keep, whatever the number of cycles.
const SLACK: usize = 256 << 10;

fn cycles() -> Result<usize> {
    match std::env::var("URXE_CYCLES") {
        Ok(cycles) => cycles.parse().with_context(|| format!("URXE_CYCLES={cycles}")),
        Err(_) => Ok(1000),
    }
}

fn entries(folder: &str) -> Result<usize> {
    Ok(fs::read_dir(folder)?.count())
}

/// Does it many times; what there is after a few of them is all there may ever be.
fn leaves_nothing(cycle: impl Fn() -> Result<()>) -> Result<()> {
    let cycles = cycles()?;
    for _ in 0..cycles / 4 {
        cycle()?;
    }
    let (memory, files, threads) = (memory_of_our_own()?, entries("/proc/self/fd")?, entries("/proc/self/task")?);
    for _ in 0..cycles {
        cycle()?;
    }
    let grown = memory_of_our_own()?.saturating_sub(memory);
    println!("{cycles} cycles: {grown} bytes more");
    // A sanitizer keeps books of every thread there ever was, and says itself what is lost.
    let counts = std::env::var_os("URXE_SANITIZER_RUNTIME").is_none();
    ensure!(!counts || grown <= SLACK, "{grown} bytes more after {cycles} cycles");
    // One end of a ring of shared memory learns a moment later that the other is gone, and a thread that has been waited for
    // stays in the list a moment longer; both now as well as before.
    for (folder, before) in [("/proc/self/fd", files), ("/proc/self/task", threads)] {
        let mut after = 0;
        let waited = wait_until("all is gone", || {
            after = entries(folder)?;
            Ok(after <= before)
        });
        waited.with_context(|| format!("{folder}: {before} before, {after} after"))?;
    }
    Ok(())
}

#[test]
fn devices() {
    in_world(|| leaves_nothing(|| Context::open().map(drop).map_err(Into::into)));
}

#[test]
fn objects() {
    in_world(|| {
        let context = Context::open()?;
        leaves_nothing(|| {
            let pd = Pd::new(&context)?;
            let channel = Channel::new(&context)?;
            let cq = Cq::new(&context, 64, Some(&channel))?;
            let srq = Srq::new(&pd, 64, 4)?;
            let mr = Mr::alloc(&pd, 1 << 16, ALL_ACCESS)?;
            srq.post_recv(&RecvWr::new(1, &[mr.sge(0, 64)]))?;
            let shared = Qp::with_srq(&pd, &cq, &srq, &Init::default())?;
            let own = Qp::new(&pd, &cq, &cq, &Init::default())?;
            drop((shared, own));
            Ok(())
        })
    });
}

#[test]
fn connections() {
    in_world(|| {
        let context = Context::open()?;
        leaves_nothing(|| {
            let Pair { near, far } = Pair::on(&context, &Options::default())?;
            let (local, remote) = (near.region(64)?, far.region(64)?);
            far.qp.post_recv(&RecvWr::new(1, &[remote.sge(0, 64)]))?;
            let wc = near.complete(&SendWr::new(Op::Send, &[local.sge(0, 64)]))?;
            ensure!(wc.status == Status::SUCCESS, "the sender: {wc:?}");
            let wc = far.recv_cq.next()?;
            ensure!(wc.status == Status::SUCCESS && wc.byte_len == 64, "the receiver: {wc:?}");
            Ok(())
        })
    });
}
