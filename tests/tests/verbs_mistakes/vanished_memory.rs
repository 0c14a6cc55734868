//! Memory that vanishes while it is registered.

use anyhow::{Result, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::in_world;
use urxe_tests::verbs::memory::{ALL_ACCESS, PAGE};
use urxe_tests::verbs::mistake::{Far, LEN, Mistake, Scene, make_all};
use urxe_tests::verbs::{Mr, Op, Options, Pages, Pair, Pd, RecvWr, Remote, SendWr, Status};

use crate::atomic;

/// Memory that the application takes away after registering it: a card has it pinned, and a program that does so is
/// wrong, but neither end may crash or hang.
//= spec/memory.md#mem-008
//= type=test
//# Memory that was unmapped while registered MUST fail the work request, not the process.
//= spec/responder.md#rsp-024
//= type=test
//# Memory that is gone MUST be refused as a remote operational error.
#[test]
fn memory_that_is_gone() {
    const GONE: Far = Far::Event(v::IBV_EVENT_QP_ACCESS_ERR);
    fn near_gone(s: &Scene, len: usize) -> Result<v::ibv_sge> {
        let mr = s.near_region(ALL_ACCESS)?;
        mr.pages().unmap();
        Ok(s.keep(mr, |mr| mr.sge(0, len)))
    }
    fn far_gone(s: &Scene) -> Result<Remote> {
        let mr = s.far_region(ALL_ACCESS)?;
        mr.pages().unmap();
        Ok(s.keep(mr, |mr| mr.at(0)))
    }
    /// Two pages, of which the second is gone.
    fn near_half_gone(s: &Scene) -> Result<v::ibv_sge> {
        let mr = Mr::alloc(&s.pair.near.pd, 2 * PAGE, ALL_ACCESS)?;
        mr.pages().unmap_from(PAGE);
        Ok(s.keep(mr, |mr| mr.sge(PAGE - 100, 200)))
    }
    in_world(|| {
        make_all(&[
            Mistake::new("SEND from it", Status::LOC_PROT_ERR, Far::Nothing, |s| {
                Ok(SendWr::new(Op::Send, &[near_gone(s, 8)?]))
            }),
            Mistake::new("SEND from half of it", Status::LOC_PROT_ERR, Far::Nothing, |s| {
                Ok(SendWr::new(Op::Send, &[near_half_gone(s)?]))
            }),
            Mistake::new("WRITE from it", Status::LOC_PROT_ERR, Far::Nothing, |s| {
                Ok(SendWr::new(Op::Write(s.remote.at(0)), &[near_gone(s, LEN)?]))
            }),
            Mistake::new("READ into it", Status::LOC_PROT_ERR, Far::Nothing, |s| {
                Ok(SendWr::new(Op::Read(s.remote.at(0)), &[near_gone(s, LEN)?]))
            }),
            Mistake::new("atomic into it", Status::LOC_PROT_ERR, Far::Nothing, |s| {
                Ok(SendWr::new(atomic(s.remote.at(0)), &[near_gone(s, 8)?]))
            }),
            Mistake::new("receive into it", Status::REM_OP_ERR, Far::Recv(Status::LOC_PROT_ERR), |s| {
                Ok(SendWr::new(Op::Send, &[s.local.sge(0, LEN)]))
            })
            .received_by(|s| {
                let mr = s.far_region(ALL_ACCESS)?;
                mr.pages().unmap();
                Ok(RecvWr::new(0, &[s.keep(mr, |mr| mr.sge(0, LEN))]))
            }),
            Mistake::new("WRITE to it", Status::REM_OP_ERR, GONE, |s| {
                Ok(SendWr::new(Op::Write(far_gone(s)?), &[s.local.sge(0, LEN)]))
            }),
            Mistake::new("READ from it", Status::REM_OP_ERR, GONE, |s| {
                Ok(SendWr::new(Op::Read(far_gone(s)?), &[s.local.sge(0, LEN)]))
            }),
            Mistake::new("FETCH_ADD on it", Status::REM_OP_ERR, GONE, |s| {
                Ok(SendWr::new(atomic(far_gone(s)?), &[s.local.sge(0, 8)]))
            }),
        ])
    });
}

/// Memory of a file that was cut off: SIGBUS instead of SIGSEGV.
#[test]
fn a_file_that_is_gone() {
    fn cut(pd: &std::sync::Arc<Pd>) -> Result<Mr> {
        let (pages, file) = Pages::of_file(LEN);
        let mr = Mr::of(pd, &pages, 0, LEN, ALL_ACCESS)?;
        file.set_len(0)?;
        Ok(mr)
    }
    fn remote(s: &Scene) -> Result<Remote> {
        Ok(s.keep(cut(&s.pair.far.pd)?, |mr| mr.at(0)))
    }
    const GONE: Far = Far::Event(v::IBV_EVENT_QP_ACCESS_ERR);
    in_world(|| {
        make_all(&[
            Mistake::new("SEND from it", Status::LOC_PROT_ERR, Far::Nothing, |s| {
                Ok(SendWr::new(Op::Send, &[s.keep(cut(&s.pair.near.pd)?, |mr| mr.sge(0, LEN))]))
            }),
            Mistake::new("READ into it", Status::LOC_PROT_ERR, Far::Nothing, |s| {
                let into = s.keep(cut(&s.pair.near.pd)?, |mr| mr.sge(0, LEN));
                Ok(SendWr::new(Op::Read(s.remote.at(0)), &[into]))
            }),
            Mistake::new("WRITE to it", Status::REM_OP_ERR, GONE, |s| {
                Ok(SendWr::new(Op::Write(remote(s)?), &[s.local.sge(0, LEN)]))
            }),
            Mistake::new("READ from it", Status::REM_OP_ERR, GONE, |s| {
                Ok(SendWr::new(Op::Read(remote(s)?), &[s.local.sge(0, LEN)]))
            }),
            Mistake::new("FETCH_ADD on it", Status::REM_OP_ERR, GONE, |s| {
                Ok(SendWr::new(atomic(remote(s)?), &[s.local.sge(0, 8)]))
            }),
        ])
    });
}

/// Worker threads of servers often block every signal; a fault in such a thread would end the process.
#[test]
fn memory_that_is_gone_in_a_thread_that_blocks_signals() {
    in_world(|| {
        let thread = std::thread::spawn(|| {
            // SAFETY: a local signal set.
            unsafe {
                let mut all = std::mem::zeroed();
                libc::sigfillset(&raw mut all);
                libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
            }
            make_all(&[
                Mistake::new("SEND from it", Status::LOC_PROT_ERR, Far::Nothing, |s| {
                    let mr = s.near_region(ALL_ACCESS)?;
                    mr.pages().unmap();
                    Ok(SendWr::new(Op::Send, &[s.keep(mr, |mr| mr.sge(0, LEN))]))
                }),
                Mistake::new("WRITE to it", Status::REM_OP_ERR, Far::Event(v::IBV_EVENT_QP_ACCESS_ERR), |s| {
                    let mr = s.far_region(ALL_ACCESS)?;
                    mr.pages().unmap();
                    Ok(SendWr::new(Op::Write(s.keep(mr, |mr| mr.at(0))), &[s.local.sge(0, LEN)]))
                }),
            ])
        });
        thread.join().expect("the thread")
    });
}

/// Inline data is copied when it is posted, so that is when the memory is missed.
#[test]
fn inline_data_that_is_gone() {
    in_world(|| {
        let pair = Pair::new(&Options::default())?;
        let mr = pair.near.region(PAGE)?;
        mr.pages().unmap();
        let wr = SendWr::new(Op::Send, &[mr.sge(0, 8)]).with(v::IBV_SEND_INLINE);
        let refused = pair.near.qp.post_send(&wr).expect_err("a post of inline data that is not there");
        ensure!(refused.errno.0 == libc::EFAULT && refused.bad == Some(0), "{refused:?}");
        ensure!(pair.near.qp.state()? == v::IBV_QPS_RTS);
        Ok(())
    });
}
