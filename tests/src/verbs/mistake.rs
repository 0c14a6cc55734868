//! Mistakes and what comes of them, as tables.
//!
//! A mistake is made on a fresh pair of queue pairs, over IPv4 and over IPv6. Behind it stands an ordinary WRITE, which
//! must complete as flushed.

use std::cell::RefCell;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use urxe_ffi::verbs as v;

use super::context::{Context, event_name};
use super::cq::Status;
use super::memory::{Mr, Pages, pattern};
use super::pair::{Options, Pair};
use super::wr::{Op, RecvWr, SendWr};
use crate::pingpong::{GID_IPV4, GID_IPV6};

/// Bytes of the regions of a [`Scene`]: several packets.
pub const LEN: usize = 4096;

/// Where a region of a [`Scene`] starts in its pages, so that there is memory before it and behind it.
const OFFSET: usize = 4096;

/// Objects with which mistakes are made.
pub struct Scene {
    /// Connected; [`Pair::near`] makes the mistake.
    pub pair: Pair,
    /// [`LEN`] bytes at the near end, with all rights.
    pub local: Mr,
    /// [`LEN`] bytes at the far end, with all rights.
    pub remote: Mr,
    kept: RefCell<Vec<Mr>>,
}

/// Consequence at the far end.
#[derive(Clone, Copy, Debug)]
pub enum Far {
    /// No effect: it stays in RTS, and its receive stays posted.
    Nothing,
    /// Asynchronous event; the queue pair is in ERR, and its receive was flushed.
    Event(v::ibv_event_type),
    /// Completion status of its receive; the queue pair is in ERR.
    Recv(Status),
}

/// A mistake.
pub struct Mistake {
    /// Says what is wrong, in messages.
    pub name: &'static str,
    /// Work request of the near end.
    pub wr: fn(&Scene) -> Result<SendWr>,
    /// The receive that the far end has posted; `None` is one for the whole region.
    pub recv: Option<fn(&Scene) -> Result<RecvWr>>,
    /// Changes to how the far end is made: the access flags of the QP.
    pub access: u32,
    /// Status with which the near end's request completes.
    pub near: Status,
    /// Consequence at the far end.
    pub far: Far,
}

impl Scene {
    fn new(gid: u32, access: u32) -> Result<Self> {
        let context = Context::open()?;
        let pair = Pair::on(&context, &Options { gid, access, ..Options::default() })?;
        let region = |pd, seed| {
            let pages = Pages::new(OFFSET + LEN + OFFSET);
            pages.write(0, &pattern(seed, pages.size()));
            Mr::of(pd, &pages, OFFSET, LEN, super::memory::ALL_ACCESS)
        };
        let (local, remote) = (region(&pair.near.pd, 1)?, region(&pair.far.pd, 2)?);
        Ok(Self { pair, local, remote, kept: RefCell::new(Vec::new()) })
    }

    /// Keeps a region that a work request names.
    pub fn keep<T>(&self, mr: Mr, named: impl FnOnce(&Mr) -> T) -> T {
        let value = named(&mr);
        self.kept.borrow_mut().push(mr);
        value
    }

    /// A far region with these rights.
    pub fn far_region(&self, access: u32) -> Result<Mr> {
        Ok(Mr::alloc(&self.pair.far.pd, LEN, access)?)
    }

    /// A near region with these rights.
    pub fn near_region(&self, access: u32) -> Result<Mr> {
        Ok(Mr::alloc(&self.pair.near.pd, LEN, access)?)
    }
}

impl Mistake {
    /// A mistake, by its consequences.
    pub const fn new(name: &'static str, near: Status, far: Far, wr: fn(&Scene) -> Result<SendWr>) -> Self {
        Self { name, wr, recv: None, access: super::memory::ALL_ACCESS, near, far }
    }

    /// Posts this receive first.
    pub const fn received_by(self, recv: fn(&Scene) -> Result<RecvWr>) -> Self {
        Self { recv: Some(recv), ..self }
    }

