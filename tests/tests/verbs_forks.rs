//! fork(2): what a child inherits, and what it can do by itself.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, ensure};
use urxe_ffi::functions as f;
use urxe_tests::verbs::child::Child;
use urxe_tests::verbs::memory::pattern;
use urxe_tests::verbs::pair::works;
use urxe_tests::verbs::{Channel, Cq, DeviceList, Errno, Op, Options, Pair, RecvWr, SendWr, Status};
use urxe_tests::{World, in_world, in_world_with, own_counter};

/// fork(2): what the child inherits is dead, and says so; the parent goes on; the child may open the device itself.
//= spec/hosts.md#net-007
//= type=test
//# The child of a fork MUST have no part in its parent's device.
#[test]
fn the_child_of_a_fork_has_no_device() {
    in_world(|| {
        let pair = Pair::new(&Options { events: true, ..Options::default() })?;
        works(&pair)?;
        let near = &pair.near;
        let mr = near.region(4096)?;
        Child::fork(|_| {
            let post = near.qp.post_send(&SendWr::new(Op::Send, &[mr.sge(0, 8)]));
            ensure!(post.is_err(), "a post of the child went through");
            ensure!(near.qp.post_recv(&RecvWr::new(0, &[])).is_err(), "a receive of the child went through");
            ensure!(near.send_cq.poll(1).is_err(), "the child polled");
            ensure!(near.send_cq.arm(false).is_err(), "the child armed");
            ensure!(near.context.query_port(1).is_err(), "the child queried the port");
            ensure!(near.region(4096).is_err(), "the child registered memory");
            ensure!(Cq::new(&near.context, 4, None).is_err(), "the child made a CQ");
            ensure!(Channel::new(&near.context).is_err(), "the child made a channel");
            ensure!(near.qp.state().is_err(), "the child queried its QP");
            ensure!(mr.dereg().is_err() && near.qp.destroy().is_err(), "the child destroyed the parent's objects");
            works(&Pair::new(&Options::default())?).context("the child's own device")
        })?
        .finish()?;
        works(&pair).context("the parent, afterwards")
    });
}

/// A child that tidies up closes its copy only.
#[test]
fn the_child_of_a_fork_closes_its_copy() {
    in_world(|| {
        let pair = Pair::new(&Options::default())?;
        works(&pair)?;
        let child = Child::fork(|_| {
            // Whether that is a success is nobody's concern: nothing may crash, hang, or reach the parent.
            let _ = pair.near.context.close();
            works(&Pair::new(&Options::default())?).context("the child's own device")?;
            std::process::exit(0);
        })?;
        child.finish()?;
        works(&pair).context("the parent, afterwards")
    });
}

/// A child that opens the device before it closes its copy of the parent's: the one has nothing to do with the other.
#[test]
fn the_child_of_a_fork_closes_its_copy_late() {
    in_world(|| {
        let pair = Pair::new(&Options::default())?;
        works(&pair)?;
        let child = Child::fork(|_| {
            let own = Pair::new(&Options::default())?;
            // Whether that is a success is nobody's concern.
            let _ = pair.near.context.close();
            works(&own).context("the child's own device")?;
            drop(own);
            works(&Pair::new(&Options::default())?).context("the child's next device")
        })?;
        child.finish()
    });
}

/// ibv_fork_init(3) before the device is opened: the parent's memory stays what the device reads and writes.
#[test]
fn fork_init() {
    in_world(|| {
        // SAFETY: no region is registered yet.
        Errno::check(unsafe { f::ibv_fork_init() })?;
        let pair = Pair::new(&Options::default())?;
        let Pair { near, far } = &pair;
        let (local, remote) = (near.region(100_000)?, far.region(100_000)?);
        let mut child = Child::fork(|parent| parent.receive::<1>().map(|_| ()))?;
        // Written after the fork, while the child lives: copy-on-write must not take it away.
        local.pages().write(0, &pattern(5, 100_000));
        let wc = near.complete(&SendWr::new(Op::Write(remote.at(0)), &[local.sge(0, 100_000)]))?;
        ensure!(wc.status == Status::SUCCESS && remote.pages().read(0, 100_000) == pattern(5, 100_000), "{wc:?}");
        child.send(&[0])?;
        child.finish()?;
        works(&pair)
    });
}

/// Forks while a thread sends messages between the ends of `pair`.
fn forks_amid(pair: &Pair) -> Result<()> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let traffic = scope.spawn(|| -> Result<()> {
            while !stop.load(Ordering::Relaxed) {
                works(pair)?;
            }
            Ok(())
        });
        let forks = (0..20).try_for_each(|_| {
            let child = Child::fork(|_| {
                ensure!(pair.near.context.query_port(1).is_err(), "the child queried the port");
                works(&Pair::new(&Options::default())?).context("the child's own device")
            })?;
            child.finish()
        });
        stop.store(true, Ordering::Relaxed);
        traffic.join().expect("the traffic's thread").context("the traffic")?;
        forks
    })
}

/// Forks at any moment: no lock that a thread of ours holds may stop the child.
#[test]
fn forks_amid_traffic() {
    in_world(|| forks_amid(&Pair::new(&Options::default())?));
}

/// Forks at any moment of messages that go straight into receive buffers, and of registrations that share pages.
#[test]
fn forks_amid_direct_traffic() {
    let direct = |world: &World| {
        world.host().go_direct();
        Ok(())
    };
    in_world_with(direct, || {
        let pair = Pair::new(&Options::default())?;
        forks_amid(&pair)?;
        let direct = own_counter("direct_requests")?;
        ensure!(direct > 0, "all went by packets");
        works(&pair)?;
        Ok(())
    });
}

/// Forks while other threads open and close: neither does what the whole process knows of its devices stop the child.
#[test]
fn forks_amid_opening() {
    in_world(|| {
        // Got once: libibverbs holds a lock of its own while it makes one, and forks regardless.
        let devices = DeviceList::new()?;
        let stop = AtomicBool::new(false);
        let opens_and_closes = &|channels: usize| -> Result<()> {
            while !stop.load(Ordering::Relaxed) {
                let context = devices.open()?;
                for _ in 0..channels {
                    Channel::new(&context)?;
                }
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let threads = [1, 1000].map(|channels| scope.spawn(move || opens_and_closes(channels)));
            let forks = (0..400).try_for_each(|fork| {
                let child = Child::fork(|_| works(&Pair::new(&Options::default())?).context("the child's own device"))?;
                child.finish().with_context(|| format!("fork {fork}"))
            });
            stop.store(true, Ordering::Relaxed);
            for thread in threads {
                thread.join().expect("a thread").context("opening and closing")?;
            }
            forks
        })
    });
}
