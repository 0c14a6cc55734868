//! Requesters that are stopped in the middle of a copy, by a page of their own memory that comes late (userfaultfd(2)), or never, since they
//! are killed there.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::verbs::child::{Child, Parent};
use urxe_tests::verbs::memory::{ALL_ACCESS, Mr, PAGE, Pages, pattern};
use urxe_tests::verbs::window::{part, post_invalidate};
use urxe_tests::verbs::{Change, Context as Device, End, Op, Options, Pair, SendWr, Status, Window};
use urxe_tests::wait_until;

use super::memory::is_direct;
use super::missing::{Missing, PRIVATE};
use super::{connect, counter, introduction, succeeds};

/// Closes of a window.
#[derive(Clone, Copy, Debug)]
enum Close {
    Invalidate,
    Rebind,
}

/// So long the far end waits for a peer that is stopped in the middle of a copy (`net/src/direct/copies.rs`).
const PATIENCE_WITH_PEERS: Duration = Duration::from_secs(1);

/// When the request that closes a window has completed, nobody writes through it, though the peer was in the middle of a WRITE. False if
/// that took so long that the peer need not be waited for any more: others had the processors.
fn closed_in_a_copy(how: Close) -> Result<bool> {
    let pair = Pair::new(&Options::default())?;
    let memory = Mr::alloc(&pair.far.pd, 4 * PAGE, ALL_ACCESS | v::IBV_ACCESS_MW_BIND)?;
    memory.pages().write(0, &pattern(1, 4 * PAGE));
    ensure!(is_direct(&pair, &memory)?);
    let kind = if let Close::Invalidate = how { v::IBV_MW_TYPE_2 } else { v::IBV_MW_TYPE_1 };
    let window = Window::new(&pair.far.pd, kind)?;
    window.open(&pair.far, part(&memory, 0, 2 * PAGE, v::IBV_ACCESS_REMOTE_WRITE))?;
    let at = window.at(&memory, 0);
    let local = Mr::alloc(&pair.near.pd, 2 * PAGE, PRIVATE)?;
    local.pages().write(0, &pattern(2, PAGE));
    let missing = Missing::new(local.pages(), PAGE)?;
    let (goes_on, is_closing) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let missing = missing;
        let writer = scope.spawn(|| pair.near.complete(&SendWr::new(Op::Write(at), &[local.sge(0, 2 * PAGE)])));
        missing.is_touched()?;
        let closer = scope.spawn(|| -> Result<Option<Vec<u8>>> {
            let began = Instant::now();
            is_closing.store(true, Ordering::SeqCst);
            match how {
                Close::Invalidate => post_invalidate(&pair.far.qp, 2, window.rkey())?,
                Close::Rebind => {
                    window.bind(&pair.far.qp, 2, part(&memory, 2 * PAGE, PAGE, v::IBV_ACCESS_REMOTE_READ))?;
                }
            }
            let wc = pair.far.send_cq.next()?;
            ensure!(wc.status == Status::SUCCESS, "{wc:?}");
            if began.elapsed() >= PATIENCE_WITH_PEERS {
                return Ok(None);
            }
            ensure!(goes_on.load(Ordering::SeqCst), "it has completed, and the peer is in the middle of a copy");
            Ok(Some(memory.pages().read(0, 4 * PAGE)))
        });
        while !is_closing.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        // Long for a copy, short for the patience with a peer that is stopped: whoever does not wait has completed by now.
        std::thread::sleep(Duration::from_millis(20));
        goes_on.store(true, Ordering::SeqCst);
        missing.come()?;
        let left = closer.join().map_err(|_| anyhow::anyhow!("the closer panicked"))??;
        let wc = writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))??;
        let Some(left) = left else { return Ok(false) };
        ensure!(wc.status == Status::REM_ACCESS_ERR, "{wc:?}");
        ensure!(memory.pages().read(0, 4 * PAGE) == left, "written to afterwards");
        Ok(true)
    })
}

#[test]
fn windows_closed_in_the_middle_of_a_copy() {
    super::in_direct_world(|| {
        for how in [Close::Invalidate, Close::Rebind] {
            wait_until("a window is closed in time", || closed_in_a_copy(how)).with_context(|| format!("{how:?}"))?;
        }
        Ok(())
    });
}

/// An atomic of a requester that goes on when its peer has lost patience: the next request has the PSN that the responder expects.
#[test]
fn an_atomic_that_is_told_late() {
    super::in_direct_world(|| {
        let pair = Pair::new(&Options { retry_cnt: 1, ..Options::default() })?;
        let memory = pair.far.region(PAGE)?;
        ensure!(is_direct(&pair, &memory)?);
        let local = Mr::alloc(&pair.near.pd, PAGE, PRIVATE)?;
        let missing = Missing::new(local.pages(), 0)?;
        let count = Op::FetchAdd { remote: memory.at(0), add: 1 };
        std::thread::scope(|scope| -> Result<()> {
            let missing = missing;
            let requester = scope.spawn(|| succeeds(&pair.near, count, &[local.sge(0, 8)]));
            missing.is_touched()?;
            let rights = |attr: &mut v::ibv_qp_attr| attr.qp_access_flags = ALL_ACCESS;
            pair.far.qp.modify(&Change::to(v::IBV_QPS_RTS).with(v::IBV_QP_ACCESS_FLAGS, rights))?;
            missing.come()?;
            requester.join().map_err(|_| anyhow::anyhow!("the requester panicked"))??;
            Ok(())
        })?;
        for done in 1..4 {
            succeeds(&pair.near, count, &[local.sge(0, 8)])?;
            ensure!(local.pages().read_u64(0) == done);
        }
        ensure!(is_direct(&pair, &memory)?, "it is shown again");
        Ok(())
    });
}

