//! `ibv_rereg_mr(3)` while peers write to the region and read it: each request is judged by what the region is at that moment.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::{Context as _, Result, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::verbs::memory::{ALL_ACCESS, PAGE, Pages, pattern};
use urxe_tests::verbs::{Change, End, Mr, Op, Options, Pair, Remote, SendWr, Status};

use super::memory::is_direct;
use super::reregistered::{Part, reregister};
use super::{counter, in_direct_world, succeeds};

const LEN: usize = 16 * PAGE;

/// Requests of a stream before the region changes, and between changes.
const SOME: u64 = 100;

/// Stops threads when it is dropped, whatever becomes of the test.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Waits until a stream has got on by [`SOME`] requests, or has ended.
fn gets_on(done: &AtomicU64, has_ended: impl Fn() -> bool) {
    let before = done.load(Ordering::SeqCst);
    while done.load(Ordering::SeqCst) < before + SOME && !has_ended() {
        std::thread::yield_now();
    }
}

/// Writes until that is refused. Each WRITE that begins when `is_closed` is set is refused.
fn writes_until_refused(near: &End, local: &Mr, at: Remote, is_closed: &AtomicBool, done: &AtomicU64) -> Result<()> {
    for round in 2.. {
        local.pages().write(0, &pattern(round, LEN));
        let late = is_closed.load(Ordering::SeqCst);
        let wc = near.complete(&SendWr::new(Op::Write(at), &[local.sge(0, LEN)]))?;
        if wc.status != Status::SUCCESS {
            ensure!(wc.status == Status::REM_ACCESS_ERR, "{wc:?}");
            return Ok(());
        }
        ensure!(!late, "written to what the region was before");
        done.fetch_add(1, Ordering::SeqCst);
    }
    unreachable!("rounds do not run out")
}

/// A region is closed to WRITEs by `part` while a peer writes to it: what is in its pages when the verb returns stays there.
fn closes(pair: &Pair, pages: &Pages, memory: &Mr, part: Part<'_>) -> Result<()> {
    let local = pair.near.region(LEN)?;
    ensure!(is_direct(pair, memory)?);
    let (is_closed, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let before = counter("direct_requests")?;
    let at = memory.at(0);
    std::thread::scope(|scope| -> Result<()> {
        let writer = scope.spawn(|| writes_until_refused(&pair.near, &local, at, &is_closed, &done));
        gets_on(&done, || writer.is_finished());
        let direct = counter("direct_requests")? - before;
        reregister(memory, part)?;
        is_closed.store(true, Ordering::SeqCst);
        let left = pages.read(0, LEN);
        writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))??;
        ensure!(pages.read(0, LEN) == left, "written to afterwards");
        ensure!(direct > 0, "no WRITE was direct");
        Ok(())
    })
}

#[test]
fn writes_forbidden_amid_writes() {
    in_direct_world(|| {
        for round in 0..10 {
            let pair = Pair::new(&Options::default())?;
            let pages = Pages::new(LEN);
            let memory = Mr::of(&pair.far.pd, &pages, 0, LEN, ALL_ACCESS)?;
            let rights = v::IBV_ACCESS_LOCAL_WRITE | v::IBV_ACCESS_REMOTE_READ;
            closes(&pair, &pages, &memory, Part::Rights(rights)).with_context(|| format!("round {round}"))?;
        }
        Ok(())
    });
}

#[test]
fn other_memory_amid_writes() {
    in_direct_world(|| {
        for round in 0..10 {
            let options = Options::default();
            let pair = Pair::new(&options)?;
            let (first, second) = (Pages::new(LEN), Pages::new(LEN));
            let memory = Mr::of(&pair.far.pd, &first, 0, LEN, ALL_ACCESS)?;
            closes(&pair, &first, &memory, Part::Memory(&second)).with_context(|| format!("round {round}"))?;
            ensure!(second.read(0, LEN) == vec![0; LEN], "a WRITE to the memory of before came here");
            // What it is now is reached by a new connection.
            for end in [&pair.near, &pair.far] {
                end.qp.modify(&Change::to(v::IBV_QPS_RESET))?;
            }
            pair.connect(&options)?;
            let local = pair.near.region(LEN)?;
            local.pages().write(0, &pattern(1, LEN));
            let at = Remote { addr: second.addr(), rkey: memory.rkey() };
            succeeds(&pair.near, Op::Write(at), &[local.sge(0, LEN)])?;
            ensure!(second.read(0, LEN) == pattern(1, LEN));
        }
        Ok(())
    });
}

/// Rights change to and fro, and so does the end of the region: requests that all of these allow succeed all the time, without packets or by
/// packets, and what they write is there.
#[test]
fn changes_that_allow_a_request() {
    in_direct_world(|| {
        const CHANGES: usize = 200;
        let pair = Pair::new(&Options::default())?;
        let whole = Pages::new(2 * LEN);
        let memory = Mr::of(&pair.far.pd, &whole, 0, LEN, ALL_ACCESS)?;
        let local = pair.near.region(2 * PAGE)?;
        ensure!(is_direct(&pair, &memory)?);
        let fewer = v::IBV_ACCESS_LOCAL_WRITE | v::IBV_ACCESS_REMOTE_WRITE | v::IBV_ACCESS_REMOTE_READ;
        let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
        let before = counter("direct_requests")?;
        std::thread::scope(|scope| -> Result<()> {
            let requester = scope.spawn(|| -> Result<()> {
                for round in 1.. {
                    if stop.load(Ordering::SeqCst) {
                        return Ok(());
                    }
                    local.pages().write(0, &pattern(round, PAGE));
                    succeeds(&pair.near, Op::Write(memory.at(PAGE)), &[local.sge(0, PAGE)])?;
                    ensure!(whole.read(PAGE, PAGE) == pattern(round, PAGE), "WRITE {round} is not there");
                    succeeds(&pair.near, Op::Read(memory.at(PAGE)), &[local.sge(PAGE, PAGE)])?;
                    ensure!(local.pages().read(PAGE, PAGE) == pattern(round, PAGE), "READ {round} brought other bytes");
                    done.fetch_add(1, Ordering::SeqCst);
                }
                Ok(())
            });
            let _stop = Stop(&stop);
            for change in 0..CHANGES {
                let part = match change % 4 {
                    0 => Part::Rights(fewer),
                    1 => Part::Memory(&whole),
                    2 => Part::Rights(ALL_ACCESS),
                    _ => Part::Bytes(&whole, LEN),
                };
                reregister(&memory, part).with_context(|| format!("change {change}"))?;
                if change % 10 == 9 {
                    gets_on(&done, || requester.is_finished());
                }
            }
            stop.store(true, Ordering::SeqCst);
            requester.join().map_err(|_| anyhow::anyhow!("the requester panicked"))?
        })?;
        ensure!(counter("direct_requests")? > before, "all went by packets");
        ensure!(is_direct(&pair, &memory)?);
        Ok(())
    });
}
