//! One-sided requests that go straight to the memory of another process of the host (`URXE_DIRECT=1`).

mod commits;
mod contexts;
mod events;
mod gather;
mod invalidated;
mod killed;
mod lists;
mod mappings;
mod memory;
mod messages;
mod missing;
mod observed;
mod reregistered;
mod reregistered_amid_traffic;
mod rights;
mod stacks;
mod stopped;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Result, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::verbs::child::{Child, Parent};
use urxe_tests::verbs::datagram::towards;
use urxe_tests::verbs::memory::{ALL_ACCESS, PAGE, pattern};
use urxe_tests::verbs::qp::Init;
use urxe_tests::verbs::{
    Change, Context, End, Mr, Op, Options, PATIENCE, Pair, Qp, RecvWr, Remote, SendWr, Status, Wc,
};
use urxe_tests::{GID_IPV4, World, in_world_with, own_counter as counter};

/// Runs `body` in a process inside a world where requests are direct.
fn in_direct_world<F: FnOnce() -> Result<()>>(body: F) {
    let direct = |world: &World| {
        world.host().go_direct();
        Ok(())
    };
    in_world_with(direct, body);
}

/// Tells the other process where this queue pair and its memory are.
fn introduction(end: &End, memory: Remote) -> [u64; 3] {
    [u64::from(end.qp.number()), memory.addr, u64::from(memory.rkey)]
}

fn connect(end: &End, [number, addr, rkey]: [u64; 3], options: &Options) -> Result<Remote> {
    end.connect(u32::try_from(number)?, end.gid(options)?, options)?;
    Ok(Remote { addr, rkey: u32::try_from(rkey)? })
}

fn succeeds(end: &End, op: Op, sges: &[v::ibv_sge]) -> Result<Wc> {
    let wc = end.complete(&SendWr::new(op, sges))?;
    ensure!(wc.status == Status::SUCCESS, "{op:?}: {wc:?}");
    Ok(wc)
}

const LEN: usize = 1 << 20;

/// A target with memory, which does what it is told by numbers: 1 to look for what `pattern` says, 2 to end.
fn target(parent: &mut Parent) -> Result<()> {
    let options = Options::default();
    let end = End::new(&Context::open()?, &options)?;
    let memory = end.region(LEN)?;
    memory.pages().write(0, &pattern(1, LEN));
    parent.send(&introduction(&end, memory.at(0)))?;
    connect(&end, parent.receive()?, &options)?;
    parent.send(&[0])?;
    loop {
        match parent.receive()? {
            [1, seed, offset, length] => {
                let (offset, length) = (usize::try_from(offset)?, usize::try_from(length)?);
                ensure!(memory.pages().read(offset, length) == pattern(seed, length), "not there: {seed}");
                parent.send(&[0])?;
            }
            [3, offset, ..] => parent.send(&[memory.pages().read_u64(usize::try_from(offset)?)])?,
            _ => return Ok(()),
        }
    }
}

/// A requester and its target.
struct Scene {
    child: Child,
    near: End,
    local: Mr,
    remote: Remote,
}

impl Scene {
    fn new() -> Result<Self> {
        let scene = Self::introduced(Child::fork(target)?)?;
        scene.warm_up()?;
        Ok(scene)
    }

    /// Connects to a target.
    fn introduced(mut child: Child) -> Result<Self> {
        let options = Options::default();
        let near = End::new(&Context::open()?, &options)?;
        let local = near.region(LEN)?;
        let remote = connect(&near, child.receive()?, &options)?;
        child.send(&introduction(&near, local.at(0)))?;
        child.receive::<1>()?;
        Ok(Self { child, near, local, remote })
    }

    fn at(&self, offset: usize) -> Remote {
        Remote { addr: self.remote.addr + offset as u64, ..self.remote }
    }

    fn complete(&self, op: Op, offset: usize, len: usize) -> Result<Wc> {
        succeeds(&self.near, op, &[self.local.sge(offset, len)])
    }

    /// Writes until that is direct: the memory was handed over by then.
    fn warm_up(&self) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        let before = counter("direct_requests")?;
        while counter("direct_requests")? == before {
            ensure!(Instant::now() < until, "no request is direct");
            self.complete(Op::Read(self.at(0)), 0, 8)?;
        }
        Ok(())
    }

    fn expects(&mut self, seed: u64, offset: usize, len: usize) -> Result<()> {
        self.child.send(&[1, seed, offset as u64, len as u64])?;
        self.child.receive::<1>()?;
        Ok(())
    }

    fn finish(mut self) -> Result<()> {
        self.child.send(&[2, 0, 0, 0])?;
        self.child.finish()
    }
}

