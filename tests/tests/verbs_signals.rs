//! Signal handlers that post and poll, whatever their thread is doing: a card's queues each have a lock of their own, so that
//! `ibv_post_send` in a handler that interrupts `ibv_poll_cq` works there.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::verbs::datagram::{Ah, MULTICAST, Mouth, Q_KEY, towards};
use urxe_tests::verbs::qp::Init;
use urxe_tests::verbs::{Change, Context, Cq, Mr, Op, Options, PATIENCE, Pair, Qp, SendWr, Srq, Status};
use urxe_tests::verbs::{memory::ALL_ACCESS, pair};
use urxe_tests::{World, in_world, in_world_over_udp};

/// Messages of each test.
const MESSAGES: u64 = 3000;
/// Requests that wait to complete, at most.
const DEPTH: u64 = 32;
/// Time between signals.
const PERIOD: Duration = Duration::from_micros(50);

/// State of the handler.
struct Handler {
    near: *mut v::ibv_qp,
    send_cq: *mut v::ibv_cq,
    far: *mut v::ibv_qp,
    srq: *mut v::ibv_srq,
    receives: v::ibv_sge,
    /// Requests posted and completed, and messages received.
    posted: AtomicU64,
    completed: AtomicU64,
    received: AtomicU64,
    /// First failure: an errno, or a completion's status above 1000.
    wrong: AtomicU64,
}

static HANDLER: AtomicPtr<Handler> = AtomicPtr::new(ptr::null_mut());

extern "C" fn on_signal(_: i32) {
    // SAFETY: null, or what lives until the signals have ended.
    let Some(handler) = (unsafe { HANDLER.load(Ordering::Acquire).as_ref() }) else { return };
    // SAFETY: errno is the thread's own.
    let errno = unsafe { *libc::__errno_location() };
    if let Err(wrong) = handler.handle() {
        let _ = handler.wrong.compare_exchange(0, wrong, Ordering::Relaxed, Ordering::Relaxed);
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// The errno that a verb returned.
fn check(returned: i32) -> Result<(), u64> {
    if returned == 0 { Ok(()) } else { Err(u64::from(returned.unsigned_abs())) }
}

impl Handler {
    /// Polls, posts a receive, and a SEND of the number of the message. Allocates nothing itself.
    fn handle(&self) -> Result<(), u64> {
        let posted = self.posted.load(Ordering::Relaxed);
        let completed = self.completed.load(Ordering::Relaxed) + poll(self.send_cq)?.0;
        self.completed.store(completed, Ordering::Relaxed);
        let behind = completed.min(self.received.load(Ordering::Relaxed));
        if posted == MESSAGES || posted - behind == DEPTH {
            return Ok(());
        }
        let number = posted + 1;
        let mut to = v::ibv_sge { addr: self.receives.addr + 8 * (posted % (2 * DEPTH)), length: 8, ..self.receives };
        let mut from = v::ibv_sge { addr: (&raw const number) as u64, length: 8, lkey: 0 };
        // SAFETY: all-zero is a value of these plain C structs; the rest is as the inline functions of verbs.h do.
        unsafe {
            let mut recv: v::ibv_recv_wr = std::mem::zeroed();
            (recv.wr_id, recv.sg_list, recv.num_sge) = (to.addr, &raw mut to, 1);
            let mut send: v::ibv_send_wr = std::mem::zeroed();
            (send.wr_id, send.sg_list, send.num_sge) = (number, &raw mut from, 1);
            send.opcode = v::IBV_WR_SEND;
            send.send_flags = v::IBV_SEND_INLINE | v::IBV_SEND_SIGNALED;
            let ops = &(*(*self.near).context).ops;
            let mut bad = ptr::null_mut();
            if self.srq.is_null() {
                check(ops.post_recv.expect("a verb")(self.far, &raw mut recv, &raw mut bad))?;
            } else {
                check(ops.post_srq_recv.expect("a verb")(self.srq, &raw mut recv, &raw mut bad))?;
            }
            check(ops.post_send.expect("a verb")(self.near, &raw mut send, &mut ptr::null_mut()))?;
        }
        self.posted.store(number, Ordering::Relaxed);
        Ok(())
    }
}

/// Polls: how many completions, and what the last says. Allocates nothing.
fn poll(cq: *mut v::ibv_cq) -> Result<(u64, u64), u64> {
    // SAFETY: all-zero is a value of this plain C struct; the rest is as the inline function of verbs.h does.
    unsafe {
        let mut wc: v::ibv_wc = std::mem::zeroed();
        match (*(*cq).context).ops.poll_cq.expect("a verb")(cq, 1, &raw mut wc) {
            0 => Ok((0, 0)),
            1 if wc.status == v::IBV_WC_SUCCESS => Ok((1, wc.wr_id)),
            1 => Err(1000 + u64::from(wc.status)),
            other => Err(u64::from(other.unsigned_abs())),
        }
    }
}

/// Thread that sends this one a signal every [`PERIOD`], until it is dropped.
struct Signals {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Signals {
    fn start(handler: &Handler) -> Self {
        Self::start_with(handler, on_signal)
    }

    /// Starts, with another function as the handler.
    fn start_with(handler: &Handler, function: extern "C" fn(i32)) -> Self {
        HANDLER.store(ptr::from_ref(handler).cast_mut(), Ordering::Release);
        Self::call(function)
    }

    fn call(function: extern "C" fn(i32)) -> Self {
        // SAFETY: the handler calls verbs only, which is what is tested; the other call takes nothing.
        let poller = unsafe {
            libc::signal(libc::SIGALRM, function as *const () as usize);
            libc::pthread_self()
        };
        let ends = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&ends);
        let thread = std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                // SAFETY: the poller waits for this thread to end.
                unsafe { libc::pthread_kill(poller, libc::SIGALRM) };
                std::thread::sleep(PERIOD);
            }
        });
        Self { ends, thread: Some(thread) }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
        HANDLER.store(ptr::null_mut(), Ordering::Release);
        ASIDE.store(ptr::null_mut(), Ordering::Release);
    }
}

