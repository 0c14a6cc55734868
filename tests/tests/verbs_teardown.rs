//! Memory, windows, queue pairs, domains and processes that end while requests need them: inside a process, and between two whose requests go straight to memory (`URXE_DIRECT=1`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, bail, ensure};
use urxe_ffi::functions as f;
use urxe_ffi::verbs as v;
use urxe_tests::verbs::child::{Child, Parent};
use urxe_tests::verbs::memory::{ALL_ACCESS, PAGE, Pages};
use urxe_tests::verbs::window::{part, post_invalidate};
use urxe_tests::verbs::{Context, End, Mr, Op, Options, Pair, Remote, SendWr, Status, Window};
use urxe_tests::{in_world, in_world_with, own_counter};

/// Bytes of a WRITE, in many packets.
const LEN: usize = 16 * PAGE;
/// WRITEs outstanding at a time.
const OUTSTANDING: usize = 4;
/// Rounds of each test.
const ROUNDS: usize = 20;

/// An end of what a peer writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Teardown {
    /// `ibv_dereg_mr(3)`.
    Deregister,
    /// `ibv_rereg_mr(3)` to other memory.
    Reregister,
    /// `IBV_WR_LOCAL_INV` of a window.
    Invalidate,
    /// `ibv_destroy_qp(3)`.
    DestroyQp,
    /// All objects of the domain, and the domain.
    DeallocatePd,
}

use Teardown::{DeallocatePd, Deregister, DestroyQp, Invalidate, Reregister};

const ALL: [Teardown; 5] = [Deregister, Reregister, Invalidate, DestroyQp, DeallocatePd];

impl Teardown {
    /// How the first request fails that comes too late.
    fn status(self) -> Status {
        match self {
            Deregister | Reregister | Invalidate => Status::REM_ACCESS_ERR,
            DestroyQp | DeallocatePd => Status::RETRY_EXC_ERR,
        }
    }
}

/// Options of queue pairs whose last request fails so. Where the peer goes, half a second of silence is its end: 67 ms, eight times,
/// and what has come is read before.
fn options(last: Status) -> Options {
    let timeout = if last == Status::RETRY_EXC_ERR { 14 } else { Options::default().timeout };
    Options { timeout, ..Options::default() }
}

/// Memory that a peer writes to, by a window of it or as a whole.
struct Target {
    memory: Mr,
    window: Option<Window>,
    other: Arc<Pages>,
}

impl Target {
    fn new(end: &End, how: Teardown) -> Result<Self> {
        let memory = Mr::alloc(&end.pd, LEN, ALL_ACCESS | v::IBV_ACCESS_MW_BIND)?;
        let window = (how == Invalidate).then(|| Self::bind(end, &memory)).transpose()?;
        Ok(Self { memory, window, other: Pages::new(LEN) })
    }

    fn bind(end: &End, memory: &Mr) -> Result<Window> {
        let window = Window::new(&end.pd, v::IBV_MW_TYPE_2)?;
        window.open(end, part(memory, 0, LEN, v::IBV_ACCESS_REMOTE_WRITE))?;
        Ok(window)
    }

    fn at(&self) -> Remote {
        self.window.as_ref().map_or_else(|| self.memory.at(0), |window| window.at(&self.memory, 0))
    }

    /// Takes it away. Returns what was written last.
    fn take_away(&self, end: &End, how: Teardown) -> Result<Vec<u8>> {
        match how {
            Deregister => self.memory.dereg()?,
            Reregister => {
                let address = std::ptr::with_exposed_provenance_mut(usize::try_from(self.other.addr())?);
                let change = i32::try_from(v::IBV_REREG_MR_CHANGE_TRANSLATION)?;
                // SAFETY: a live region, and pages that live as long.
                let returned =
                    unsafe { f::ibv_rereg_mr(self.memory.raw(), change, std::ptr::null_mut(), address, LEN, 0) };
                ensure!(returned == 0, "rereg_mr: {returned}");
            }
            Invalidate => {
                let window = self.window.as_ref().context("a window")?;
                post_invalidate(&end.qp, 2, window.rkey())?;
                let wc = end.send_cq.next()?;
                ensure!(wc.status == Status::SUCCESS, "{wc:?}");
            }
            DestroyQp => end.qp.destroy()?,
            DeallocatePd => {
                end.qp.destroy()?;
                self.memory.dereg()?;
                end.pd.dealloc()?;
            }
        }
        Ok(self.memory.pages().read(0, LEN))
    }

