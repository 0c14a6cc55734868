//! Strict mode (`URXE_STRICT`): each rule is told once where it is broken, and not where it is kept.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::verbs::datagram::Mouth;
use urxe_tests::verbs::memory::{ALL_ACCESS, PAGE};
use urxe_tests::verbs::pair::{End, rtr};
use urxe_tests::verbs::qp::{CAP, Init};
use urxe_tests::verbs::{Change, Context, Cq, Mr, Op, Options, PATIENCE, Pair, Pd, Qp, RecvWr, SendWr, Status};
use urxe_tests::{Stderr, World, in_world, in_world_with};

/// Case of strict mode, and the words of its report.
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
    Case {
        name: "a receive buffer that is written to",
        words: "receive buffer changed before its completion, wr_id 6",
        act: |c| {
            let pair = Pair::on(c, &Options::default())?;
            let buffer = pair.far.region(PAGE)?;
            pair.far.qp.post_recv(&RecvWr::new(6, &[buffer.sge(0, 64)]))?;
            buffer.pages().write(40, &[1]);
            send(&pair, &[])?;
            ensure!(buffer.pages().read(40, 1) == [1], "what was written is gone");
            Ok(())
        },
    },
    Case {
        name: "a receive buffer that is read before its completion, by sending it",
        words: "from the buffer of receive wr_id 7",
        act: |c| {
            let Pair { near, far } = &Pair::on(c, &Options::default())?;
            let (buffer, other) = (near.region(PAGE)?, far.region(PAGE)?);
            near.qp.post_recv(&RecvWr::new(7, &[buffer.sge(0, 64)]))?;
            near.complete(&SendWr::new(Op::Write(other.at(0)), &[buffer.sge(32, 8)]).id(8))?;
            Ok(())
        },
    },
    Case {
        name: "a list longer than the send queue",
        words: "a list of 65 requests for a send queue of 64",
        act: |c| {
            let Pair { near, far: _far } = &Pair::on(c, &Options::default())?;
            let list = vec![SendWr::new(Op::Send, &[]); CAP.max_send_wr as usize + 1];
            ensure!(near.qp.post_sends(&list).is_err());
            Ok(())
        },
    },
    Case {
        name: "a list longer than the receive queue",
        words: "a list of 65 requests for a receive queue of 64",
        act: |c| {
            let Pair { near, far: _far } = &Pair::on(c, &Options::default())?;
            let list = vec![RecvWr::new(0, &[]); CAP.max_recv_wr as usize + 1];
            ensure!(near.qp.post_recvs(&list).is_err());
            Ok(())
        },
    },
    Case {
        name: "a send request before RTS",
        words: "send request, wr_id 3, on QP",
        act: |c| {
            let end = End::new(c, &Options::default())?;
            end.init(&Options::default())?;
            ensure!(end.qp.post_send(&SendWr::new(Op::Send, &[]).id(3)).is_err());
            Ok(())
        },
    },
    Case {
        name: "a receive request before INIT",
        words: "receive request, wr_id 4, on QP",
        act: |c| {
            let end = End::new(c, &Options::default())?;
            ensure!(end.qp.post_recv(&RecvWr::new(4, &[])).is_err());
            Ok(())
        },
    },
    Case {
        name: "an address without a GRH",
        words: "an address vector without a GRH",
        act: |c| {
            let options = Options::default();
            let end = End::new(c, &options)?;
            end.init(&options)?;
            let rtr = rtr(end.qp.number(), end.gid(&options)?, &options);
            let rtr = rtr.with(v::IBV_QP_AV, |attr| attr.ah_attr.is_global = 0);
            ensure!(end.qp.modify(&rtr).is_err());
            Ok(())
        },
    },
    Case {
        name: "memory that was deregistered, on this side",
        words: "of a region that was deregistered",
        act: |c| {
            let Pair { near, far } = &Pair::on(c, &Options::default())?;
            let (local, remote) = (near.region(PAGE)?, far.region(PAGE)?);
            let sge = local.sge(0, 8);
            local.dereg()?;
            ensure!(near.complete(&SendWr::new(Op::Write(remote.at(0)), &[sge]))?.status == Status::LOC_PROT_ERR);
            Ok(())
        },
    },
    Case {
        name: "memory that was deregistered, on the other side",
        words: "of a region that was deregistered",
        act: |c| {
            let Pair { near, far } = &Pair::on(c, &Options::default())?;
            let (local, remote) = (near.region(PAGE)?, far.region(PAGE)?);
            let at = remote.at(0);
            remote.dereg()?;
            let wc = near.complete(&SendWr::new(Op::Read(at), &[local.sge(0, 8)]))?;
            ensure!(wc.status == Status::REM_ACCESS_ERR, "{wc:?}");
            Ok(())
        },
    },
    Case {
        name: "a memory window bound under the same key again",
        words: "which the window had before",
        act: |c| {
            let Pair { near, far: _far } = &Pair::on(c, &Options::default())?;
            let region = Mr::alloc(&near.pd, PAGE, ALL_ACCESS | v::IBV_ACCESS_MW_BIND)?;
            bind_twice(near, &region)
        },
    },
    Case {
        name: "an event that is not acknowledged",
        words: "ibv_destroy_cq waits for 1 events that were read and not acknowledged",
        act: |c| {
            let pair = Pair::on(c, &Options { events: true, ..Options::default() })?;
            let (channel, cq) = (pair.far.channel.as_ref().context("no channel")?, &pair.far.recv_cq);
            pair.far.qp.post_recv(&RecvWr::new(1, &[]))?;
            cq.arm(false)?;
            send(&pair, &[])?;
            ensure!(channel.event()? == cq.address());
            pair.far.qp.destroy()?;
            std::thread::scope(|scope| {
                let destroyed = scope.spawn(|| cq.destroy());
                // Said after a second, by a thread that has to have its turn first.
                std::thread::sleep(Duration::from_secs(5));
                cq.acknowledge_events(1);
                destroyed.join().expect("it does not panic")
            })?;
            Ok(())
        },
    },
];