/// Polls `recv_cq` all the time, while a handler posts, and takes completions of what it has posted.
fn exchange(near: &Qp, send_cq: &Cq, far: &Qp, srq: Option<&Srq>, recv_cq: &Cq, memory: &Mr) -> Result<()> {
    let handler = Handler {
        near: near.raw(),
        send_cq: send_cq.raw(),
        far: far.raw(),
        srq: srq.map_or(ptr::null_mut(), Srq::raw),
        receives: memory.sge(0, 8),
        posted: AtomicU64::new(0),
        completed: AtomicU64::new(0),
        received: AtomicU64::new(0),
        wrong: AtomicU64::new(0),
    };
    let mut received = 0;
    let (cq, deadline) = (recv_cq.raw(), Instant::now() + PATIENCE);
    let signals = Signals::start(&handler);
    let wrong = loop {
        match poll(cq) {
            Ok((0, _)) if Instant::now() > deadline => break Some(9999),
            Ok((0, _)) => {}
            Ok((_, at)) => {
                received += 1;
                // SAFETY: within the region, which nobody writes to before the receive of this place is posted again.
                let number = unsafe { ptr::with_exposed_provenance::<u64>(usize::try_from(at)?).read_volatile() };
                if number != received {
                    break Some(10_000 + number);
                }
                handler.received.store(received, Ordering::Relaxed);
            }
            Err(wrong) => break Some(wrong),
        }
        let wrong = handler.wrong.load(Ordering::Relaxed);
        if wrong != 0 {
            break Some(wrong);
        }
        if received == MESSAGES && handler.completed.load(Ordering::Relaxed) == MESSAGES {
            break None;
        }
    };
    drop(signals);
    if let Some(wrong) = wrong {
        bail!("{wrong}, after {received} messages of {:?}, {:?} completed", handler.posted, handler.completed);
    }
    Ok(())
}

/// Between two queue pairs of one process.
fn messages(options: &Options) -> Result<()> {
    let Pair { near, far } = &Pair::new(options)?;
    let memory = far.region(4096)?;
    exchange(&near.qp, &near.send_cq, &far.qp, None, &far.recv_cq, &memory)
}

#[test]
fn posting_in_a_handler_that_interrupts_polling() {
    in_world(|| messages(&Options::default()));
}

#[test]
fn posting_in_a_handler_that_interrupts_polling_over_udp() {
    in_world_over_udp(|| messages(&Options::default()));
}