    /// Whether memory that was taken away is what it was then, after everything that was sent has arrived.
    fn is_left_alone(&self, left: &[u8]) -> bool {
        self.memory.pages().read(0, LEN) == left && self.other.read(0, LEN) == [0; LEN]
    }
}

/// Writes until a WRITE fails. `wrote` is called after each burst that succeeded.
fn write_until_refused(end: &End, to: Remote, mut wrote: impl FnMut() -> Result<()>) -> Result<Status> {
    let local = end.region(LEN)?;
    for round in 1_u64.. {
        local.pages().write(0, &round.to_ne_bytes().repeat(LEN / 8));
        end.qp.post_sends(&vec![SendWr::new(Op::Write(to), &[local.sge(0, LEN)]); OUTSTANDING])?;
        let failed = end.send_cq.take(OUTSTANDING)?.into_iter().find(|wc| wc.status != Status::SUCCESS);
        if let Some(wc) = failed {
            return Ok(wc.status);
        }
        wrote()?;
    }
    bail!("no end")
}

/// Takes away what another thread writes to.
fn among_threads(how: Teardown) -> Result<()> {
    let Pair { near, far } = &Pair::new(&options(how.status()))?;
    let target = Target::new(far, how)?;
    let (at, is_gone, has_begun) = (target.at(), AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| -> Result<()> {
        let writer = scope.spawn(|| {
            let mut was_gone = false;
            write_until_refused(near, at, || {
                has_begun.store(true, Ordering::SeqCst);
                // A burst that was begun afterwards fails.
                ensure!(!was_gone, "written to what is gone");
                was_gone = is_gone.load(Ordering::SeqCst);
                Ok(())
            })
        });
        while !has_begun.load(Ordering::SeqCst) && !writer.is_finished() {
            std::thread::yield_now();
        }
        let left = target.take_away(far, how)?;
        is_gone.store(true, Ordering::SeqCst);
        let status = writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))??;
        ensure!(status == how.status(), "{status:?}");
        ensure!(target.is_left_alone(&left), "written to afterwards");
        Ok(())
    })
}

#[test]
fn of_another_thread() {
    in_world(|| {
        for how in ALL {
            for round in 0..ROUNDS {
                among_threads(how).with_context(|| format!("{how:?}, round {round}"))?;
            }
        }
        Ok(())
    });
}

/// The requester's own memory: what comes late is not written into what is the program's again.
#[test]
fn of_the_requester_itself() {
    in_world(|| {
        for round in 0..ROUNDS {
            let Pair { near, far } = &Pair::new(&Options::default())?;
            let (local, remote) = (near.region(LEN)?, far.region(LEN)?);
            remote.pages().write(0, &[7; LEN]);
            let (from, into) = (remote.at(0), local.sge(0, LEN));
            let (has_begun, refused) = (AtomicBool::new(false), AtomicBool::new(false));
            std::thread::scope(|scope| -> Result<()> {
                let reader = scope.spawn(|| -> Result<Status> {
                    loop {
                        near.qp.post_sends(&vec![SendWr::new(Op::Read(from), &[into]); OUTSTANDING])?;
                        let all = near.send_cq.take(OUTSTANDING)?;
                        has_begun.store(true, Ordering::SeqCst);
                        if let Some(wc) = all.into_iter().find(|wc| wc.status != Status::SUCCESS) {
                            refused.store(true, Ordering::SeqCst);
                            return Ok(wc.status);
                        }
                    }
                });
                while !has_begun.load(Ordering::SeqCst) && !reader.is_finished() {
                    std::thread::yield_now();
                }
                local.dereg()?;
                local.pages().write(0, &[1; LEN]);
                while !refused.load(Ordering::SeqCst) && !reader.is_finished() {
                    std::thread::yield_now();
                }
                let status = reader.join().map_err(|_| anyhow::anyhow!("the reader panicked"))??;
                ensure!(status == Status::LOC_PROT_ERR, "round {round}: {status:?}");
                ensure!(local.pages().read(0, LEN) == [1; LEN], "round {round}: read into memory that is gone");
                Ok(())
            })?;
        }
        Ok(())
    });
}

