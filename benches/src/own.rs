//! Measurements that no stock program makes, by a small program over libibverbs: a target that sleeps beside one that
//! polls, and many queue pairs between two processes: what they move, and what they cost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::memory_of_our_own;
use urxe_tests::verbs::child::{Child, Parent};
use urxe_tests::verbs::memory::ALL_ACCESS;
use urxe_tests::verbs::pair::connect_to;
use urxe_tests::verbs::qp::Init;
use urxe_tests::verbs::scale::{Cost, Scale, Shape, Wait};
use urxe_tests::verbs::{Context, Cq, Mr, Op, Options, Pd, Qp, Remote, SendList, SendWr, Status, Wc};

/// Behaviour of the target's program while its peer writes to its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Polls its completion queue.
    Polls,
    /// Sleeps.
    Sleeps,
}

/// Bytes of the longest message, and requests outstanding at a time, on all queue pairs together: as many
/// packets as one queue pair has in flight.
const MESSAGE: usize = 64 << 10;
const OUTSTANDING: usize = 16;
/// Lists before the first that is measured, and between two looks at the clock.
const WARM_UP: usize = 1000;
const CLOCK_INTERVAL: u64 = 256;
/// Far more than a completion takes.
const TIMEOUT: Duration = Duration::from_secs(5);

/// One process' queue pairs.
struct Side {
    cq: Arc<Cq>,
    mr: Mr,
    qps: Vec<Qp>,
    /// Bytes that the process took before it had queue pairs.
    before: usize,
}

impl Side {
    fn new(count: usize) -> Result<Self> {
        let context = Context::open()?;
        let pd = Pd::new(&context)?;
        let cq = Cq::new(&context, i32::try_from(OUTSTANDING)?, None)?;
        let mr = Mr::alloc(&pd, MESSAGE, ALL_ACCESS)?;
        let before = memory_of_our_own()?;
        let qps = (0..count).map(|_| Qp::new(&pd, &cq, &cq, &Init::default())).collect::<Result<_, _>>()?;
        Ok(Self { cq, mr, qps, before })
    }

    fn connect(&self, peers: &[u32]) -> Result<()> {
        let options = Options { mtu: v::IBV_MTU_4096, ..Options::default() };
        let gid = self.cq.context().query_gid(1, i32::try_from(options.gid)?)?;
        for (qp, peer) in self.qps.iter().zip(peers) {
            connect_to(qp, *peer, gid, &options)?;
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
            ensure!(start.elapsed() < TIMEOUT, "no completion within {TIMEOUT:?}");
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

/// Gbit/s of WRITEs of 64 KiB that `count` queue pairs post in turn, to a target that sleeps.
pub fn queue_pairs(count: usize, run: Duration) -> Result<f64> {
    Ok(messages(count, MESSAGE, run)? * (MESSAGE * 8) as f64 / 1e9)
}

/// Nanoseconds of a WRITE of 8 bytes, where `count` queue pairs post them in turn.
pub fn small_messages(count: usize, run: Duration) -> Result<f64> {
    Ok(1e9 / messages(count, 8, run)?)
}

/// WRITEs of 8 bytes in lists of so many, of which the last is signaled, each posted when the one before is complete, to a target that
/// sleeps: nanoseconds of a WRITE. With requests that are written before, so that the verbs are all that is measured.
pub fn lists(length: usize, run: Duration) -> Result<f64> {
    with_target(1, Target::Sleeps, |side, remote| {
        let qp = side.qps.first().ok_or_else(|| anyhow::anyhow!("no queue pair"))?;
        let write = SendWr::new(Op::Write(remote), &[side.mr.sge(0, 8)]);
        let mut requests = vec![write.clone().unsignaled(); length.saturating_sub(1)];
        requests.push(write);
        let mut list = SendList::new(requests);
        // The target's memory is within reach after some.
        let (mut warm, mut lists, mut start) = (0, 0_u64, Instant::now());
        loop {
            qp.post_list(&mut list)?;
            let status = loop {
                if let Some(status) = side.cq.poll_status()? {
                    break status;
                }
                ensure!(start.elapsed() < run + TIMEOUT, "no completion within {TIMEOUT:?}");
            };
            ensure!(status == Status::SUCCESS, "a WRITE failed: {status:?}");
            if warm < WARM_UP {
                warm += 1;
                start = Instant::now();
                continue;
            }
            lists += 1;
            if lists.is_multiple_of(CLOCK_INTERVAL) && start.elapsed() >= run {
                break;
            }
        }
        Ok(start.elapsed().as_nanos() as f64 / (lists * length as u64) as f64)
    })
}

/// Bytes that each of `count` queue pairs takes that are connected and idle.
pub fn idle_memory(count: usize) -> Result<f64> {
    with_target(count, Target::Sleeps, |side, _| {
        Ok(memory_of_our_own()?.saturating_sub(side.before) as f64 / count as f64)
    })
}

/// WRITEs of so many bytes in a second.
fn messages(count: usize, bytes: usize, run: Duration) -> Result<f64> {
    with_target(count, Target::Sleeps, |side, remote| {
        let post =
            |index: usize| side.qps[index % count].post_send(&SendWr::new(Op::Write(remote), &[side.mr.sge(0, bytes)]));
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
        let rate = (completed - counted_from) as f64 / start.elapsed().as_secs_f64();
        while completed < posted {
            completed += side.completions()?.len();
        }
        Ok(rate)
    })
}

/// Processes connected with each other: nanoseconds of a message, of all together, and KiB that a process takes.
pub fn processes(count: usize, shape: Shape, wait: Wait) -> Result<[f64; 2]> {
    // About as many messages however many processes there are.
    let connections = match shape {
        Shape::Star => 2 * (count - 1),
        Shape::Mesh => count * (count - 1),
    };
    let messages = (100_000 / connections).max(10) as u64;
    let Cost { time, used, .. } = Scale { processes: count, shape, messages, wait }.run()?;
    Ok([time.as_secs_f64() * 1e9, used as f64 / 1024.0])
}

/// Neighbours of each stack.
const NEIGHBOURS: usize = 4;
/// Messages that stacks exchange at least.
const STACKS_SAY: u64 = 50_000;

/// Stacks in a simulation, each connected with four others and one hub: nanoseconds of the processor for a
/// message, there and acknowledged, and bytes that a queue pair takes with its buffers and its share of its stack.
pub fn stacks(count: usize) -> Result<[f64; 2]> {
    let before = memory_of_our_own()?;
    // No loss: what is measured is how much work they are.
    let config = urxe_sim::NodeConfig { receive_buffer: usize::MAX, ..urxe_sim::NodeConfig::default() };
    let mut scale = urxe_sim::scale::Scale::new(count, NEIGHBOURS, 1, config);
    let memory = memory_of_our_own()?.saturating_sub(before) as f64 / scale.queue_pairs() as f64;
    let (start, mut messages) = (Instant::now(), 0);
    for round in 1.. {
        messages += scale.talk(round)?;
        if messages >= STACKS_SAY {
            break;
        }
    }
    Ok([start.elapsed().as_secs_f64() * 1e9 / messages as f64, memory])
}