#[test]
fn posting_to_a_shared_receive_queue_in_a_handler_that_interrupts_polling() {
    in_world(|| {
        let options = Options::default();
        let context: Arc<Context> = Context::open()?;
        let near = pair::End::new(&context, &options)?;
        let far = pair::End::new(&context, &options)?;
        let srq = Srq::new(&far.pd, 64, 1)?;
        let shared = Qp::with_srq(&far.pd, &far.recv_cq, &srq, &Init::default())?;
        pair::connect(&context, &near.qp, &shared, &options).context("connecting")?;
        let memory = Mr::alloc(&far.pd, 4096, ALL_ACCESS)?;
        exchange(&near.qp, &near.send_cq, &shared, Some(&srq), &far.recv_cq, &memory)?;
        shared.modify(&Change::to(v::IBV_QPS_ERR))?;
        Ok(())
    });
}

/// A thread inside rdma_connect holds the lock of all connections, which handling a message of theirs takes.
#[test]
fn posting_in_a_handler_that_interrupts_rdma_connect() -> Result<()> {
    let world = World::new()?;
    let program = world.dir().join("post_in_connect");
    let program = program.to_str().context("a path that is not UTF-8")?;
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/programs/post_in_connect.c");
    let options = ["-D_GNU_SOURCE", "-O1", "-Wall", "-Werror", "-o", program, source, "-lrdmacm", "-libverbs"];
    world.host().run("cc", &options)?;
    world.host().run(program, &[])?;
    Ok(())
}

/// Receive requests that the handler below has posted before it was told that there is no room, at most.
static MOST: AtomicU64 = AtomicU64::new(0);
/// More than there can be room for: 64 in the queue, and what a thread may have aside.
const TOO_MANY: u64 = 10_000;

extern "C" fn fill(_: i32) {
    // SAFETY: null, or what lives until the signals have ended.
    let Some(handler) = (unsafe { HANDLER.load(Ordering::Acquire).as_ref() }) else { return };
    let mut posted = 0;
    while posted < TOO_MANY && MOST.load(Ordering::Relaxed) < 65 {
        let mut to = handler.receives;
        // SAFETY: all-zero is a value of this plain C struct; the rest is as the inline function of verbs.h does.
        let returned = unsafe {
            let mut recv: v::ibv_recv_wr = std::mem::zeroed();
            (recv.sg_list, recv.num_sge) = (&raw mut to, 1);
            let post = (*(*handler.far).context).ops.post_recv.expect("a verb");
            post(handler.far, &raw mut recv, &mut ptr::null_mut())
        };
        if returned != 0 {
            break;
        }
        posted += 1;
    }
    MOST.fetch_max(posted, Ordering::Relaxed);
}

/// A program that posts receives until there is no room hears of it in a handler too.
#[test]
fn a_handler_that_fills_a_queue_is_told_that_it_is_full() {
    in_world(|| {
        let Pair { near, far } = &Pair::new(&Options::default())?;
        let memory = far.region(4096)?;
        let handler = Handler {
            near: near.qp.raw(),
            send_cq: near.send_cq.raw(),
            far: far.qp.raw(),
            srq: ptr::null_mut(),
            receives: memory.sge(0, 8),
            posted: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            received: AtomicU64::new(0),
            wrong: AtomicU64::new(0),
        };
        let signals = Signals::start_with(&handler, fill);
        // Until it has interrupted a poll: there the requests go beside the queue.
        let give_up = Instant::now() + PATIENCE;
        while MOST.load(Ordering::Relaxed) < 65 {
            ensure!(Instant::now() < give_up, "a handler never filled the queue: {MOST:?} posted");
            let _ = poll(far.recv_cq.raw());
        }
        drop(signals);
        ensure!(MOST.load(Ordering::Relaxed) < TOO_MANY, "{MOST:?} posted");
        Ok(())
    });
}

/// A request for a queue that is full.
struct Aside {
    qp: *mut v::ibv_qp,
    request: v::ibv_send_wr,
    is_posted: AtomicBool,
}

static ASIDE: AtomicPtr<Aside> = AtomicPtr::new(ptr::null_mut());

