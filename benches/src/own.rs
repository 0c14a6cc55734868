//! What no stock program measures, by a small program of our own over libibverbs: a target that sleeps beside one that
//! polls, and many queue pairs between two processes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::verbs::child::{Child, Parent};
use urxe_tests::verbs::memory::ALL_ACCESS;
use urxe_tests::verbs::pair::{rtr, rts};
use urxe_tests::verbs::qp::Init;
use urxe_tests::verbs::{Change, Context, Cq, Mr, Op, Options, Pd, Qp, Remote, SendWr, Status, Wc};

/// What the target's program does while its peer writes to its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// It polls its completion queue.
    Polls,
    /// It sleeps.
    Sleeps,
}

/// Bytes of a message of [`queue_pairs`], and requests outstanding at a time, on all queue pairs together: as many
/// packets as one queue pair has in flight.
const MESSAGE: usize = 64 << 10;
const OUTSTANDING: usize = 16;
/// Far more than a completion takes.
const PATIENCE: Duration = Duration::from_secs(5);

/// One process' queue pairs.
struct Side {
    cq: Arc<Cq>,
    mr: Mr,
    qps: Vec<Qp>,
}

impl Side {
    fn new(count: usize) -> Result<Self> {
        let context = Context::open()?;
        let pd = Pd::new(&context)?;
        let cq = Cq::new(&context, i32::try_from(OUTSTANDING)?, None)?;
        let mr = Mr::alloc(&pd, MESSAGE, ALL_ACCESS)?;
        let qps = (0..count).map(|_| Qp::new(&pd, &cq, &cq, &Init::default())).collect::<Result<_, _>>()?;
        Ok(Self { cq, mr, qps })
    }

    fn connect(&self, peers: &[u32]) -> Result<()> {
        let options = Options { mtu: v::IBV_MTU_4096, ..Options::default() };
        let gid = self.cq.context().query_gid(1, i32::try_from(options.gid)?)?;
        for (qp, peer) in self.qps.iter().zip(peers) {
            qp.modify(&Change::init(options.access))?;
            qp.modify(&rtr(*peer, gid, &options))?;
            qp.modify(&rts(&options))?;
        }
        Ok(())
    }

    /// Spins until something has completed.
    fn completions(&self) -> Result<Vec<Wc>> {
        let start = Instant::now();
        loop {
            let completions = self.cq.poll(OUTSTANDING)?;
            if let Some(bad) = completions.iter().find(|wc| wc.status != Status::SUCCESS) {
                anyhow::bail!("a request failed: {bad:?}");
            }
            if !completions.is_empty() {
                return Ok(completions);
            }
            ensure!(start.elapsed() < PATIENCE, "no completion within {PATIENCE:?}");
        }
    }
}

/// The target: tells its numbers, learns the peer's, and does what it does until the peer is through.
fn target(parent: &mut Parent, count: usize, what: Target) -> Result<()> {
    let side = Side::new(count)?;
    let Remote { addr, rkey } = side.mr.at(0);
    parent.send(&[addr, rkey.into()])?;
    let mut peers = Vec::with_capacity(count);
    for qp in &side.qps {
        parent.send(&[qp.number().into()])?;
        let [peer] = parent.receive()?;
        peers.push(u32::try_from(peer)?);
    }
    side.connect(&peers)?;
    parent.send(&[0])?;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let end = scope.spawn(|| {
            let told = parent.receive::<1>();
            over.store(true, Ordering::Relaxed);
            told
        });
        while what == Target::Polls && !over.load(Ordering::Relaxed) {
            side.cq.poll(1)?;
        }
        end.join().map_err(|_| anyhow::anyhow!("the thread that waits panicked"))?.map(drop)
    })
}

/// Connects to a target in another process, and hands this side and the target's memory to `then`.
fn with_target<T>(count: usize, what: Target, then: impl FnOnce(&Side, Remote) -> Result<T>) -> Result<T> {
    let mut child = Child::fork(|parent| target(parent, count, what))?;
    let side = Side::new(count)?;
    let [addr, rkey] = child.receive()?;
    let mut peers = Vec::with_capacity(count);
    for qp in &side.qps {
        let [peer] = child.receive()?;
        peers.push(u32::try_from(peer)?);
        child.send(&[qp.number().into()])?;
    }
    side.connect(&peers)?;
    child.receive::<1>()?;
    let result = then(&side, Remote { addr, rkey: u32::try_from(rkey)? })?;
    child.send(&[0])?;
    child.finish()?;
    Ok(result)
}

/// Nanoseconds from posting a WRITE of 8 bytes to its completion, shortest first.
pub fn one_sided(what: Target, exchanges: usize) -> Result<Vec<u64>> {
    with_target(1, what, |side, remote| {
        let qp = side.qps.first().ok_or_else(|| anyhow::anyhow!("no queue pair"))?;
        let mut times = Vec::with_capacity(exchanges);
        for _ in 0..exchanges {
            let start = Instant::now();
            qp.post_send(&SendWr::new(Op::Write(remote), &[side.mr.sge(0, 8)]))?;
            side.completions()?;
            times.push(u64::try_from(start.elapsed().as_nanos())?);
        }
        times.sort_unstable();
        Ok(times)
    })
}

/// Gbit/s of WRITEs that `count` queue pairs post in turn, to a target that sleeps.
pub fn queue_pairs(count: usize, run: Duration) -> Result<f64> {
    with_target(count, Target::Sleeps, |side, remote| {
        let post = |index: usize| {
            side.qps[index % count].post_send(&SendWr::new(Op::Write(remote), &[side.mr.sge(0, MESSAGE)]))
        };
        // One round first: every queue pair has opened its window then.
        let (mut posted, mut completed) = (0, 0);
        let mut start = Instant::now();
        let mut counted_from = 0;
        loop {
            while posted - completed < OUTSTANDING {
                post(posted)?;
                posted += 1;
            }
            completed += side.completions()?.len();
            if counted_from == 0 && completed >= 4 * count {
                (start, counted_from) = (Instant::now(), completed);
            }
            if counted_from > 0 && start.elapsed() >= run {
                break;
            }
        }
        let bits = (completed - counted_from) * MESSAGE * 8;
        let rate = bits as f64 / start.elapsed().as_secs_f64() / 1e9;
        while completed < posted {
            completed += side.completions()?.len();
        }
        Ok(rate)
    })
}