/// Signals that the handler has seen.
static SENT: AtomicU32 = AtomicU32::new(0);

/// Handler of SIGSEGV that a program has for what others send.
extern "C" fn count_sent(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: what the kernel gives.
    if unsafe { (*info).si_code } <= 0 {
        SENT.fetch_add(1, Ordering::SeqCst);
    } else {
        // SAFETY: ends the process.
        unsafe { libc::_exit(9) };
    }
}

/// SIGSEGV that is sent (kill(2), tgkill(2)) while a thread copies is the program's, and no fault of the copy.
#[test]
fn a_signal_that_is_sent_in_the_middle_of_a_copy() {
    super::in_direct_world(|| {
        // SAFETY: all-zero is a value of this plain C struct.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        (action.sa_sigaction, action.sa_flags) = (count_sent as *const () as usize, libc::SA_SIGINFO);
        // SAFETY: a handler of this kind. Before the device's, which is put in front of it.
        ensure!(unsafe { libc::sigaction(libc::SIGSEGV, &raw const action, std::ptr::null_mut()) } == 0);
        let pair = Pair::new(&Options::default())?;
        let memory = pair.far.region(2 * PAGE)?;
        ensure!(is_direct(&pair, &memory)?);
        let local = Mr::alloc(&pair.near.pd, 2 * PAGE, PRIVATE)?;
        local.pages().write(0, &pattern(2, PAGE));
        let missing = Missing::new(local.pages(), PAGE)?;
        let before = counter("direct_requests")?;
        std::thread::scope(|scope| -> Result<()> {
            let missing = missing;
            let (tells, told) = mpsc::channel();
            let (pair, local, to) = (&pair, &local, memory.at(0));
            let writer = scope.spawn(move || {
                // SAFETY: no pointers.
                tells.send(unsafe { libc::gettid() })?;
                pair.near.complete(&SendWr::new(Op::Write(to), &[local.sge(0, 2 * PAGE)]))
            });
            missing.is_touched()?;
            let writing = told.recv()?;
            // SAFETY: plain numbers. kill(2) may choose another thread.
            let is_sent = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), writing, libc::SIGSEGV) } == 0;
            let seen = wait_until("the program's handler runs", || Ok(SENT.load(Ordering::SeqCst) == 1));
            missing.come()?;
            let wc = writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))??;
            ensure!(is_sent, "tgkill");
            seen?;
            ensure!(wc.status == Status::SUCCESS, "{wc:?}");
            Ok(())
        })?;
        ensure!(counter("direct_requests")? == before + 1, "it went by packets");
        ensure!(memory.pages().read(0, 2 * PAGE) == [pattern(2, PAGE), vec![0; PAGE]].concat());
        Ok(())
    });
}

/// A requester in the middle of a WRITE to the parent's memory: the second page of what it writes does not come.
fn stopped_writer(parent: &mut Parent) -> Result<()> {
    let options = Options::default();
    let end = End::new(&Device::open()?, &options)?;
    let local = Mr::alloc(&end.pd, 2 * PAGE, PRIVATE)?;
    local.pages().write(0, &pattern(2, PAGE));
    parent.send(&introduction(&end, local.at(0)))?;
    let remote = connect(&end, parent.receive()?, &options)?;
    wait_until("a request is direct", || {
        succeeds(&end, Op::Write(remote), &[local.sge(0, 8)])?;
        Ok(counter("direct_requests")? > 0)
    })?;
    let missing = Missing::new(local.pages(), PAGE)?;
    std::thread::scope(|scope| {
        let missing = missing;
        scope.spawn(|| end.qp.post_send(&SendWr::new(Op::Write(remote), &[local.sge(0, 2 * PAGE)])));
        missing.is_touched()?;
        parent.send(&[0])?;
        // Until it is killed.
        parent.receive::<1>().map(drop)
    })
}

/// Memory whose peer was killed in the middle of a WRITE to it is the application's own when its registration ends, and may be
/// registered again. False if that took so long that a living peer would not have been waited for any more: others had the processors.
fn killed_in_a_copy() -> Result<bool> {
    let mut child = Child::fork(stopped_writer)?;
    let options = Options::default();
    let end = End::new(&Device::open()?, &options)?;
    let pages = Pages::new(4 * PAGE);
    let memory = Mr::of(&end.pd, &pages, 0, 4 * PAGE, ALL_ACCESS)?;
    pages.write(0, &pattern(1, 4 * PAGE));
    connect(&end, child.receive()?, &options)?;
    child.send(&introduction(&end, memory.at(0)))?;
    child.receive::<1>()?;
    child.signal(libc::SIGKILL)?;
    let began = Instant::now();
    memory.dereg()?;
    if began.elapsed() >= PATIENCE_WITH_PEERS {
        return Ok(false);
    }
    let left = pages.read(0, 4 * PAGE);
    ensure!(left[PAGE..] == pattern(1, 4 * PAGE)[PAGE..], "bytes that the peer did not have");
    // The place that the pages had in the shared file is free for others.
    let pair = Pair::on(&end.context, &options)?;
    let others = pair.far.region(4 * PAGE)?;
    ensure!(is_direct(&pair, &others)?);
    let memory = Mr::of(&pair.far.pd, &pages, 0, 4 * PAGE, ALL_ACCESS)?;
    ensure!(is_direct(&pair, &memory)?);
    ensure!(pages.read(0, 4 * PAGE) == left && others.pages().read(0, 4 * PAGE) == vec![0; 4 * PAGE]);
    Ok(true)
}

#[test]
fn requesters_killed_in_the_middle_of_a_copy() {
    super::in_direct_world(|| {
        for round in 0..5 {
            wait_until("a registration ends in time", killed_in_a_copy).with_context(|| format!("round {round}"))?;
        }
        Ok(())
    });
}
