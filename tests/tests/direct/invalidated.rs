//! Windows that are invalidated while a peer uses them: by a SEND of the peer, and by a request of their owner.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::{Context as _, Result, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::verbs::memory::{ALL_ACCESS, PAGE, pattern};
use urxe_tests::verbs::window::{part, post_invalidate};
use urxe_tests::verbs::{Mr, Op, Options, Pair, RecvWr, Remote, SendWr, Status, Window};

use super::{counter, in_direct_world};

const LEN: usize = 64 * PAGE;

/// Number of the request that invalidates.
const INVALIDATES: u64 = 7;

/// Two ends, and a window of the far one that the near one may use in any way.
struct Scene {
    pair: Pair,
    local: Mr,
    memory: Mr,
    window: Window,
}

impl Scene {
    fn new() -> Result<Self> {
        let pair = Pair::new(&Options::default())?;
        let memory = Mr::alloc(&pair.far.pd, LEN, ALL_ACCESS | v::IBV_ACCESS_MW_BIND)?;
        let window = Window::new(&pair.far.pd, v::IBV_MW_TYPE_2)?;
        let rights = v::IBV_ACCESS_REMOTE_WRITE | v::IBV_ACCESS_REMOTE_READ | v::IBV_ACCESS_REMOTE_ATOMIC;
        window.open(&pair.far, part(&memory, 0, LEN, rights))?;
        let local = pair.near.region(LEN)?;
        Ok(Self { pair, local, memory, window })
    }

    fn remote(&self) -> Remote {
        self.window.at(&self.memory, 0)
    }
}

/// A SEND with Invalidate that completes nothing at the requester unless it fails.
fn post_send_with_invalidate(pair: &Pair, rkey: u32) -> Result<()> {
    // SAFETY: a plain C struct: numbers, unions of numbers, null pointers.
    let mut wr: v::ibv_send_wr = unsafe { std::mem::zeroed() };
    (wr.wr_id, wr.opcode) = (INVALIDATES, v::IBV_WR_SEND_WITH_INV);
    wr.__bindgen_anon_1.invalidate_rkey = rkey;
    Ok(pair.near.qp.post_raw(&mut wr)?)
}

/// Takes the window away, and returns when the far end knows that nobody uses it any more.
type Invalidate = fn(&Scene) -> Result<()>;

fn by_a_send_of_the_peer(scene: &Scene) -> Result<()> {
    let Pair { far, .. } = &scene.pair;
    far.qp.post_recv(&RecvWr::new(1, &[]))?;
    post_send_with_invalidate(&scene.pair, scene.window.rkey())?;
    let wc = far.recv_cq.next()?;
    ensure!(wc.status == Status::SUCCESS && wc.flags & v::IBV_WC_WITH_INV != 0, "{wc:?}");
    Ok(())
}

fn by_a_request_of_its_owner(scene: &Scene) -> Result<()> {
    let Pair { far, .. } = &scene.pair;
    post_invalidate(&far.qp, INVALIDATES, scene.window.rkey())?;
    let wc = far.send_cq.next()?;
    ensure!((wc.status, wc.wr_id) == (Status::SUCCESS, INVALIDATES), "{wc:?}");
    Ok(())
}

