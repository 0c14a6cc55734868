//! Memory windows by `ibv_bind_mw(3)` and `IBV_WR_BIND_MW`.

use anyhow::{Result, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::in_world;
use urxe_tests::verbs::memory::{ALL_ACCESS, PAGE};
use urxe_tests::verbs::window::{part, post_invalidate};
use urxe_tests::verbs::{Change, Errno, Mr, Op, Options, Pair, SendWr, Status, Window};

const KINDS: [v::ibv_mw_type; 2] = [v::IBV_MW_TYPE_1, v::IBV_MW_TYPE_2];
const READ: u32 = v::IBV_ACCESS_REMOTE_READ;

/// Two ends, and a region of the near one that windows can be bound to.
struct Scene {
    pair: Pair,
    options: Options,
    region: Mr,
    local: Mr,
}

impl Scene {
    fn new() -> Result<Self> {
        let options = Options { rnr_retry: 0, ..Options::default() };
        let pair = Pair::new(&options)?;
        let region = Mr::alloc(&pair.near.pd, PAGE, ALL_ACCESS | v::IBV_ACCESS_MW_BIND)?;
        let local = pair.far.region(PAGE)?;
        Ok(Self { pair, options, region, local })
    }

    /// Binds a window; returns the key it shall have.
    fn bind(&self, window: &Window, wr_id: u64) -> Result<u32> {
        window.bind_as_its_type(&self.pair.near.qp, wr_id, part(&self.region, 64, 64, READ))
    }

    /// The far end reads through a window.
    fn read(&self, rkey: u32) -> Result<Status> {
        let remote = urxe_tests::verbs::Remote { rkey, ..self.region.at(64) };
        Ok(self.pair.far.complete(&SendWr::new(Op::Read(remote), &[self.local.sge(0, 64)]))?.status)
    }

    /// Both ends through RESET to RTS again.
    fn reconnect(&self) -> Result<()> {
        for end in [&self.pair.near, &self.pair.far] {
            end.qp.modify(&Change::to(v::IBV_QPS_RESET))?;
        }
        self.pair.connect(&self.options)
    }
}

/// A bind is carried out while the SEND before it is on its way. If that fails, the bind is told as flushed.
//= spec/memory.md#mem-013
//= type=test
//# A window whose bind does not complete with success MUST be closed before that is told.
#[test]
fn a_bind_that_is_flushed_leaves_the_window_closed() {
    in_world(|| {
        for kind in KINDS {
            let scene = Scene::new()?;
            let near = &scene.pair.near;
            let window = Window::new(&near.pd, kind)?;
            // Nobody receives it.
            near.qp.post_send(&SendWr::new(Op::Send, &[scene.region.sge(0, 8)]).id(1))?;
            let rkey = scene.bind(&window, 2)?;
            let told: Vec<_> = near.send_cq.take(2)?.iter().map(|wc| (wc.wr_id, wc.status)).collect();
            ensure!(told == [(1, Status::RNR_RETRY_EXC_ERR), (2, Status::WR_FLUSH_ERR)], "{told:?}");

            scene.reconnect()?;
            let status = scene.read(rkey)?;
            ensure!(status == Status::REM_ACCESS_ERR, "type {kind}: through the window that is not bound: {status:?}");

            // It can be bound as if nothing had been.
            scene.reconnect()?;
            let rkey = scene.bind(&window, 3)?;
            let bound = near.send_cq.next()?;
            ensure!((bound.wr_id, bound.status) == (3, Status::SUCCESS), "type {kind}: bound again: {bound:?}");
            ensure!(scene.read(rkey)? == Status::SUCCESS, "type {kind}");
        }
        Ok(())
    });
}

/// RESET forgets requests without a word.
#[test]
fn a_bind_that_reset_forgets_leaves_the_window_closed() {
    in_world(|| {
        for kind in KINDS {
            let scene = Scene::new()?;
            let near = &scene.pair.near;
            let window = Window::new(&near.pd, kind)?;
            // Without a peer that answers, the SEND stays outstanding.
            scene.pair.far.qp.modify(&Change::to(v::IBV_QPS_ERR))?;
            near.qp.post_send(&SendWr::new(Op::Send, &[scene.region.sge(0, 8)]).id(1))?;
            let rkey = scene.bind(&window, 2)?;
            scene.reconnect()?;
            let status = scene.read(rkey)?;
            ensure!(status == Status::REM_ACCESS_ERR, "type {kind}: {status:?}");
        }
        Ok(())
    });
}

/// A bind that has completed stays, whatever becomes of the requests behind it.
#[test]
fn a_bind_that_has_completed_stays() {
    in_world(|| {
        let scene = Scene::new()?;
        let near = &scene.pair.near;
        let window = Window::new(&near.pd, v::IBV_MW_TYPE_1)?;
        let rkey = scene.bind(&window, 1)?;
        ensure!(near.send_cq.next()?.status == Status::SUCCESS);
        near.qp.post_send(&SendWr::new(Op::Send, &[scene.region.sge(0, 8)]))?;
        ensure!(near.send_cq.next()?.status == Status::RNR_RETRY_EXC_ERR);
        scene.reconnect()?;
        ensure!(scene.read(rkey)? == Status::SUCCESS);
        Ok(())
    });
}

//= spec/memory.md#mem-012
//= type=test
//# A type 1 window MUST NOT be bound zero-based.
#[test]
fn a_type_1_window_is_not_zero_based() {
    in_world(|| {
        let scene = Scene::new()?;
        let near = &scene.pair.near;
        let window = Window::new(&near.pd, v::IBV_MW_TYPE_1)?;
        let before = window.rkey();
        let info = part(&scene.region, 0, 64, READ | v::IBV_ACCESS_ZERO_BASED);
        let refused = window.bind(&near.qp, 1, info);
        ensure!(refused == Err(Errno(libc::EINVAL)) && window.rkey() == before, "{refused:?}");
        // Nor by a work request, which the verb is made of.
        window.post_bind(&near.qp, 2, before ^ 1, info)?;
        let told = near.send_cq.next()?;
        ensure!((told.wr_id, told.status) == (2, Status::MW_BIND_ERR), "{told:?}");
        Ok(())
    });
}

//= spec/memory.md#mem-016
//= type=test
//# A type 2 window that is not bound MUST be bound under any key that its consumer chooses, also the one it has.
#[test]
fn a_type_2_window_may_be_bound_again_under_its_key() {
    in_world(|| {
        let scene = Scene::new()?;
        let near = &scene.pair.near;
        let window = Window::new(&near.pd, v::IBV_MW_TYPE_2)?;
        let rkey = window.rkey();
        for _ in 0..3 {
            window.post_bind(&near.qp, 1, rkey, part(&scene.region, 64, 64, READ))?;
            ensure!(near.send_cq.next()?.status == Status::SUCCESS);
            ensure!(scene.read(rkey)? == Status::SUCCESS);
            post_invalidate(&near.qp, 2, rkey)?;
            ensure!(near.send_cq.next()?.status == Status::SUCCESS);
        }
        ensure!(scene.read(rkey)? == Status::REM_ACCESS_ERR);
        Ok(())
    });
}
