//! Threads that use the same queue pairs and one completion queue, with every operation, and destroy queue pairs under
//! way. A few seconds by default; `URXE_STRESS_SECONDS` says how many (`make stress`, `make tsan`).

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::in_world;
use urxe_tests::verbs::memory::{ALL_ACCESS, pattern};
use urxe_tests::verbs::{
    Change, Channel, Context, Cq, End, Mr, Op, Options, Pair, Pd, RecvWr, SendWr, Status, Wc, is_readable,
};

const THREADS: usize = 4;
/// Pairs of queue pairs: 64 of these in all.
const PAIRS: usize = 32;
/// Places in each of the regions, and receive requests of each queue pair.
const PLACES: usize = 32;
/// Bytes of a place: several packets.
const SIZE: usize = 3000;
const STRIDE: usize = 3072;
/// The longest that what is outstanding may take to complete, on a machine that is busy with something else.
const SETTLE: Duration = Duration::from_secs(300);

/// Kind of a work request, in its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Kind {
    Send,
    Write,
    Read,
    Atomic,
    Recv,
}

impl Kind {
    const ALL: [Self; 5] = [Self::Send, Self::Write, Self::Read, Self::Atomic, Self::Recv];
}

/// A work request's number, taken apart.
#[derive(Clone, Copy, Debug)]
struct Id {
    kind: Kind,
    slot: u8,
    is_far: bool,
    place: u8,
    generation: u32,
}

impl Id {
    fn pack(self) -> u64 {
        let [g0, g1, g2, g3] = self.generation.to_be_bytes();
        u64::from_be_bytes([self.kind as u8, self.slot, self.is_far.into(), self.place, g0, g1, g2, g3])
    }

    fn unpack(id: u64) -> Result<Self> {
        let [kind, slot, is_far, place, g @ ..] = id.to_be_bytes();
        let kind = *Kind::ALL.get(usize::from(kind)).with_context(|| format!("no number of ours: {id:#x}"))?;
        Ok(Self { kind, slot, is_far: is_far != 0, place, generation: u32::from_be_bytes(g) })
    }
}

/// A pair, as long as it lives.
struct Live {
    generation: u32,
    pair: Pair,
    /// Where the near end receives, and the far end.
    rooms: [Mr; 2],
    /// Target of the atomics.
    counter: Mr,
    posted: AtomicU64,
    completed: AtomicU64,
    adds_posted: AtomicU64,
    adds_completed: AtomicU64,
}

struct Stress {
    context: Arc<Context>,
    channel: Arc<Channel>,
    cq: Arc<Cq>,
    pd: Arc<Pd>,
    /// Source of SENDs, WRITEs and READs: never changed.
    source: Mr,
    /// Where READs and WRITEs go. What goes to a place is always the same.
    read: Mr,
    written: Mr,
    slots: Vec<RwLock<Live>>,
    generations: AtomicU32,
    operations: AtomicU64,
    failure: Mutex<Option<anyhow::Error>>,
}

/// Random numbers (xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap_or(0) % below
    }
}

fn options() -> Options {
    Options { rd_atomic: 8, ..Options::default() }
}

fn end(context: &Arc<Context>, pd: &Arc<Pd>, cq: &Arc<Cq>) -> Result<End> {
    let qp = urxe_tests::verbs::Qp::new(pd, cq, cq, &urxe_tests::verbs::qp::Init::default())?;
    let (send_cq, recv_cq, pd, context) = (Arc::clone(cq), Arc::clone(cq), Arc::clone(pd), Arc::clone(context));
    Ok(End { qp, send_cq, recv_cq, channel: None, pd, context })
}

impl Live {
    fn new(context: &Arc<Context>, pd: &Arc<Pd>, cq: &Arc<Cq>, slot: usize, generation: u32) -> Result<Self> {
        let pair = Pair { near: end(context, pd, cq)?, far: end(context, pd, cq)? };
        pair.connect(&options())?;
        let room = || Mr::alloc(pd, PLACES * STRIDE, ALL_ACCESS);
        let live = Self {
            generation,
            pair,
            rooms: [room()?, room()?],
            counter: Mr::alloc(pd, 64, ALL_ACCESS)?,
            posted: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            adds_posted: AtomicU64::new(0),
            adds_completed: AtomicU64::new(0),
        };
        for is_far in [false, true] {
            for place in 0..PLACES {
                let (slot, place) = (u8::try_from(slot)?, u8::try_from(place)?);
                live.receive(Id { kind: Kind::Recv, slot, is_far, place, generation })?;
            }
        }
        Ok(live)
    }

    fn end(&self, is_far: bool) -> &End {
        if is_far { &self.pair.far } else { &self.pair.near }
    }