extern "C" fn post_once(_: i32) {
    // SAFETY: null, or what lives until the signals have ended.
    let Some(aside) = (unsafe { ASIDE.load(Ordering::Acquire).as_ref() }) else { return };
    if aside.is_posted.load(Ordering::Relaxed) {
        return;
    }
    let mut request = aside.request;
    // SAFETY: as the inline function of verbs.h does; errno is the thread's own.
    unsafe {
        let errno = *libc::__errno_location();
        let post = (*(*aside.qp).context).ops.post_send.expect("a verb");
        let returned = post(aside.qp, &raw mut request, &mut ptr::null_mut());
        *libc::__errno_location() = errno;
        aside.is_posted.store(returned == 0, Ordering::Relaxed);
    }
}

/// Has a handler post `request` to a queue that is full. It is accepted where the handler interrupts a verb, and waits for room.
fn put_aside(qp: &Qp, cq: &Cq, request: v::ibv_send_wr) -> Result<()> {
    let aside = Aside { qp: qp.raw(), request, is_posted: AtomicBool::new(false) };
    ASIDE.store((&raw const aside).cast_mut(), Ordering::Release);
    let signals = Signals::call(post_once);
    let give_up = Instant::now() + PATIENCE;
    while !aside.is_posted.load(Ordering::Relaxed) && Instant::now() < give_up {
        let _ = poll(cq.raw());
    }
    drop(signals);
    ensure!(aside.is_posted.into_inner(), "no handler could post a request");
    Ok(())
}

/// A signaled request of this operation.
fn request(wr_id: u64, opcode: v::ibv_wr_opcode) -> v::ibv_send_wr {
    // SAFETY: a plain C struct: numbers, unions of numbers, null pointers.
    let mut wr: v::ibv_send_wr = unsafe { std::mem::zeroed() };
    (wr.wr_id, wr.opcode, wr.send_flags) = (wr_id, opcode, v::IBV_SEND_SIGNALED);
    wr
}

/// The address handle of a request that was posted may be destroyed (`ibv_post_send(3)`).
#[test]
fn a_datagram_posted_in_a_handler_goes_where_its_address_handle_led() {
    in_world(|| {
        let context = Context::open()?;
        let (near, far) = (Mouth::completing_at(&context, &Cq::new(&context, 256, None)?)?, Mouth::new(&context)?);
        let gid = context.query_gid(1, 1)?;
        let ah = Ah::new(&near.pd, towards(gid, 1))?;
        for wr_id in 0..2 {
            far.listen(wr_id, 8)?;
        }
        near.qp.modify(&Change::to(v::IBV_QPS_SQD))?;
        let message = |wr_id| SendWr::new(Op::Send, &[near.out.sge(0, 8)]).id(wr_id);
        let room = u64::from(near.qp.cap().max_send_wr);
        // All of them but the first go to a queue pair that there is not.
        for wr_id in 0..room {
            let to = if wr_id == 0 { far.qp.number() } else { MULTICAST - 1 };
            near.post(&message(wr_id), &ah, to, Q_KEY)?;
        }
        let mut late = request(room, v::IBV_WR_SEND);
        let mut sge = near.out.sge(0, 8);
        (late.sg_list, late.num_sge) = (&raw mut sge, 1);
        late.wr.ud = v::ibv_send_wr__bindgen_ty_2__bindgen_ty_3 {
            ah: ah.raw(),
            remote_qpn: far.qp.number(),
            remote_qkey: Q_KEY,
        };
        put_aside(&near.qp, &near.cq, late)?;
        let attr = towards(gid, 1);
        drop(ah);
        // Likely where the other was, and leads elsewhere: to 192.0.2.1, of RFC 5737.
        let _others = (0..8)
            .map(|_| {
                let mut attr = attr;
                attr.grh.dgid.raw = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 9, 9, 9];
                Ah::new(&near.pd, attr)
            })
            .collect::<Result<Vec<_>, _>>()?;
        near.qp.modify(&Change::to(v::IBV_QPS_RTS))?;
        for wr_id in 0..=room {
            let wc = near.cq.next()?;
            ensure!(wc.wr_id == wr_id && wc.status == Status::SUCCESS, "{wc:?} instead of {wr_id}");
        }
        for wr_id in 0..2 {
            let wc = far.cq.next()?;
            ensure!(wc.wr_id == wr_id && wc.status == Status::SUCCESS, "{wc:?} instead of {wr_id}");
        }
        Ok(())
    });
}