/// Sends and waits for both completions.
fn send(pair: &Pair, sges: &[v::ibv_sge]) -> Result<()> {
    ensure!(pair.near.complete(&SendWr::new(Op::Send, sges))?.status == Status::SUCCESS);
    ensure!(pair.far.recv_cq.next()?.status == Status::SUCCESS);
    Ok(())
}

/// Binds a window of type 2 under one key, another, and the first again.
fn bind_twice(end: &End, region: &Mr) -> Result<()> {
    // SAFETY: a live domain; all-zero requests are plain C structures, filled in as their opcodes say.
    unsafe {
        let ops = (*end.context.raw()).ops;
        let window = ops.alloc_mw.context("no alloc_mw")?(end.pd.raw(), v::IBV_MW_TYPE_2);
        ensure!(!window.is_null(), "no window");
        let keys = [(*window).rkey ^ 1, (*window).rkey ^ 2];
        let (bind, invalidate) = (v::IBV_WR_BIND_MW, v::IBV_WR_LOCAL_INV);
        for (opcode, key) in
            [(bind, keys[0]), (invalidate, keys[0]), (bind, keys[1]), (invalidate, keys[1]), (bind, keys[0])]
        {
            let mut wr = std::mem::zeroed::<v::ibv_send_wr>();
            (wr.opcode, wr.send_flags) = (opcode, v::IBV_SEND_SIGNALED);
            if opcode == v::IBV_WR_BIND_MW {
                wr.__bindgen_anon_2.bind_mw.mw = window;
                wr.__bindgen_anon_2.bind_mw.rkey = key;
                wr.__bindgen_anon_2.bind_mw.bind_info = v::ibv_mw_bind_info {
                    mr: region.raw(),
                    addr: region.pages().addr(),
                    length: 8,
                    mw_access_flags: v::IBV_ACCESS_REMOTE_WRITE,
                };
            } else {
                wr.__bindgen_anon_1.invalidate_rkey = key;
            }
            let mut bad = std::ptr::null_mut();
            ensure!(ops.post_send.context("no post_send")?(end.qp.raw(), &raw mut wr, &raw mut bad) == 0);
            let wc = end.send_cq.next()?;
            ensure!(wc.status == Status::SUCCESS, "{wc:?}");
            // The next key that the window has.
            (*window).rkey = key;
        }
        ensure!(ops.dealloc_mw.context("no dealloc_mw")?(window) == 0);
    }
    Ok(())
}