    fn room(&self, is_far: bool) -> &Mr {
        &self.rooms[usize::from(is_far)]
    }

    fn receive(&self, id: Id) -> Result<()> {
        let sge = self.room(id.is_far).sge(usize::from(id.place) * STRIDE, SIZE);
        Ok(self.end(id.is_far).qp.post_recv(&RecvWr::new(id.pack(), &[sge]))?)
    }
}

impl Stress {
    fn new() -> Result<Self> {
        let context = Context::open()?;
        let pd = Pd::new(&context)?;
        let channel = Channel::new(&context)?;
        // Room for whatever may be outstanding: an overrun would be the test's own fault.
        let cq = Cq::new(&context, 1 << 16, Some(&channel))?;
        let source = Mr::alloc(&pd, PLACES * STRIDE, v::IBV_ACCESS_REMOTE_READ)?;
        source.pages().write(0, &pattern(1, PLACES * STRIDE));
        let place = || Mr::alloc(&pd, PLACES * STRIDE, ALL_ACCESS);
        let (read, written) = (place()?, place()?);
        let generations = AtomicU32::new(u32::try_from(PAIRS)?);
        let live = |slot: usize| Live::new(&context, &pd, &cq, slot, u32::try_from(slot)?);
        let slots = (0..PAIRS).map(|slot| live(slot).map(RwLock::new)).collect::<Result<_>>()?;
        let (operations, failure) = (AtomicU64::new(0), Mutex::new(None));
        Ok(Self { context, channel, cq, pd, source, read, written, slots, generations, operations, failure })
    }