/// A stream of requests of one kind: each succeeds until the window has gone, and the first one afterwards is refused. What is in memory
/// when the far end knows that it has gone stays there.
fn amid(op: fn(Remote) -> Op, len: usize, invalidate: Invalidate) -> Result<()> {
    let scene = Scene::new()?;
    let (is_gone, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let before = counter("direct_requests")?;
    std::thread::scope(|scope| -> Result<()> {
        let requester = scope.spawn(|| -> Result<Status> {
            let near = &scene.pair.near;
            for round in 1.. {
                scene.local.pages().write(0, &pattern(round, len));
                // It may succeed only if it began before the window had gone.
                let late = is_gone.load(Ordering::SeqCst);
                near.qp
                    .post_send(&SendWr::new(op(scene.remote()), &[scene.local.sge(0, len)]).id(round + INVALIDATES))?;
                let wc = near.send_cq.next()?;
                if wc.status != Status::SUCCESS {
                    return Ok(wc.status);
                }
                ensure!(wc.wr_id == round + INVALIDATES, "{wc:?}");
                ensure!(!late, "done through an invalidated window");
                done.fetch_add(1, Ordering::SeqCst);
            }
            unreachable!("numbers do not run out")
        });
        while done.load(Ordering::SeqCst) < 200 && !requester.is_finished() {
            std::thread::yield_now();
        }
        let direct = counter("direct_requests")? - before;
        invalidate(&scene)?;
        is_gone.store(true, Ordering::SeqCst);
        let left = scene.memory.pages().read(0, LEN);
        let status = requester.join().map_err(|_| anyhow::anyhow!("the requester panicked"))??;
        ensure!(status == Status::REM_ACCESS_ERR, "{status:?}");
        ensure!(scene.memory.pages().read(0, LEN) == left, "changed after it was invalidated");
        ensure!(direct > 0, "nothing went through the window by itself");
        Ok(())
    })
}

const WAYS: [(&str, Invalidate); 2] =
    [("by a SEND of the peer", by_a_send_of_the_peer), ("by a request of its owner", by_a_request_of_its_owner)];

/// Streams of requests that are carried out at once, and of those that take turns of the queue pair.
fn amid_any(op: fn(Remote) -> Op) -> Result<()> {
    for (how, invalidate) in WAYS {
        for len in [8, PAGE, LEN] {
            amid(op, len, invalidate).with_context(|| format!("{how}, {len} bytes"))?;
        }
    }
    Ok(())
}

#[test]
fn windows_invalidated_amid_writes() {
    in_direct_world(|| amid_any(Op::Write));
}

#[test]
fn windows_invalidated_amid_reads() {
    in_direct_world(|| amid_any(Op::Read));
}

#[test]
fn windows_invalidated_amid_atomics() {
    in_direct_world(|| {
        for (how, invalidate) in WAYS {
            amid(|remote| Op::FetchAdd { remote, add: 1 }, 8, invalidate).context(how)?;
        }
        Ok(())
    });
}

/// Requests of one list, some before the SEND that invalidates their window and some behind it: the ones are done without packets, the
/// first of the others is refused.
#[test]
fn a_send_that_invalidates_between_writes() {
    in_direct_world(|| {
        let scene = Scene::new()?;
        let (pair, rkey) = (&scene.pair, scene.window.rkey());
        ensure!(super::memory::is_direct(pair, &scene.memory)?);
        pair.far.qp.post_recv(&RecvWr::new(1, &[]))?;
        let before = counter("direct_requests")?;
        for (id, value) in [(1, 11_u64), (2, 12)] {
            scene.local.pages().write(usize::try_from(id)? * 8, &value.to_ne_bytes());
        }
        let write = |id: u64| {
            let sge = scene.local.sge(usize::try_from(id).unwrap_or_default() * 8, 8);
            SendWr::new(Op::Write(scene.remote()), &[sge]).id(id)
        };
        pair.near.qp.post_send(&write(1))?;
        post_send_with_invalidate(pair, rkey)?;
        pair.near.qp.post_send(&write(2))?;
        let ends: Vec<_> = pair.near.send_cq.take(2)?.iter().map(|wc| (wc.wr_id, wc.status)).collect();
        ensure!(ends == [(1, Status::SUCCESS), (2, Status::REM_ACCESS_ERR)], "{ends:?}");
        ensure!(counter("direct_requests")? == before + 1);
        ensure!(scene.memory.pages().read_u64(0) == 11, "written through an invalidated window");
        let wc = pair.far.recv_cq.next()?;
        ensure!(wc.status == Status::SUCCESS && wc.flags & v::IBV_WC_WITH_INV != 0, "{wc:?}");
        Ok(())
    });
}
