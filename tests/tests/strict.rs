//! Strict mode (`URXE_STRICT`): each rule is told once where it is broken, and not where it is kept.

use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::verbs::datagram::Mouth;
use urxe_tests::verbs::memory::PAGE;
use urxe_tests::verbs::qp::{CAP, Init};
use urxe_tests::verbs::{Context, Cq, Op, Options, Pair, Pd, Qp, RecvWr, SendWr, Status};
use urxe_tests::{Stderr, World, in_world, in_world_with};

/// What works here and not everywhere, and by which words it is told.
struct Case {
    name: &'static str,
    words: &'static str,
    act: fn(&Arc<Context>) -> Result<()>,
}

const CASES: &[Case] = &[
    Case {
        name: "a buffer changed under way",
        words: "send buffer changed before its completion, wr_id 5",
        act: |c| {
            let Pair { near, far } = &Pair::on(c, &Options::default())?;
            let (local, remote) = (near.region(PAGE)?, far.region(PAGE)?);
            // No receive is posted: the request is under way until there is one.
            near.qp.post_send(&SendWr::new(Op::Send, &[local.sge(0, 64)]).id(5))?;
            local.pages().write(0, &[1]);
            far.qp.post_recv(&RecvWr::new(1, &[remote.sge(0, 64)]))?;
            ensure!(near.send_cq.next()?.status == Status::SUCCESS);
            Ok(())
        },
    },
    Case {
        name: "READ without initiator depth",
        words: "max_rd_atomic is 0",
        act: |c| {
            let Pair { near, far } = &Pair::on(c, &Options { rd_atomic: 0, ..Options::default() })?;
            let (local, remote) = (near.region(PAGE)?, far.region(PAGE)?);
            near.complete(&SendWr::new(Op::Read(remote.at(0)), &[local.sge(0, 8)]))?;
            Ok(())
        },
    },
    Case {
        name: "a queue of unsignaled requests",
        words: "full of unsignaled requests",
        act: |c| {
            let Pair { near, far: _far } = &Pair::on(c, &Options::default())?;
            let list = vec![SendWr::new(Op::Send, &[]).unsignaled(); CAP.max_send_wr as usize];
            near.qp.post_sends(&list)?;
            Ok(())
        },
    },
    Case {
        name: "a datagram's receive without room for the GRH",
        words: "every datagram begins with 40 bytes of GRH",
        act: |c| {
            let mouth = Mouth::completing_at(c, &Cq::new(c, 256, None)?)?;
            mouth.qp.post_recv(&RecvWr::new(1, &[mouth.room.sge(0, 40)]))?;
            Ok(())
        },
    },
    Case {
        name: "a CQ smaller than its queues",
        words: "a CQ of 100 elements serves queues of 128 work requests",
        act: |c| {
            let (pd, cq) = (Pd::new(c)?, Cq::new(c, 100, None)?);
            Qp::new(&pd, &cq, &cq, &Init::default())?;
            Ok(())
        },
    },
];

/// A case, and the lines that it led to.
type Said = (&'static Case, Vec<String>);

/// What nobody need be told of.
fn good(context: &Arc<Context>) -> Result<()> {
    let Pair { near, far } = &Pair::on(context, &Options::default())?;
    let (local, remote) = (near.region(PAGE)?, far.region(PAGE)?);
    for round in 0..20 {
        far.qp.post_recv(&RecvWr::new(round, &[remote.sge(0, 64)]))?;
        local.pages().write(0, &round.to_ne_bytes());
        near.qp.post_send(&SendWr::new(Op::Write(remote.at(0)), &[local.sge(0, 64)]).unsignaled().id(round))?;
        ensure!(near.complete(&SendWr::new(Op::Send, &[local.sge(0, 64)]).id(round))?.status == Status::SUCCESS);
        ensure!(near.complete(&SendWr::new(Op::Read(remote.at(0)), &[local.sge(0, 64)]))?.status == Status::SUCCESS);
    }
    let mouth = Mouth::completing_at(context, &Cq::new(context, 256, None)?)?;
    mouth.listen(1, 1)?;
    ensure!(near.qp.state()? == v::IBV_QPS_RTS);
    Ok(())
}

/// Breaks every rule; returns what was said about each, and about what is right.
fn break_all() -> Result<(Vec<Said>, Vec<String>)> {
    let context = Context::open()?;
    let mut stderr = Stderr::catch()?;
    let mut broken = Vec::new();
    for case in CASES {
        (case.act)(&context).with_context(|| case.name)?;
        broken.push((case, stderr.lines()?));
    }
    good(&context)?;
    Ok((broken, stderr.lines()?))
}

#[test]
fn every_rule_is_told_once() {
    let strict = |world: &World| {
        world.host().set_env("URXE_STRICT", "1");
        Ok(())
    };
    in_world_with(strict, || {
        let (broken, good) = break_all()?;
        for (case, lines) in broken {
            let [line] = &lines[..] else { bail!("{}: {lines:?}", case.name) };
            ensure!(line.starts_with("urxe: ") && line.contains(case.words), "{}: {line}", case.name);
        }
        ensure!(good.is_empty(), "nothing is wrong: {good:?}");
        Ok(())
    });
}

#[test]
fn nothing_is_told_unless_asked() {
    in_world(|| {
        let (broken, good) = break_all()?;
        ensure!(broken.iter().all(|(_, lines)| lines.is_empty()) && good.is_empty());
        Ok(())
    });
}

/// What is left when the device is closed.
#[test]
fn leaks_are_told_at_the_end() {
    let strict = |world: &World| {
        world.host().set_env("URXE_STRICT", "1");
        Ok(())
    };
    in_world_with(strict, || {
        let context = Context::open()?;
        let mr = urxe_tests::verbs::Mr::alloc(&Pd::new(&context)?, PAGE, 0)?;
        let mut stderr = Stderr::catch()?;
        context.close()?;
        let lines = stderr.lines()?;
        // Its verbs need the context that is gone.
        std::mem::forget(mr);
        ensure!(
            lines.len() == 1 && lines[0].contains("ibv_close_device with 1 MRs and 0 queue pairs left"),
            "{lines:?}"
        );
        Ok(())
    });
}