    fn live(&self, slot: usize) -> RwLockReadGuard<'_, Live> {
        self.slots[slot].read().expect("a thread has panicked")
    }

    /// Posts something on some queue pair.
    fn post(&self, random: &mut Random) -> Result<()> {
        let (slot, place, is_far) = (random.next(PAIRS), random.next(PLACES), random.next(2) == 1);
        let live = self.live(slot);
        let (at, length) = (place * STRIDE, random.next(SIZE + 1));
        let local = self.source.sge(at, length);
        let (kind, op, sge) = match random.next(6) {
            0 => (Kind::Send, Op::SendImm(u32::try_from(place)?), local),
            1 => (Kind::Send, Op::WriteImm(self.written.at(at), u32::try_from(place)?), local),
            2 => (Kind::Write, Op::Write(self.written.at(at)), local),
            3 => (Kind::Read, Op::Read(self.source.at(at)), self.read.sge(at, length)),
            _ => {
                live.adds_posted.fetch_add(1, Ordering::Relaxed);
                (Kind::Atomic, Op::FetchAdd { remote: live.counter.at(0), add: 1 }, live.counter.sge(8, 8))
            }
        };
        let id =
            Id { kind, slot: u8::try_from(slot)?, is_far, place: u8::try_from(place)?, generation: live.generation };
        let mut wr = SendWr::new(op, &[sge]).id(id.pack());
        if matches!(kind, Kind::Send | Kind::Write) && length <= 64 && random.next(2) == 0 {
            wr = wr.with(v::IBV_SEND_INLINE);
        }
        live.posted.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = live.end(is_far).qp.post_send(&wr) {
            live.posted.fetch_sub(1, Ordering::Relaxed);
            if kind == Kind::Atomic {
                live.adds_posted.fetch_sub(1, Ordering::Relaxed);
            }
            // The queue is full: somebody has to poll first.
            ensure!(error.errno.0 == libc::ENOMEM, "posting: {error:?}");
        }
        Ok(())
    }

    /// Polls, and judges what has completed.
    fn poll(&self) -> Result<usize> {
        let completions = self.cq.poll(16)?;
        for wc in &completions {
            self.completed(wc).with_context(|| format!("{wc:?}"))?;
        }
        Ok(completions.len())
    }

    fn completed(&self, wc: &Wc) -> Result<()> {
        let id = Id::unpack(wc.wr_id)?;
        self.operations.fetch_add(1, Ordering::Relaxed);
        let live = self.live(id.slot.into());
        if live.generation != id.generation {
            // Polled before its queue pair was destroyed, seen here after.
            return Ok(());
        }
        ensure!(wc.status == Status::SUCCESS && wc.qp_num == live.end(id.is_far).qp.number());
        let expected = |place: usize, length| self.source.pages().read(place * STRIDE, length);
        let length = usize::try_from(wc.byte_len)?;
        match id.kind {
            Kind::Recv => {
                ensure!(wc.flags & v::IBV_WC_WITH_IMM != 0, "without its immediate data");
                if wc.opcode == v::IBV_WC_RECV {
                    let got = live.room(id.is_far).pages().read(usize::from(id.place) * STRIDE, length);
                    ensure!(got == expected(usize::try_from(wc.imm)?, length), "other bytes than were sent");
                }
                return live.receive(id);
            }
            Kind::Read => {
                let got = self.read.pages().read(usize::from(id.place) * STRIDE, length);
                ensure!(got == expected(id.place.into(), length), "other bytes than were to be read");
            }
            Kind::Atomic => {
                live.adds_completed.fetch_add(1, Ordering::Relaxed);
            }
            Kind::Send | Kind::Write => {}
        }
        live.completed.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Destroys a pair with whatever it is at, and makes another.
    fn replace(&self, random: &mut Random) -> Result<()> {
        let slot = random.next(PAIRS);
        let generation = self.generations.fetch_add(1, Ordering::Relaxed);
        let mut live = self.slots[slot].write().expect("a thread has panicked");
        match random.next(3) {
            // As it is.
            0 => {}
            1 => live.pair.near.qp.modify(&Change::to(v::IBV_QPS_ERR))?,
            _ => live.pair.far.qp.destroy()?,
        }
        *live = Live::new(&self.context, &self.pd, &self.cq, slot, generation)?;
        Ok(())
    }

    /// Sleeps until there is a completion event, for a moment at most. One thread may do so.
    fn sleep(&self) -> Result<()> {
        self.cq.arm(false)?;
        if self.poll()? == 0 && is_readable(self.channel.fd(), Duration::from_millis(2)) {
            ensure!(self.channel.event()? == self.cq.address());
            self.cq.acknowledge_events(1);
        }
        Ok(())
    }

    fn run(&self, thread: usize, until: Instant) -> Result<()> {
        let mut random = Random(0x9E37_79B9_7F4A_7C15 ^ (thread as u64 + 1));
        while Instant::now() < until && self.failure.lock().is_ok_and(|failure| failure.is_none()) {
            for _ in 0..random.next(8) {
                self.post(&mut random)?;
            }
            self.poll()?;
            match random.next(400) {
                0 => self.replace(&mut random)?,
                // Memory comes and goes meanwhile.
                1 => drop(Mr::alloc(&self.pd, 4096, ALL_ACCESS)?),
                2..10 if thread == 0 => self.sleep()?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Waits until all that was posted has completed, and checks that nothing else has happened.
    fn settle(&self) -> Result<()> {
        let deadline = Instant::now() + SETTLE;
        for slot in 0..PAIRS {
            loop {
                self.poll()?;
                let live = self.live(slot);
                let (posted, completed) = (live.posted.load(Ordering::Relaxed), live.completed.load(Ordering::Relaxed));
                if completed == posted {
                    let adds = live.adds_completed.load(Ordering::Relaxed);
                    ensure!(adds == live.adds_posted.load(Ordering::Relaxed));
                    let counted = live.counter.pages().read_u64(0);
                    ensure!(counted == adds, "{adds} additions, but {counted} were counted");
                    break;
                }
                if Instant::now() > deadline {
                    bail!("slot {slot}: {completed} of {posted} have completed");
                }
            }
        }
        for place in 0..PLACES {
            let (at, bytes) = (place * STRIDE, self.written.pages().read(place * STRIDE, SIZE));
            let expected = self.source.pages().read(at, SIZE);
            let written = bytes.iter().zip(&expected).all(|(byte, expected)| byte == expected || *byte == 0);
            ensure!(written, "place {place} holds what nobody wrote");
        }
        if let Some(event) = self.context.async_event(Duration::ZERO)? {
            bail!("an event: {}", event.name());
        }
        Ok(())
    }
}

#[test]
fn threads_share_queue_pairs_and_a_completion_queue() {
    in_world(|| {
        let seconds = std::env::var("URXE_STRESS_SECONDS").ok().map_or(Ok(3), |seconds| seconds.parse())?;
        let stress = Stress::new()?;
        let until = Instant::now() + Duration::from_secs(seconds);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let stress = &stress;
                scope.spawn(move || {
                    if let Err(error) = stress.run(thread, until) {
                        *stress.failure.lock().expect("nobody panics with it") = Some(error);
                    }
                });
            }
        });
        if let Some(error) = stress.failure.lock().expect("nobody panics with it").take() {
            return Err(error);
        }
        stress.settle()?;
        let operations = stress.operations.load(Ordering::Relaxed);
        let replaced = stress.generations.load(Ordering::Relaxed) as usize - PAIRS;
        println!("{operations} completions, {replaced} pairs replaced in {seconds} s");
        ensure!(operations > 0 && (replaced > 0 || seconds == 0));
        Ok(())
    });
}
