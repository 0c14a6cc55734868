//! Rights and states: requests that are refused, and those that are not any more.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::own_counter as counter;
use urxe_tests::verbs::child::Child;
use urxe_tests::verbs::memory::{ALL_ACCESS, PAGE, pattern};
use urxe_tests::verbs::{Change, Mr, Op, Options, Pair, Pd, RecvWr, Remote, SendWr, Status};

use crate::{Scene, in_direct_world, succeeds, target};

/// A request that is refused, and how: to memory that may be written to, or only read.
type Wrong = fn(&Pair, &Mr, &Mr) -> Result<(Op, Status)>;

/// Requests that the responder refuses go by packets, and fail as they always do.
#[test]
fn refused_requests_go_by_packets_and_fail() {
    in_direct_world(|| {
        let wrong: [(&str, Wrong); 6] = [
            ("a wrong key", |_, memory, _| {
                Ok((Op::Write(Remote { rkey: memory.rkey() ^ 1, ..memory.at(0) }), Status::REM_ACCESS_ERR))
            }),
            ("bounds", |_, memory, _| Ok((Op::Write(memory.at(PAGE - 4)), Status::REM_ACCESS_ERR))),
            ("rights", |_, _, readable| Ok((Op::Write(readable.at(0)), Status::REM_ACCESS_ERR))),
            ("another domain", |pair, _, _| {
                let other = Mr::alloc(&Pd::new(&pair.far.context)?, PAGE, ALL_ACCESS)?;
                let at = other.at(0);
                std::mem::forget(other);
                Ok((Op::Read(at), Status::REM_ACCESS_ERR))
            }),
            ("an odd address", |_, memory, _| {
                Ok((Op::FetchAdd { remote: memory.at(4), add: 1 }, Status::REM_INV_REQ_ERR))
            }),
            ("a key of before", |pair, _, _| {
                let gone = pair.far.region(PAGE)?;
                let at = gone.at(0);
                succeeds(&pair.near, Op::Write(at), &[pair.near.region(PAGE)?.sge(0, 8)])?;
                gone.dereg()?;
                Ok((Op::Write(at), Status::REM_ACCESS_ERR))
            }),
        ];
        for (what, make) in wrong {
            let pair = Pair::new(&Options::default())?;
            let (local, memory) = (pair.near.region(PAGE)?, pair.far.region(PAGE)?);
            let readable = Mr::alloc(&pair.far.pd, PAGE, v::IBV_ACCESS_REMOTE_READ)?;
            for _ in 0..100 {
                succeeds(&pair.near, Op::Write(memory.at(0)), &[local.sge(0, 8)])?;
            }
            let (op, status) = make(&pair, &memory, &readable)?;
            let wc = pair.near.complete(&SendWr::new(op, &[local.sge(0, 8)]))?;
            ensure!(wc.status == status, "{what}: {wc:?}");
            ensure!(pair.far.qp.state()? == v::IBV_QPS_ERR, "{what}: the responder goes on");
        }
        // The local side: no key gives the buffer.
        let pair = Pair::new(&Options::default())?;
        let (local, memory) = (pair.near.region(PAGE)?, pair.far.region(PAGE)?);
        succeeds(&pair.near, Op::Write(memory.at(0)), &[local.sge(0, 8)])?;
        let sge = v::ibv_sge { lkey: local.lkey() ^ 1, ..local.sge(0, 8) };
        let wc = pair.near.complete(&SendWr::new(Op::Read(memory.at(0)), &[sge]))?;
        ensure!(wc.status == Status::LOC_PROT_ERR, "{wc:?}");
        Ok(())
    });
}

/// Rights of the queue pair, its states and new connections.
#[test]
fn states_and_rights_of_queue_pairs() {
    in_direct_world(|| {
        let options = Options { access: v::IBV_ACCESS_REMOTE_READ, ..Options::default() };
        let pair = Pair::new(&options)?;
        let (local, memory) = (pair.near.region(PAGE)?, pair.far.region(PAGE)?);
        for _ in 0..100 {
            succeeds(&pair.near, Op::Read(memory.at(0)), &[local.sge(0, 8)])?;
        }
        let wc = pair.near.complete(&SendWr::new(Op::Write(memory.at(0)), &[local.sge(0, 8)]))?;
        ensure!(wc.status == Status::REM_ACCESS_ERR || wc.status == Status::REM_INV_REQ_ERR, "{wc:?}");

        // The responder in ERR, in RESET, and connected anew with other PSNs.
        let impatient = Options { timeout: 10, retry_cnt: 1, ..Options::default() };
        for state in [v::IBV_QPS_ERR, v::IBV_QPS_RESET] {
            let pair = Pair::new(&impatient)?;
            let memory = pair.far.region(PAGE)?;
            let local = pair.near.region(PAGE)?;
            for round in 0..3_u64 {
                let before = counter("direct_requests")?;
                for _ in 0..100 {
                    succeeds(&pair.near, Op::Write(memory.at(0)), &[local.sge(0, 8)])?;
                }
                ensure!(counter("direct_requests")? > before, "round {round}: not direct");
                pair.far.qp.modify(&Change::to(state))?;
                memory.pages().write(0, &77_u64.to_ne_bytes());
                let wc = pair.near.complete(&SendWr::new(Op::Write(memory.at(0)), &[local.sge(0, 8)]))?;
                ensure!(wc.status == Status::RETRY_EXC_ERR, "{wc:?}");
                ensure!(memory.pages().read_u64(0) == 77, "written all the same");
                for end in [&pair.near, &pair.far] {
                    end.qp.modify(&Change::to(v::IBV_QPS_RESET))?;
                    end.send_cq.poll(256)?;
                }
                pair.connect(&impatient)?;
            }
        }
        Ok(())
    });
}

