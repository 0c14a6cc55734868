//! Threads of one process that share nothing of the verbs but the device, beside processes that share nothing.
//!
//! Each thread has a completion queue and two connected queue pairs of its own, and posts WRITEs of 8 bytes in bursts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::own_counter;
use urxe_tests::verbs::child::{Child, Parent};
use urxe_tests::verbs::memory::ALL_ACCESS;
use urxe_tests::verbs::pair::connect_to;
use urxe_tests::verbs::qp::Init;
use urxe_tests::verbs::{Context, Cq, Mr, Op, Options, Pd, Qp, SendWr, Status};

/// WRITEs of a burst.
const BURST: usize = 32;
/// Bytes of a WRITE.
const BYTES: usize = 8;
/// Far longer than a burst takes.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Figures of one run.
#[derive(Debug, Clone, Copy)]
pub struct Figures {
    /// WRITEs in a second.
    pub rate: f64,
    /// Nanoseconds of a processor that a WRITE took: on a busy machine this tells more than the rate.
    pub cost: f64,
}

/// Processor time of this process until now.
fn processor_time() -> Duration {
    // SAFETY: a plain C struct, filled in by a call that cannot fail with these arguments.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let time = |libc::timeval { tv_sec, tv_usec }: libc::timeval| {
        Duration::from_secs(tv_sec.unsigned_abs()) + Duration::from_micros(tv_usec.unsigned_abs())
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// Figures of the WRITEs of so many threads of this process, and the locks that they found taken, for each WRITE. To be called once by
/// a process without devices.
///
/// # Errors
/// A verb fails, or a WRITE, or `urxe status` does not tell what this process counts.
pub fn threads(count: usize, run: Duration) -> Result<(Figures, f64)> {
    let context = Context::open()?;
    let (figures, written) = measure(&context, count, run)?;
    // Since the device was opened: setting up adds next to nothing.
    let contended = own_counter("contended_locks")?;
    Ok((figures, contended as f64 / written as f64))
}

/// Measures the WRITEs of so many threads. Returns their number as well.
fn measure(context: &Arc<Context>, count: usize, run: Duration) -> Result<(Figures, usize)> {
    let pd = Pd::new(context)?;
    // Where threads are more than processors this one may have to wait for one: the clock is read before they begin, and when all have ended.
    let (ready, start, stop) = (Barrier::new(count + 1), Barrier::new(count + 1), AtomicBool::new(false));
    let (written, took, used) = std::thread::scope(|scope| {
        let work = || {
            let worker = Worker::new(context, &pd);
            ready.wait();
            start.wait();
            worker?.write_until(&stop)
        };
        let workers: Vec<_> = (0..count).map(|_| scope.spawn(work)).collect();
        ready.wait();
        let (began, before) = (Instant::now(), processor_time());
        start.wait();
        std::thread::sleep(run);
        stop.store(true, Ordering::Relaxed);
        let written = workers.into_iter().map(|worker| match worker.join() {
            Ok(written) => written,
            Err(_) => anyhow::bail!("a thread panicked"),
        });
        let written = written.sum::<Result<usize>>()?;
        anyhow::Ok((written.max(1), began.elapsed(), processor_time() - before))
    })?;
    let cost = used.as_secs_f64() * 1e9 / written as f64;
    Ok((Figures { rate: written as f64 / took.as_secs_f64(), cost }, written))
}

/// Figures of the WRITEs of so many processes with one thread each, all together. To be called by a process without devices.
///
/// # Errors
/// A process cannot be made or fails.
pub fn processes(count: usize, run: Duration) -> Result<Figures> {
    let body = |parent: &mut Parent| {
        parent.send(&[0])?;
        parent.receive::<1>()?;
        let (Figures { rate, cost }, _) = measure(&Context::open()?, 1, run)?;
        parent.send(&[rate, cost].map(f64::to_bits))
    };
    let mut children = (0..count).map(|_| Child::fork(body)).collect::<Result<Vec<_>>>()?;
    for child in &mut children {
        child.receive::<1>()?;
    }
    for child in &mut children {
        child.send(&[0])?;
    }
    let mut all = Figures { rate: 0.0, cost: 0.0 };
    for mut child in children {
        let [rate, cost] = child.receive()?.map(f64::from_bits);
        child.finish()?;
        all.rate += rate;
        all.cost += cost / count as f64;
    }
    Ok(all)
}

/// Objects that a thread has for itself.
struct Worker {
    cq: Arc<Cq>,
    mr: Mr,
    near: Qp,
    // Reached by packets only.
    _far: Qp,
}

impl Worker {
    fn new(context: &Arc<Context>, pd: &Arc<Pd>) -> Result<Self> {
        let cq = Cq::new(context, i32::try_from(2 * BURST)?, None)?;
        let mr = Mr::alloc(pd, 4096, ALL_ACCESS)?;
        let cap = v::ibv_qp_cap { max_send_wr: u32::try_from(BURST)?, ..Init::default().cap };
        let qp = || Qp::new(pd, &cq, &cq, &Init { cap, ..Init::default() });
        let (near, far) = (qp()?, qp()?);
        let options = Options { mtu: v::IBV_MTU_4096, ..Options::default() };
        let gid = context.query_gid(1, i32::try_from(options.gid)?)?;
        connect_to(&near, far.number(), gid, &options)?;
        connect_to(&far, near.number(), gid, &options)?;
        Ok(Self { cq, mr, near, _far: far })
    }

    /// Writes bursts, each when the last one is complete. Returns the number of WRITEs.
    fn write_until(&self, stop: &AtomicBool) -> Result<usize> {
        let burst = vec![SendWr::new(Op::Write(self.mr.at(2048)), &[self.mr.sge(0, BYTES)]); BURST];
        let mut written = 0;
        while !stop.load(Ordering::Relaxed) {
            self.near.post_sends(&burst)?;
            let began = Instant::now();
            let mut left = BURST;
            while left > 0 {
                let completions = self.cq.poll(BURST)?;
                if let Some(bad) = completions.iter().find(|wc| wc.status != Status::SUCCESS) {
                    anyhow::bail!("a WRITE failed: {bad:?}");
                }
                left -= completions.len();
                ensure!(!completions.is_empty() || began.elapsed() < TIMEOUT, "no completion within {TIMEOUT:?}");
            }
            written += BURST;
        }
        Ok(written)
    }
}