/// A case, and the lines that it led to.
type Said = (&'static Case, Vec<String>);

/// Correct use, without a report.
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
    let mut stderr = Stderr::catch()?;
    let context = Context::open()?;
    let mut broken = Vec::new();
    for case in CASES {
        (case.act)(&context).with_context(|| case.name)?;
        broken.push((case, stderr.explanations()?));
    }
    good(&context)?;
    Ok((broken, stderr.explanations()?))
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

/// An object may get the place of one that is no more.
#[test]
fn objects_in_reused_places_are_reported_again() {
    let strict = |world: &World| {
        world.host().set_env("URXE_STRICT", "1");
        Ok(())
    };
    in_world_with(strict, || {
        let mut stderr = Stderr::catch()?;
        let context = Context::open()?;
        let pd = Pd::new(&context)?;
        for _ in 0..3 {
            let cq = Cq::new(&context, 100, None)?;
            Qp::new(&pd, &cq, &cq, &Init::default())?;
        }
        let lines = stderr.explanations()?;
        ensure!(lines.len() == 3 && lines.iter().all(|line| line.contains("a CQ of 100 elements")), "{lines:?}");
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

/// Objects left when the device is closed.
#[test]
fn leaks_are_told_at_the_end() {
    let strict = |world: &World| {
        world.host().set_env("URXE_STRICT", "1");
        Ok(())
    };
    in_world_with(strict, || {
        let mut stderr = Stderr::catch()?;
        let context = Context::open()?;
        let mr = Mr::alloc(&Pd::new(&context)?, PAGE, 0)?;
        context.close()?;
        let lines = stderr.explanations()?;
        // Its verbs need the context that is gone.
        std::mem::forget(mr);
        ensure!(
            lines.len() == 1 && lines[0].contains("ibv_close_device with 1 MRs and 0 queue pairs left"),
            "{lines:?}"
        );
        Ok(())
    });
}

/// A program that reads a receive buffer too early notices; bytes that no message has overwritten are restored.
#[test]
fn receive_buffers_say_that_nothing_was_received() {
    let strict = |world: &World| {
        world.host().set_env("URXE_STRICT", "1");
        Ok(())
    };
    in_world_with(strict, || {
        let pair = Pair::new(&Options::default())?;
        let (local, buffer) = (pair.near.region(PAGE)?, pair.far.region(PAGE)?);
        let before: Vec<u8> = (0..=255).collect();
        buffer.pages().write(0, &before);
        local.pages().write(0, b"message");
        pair.far.qp.post_recv(&RecvWr::new(1, &[buffer.sge(0, 100)]))?;
        ensure!(buffer.pages().read(0, 18) == b"not received yet; " && buffer.pages().read(100, 156) == before[100..]);
        send(&pair, &[local.sge(0, 7)])?;
        ensure!(buffer.pages().read(0, 7) == b"message" && buffer.pages().read(7, 249) == before[7..]);
        // The same where no message comes.
        buffer.pages().write(0, &before);
        pair.far.qp.post_recv(&RecvWr::new(2, &[buffer.sge(0, 100)]))?;
        pair.far.qp.modify(&Change::to(v::IBV_QPS_ERR))?;
        ensure!(pair.far.recv_cq.next()?.status == Status::WR_FLUSH_ERR);
        ensure!(buffer.pages().read(0, 256) == before);
        Ok(())
    });
}

/// Memory that is the program's own again is left alone, whatever is still posted.
#[test]
fn buffers_are_given_back_with_their_region() {
    let strict = |world: &World| {
        world.host().set_env("URXE_STRICT", "1");
        Ok(())
    };
    in_world_with(strict, || {
        let pair = Pair::new(&Options::default())?;
        let buffer = pair.far.region(PAGE)?;
        let pages = Arc::clone(buffer.pages());
        pages.write(0, &[7; 100]);
        pair.far.qp.post_recv(&RecvWr::new(1, &[buffer.sge(0, 100)]))?;
        buffer.dereg()?;
        ensure!(pages.read(0, 100) == [7; 100]);
        pages.write(0, &[8; 100]);
        pair.far.qp.destroy()?;
        ensure!(pages.read(0, 100) == [8; 100]);
        Ok(())
    });
}

#[test]
fn call_sites_are_told_when_asked_for() {
    let strict = |world: &World| {
        world.host().set_env("URXE_STRICT", "backtrace");
        Ok(())
    };
    in_world_with(strict, || {
        let mut stderr = Stderr::catch()?;
        let context = Context::open()?;
        for words in ["a buffer changed under way", "a list longer than the send queue"] {
            let case = CASES.iter().find(|case| case.name == words).context("no such case")?;
            (case.act)(&context)?;
            let lines = stderr.explanations()?;
            let [line] = &lines[..] else { bail!("{lines:?}") };
            ensure!(line.contains(case.words) && line.contains("post_sends"), "{line}");
        }
        Ok(())
    });
}

/// A mailbox: the last byte of a WRITE says that it is there, and whoever has seen that clears it.
fn mailbox(pair: &Pair) -> Result<()> {
    const LEN: usize = 3000;
    let (local, remote) = (pair.near.region(PAGE)?, pair.far.region(PAGE)?);
    local.pages().write(0, &[7; LEN]);
    pair.near.qp.post_send(&SendWr::new(Op::Write(remote.at(0)), &[local.sge(0, LEN)]))?;
    let deadline = Instant::now() + PATIENCE;
    while remote.pages().read(LEN - 1, 1) != [7] {
        ensure!(Instant::now() < deadline, "it never came");
    }
    remote.pages().write(LEN - 1, &[0]);
    ensure!(pair.near.send_cq.next()?.status == Status::SUCCESS);
    Ok(())
}

/// Message announced by a completion.
fn letter(pair: &Pair) -> Result<()> {
    let (local, remote) = (pair.near.region(PAGE)?, pair.far.region(PAGE)?);
    local.pages().write(0, &[7; 3000]);
    pair.far.qp.post_recv(&RecvWr::new(1, &[]))?;
    let write = SendWr::new(Op::WriteImm(remote.at(0), 1), &[local.sge(0, 3000)]);
    pair.near.qp.post_send(&write)?;
    ensure!(pair.far.recv_cq.next()?.status == Status::SUCCESS);
    ensure!(remote.pages().read(0, 3000) == [7; 3000], "not all of it is there");
    remote.pages().write(2999, &[0]);
    ensure!(pair.near.send_cq.next()?.status == Status::SUCCESS);
    ensure!(remote.pages().read(2999, 1) == [0], "it was stored again");
    Ok(())
}

#[test]
fn polling_the_last_byte_is_reported_on_demand() {
    let strict = |world: &World| {
        world.host().set_env("URXE_STRICT", "write-order");
        Ok(())
    };
    in_world_with(strict, || {
        let mut stderr = Stderr::catch()?;
        let pair = Pair::new(&Options::default())?;
        for _ in 0..5 {
            letter(&pair)?;
        }
        ensure!(stderr.explanations()?.is_empty(), "a completion is waited for");
        // The program may have been away for as long as the rest takes; hardly every time.
        for _ in 0..100 {
            mailbox(&pair)?;
        }
        let lines = stderr.explanations()?;
        ensure!(lines.len() == 1 && lines[0].contains("was changed before its beginning was there"), "{lines:?}");
        Ok(())
    });
}