    /// Makes the far QP with these access flags.
    pub const fn at_qp_with(self, access: u32) -> Self {
        Self { access, ..self }
    }

    fn make(&self, gid: u32) -> Result<()> {
        let scene = Scene::new(gid, self.access)?;
        let Pair { near, far } = &scene.pair;
        let recv = match self.recv {
            Some(recv) => recv(&scene)?,
            None => RecvWr::new(0, &[scene.remote.sge(0, LEN)]),
        };
        far.qp.post_recv(&RecvWr { wr_id: 7, ..recv })?;
        let mistake = (self.wr)(&scene)?.id(1);
        let behind = SendWr::new(Op::Write(scene.remote.at(LEN - 8)), &[scene.local.sge(0, 8)]).id(2);
        near.qp.post_sends(&[mistake, behind])?;

        let wc = near.send_cq.next().context("the request")?;
        ensure!(wc.wr_id == 1 && wc.qp_num == near.qp.number(), "not the request's completion: {wc:?}");
        ensure!(wc.status == self.near, "the request completed with {:?}, not {:?}", wc.status, self.near);
        let wc = near.send_cq.next().context("the request behind it")?;
        ensure!(wc.wr_id == 2 && wc.status == Status::WR_FLUSH_ERR, "behind it: {wc:?}");
        ensure!(near.qp.state()? == v::IBV_QPS_ERR, "the near QP is in state {}", near.qp.state()?);

        let event = match self.far {
            Far::Nothing => {
                ensure!(far.qp.state()? == v::IBV_QPS_RTS, "the far QP is in state {}", far.qp.state()?);
                ensure!(far.recv_cq.poll(1)?.is_empty(), "the far end's receive completed");
                None
            }
            Far::Event(kind) => {
                self.check_recv(&scene, Status::WR_FLUSH_ERR)?;
                let untouched = scene.remote.pages().read(0, scene.remote.pages().size());
                ensure!(untouched == pattern(2, untouched.len()), "the far end's memory has changed");
                Some(kind)
            }
            Far::Recv(status) => {
                self.check_recv(&scene, status)?;
                None
            }
        };
        self.check_events(&scene, event)
    }

    fn check_recv(&self, scene: &Scene, status: Status) -> Result<()> {
        let far = &scene.pair.far;
        let wc = far.recv_cq.next().context("the far end's receive")?;
        ensure!(wc.wr_id == 7 && wc.qp_num == far.qp.number(), "not the receive's completion: {wc:?}");
        ensure!(wc.status == status, "the receive completed with {:?}, not {status:?}", wc.status);
        ensure!(far.qp.state()? == v::IBV_QPS_ERR, "the far QP is in state {}", far.qp.state()?);
        Ok(())
    }

    fn check_events(&self, scene: &Scene, expected: Option<v::ibv_event_type>) -> Result<()> {
        let far = &scene.pair.far;
        if let Some(kind) = expected {
            let event = far.context.async_event(super::PATIENCE)?;
            let event = event.with_context(|| format!("no event, not {}", event_name(kind)))?;
            ensure!(event.kind() == kind, "{}, not {}", event.name(), event_name(kind));
            ensure!(event.element() == far.qp.address(), "{} of something else", event.name());
        }
        if let Some(event) = far.context.async_event(Duration::ZERO)? {
            bail!("unexpected event: {}", event.name());
        }
        Ok(())
    }
}

/// Makes every mistake, and names those that did not have the expected consequences.
pub fn make_all(mistakes: &[Mistake]) -> Result<()> {
    let mut failures = Vec::new();
    for mistake in mistakes {
        for (gid, family) in [(GID_IPV4, "IPv4"), (GID_IPV6, "IPv6")] {
            if let Err(error) = mistake.make(gid) {
                failures.push(format!("{} ({family}): {error:#}", mistake.name));
            }
        }
    }
    if failures.is_empty() { Ok(()) } else { bail!("{}", failures.join("\n")) }
}
