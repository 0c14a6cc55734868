//! SENDs into receive buffers that the requester fills itself, and those that go by packets.

use std::sync::Arc;

use anyhow::{Result, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::own_counter as counter;
use urxe_tests::verbs::child::{Child, Parent};
use urxe_tests::verbs::memory::{ALL_ACCESS, PAGE, Pages, pattern};
use urxe_tests::verbs::srq::Srq;
use urxe_tests::verbs::{Change, Context, End, Mr, Op, Options, Pair, Pd, Qp, RecvWr, SendWr, Status};

use crate::memory::is_direct;
use crate::{connect, in_direct_world, introduction, succeeds};

const LEN: usize = 1 << 16;

/// Two ends whose requests are direct, and memory of both.
struct Scene {
    pair: Pair,
    local: Mr,
    memory: Mr,
}

impl Scene {
    fn new(options: &Options) -> Result<Self> {
        let pair = Pair::new(options)?;
        let (local, memory) = (pair.near.region(LEN)?, pair.far.region(LEN)?);
        ensure!(is_direct(&pair, &memory)?);
        Ok(Self { pair, local, memory })
    }

    /// A SEND that is received, of bytes that `seed` says. Whether it went without packets.
    fn exchange(&self, op: Op, seed: u64, length: usize, buffers: &[v::ibv_sge]) -> Result<bool> {
        let Pair { near, far } = &self.pair;
        let before = counter("direct_requests")?;
        far.qp.post_recv(&RecvWr::new(seed, buffers))?;
        self.local.pages().write(0, &pattern(seed, length));
        succeeds(near, op, &[self.local.sge(0, length)])?;
        let wc = far.recv_cq.next()?;
        ensure!((wc.status, wc.wr_id, wc.opcode) == (Status::SUCCESS, seed, v::IBV_WC_RECV), "{wc:?}");
        ensure!(wc.byte_len as usize == length && wc.qp_num == far.qp.number(), "{wc:?}");
        let imm = (wc.flags & v::IBV_WC_WITH_IMM != 0).then_some(wc.imm);
        ensure!(imm == if let Op::SendImm(imm) = op { Some(imm) } else { None }, "{wc:?}");
        Ok(counter("direct_requests")? > before)
    }

    fn both_ends_agree(&self) -> Result<()> {
        let ((sender, _), (receiver, _)) = (self.pair.near.qp.query()?, self.pair.far.qp.query()?);
        ensure!(sender.sq_psn == receiver.rq_psn, "{:#x} and {:#x}", sender.sq_psn, receiver.rq_psn);
        Ok(())
    }
}

/// Messages of one and several packets, with immediate data and without, of no bytes, and inline: into whole buffers, and parts of them.
#[test]
fn messages_go_straight_into_receive_buffers() {
    in_direct_world(|| {
        let scene = Scene::new(&Options::default())?;
        for (seed, length) in (1_u64..).zip([1, 8, 1000, 1024, 5000, LEN]) {
            for op in [Op::Send, Op::SendImm(u32::try_from(seed)? << 28 | 5)] {
                ensure!(scene.exchange(op, seed, length, &[scene.memory.sge(0, LEN)])?, "{length} bytes: by packets");
                ensure!(scene.memory.pages().read(0, length) == pattern(seed, length), "{length} bytes are not there");
            }
        }
        ensure!(scene.exchange(Op::Send, 9, 0, &[scene.memory.sge(0, 8)])?);
        scene.memory.pages().write(0, &[7; 64]);
        ensure!(scene.exchange(Op::Send, 5, 8, &[scene.memory.sge(16, 8)])?, "a buffer that is just large enough");
        let around = [scene.memory.pages().read(0, 16), scene.memory.pages().read(24, 16)].concat();
        ensure!(around == [7; 32] && scene.memory.pages().read(16, 8) == pattern(5, 8));
        let Pair { near, far } = &scene.pair;
        far.qp.post_recv(&RecvWr::new(1, &[scene.memory.sge(0, 64)]))?;
        scene.local.pages().write(0, &pattern(77, 32));
        near.qp.post_send(&SendWr::new(Op::Send, &[scene.local.sge(0, 32)]).with(v::IBV_SEND_INLINE))?;
        scene.local.pages().write(0, &[0; 32]);
        ensure!(near.send_cq.next()?.status == Status::SUCCESS && far.recv_cq.next()?.byte_len == 32);
        ensure!(scene.memory.pages().read(0, 32) == pattern(77, 32), "the inline data of before");
        scene.both_ends_agree()
    });
}

/// More receives than are shown at a time, posted before the connection and later, are filled in the order in which they were posted.
#[test]
fn receives_are_filled_in_order() {
    in_direct_world(|| {
        const MANY: u64 = 300;
        let cap = v::ibv_qp_cap { max_recv_wr: 300, ..Options::default().cap };
        let options = Options { cap, cqe: 1024, ..Options::default() };
        let context = Context::open()?;
        let pair = Pair { near: End::new(&context, &options)?, far: End::new(&context, &options)? };
        let (local, memory) = (pair.near.region(LEN)?, pair.far.region(LEN)?);
        let receive = |nth: u64| RecvWr::new(nth, &[memory.sge(usize::try_from(nth % MANY).unwrap() * 8, 8)]);
        pair.far.init(&options)?;
        for nth in 0..MANY {
            pair.far.qp.post_recv(&receive(nth))?;
        }
        pair.far.ready_to_receive(pair.near.qp.number(), pair.near.gid(&options)?, &options)?;
        pair.far.ready_to_send(&options)?;
        pair.near.connect(pair.far.qp.number(), pair.far.gid(&options)?, &options)?;
        ensure!(is_direct(&pair, &memory)?);
        let before = counter("direct_requests")?;
        let mut received = 0;
        for nth in 0..4 * MANY {
            local.pages().write(0, &nth.to_ne_bytes());
            pair.near.complete(&SendWr::new(Op::Send, &[local.sge(0, 8)]))?;
            // Bursts of a hundred, now and then.
            if nth % 100 == 99 {
                for wc in pair.far.recv_cq.take(100)? {
                    ensure!((wc.status, wc.wr_id, wc.byte_len) == (Status::SUCCESS, received, 8), "{wc:?}");
                    let at = usize::try_from(received % MANY)? * 8;
                    ensure!(memory.pages().read_u64(at) == received, "the message of another");
                    pair.far.qp.post_recv(&receive(received + MANY))?;
                    received += 1;
                }
            }
        }
        ensure!(counter("direct_requests")? - before > MANY, "most went by packets");
        let ((sender, _), (receiver, _)) = (pair.near.qp.query()?, pair.far.qp.query()?);
        ensure!(sender.sq_psn == receiver.rq_psn);
        Ok(())
    });
}

/// Receive buffers that a requester does not reach take their message by packets, and those behind them are filled without again.
#[test]
fn buffers_out_of_reach() {
    in_direct_world(|| {
        let scene = Scene::new(&Options::default())?;
        let far = &scene.pair.far;
        let shared = scene.memory.sge(0, 4096);
        let (of_file, _file) = Pages::of_file(PAGE);
        let file = Mr::of(&far.pd, &of_file, 0, PAGE, ALL_ACCESS)?;
        let cases: [(&str, Vec<v::ibv_sge>); 3] = [
            ("two buffers", vec![scene.memory.sge(0, 100), scene.memory.sge(200, 4000)]),
            ("memory of a file", vec![file.sge(0, PAGE)]),
            ("no buffer", vec![]),
        ];
        for round in 0..5 {
            for (what, buffers) in &cases {
                let length = if buffers.is_empty() { 0 } else { 1000 };
                ensure!(!scene.exchange(Op::Send, round, length, buffers)?, "{what}: without packets");
                ensure!(scene.exchange(Op::SendImm(1), round, 1000, &[shared])?, "behind {what}: by packets");
                ensure!(scene.memory.pages().read(0, 1000) == pattern(round, 1000));
            }
        }
        scene.both_ends_agree()
    });
}

/// A completion queue that the application may sleep at, and a shared receive queue, get their messages by packets.
#[test]
fn queues_that_packets_fill() {
    in_direct_world(|| {
        let scene = Scene::new(&Options { events: true, ..Options::default() })?;
        scene.pair.far.recv_cq.arm(false)?;
        ensure!(!scene.exchange(Op::Send, 1, 100, &[scene.memory.sge(0, 4096)])?, "with a channel");

        let options = Options::default();
        let context = Context::open()?;
        let (near, far) = (End::new(&context, &options)?, End::new(&context, &options)?);
        let srq = Srq::new(&far.pd, 16, 1)?;
        let shared = Qp::with_srq(&far.pd, &far.recv_cq, &srq, &urxe_tests::verbs::qp::Init::default())?;
        urxe_tests::verbs::pair::connect(&context, &near.qp, &shared, &options)?;
        let (local, memory) = (near.region(PAGE)?, far.region(PAGE)?);
        let before = counter("direct_requests")?;
        while counter("direct_requests")? == before {
            succeeds(&near, Op::Write(memory.at(0)), &[local.sge(0, 8)])?;
        }
        let before = counter("direct_requests")?;
        for nth in 0..10 {
            srq.post_recv(&RecvWr::new(nth, &[memory.sge(0, PAGE)]))?;
            succeeds(&near, Op::Send, &[local.sge(0, 8)])?;
            ensure!(far.recv_cq.next()?.wr_id == nth);
        }
        ensure!(counter("direct_requests")? == before, "into a shared receive queue");
        Ok(())
    });
}

/// A message that is too long, one whose buffer was deregistered, and one for which nothing is posted yet.
#[test]
fn messages_that_are_refused() {
    in_direct_world(|| {
        type Wrong = fn(&Scene) -> Result<(usize, Status, Status)>;
        let wrong: [(&str, Wrong); 2] = [
            ("too long", |scene| {
                scene.pair.far.qp.post_recv(&RecvWr::new(1, &[scene.memory.sge(0, 99)]))?;
                Ok((100, Status::REM_INV_REQ_ERR, Status::LOC_LEN_ERR))
            }),
            ("its buffer has gone", |scene| {
                let gone = scene.pair.far.region(PAGE)?;
                scene.pair.far.qp.post_recv(&RecvWr::new(1, &[gone.sge(0, PAGE)]))?;
                gone.dereg()?;
                Ok((100, Status::REM_OP_ERR, Status::LOC_PROT_ERR))
            }),
        ];
        for (what, make) in wrong {
            let scene = Scene::new(&Options::default())?;
            ensure!(scene.exchange(Op::Send, 1, 8, &[scene.memory.sge(0, 8)])?);
            let (length, sender, receiver) = make(&scene)?;
            let wc = scene.pair.near.complete(&SendWr::new(Op::Send, &[scene.local.sge(0, length)]))?;
            ensure!(wc.status == sender, "{what}: {wc:?}");
            let wc = scene.pair.far.recv_cq.next()?;
            ensure!(wc.status == receiver, "{what}: {wc:?}");
        }
        let scene = Scene::new(&Options::default())?;
        let Pair { near, far } = &scene.pair;
        for nth in 0..20 {
            near.qp.post_send(&SendWr::new(Op::Send, &[scene.local.sge(0, 8)]))?;
            ensure!(near.send_cq.poll(1)?.is_empty(), "received by nobody");
            far.qp.post_recv(&RecvWr::new(nth, &[scene.memory.sge(0, 8)]))?;
            ensure!(far.recv_cq.next()?.wr_id == nth && near.send_cq.next()?.status == Status::SUCCESS);
            ensure!(scene.exchange(Op::Send, nth, 8, &[scene.memory.sge(0, 8)])?, "by packets from then on");
        }
        scene.both_ends_agree()
    });
}

/// A SEND that finds no receive WQE is tried again as often as the attributes say, and ends with the status of that.
#[test]
fn rnr_retries_run_out() {
    in_direct_world(|| {
        for rnr_retry in [0, 2] {
            let scene = Scene::new(&Options { rnr_retry, ..Options::default() })?;
            ensure!(scene.exchange(Op::Send, 1, 8, &[scene.memory.sge(0, 8)])?, "by packets");
            let wc = scene.pair.near.complete(&SendWr::new(Op::Send, &[scene.local.sge(0, 8)]))?;
            ensure!(wc.status == Status::RNR_RETRY_EXC_ERR, "{rnr_retry} retries: {wc:?}");
            ensure!(scene.pair.near.qp.state()? == v::IBV_QPS_ERR && scene.pair.far.qp.state()? == v::IBV_QPS_RTS);
            ensure!(scene.pair.far.recv_cq.poll(1)?.is_empty(), "received by nobody");
        }
        Ok(())
    });
}

/// Messages that have come are completed when the queue pair's state changes; receives that none came for are flushed, and are those
/// of nobody in the next connection.
#[test]
fn states_of_the_receiver() {
    in_direct_world(|| {
        let options = Options::default();
        let scene = Scene::new(&options)?;
        let Pair { near, far } = &scene.pair;
        for state in [v::IBV_QPS_ERR, v::IBV_QPS_RESET] {
            for nth in 0..6 {
                far.qp.post_recv(&RecvWr::new(nth, &[scene.memory.sge(0, 8)]))?;
            }
            for _ in 0..3 {
                succeeds(near, Op::Send, &[scene.local.sge(0, 8)])?;
            }
            far.qp.modify(&Change::to(state))?;
            if state == v::IBV_QPS_ERR {
                let expected = (0..6).map(|nth| (nth, if nth < 3 { Status::SUCCESS } else { Status::WR_FLUSH_ERR }));
                let statuses: Vec<_> = far.recv_cq.take(6)?.iter().map(|wc| (wc.wr_id, wc.status)).collect();
                ensure!(statuses == expected.collect::<Vec<_>>(), "{statuses:?}");
            }
            for end in [near, far] {
                end.qp.modify(&Change::to(v::IBV_QPS_RESET))?;
                end.recv_cq.poll(256)?;
            }
            scene.pair.connect(&options)?;
            ensure!(is_direct(&scene.pair, &scene.memory)?);
            ensure!(scene.exchange(Op::Send, 7, 8, &[scene.memory.sge(0, 8)])?);
        }
        scene.both_ends_agree()
    });
}

/// A receiver in another process: it finds what was sent, whole and in order, in a queue that other queue pairs have completions in, too.
fn receiver(parent: &mut Parent) -> Result<()> {
    let options = Options { cqe: 1024, ..Options::default() };
    let context = Context::open()?;
    let end = End::new(&context, &options)?;
    let memory = end.region(LEN)?;
    parent.send(&introduction(&end, memory.at(0)))?;
    connect(&end, parent.receive()?, &options)?;
    let receive = |nth: u64| RecvWr::new(nth, &[memory.sge(usize::try_from(nth % 32).unwrap() * 1024, 1024)]);
    for nth in 0..32 {
        end.qp.post_recv(&receive(nth))?;
    }
    parent.send(&[0])?;
    let [count] = parent.receive()?;
    for nth in 0..count {
        let wc = end.recv_cq.next()?;
        ensure!((wc.status, wc.wr_id, wc.imm) == (Status::SUCCESS, nth, u32::try_from(nth)?), "{wc:?}");
        let length = usize::try_from(nth % 1024)?;
        let got = memory.pages().read(usize::try_from(nth % 32)? * 1024, length);
        ensure!(wc.byte_len as usize == length && got == pattern(nth, length), "message {nth} is not whole");
        end.qp.post_recv(&receive(nth + 32))?;
    }
    parent.send(&[counter("direct_served")?])
}

#[test]
fn messages_between_processes() {
    in_direct_world(|| {
        const COUNT: u64 = 20_000;
        let mut child = Child::fork(receiver)?;
        let options = Options::default();
        let end = End::new(&Context::open()?, &options)?;
        let local = end.region(PAGE)?;
        let remote = connect(&end, child.receive()?, &options)?;
        child.send(&introduction(&end, local.at(0)))?;
        child.receive::<1>()?;
        let before = counter("direct_requests")?;
        while counter("direct_requests")? == before {
            succeeds(&end, Op::Write(crate::Remote { addr: remote.addr + 40_000, ..remote }), &[local.sge(0, 8)])?;
        }
        child.send(&[COUNT])?;
        for nth in 0..COUNT {
            let length = usize::try_from(nth % 1024)?;
            local.pages().write(0, &pattern(nth, length));
            succeeds(&end, Op::SendImm(u32::try_from(nth)?), &[local.sge(0, length)])?;
        }
        let [served] = child.receive()?;
        ensure!(served > COUNT / 2, "{served} of {COUNT} went without packets");
        child.finish()
    });
}

/// Several threads poll one queue and post receives, while messages come from several queue pairs, more than polls look for by themselves.
#[test]
fn threads_that_poll_one_queue() {
    in_direct_world(|| {
        const PAIRS: usize = 10;
        const EACH: u64 = 2000;
        let options = Options { cqe: 2048, ..Options::default() };
        let context = Context::open()?;
        let near = End::new(&context, &options)?;
        let far = End::new(&context, &options)?;
        let init = urxe_tests::verbs::qp::Init::default();
        let queue_pair = |end: &End| Qp::new(&end.pd, &end.send_cq, &end.recv_cq, &init);
        let pairs = (0..PAIRS)
            .map(|_| {
                let pair = (queue_pair(&near)?, queue_pair(&far)?);
                urxe_tests::verbs::pair::connect(&context, &pair.0, &pair.1, &options)?;
                Ok(pair)
            })
            .collect::<Result<Vec<_>>>()?;
        let (local, memory) = (near.region(PAGE)?, far.region(PAGE)?);
        let receive = RecvWr::new(0, &[memory.sge(0, 64)]);
        for (_, qp) in &pairs {
            (0..32).try_for_each(|_| qp.post_recv(&receive))?;
        }
        let before = counter("direct_requests")?;
        let polled = std::sync::atomic::AtomicU64::new(0);
        let total = PAIRS as u64 * EACH;
        std::thread::scope(|scope| -> Result<()> {
            let poll = || -> Result<()> {
                while polled.load(std::sync::atomic::Ordering::Relaxed) < total {
                    for wc in far.recv_cq.poll(16)? {
                        ensure!(wc.status == Status::SUCCESS, "{wc:?}");
                        let (_, qp) = pairs.iter().find(|(_, qp)| qp.number() == wc.qp_num).unwrap();
                        qp.post_recv(&receive)?;
                        polled.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    }
                }
                Ok(())
            };
            let pollers = [scope.spawn(poll), scope.spawn(poll)];
            for _ in 0..EACH {
                for (qp, _) in &pairs {
                    qp.post_send(&SendWr::new(Op::Send, &[local.sge(0, 64)]))?;
                }
                for wc in near.send_cq.take(PAIRS)? {
                    ensure!(wc.status == Status::SUCCESS, "{wc:?}");
                }
            }
            pollers.into_iter().try_for_each(|poller| poller.join().unwrap())
        })?;
        ensure!(counter("direct_requests")? > before, "all by packets");
        Ok(())
    });
}

/// A domain of its own keeps buffers from being filled: the responder refuses what its own key does not give.
#[test]
fn buffers_of_another_domain() {
    in_direct_world(|| {
        let scene = Scene::new(&Options::default())?;
        let other: Arc<Pd> = Pd::new(&scene.pair.far.context)?;
        let elsewhere = Mr::alloc(&other, PAGE, ALL_ACCESS)?;
        scene.pair.far.qp.post_recv(&RecvWr::new(1, &[elsewhere.sge(0, PAGE)]))?;
        let wc = scene.pair.near.complete(&SendWr::new(Op::Send, &[scene.local.sge(0, 8)]))?;
        ensure!(wc.status == Status::REM_OP_ERR, "{wc:?}");
        ensure!(scene.pair.far.recv_cq.next()?.status == Status::LOC_PROT_ERR);
        Ok(())
    });
}