/// A process ends while its threads write to each other's memory.
#[test]
fn of_the_whole_process() {
    in_world(|| {
        for _ in 0..ROUNDS {
            Child::fork(|_| {
                let context = Context::open()?;
                let pairs = (0..2).map(|_| Pair::on(&context, &Options::default())).collect::<Result<Vec<_>>>()?;
                let (begun, has_failed) = (std::sync::Barrier::new(pairs.len() + 1), AtomicBool::new(false));
                std::thread::scope(|scope| -> Result<()> {
                    for Pair { near, far } in &pairs {
                        let begun = &begun;
                        let has_failed = &has_failed;
                        scope.spawn(move || {
                            let mut is_first = true;
                            let ended = Target::new(far, Deregister).and_then(|target| {
                                write_until_refused(near, target.at(), || {
                                    if std::mem::take(&mut is_first) {
                                        begun.wait();
                                    }
                                    Ok(())
                                })
                            });
                            // Nothing is taken away before the process ends.
                            if is_first {
                                eprintln!("no WRITE has succeeded: {ended:?}");
                                has_failed.store(true, Ordering::SeqCst);
                                begun.wait();
                            }
                        });
                    }
                    begun.wait();
                    std::process::exit(if has_failed.load(Ordering::SeqCst) { 9 } else { 0 })
                })
            })?
            .finish()?;
        }
        Ok(())
    });
}

/// How the first request fails that comes too late: without a teardown, the process ends.
fn status(how: Option<Teardown>) -> Status {
    how.map_or(Status::RETRY_EXC_ERR, Teardown::status)
}

/// Makes a target, and ends it as it is told: by one of [`ALL`], or the process by a number behind.
fn target(parent: &mut Parent, how: Option<Teardown>) -> Result<()> {
    let options = options(status(how));
    let end = End::new(&Context::open()?, &options)?;
    parent.send(&[u64::from(end.qp.number())])?;
    let [peer] = parent.receive()?;
    end.connect(u32::try_from(peer)?, end.gid(&options)?, &options)?;
    let target = Target::new(&end, how.unwrap_or(Deregister))?;
    let Remote { addr, rkey } = target.at();
    parent.send(&[addr, u64::from(rkey)])?;
    parent.receive::<1>()?;
    let Some(how) = how else { std::process::exit(0) };
    let left = target.take_away(&end, how)?;
    parent.send(&[0])?;
    parent.receive::<1>()?;
    ensure!(target.is_left_alone(&left), "written to afterwards");
    Ok(())
}

/// Takes away what another process writes to by itself.
fn between_processes(how: Option<Teardown>) -> Result<()> {
    let mut child = Child::fork(|parent| target(parent, how))?;
    let options = options(status(how));
    let end = End::new(&Context::open()?, &options)?;
    let [peer] = child.receive()?;
    end.connect(u32::try_from(peer)?, end.gid(&options)?, &options)?;
    child.send(&[u64::from(end.qp.number())])?;
    let [addr, rkey] = child.receive()?;
    let mut bursts = 0;
    let failed = write_until_refused(&end, Remote { addr, rkey: u32::try_from(rkey)? }, || {
        bursts += 1;
        // By then the peer's memory is known.
        if bursts == 100 {
            child.send(&[0])?;
        }
        Ok(())
    })?;
    ensure!(bursts >= 100, "{failed:?} after {bursts} bursts");
    ensure!(failed == status(how), "{failed:?}");
    ensure!(own_counter("direct_requests")? > 0, "nothing was direct");
    if how.is_some() {
        child.receive::<1>()?;
        child.send(&[0])?;
    }
    child.finish()
}

#[test]
fn of_another_process() {
    let direct = |world: &urxe_tests::World| {
        world.host().go_direct();
        Ok(())
    };
    in_world_with(direct, || {
        for how in ALL.map(Some).into_iter().chain([None]) {
            for round in 0..ROUNDS / 4 {
                between_processes(how).with_context(|| format!("{how:?}, round {round}"))?;
            }
        }
        Ok(())
    });
}