/// A right that `ibv_modify_qp(3)` has taken away stays away, whatever comes for the queue pair meanwhile and shows it to its peer again.
#[test]
fn rights_taken_away_from_a_busy_queue_pair() {
    in_direct_world(|| {
        for round in 0..40 {
            let pair = Pair::new(&Options::default())?;
            let (local, memory) = (pair.near.region(PAGE)?, pair.far.region(PAGE)?);
            let inbox = pair.far.region(PAGE)?;
            let before = counter("direct_requests")?;
            for _ in 0..20 {
                succeeds(&pair.near, Op::Write(memory.at(0)), &[local.sge(0, 8)])?;
            }
            ensure!(counter("direct_requests")? > before, "round {round}: not direct");
            memory.pages().write(0, &77_u64.to_ne_bytes());
            local.pages().write(0, &78_u64.to_ne_bytes());
            let (has_begun, ends, has_ended) = (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
            std::thread::scope(|scope| -> Result<()> {
                let sender = scope.spawn(|| -> Result<()> {
                    let burst = vec![SendWr::new(Op::Send, &[local.sge(0, 8)]); 8];
                    while !ends.load(Ordering::Relaxed) {
                        pair.near.qp.post_sends(&burst)?;
                        let all = pair.near.send_cq.take(burst.len())?;
                        ensure!(all.iter().all(|wc| wc.status == Status::SUCCESS), "{all:?}");
                        has_begun.store(true, Ordering::Relaxed);
                    }
                    Ok(())
                });
                for _ in 0..2 {
                    scope.spawn(|| {
                        while !has_ended.load(Ordering::Relaxed) {
                            // The queue may be full: it was looked at all the same.
                            let _ = pair.far.qp.post_recv(&RecvWr::new(1, &[inbox.sge(0, 8)]));
                            let _ = pair.far.recv_cq.poll(64);
                        }
                    });
                }
                while !has_begun.load(Ordering::Relaxed) && !sender.is_finished() {
                    std::thread::yield_now();
                }
                let change = Change::to(v::IBV_QPS_RTS)
                    .with(v::IBV_QP_ACCESS_FLAGS, |attr| attr.qp_access_flags = v::IBV_ACCESS_REMOTE_READ);
                let changed = pair.far.qp.modify(&change);
                ends.store(true, Ordering::Relaxed);
                let sent = sender.join().map_err(|_| anyhow::anyhow!("the sender panicked"));
                has_ended.store(true, Ordering::Relaxed);
                changed?;
                sent?
            })?;
            let wc = pair.near.complete(&SendWr::new(Op::Write(memory.at(0)), &[local.sge(0, 8)]))?;
            ensure!(wc.status != Status::SUCCESS && memory.pages().read_u64(0) == 77, "round {round}: {wc:?}");
        }
        Ok(())
    });
}

/// A target that has switched dumps off (`PR_SET_DUMPABLE`) is not to be traced: its memory is reached by packets. The
/// target looks at its own flag. So CAP_SYS_PTRACE changes nothing, though a requester that has it, as root does, could
/// trace it.
#[test]
fn a_target_without_dumps() {
    in_direct_world(|| {
        let child = Child::fork(|parent| {
            // SAFETY: plain numbers.
            let returned = unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) };
            ensure!(returned == 0, "prctl: {}", std::io::Error::last_os_error());
            target(parent)
        })?;
        let mut scene = Scene::introduced(child)?;
        scene.local.pages().write(0, &pattern(2, 100));
        for _ in 0..100 {
            scene.complete(Op::Write(scene.at(8)), 0, 100)?;
            scene.complete(Op::Read(scene.at(8)), 200, 100)?;
        }
        ensure!(scene.local.pages().read(200, 100) == pattern(2, 100), "not what was written");
        scene.expects(2, 8, 100)?;
        let direct = counter("direct_requests")?;
        ensure!(direct == 0, "{direct} are direct");
        scene.finish()
    });
}