/// Data goes both ways in all sizes, and atomics are right; the counters of both ends say that nothing went by packets.
#[test]
fn all_operations() {
    in_direct_world(|| {
        let mut scene = Scene::new()?;
        let (before, packets) = (counter("direct_requests")?, counter("tx_packets")?);
        let mut requests = 0;
        for (nth, len) in [1, 7, 8, 9, 16, 100, 256, 257, 1024, 1025, 4096, 70_000, LEN].into_iter().enumerate() {
            let seed = nth as u64 + 10;
            for offset in [0, 3].into_iter().filter(|offset| offset + len <= LEN) {
                scene.local.pages().write(0, &pattern(seed, len));
                scene.complete(Op::Write(scene.at(offset)), 0, len)?;
                scene.expects(seed, offset, len)?;
                scene.local.pages().write(0, &pattern(1, len));
                scene.complete(Op::Read(scene.at(offset)), 0, len)?;
                ensure!(scene.local.pages().read(0, len) == pattern(seed, len), "READ of {len}");
                requests += 2;
            }
        }
        scene.local.pages().write(0, &7_u64.to_ne_bytes());
        scene.complete(Op::Write(scene.at(64)), 0, 8)?;
        scene.complete(Op::FetchAdd { remote: scene.at(64), add: 5 }, 8, 8)?;
        ensure!(scene.local.pages().read_u64(8) == 7);
        scene.complete(Op::CmpSwp { remote: scene.at(64), compare: 11, swap: 1 }, 8, 8)?;
        scene.complete(Op::CmpSwp { remote: scene.at(64), compare: 12, swap: 99 }, 8, 8)?;
        ensure!(scene.local.pages().read_u64(8) == 12);
        scene.child.send(&[3, 64, 0, 0])?;
        ensure!(scene.child.receive()? == [99]);
        requests += 4;
        ensure!(counter("direct_requests")? - before == requests, "{} direct", counter("direct_requests")? - before);
        ensure!(counter("tx_packets")? == packets, "some went by packets");
        scene.finish()
    });
}

/// A WRITE, a READ and an atomic to a process that is stopped complete, as on a card.
#[test]
fn a_stopped_target() {
    in_direct_world(|| {
        let mut scene = Scene::new()?;
        scene.child.stop()?;
        scene.local.pages().write(0, &pattern(2, 100_000));
        for _ in 0..1000 {
            scene.complete(Op::Write(scene.at(8)), 0, 100_000)?;
        }
        scene.complete(Op::Read(scene.at(8)), 200_000, 100_000)?;
        ensure!(scene.local.pages().read(200_000, 100_000) == pattern(2, 100_000));
        scene.complete(Op::FetchAdd { remote: scene.at(0), add: 1 }, 0, 8)?;
        scene.child.signal(libc::SIGCONT)?;
        scene.expects(2, 8, 100_000)?;
        scene.finish()
    });
}

/// A target that is killed is noticed by a requester that does nothing but write and poll: its requests do not succeed for ever.
#[test]
fn a_killed_target() {
    in_direct_world(|| {
        let scene = Scene::new()?;
        scene.child.signal(libc::SIGKILL)?;
        let until = Instant::now() + PATIENCE;
        loop {
            let wc = scene.near.complete(&SendWr::new(Op::Write(scene.at(0)), &[scene.local.sge(0, 8)]))?;
            if wc.status != Status::SUCCESS {
                ensure!(wc.status == Status::RETRY_EXC_ERR, "{wc:?}");
                return Ok(());
            }
            ensure!(Instant::now() < until, "requests succeed without a peer");
        }
    });
}

/// Two queue pairs of one process: direct and packets in one order, PSNs that both ends agree on.
#[test]
fn order_among_packets() {
    in_direct_world(|| {
        let options = Options::default();
        let Pair { near, far } = &Pair::new(&options)?;
        let (local, memory) = (near.region(PAGE)?, far.region(PAGE)?);
        let inbox = far.region(PAGE)?;
        let before = counter("direct_requests")?;
        for round in 0..2000_u64 {
            far.qp.post_recv(&RecvWr::new(round, &[inbox.sge(0, 8)]))?;
            local.pages().write(0, &round.to_ne_bytes());
            let write = SendWr::new(Op::Write(memory.at(0)), &[local.sge(0, 8)]).id(1).unsignaled();
            let send = SendWr::new(Op::Send, &[local.sge(0, 8)]).id(2);
            let read = SendWr::new(Op::Read(memory.at(0)), &[local.sge(16, 8)]).id(3).with(v::IBV_SEND_FENCE);
            near.qp.post_sends(&[write, send, read])?;
            let wc = far.recv_cq.next()?;
            ensure!(wc.status == Status::SUCCESS && wc.wr_id == round, "{wc:?}");
            ensure!(memory.pages().read_u64(0) == round, "the WRITE before the SEND is not there");
            let ids: Vec<_> = near.send_cq.take(2)?.iter().map(|wc| (wc.wr_id, wc.status)).collect();
            ensure!(ids == [(2, Status::SUCCESS), (3, Status::SUCCESS)], "{ids:?}");
            ensure!(local.pages().read_u64(16) == round, "the READ behind the WRITE");
        }
        ensure!(counter("direct_requests")? > before, "nothing was direct");
        let ((sender, _), (receiver, _)) = (near.qp.query()?, far.qp.query()?);
        ensure!(sender.sq_psn == receiver.rq_psn, "{:#x} and {:#x}", sender.sq_psn, receiver.rq_psn);
        Ok(())
    });
}

