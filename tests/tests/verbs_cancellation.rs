//! Threads that are to be cancelled (`pthread_cancel(3)`): verbs are no cancellation points (pthreads(7)), and those of a card
//! for messages are not even system calls. Programs cancel threads that wait for completion events (rping), and do not mean
//! to stop them within ibv_poll_cq.

use std::ffi::c_int;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use urxe_tests::verbs::datagram::{Ah, towards};
use urxe_tests::verbs::memory::ALL_ACCESS;
use urxe_tests::verbs::qp::Init;
use urxe_tests::verbs::{Change, Context, Cq, Mr, Op, Options, PATIENCE, Pair, Pd, Qp, RecvWr, SendWr, Srq, Status};
use urxe_tests::{World, in_world, in_world_over_udp, in_world_with, own_counter, wait_until};

/// `PTHREAD_CANCEL_ENABLE` and `PTHREAD_CANCEL_DISABLE` of pthread.h.
const ENABLE: c_int = 0;
const DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

fn set_state(state: c_int) {
    let mut old = 0;
    // SAFETY: room for the old state.
    unsafe { pthread_setcancelstate(state, &raw mut old) };
}

/// Runs `body` in a thread that has been told to end, and does so at the next cancellation point inside a [`pressed`] call:
/// then the process ends, for Rust does not let itself be unwound.
fn doomed(body: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
    let thread = std::thread::spawn(|| {
        set_state(DISABLE);
        // SAFETY: this thread.
        ensure!(unsafe { libc::pthread_cancel(libc::pthread_self()) } == 0, "pthread_cancel");
        body()
    });
    thread.join().expect("no panic")
}

/// Calls a verb.
fn pressed<T>(verb: impl FnOnce() -> T) -> T {
    set_state(ENABLE);
    let result = verb();
    set_state(DISABLE);
    result
}

/// Messages to somebody who sleeps, who is woken and told of completions.
fn messages() -> Result<()> {
    let Pair { near, far } = &Pair::new(&Options { events: true, ..Options::default() })?;
    let (local, remote) = (near.region(50_000)?, far.region(50_000)?);
    for length in [8, 50_000].repeat(10) {
        pressed(|| far.recv_cq.arm(false))?;
        pressed(|| far.qp.post_recv(&RecvWr::new(0, &[remote.sge(0, length)])))?;
        // The background thread falls asleep.
        sleep(Duration::from_millis(10));
        pressed(|| near.qp.post_send(&SendWr::new(Op::Send, &[local.sge(0, length)])))?;
        let deadline = Instant::now() + PATIENCE;
        for cq in [&near.send_cq, &far.recv_cq] {
            let mut completions = Vec::new();
            while completions.is_empty() {
                completions = pressed(|| cq.poll(1))?;
                ensure!(Instant::now() < deadline, "no completion");
            }
            ensure!(completions[0].status == Status::SUCCESS, "{completions:?}");
        }
    }
    ensure!(pressed(|| near.qp.post_send(&SendWr::new(Op::Send, &[local.sge(50_000, 8)]))).is_ok());
    Ok(())
}

#[test]
fn messages_through_memory() {
    in_world(|| doomed(messages));
}

#[test]
fn messages_over_udp() {
    in_world_over_udp(|| doomed(messages));
}

/// Requests that go straight to the memory of their peer.
fn requests() -> Result<()> {
    let Pair { near, far } = &Pair::new(&Options::default())?;
    let (local, remote) = (near.region(50_000)?, far.region(50_000)?);
    // Not before the memory was handed over.
    wait_until("a request is direct", || {
        near.complete(&SendWr::new(Op::Read(remote.at(0)), &[local.sge(0, 8)]))?;
        Ok(own_counter("direct_requests")? > 0)
    })?;
    let before = own_counter("direct_requests")?;
    let count = Op::FetchAdd { remote: remote.at(0), add: 1 };
    for (op, length) in [(Op::Write(remote.at(0)), 50_000), (Op::Read(remote.at(8)), 8), (count, 8)].repeat(10) {
        pressed(|| near.qp.post_send(&SendWr::new(op, &[local.sge(0, length)])))?;
        let deadline = Instant::now() + PATIENCE;
        let mut completions = Vec::new();
        while completions.is_empty() {
            completions = pressed(|| near.send_cq.poll(1))?;
            ensure!(Instant::now() < deadline, "no completion");
        }
        ensure!(completions[0].status == Status::SUCCESS, "{completions:?}");
    }
    ensure!(own_counter("direct_requests")? == before + 30, "some went by packets");
    Ok(())
}

#[test]
fn requests_that_are_direct() {
    let direct = |world: &World| {
        world.host().go_direct();
        Ok(())
    };
    in_world_with(direct, || doomed(requests));
}

#[test]
fn messages_that_somebody_watches() {
    let watched = |world: &World| {
        world.host().set_env("URXE_PCAP", world.dir().join("capture").to_str().context("not UTF-8")?);
        world.host().set_env("URXE_STRICT", "backtrace");
        world.host().set_env("URXE_EXPLAIN", "1");
        Ok(())
    };
    in_world_with(watched, || doomed(messages));
}

#[test]
fn objects() {
    in_world(|| {
        doomed(|| {
            // libibverbs opens files.
            let context = Context::open()?;
            let gid = pressed(|| context.query_gid(1, 1))?;
            pressed(|| context.query_port(1))?;
            let pd = pressed(|| Pd::new(&context))?;
            let cq = pressed(|| Cq::new(&context, 1, None))?;
            let srq = pressed(|| Srq::new(&pd, 1, 1))?;
            let qp = pressed(|| Qp::new(&pd, &cq, &cq, &Init::default()))?;
            pressed(|| qp.modify(&Change::init(ALL_ACCESS)))?;
            let ah = pressed(|| Ah::new(&pd, towards(gid, 1)))?;
            let mr = pressed(|| Mr::alloc(&pd, 100, ALL_ACCESS))?;
            ensure!(pressed(|| Cq::new(&context, 0, None)).is_err());
            pressed(|| mr.dereg())?;
            pressed(|| drop((ah, qp, srq, cq, pd)));
            Ok(())
        })
    });
}