fn connect_uc(qp: &Qp, peer: u32, gid: [u8; 16], access: u32) -> Result<()> {
    qp.modify(&Change::init(access))?;
    let mask = v::IBV_QP_AV | v::IBV_QP_PATH_MTU | v::IBV_QP_DEST_QPN | v::IBV_QP_RQ_PSN;
    qp.modify(&Change::to(v::IBV_QPS_RTR).with(mask, |attr| {
        attr.path_mtu = v::IBV_MTU_1024;
        attr.dest_qp_num = peer;
        attr.rq_psn = 0x00ff_fffd;
        attr.ah_attr = towards(gid, GID_IPV4);
    }))?;
    qp.modify(&Change::to(v::IBV_QPS_RTS).with(v::IBV_QP_SQ_PSN, |attr| attr.sq_psn = 0x00ff_fffd))?;
    Ok(())
}

/// UC, whose WRITEs nobody acknowledges, keeps its order too.
#[test]
fn unreliable_connections() {
    in_direct_world(|| {
        let (context, options) = (Context::open()?, Options::default());
        let access = ALL_ACCESS & !v::IBV_ACCESS_REMOTE_ATOMIC;
        let options = Options { access, ..options };
        let end = || -> Result<End> {
            let mut end = End::new(&context, &options)?;
            let init = Init { qp_type: v::IBV_QPT_UC, ..Init::default() };
            end.qp = Qp::new(&end.pd, &end.send_cq, &end.recv_cq, &init)?;
            Ok(end)
        };
        let (near, far) = (end()?, end()?);
        let gid = near.gid(&options)?;
        for (end, peer) in [(&near, &far), (&far, &near)] {
            connect_uc(&end.qp, peer.qp.number(), gid, access)?;
        }
        let (local, memory) = (near.region(PAGE)?, far.region(PAGE)?);
        let before = counter("direct_requests")?;
        for round in 0..2000_u64 {
            local.pages().write(0, &round.to_ne_bytes());
            far.qp.post_recv(&RecvWr::new(round, &[memory.sge(8, 8)]))?;
            succeeds(&near, Op::Write(memory.at(0)), &[local.sge(0, 8)])?;
            succeeds(&near, Op::Send, &[local.sge(0, 8)])?;
            let wc = far.recv_cq.next()?;
            ensure!(wc.status == Status::SUCCESS && wc.wr_id == round, "{wc:?}");
            ensure!(memory.pages().read_u64(0) == round && memory.pages().read_u64(8) == round);
        }
        ensure!(counter("direct_requests")? > before, "nothing was direct");
        Ok(())
    });
}

/// A spinning reader never sees the last bytes of a WRITE before the others.
#[test]
fn the_last_bytes_come_last() {
    in_direct_world(|| {
        let pair = Pair::new(&Options::default())?;
        let (local, memory) = (pair.near.region(4 * PAGE)?, pair.far.region(4 * PAGE)?);
        let stop = AtomicBool::new(false);
        let words = 4 * PAGE / 8;
        std::thread::scope(|scope| -> Result<()> {
            let reader = scope.spawn(|| {
                let word = |nth: usize| {
                    let at = std::ptr::with_exposed_provenance::<u64>(usize::try_from(memory.pages().addr()).unwrap());
                    // SAFETY: within the region.
                    unsafe { at.add(nth).read_volatile() }
                };
                while !stop.load(Ordering::Relaxed) {
                    let last = word(words - 1);
                    std::sync::atomic::fence(Ordering::Acquire);
                    let torn = [0, 1, words / 2, words - 2].into_iter().find(|nth| word(*nth) < last);
                    if torn.is_some() {
                        return torn;
                    }
                }
                None
            });
            for round in 1..20_000_u64 {
                local.pages().write(0, &round.to_ne_bytes().repeat(words));
                succeeds(&pair.near, Op::Write(memory.at(0)), &[local.sge(0, 4 * PAGE)])?;
            }
            stop.store(true, Ordering::Relaxed);
            ensure!(reader.join().ok() == Some(None), "the last word came first");
            Ok(())
        })
    });
}
