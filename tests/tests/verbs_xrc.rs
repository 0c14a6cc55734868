//! XRC domains that processes share (`ibv_open_xrcd(3)`): queue pairs here, SRQs in other processes.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::verbs::child::{Child, Parent};
use urxe_tests::verbs::memory::{ALL_ACCESS, Mr, pattern};
use urxe_tests::verbs::pair::{rtr, rts};
use urxe_tests::verbs::qp::{CAP, Init};
use urxe_tests::verbs::{
    Change, Channel, Context, Cq, Errno, Op, Options, PATIENCE, Pd, Qp, RecvWr, Remote, SendWr, Srq, Status, Xrcd,
    is_readable,
};
use urxe_tests::{in_world, wait_until};

/// Of every region here.
const MEMORY: usize = 2 << 20;
/// Receives an SRQ has room for, and completions its queue.
const ROOM: u32 = 64;

/// What belongs to one process: a device, and its part of the domain of a file.
struct Part {
    context: Arc<Context>,
    pd: Arc<Pd>,
    cq: Arc<Cq>,
    channel: Arc<Channel>,
    xrcd: Arc<Xrcd>,
    mr: Mr,
}

impl Part {
    fn of(file: &str) -> Result<Self> {
        let file = File::open(file)?;
        let context = Context::open()?;
        let (pd, channel) = (Pd::new(&context)?, Channel::new(&context)?);
        let cq = Cq::new(&context, ROOM.cast_signed(), Some(&channel))?;
        // The file may be closed afterwards.
        let xrcd = Xrcd::open(&context, file.as_raw_fd(), libc::O_CREAT)?;
        let mr = Mr::alloc(&pd, MEMORY, ALL_ACCESS)?;
        Ok(Self { context, pd, cq, channel, xrcd, mr })
    }

    fn srq(&self) -> Result<Arc<Srq>> {
        Ok(Srq::xrc(&self.pd, &self.xrcd, &self.cq, ROOM)?)
    }

    /// An initiator and a target, connected.
    fn pair(&self, options: &Options) -> Result<Ends> {
        let initiator = Qp::xrc_initiator(&self.pd, &self.cq, &Init { cap: options.cap, ..Init::default() })?;
        let target = Qp::xrc_target(&self.pd, &self.xrcd)?;
        let gid = self.context.query_gid(1, i32::try_from(options.gid)?)?;
        for (qp, peer) in [(&initiator, &target), (&target, &initiator)] {
            qp.modify(&Change::init(options.access)).context("to INIT")?;
            qp.modify(&rtr(peer.number(), gid, options)).context("to RTR")?;
            qp.modify(&rts(options)).context("to RTS")?;
        }
        Ok(Ends { initiator, target })
    }

    /// Asserts that this event is next.
    fn event(&self, kind: v::ibv_event_type, element: usize) -> Result<()> {
        let event = self.context.async_event(PATIENCE)?.context("no event")?;
        ensure!(event.kind() == kind && event.element() == element, "{}", event.name());
        Ok(())
    }
}

struct Ends {
    initiator: Qp,
    target: Qp,
}

impl Ends {
    /// The status of one request.
    fn complete(&self, part: &Part, wr: &SendWr) -> Result<Status> {
        self.initiator.post_send(wr)?;
        let wc = part.cq.next()?;
        ensure!(wc.wr_id == wr.wr_id, "another request's: {wc:?}");
        Ok(wc.status)
    }

    fn succeed(&self, part: &Part, wr: &SendWr) -> Result<()> {
        let status = self.complete(part, wr)?;
        ensure!(status == Status::SUCCESS, "{:?}: {status:?}", wr.op);
        Ok(())
    }
}

/// A process that has an SRQ, and does what it is told.
struct Owner {
    child: Child,
    srq: u32,
    memory: Remote,
    /// Of a domain that the SRQ is not in.
    stranger: Remote,
}

/// What an owner is told, with three numbers; it answers with one, or as `NEXT` says.
const POST: u64 = 1;
const NEXT: u64 = 2;
const FILL: u64 = 3;
const HOLDS: u64 = 4;
const WORD: u64 = 5;
const ARM: u64 = 6;
const EVENT: u64 = 7;
const QUIET: u64 = 8;
const LIMIT: u64 = 9;
const LIMIT_EVENT: u64 = 10;
const DESTROY: u64 = 11;
const OVERRUN: u64 = 12;
const END: u64 = 13;

/// What has arrived at an owner.
#[derive(Debug, PartialEq)]
struct Arrived {
    wr_id: u64,
    status: u64,
    byte_len: u64,
    qp_num: u64,
    imm: u64,
    opcode: u64,
}

fn own(parent: &mut Parent, file: &str) -> Result<()> {
    let part = Part::of(file)?;
    let srq = part.srq()?;
    let other_pd = Pd::new(&part.context)?;
    let stranger = Mr::alloc(&other_pd, 4096, ALL_ACCESS)?;
    let (mine, other) = (part.mr.at(0), stranger.at(0));
    parent.send(&[srq.number()?.into(), mine.addr, mine.rkey.into(), other.addr, other.rkey.into()])?;
    loop {
        let [told, a, b, c] = parent.receive()?;
        let (at, length) = (usize::try_from(a)?, usize::try_from(b)?);
        let mut answer = 0;
        match told {
            // In two pieces.
            POST => {
                let half = length / 2;
                let pieces = [part.mr.sge(at, half), part.mr.sge(at + half, length - half)];
                srq.post_recv(&RecvWr::new(c, &pieces))?;
            }
            NEXT => {
                let wc = part.cq.next()?;
                let imm = if wc.flags & v::IBV_WC_WITH_IMM != 0 { wc.imm.into() } else { u64::MAX };
                let (status, opcode) = (wc.status.0.into(), wc.opcode.into());
                parent.send(&[wc.wr_id, status, wc.byte_len.into(), wc.qp_num.into(), imm, opcode])?;
                continue;
            }
            FILL => part.mr.pages().write(at, &pattern(c, length)),
            HOLDS => answer = u64::from(part.mr.pages().read(at, length) == pattern(c, length)),
            WORD => answer = part.mr.pages().read_u64(at),
            ARM => part.cq.arm(a == 1)?,
            EVENT => {
                ensure!(part.channel.event()? == part.cq.address());
                part.cq.acknowledge_events(1);
            }
            QUIET => {
                ensure!(!is_readable(part.channel.fd(), Duration::from_millis(20)), "an event of the channel");
                ensure!(part.cq.poll(1)?.is_empty(), "a completion");
            }
            LIMIT => srq.modify(None, Some(u32::try_from(a)?))?,
            LIMIT_EVENT => part.event(v::IBV_EVENT_SRQ_LIMIT_REACHED, srq.address())?,
            DESTROY => srq.destroy()?,
            OVERRUN => part.event(v::IBV_EVENT_CQ_ERR, part.cq.address())?,
            END => return Ok(()),
            _ => bail!("told {told}"),
        }
        parent.send(&[answer])?;
    }
}

impl Owner {
    fn of(file: &'static str) -> Result<Self> {
        Self::starting(move |parent| own(parent, file))
    }

    fn starting(body: impl FnOnce(&mut Parent) -> Result<()>) -> Result<Self> {
        let mut child = Child::fork(body)?;
        let [srq, addr, rkey, other_addr, other_rkey] = child.receive()?;
        let remote = |addr, rkey| -> Result<Remote> { Ok(Remote { addr, rkey: u32::try_from(rkey)? }) };
        let (memory, stranger) = (remote(addr, rkey)?, remote(other_addr, other_rkey)?);
        Ok(Self { child, srq: u32::try_from(srq)?, memory, stranger })
    }

    fn at(&self, offset: u64) -> Remote {
        Remote { addr: self.memory.addr + offset, ..self.memory }
    }

    fn tell(&mut self, what: u64, a: u64, b: u64, c: u64) -> Result<u64> {
        self.child.send(&[what, a, b, c])?;
        let [answer] = self.child.receive()?;
        Ok(answer)
    }

    fn post(&mut self, at: u64, length: usize, wr_id: u64) -> Result<()> {
        self.tell(POST, at, length as u64, wr_id).map(drop)
    }

    fn next(&mut self) -> Result<Arrived> {
        self.child.send(&[NEXT, 0, 0, 0])?;
        let [wr_id, status, byte_len, qp_num, imm, opcode] = self.child.receive()?;
        Ok(Arrived { wr_id, status, byte_len, qp_num, imm, opcode })
    }

    fn holds(&mut self, at: u64, length: usize, seed: u64) -> Result<bool> {
        Ok(self.tell(HOLDS, at, length as u64, seed)? == 1)
    }

    fn send(&self, part: &Part, offset: usize, length: usize) -> SendWr {
        SendWr::new(Op::Send, &[part.mr.sge(offset, length)]).to_srq(self.srq)
    }

    fn end(mut self) -> Result<()> {
        self.child.send(&[END, 0, 0, 0])?;
        self.child.finish()
    }
}

const FILE: &str = "/proc/self/exe";

fn received(target: &Qp, wr_id: u64, length: usize, imm: Option<u32>) -> Arrived {
    let imm = imm.map_or(u64::MAX, u64::from);
    let opcode = v::IBV_WC_RECV.into();
    Arrived { wr_id, status: 0, byte_len: length as u64, qp_num: target.number().into(), imm, opcode }
}

//= spec/hosts.md#net-009
//= type=test
//# Processes of one user that open the same file on the same interface MUST share its XRC domain.
#[test]
fn messages_reach_the_srq_of_another_process() {
    in_world(|| {
        let mut owner = Owner::of(FILE)?;
        let part = Part::of(FILE)?;
        let ends = part.pair(&Options::default())?;
        part.mr.pages().write(0, &pattern(3, MEMORY));
        for (wr_id, length) in (0..).zip([0, 1, 8, 1023, 1024, 1025, 4096, 65_537, 1 << 20]) {
            part.mr.pages().write(0, &pattern(wr_id, length));
            owner.post(64, length + 1, wr_id)?;
            ends.succeed(&part, &owner.send(&part, 0, length)).with_context(|| format!("{length} bytes"))?;
            let arrived = owner.next()?;
            ensure!(arrived == received(&ends.target, wr_id, length, None), "{arrived:?}");
            ensure!(owner.holds(64, length, wr_id)?, "{length} bytes differ");
        }
        owner.post(0, 8, 99)?;
        let imm = SendWr::new(Op::SendImm(0x0102_0304), &[part.mr.sge(0, 8)]).to_srq(owner.srq);
        ends.succeed(&part, &imm)?;
        let arrived = owner.next()?;
        ensure!(arrived == received(&ends.target, 99, 8, Some(0x0102_0304)), "{arrived:?}");
        owner.end()
    });
}

/// More than the SRQ has WQEs for, at once: the rest waits, and all come in the order they were sent.
#[test]
fn many_messages_wait_for_receives() {
    in_world(|| {
        const MESSAGES: u64 = 300;
        let mut owner = Owner::of(FILE)?;
        let part = Part::of(FILE)?;
        let ends = part.pair(&Options::default())?;
        for number in 0..MESSAGES {
            let send = SendWr::new(Op::SendImm(u32::try_from(number)?), &[part.mr.sge(0, 100)]).to_srq(owner.srq);
            // It is signaled when the queue would be full otherwise.
            let send = if number % 32 == 31 { send } else { send.unsignaled() };
            while let Err(error) = ends.initiator.post_send(&send) {
                ensure!(error.errno == Errno(libc::ENOMEM), "{error:?}");
                owner.post(0, 100, number)?;
                let arrived = owner.next()?;
                ensure!(arrived.status == 0 && arrived.byte_len == 100, "{arrived:?}");
                part.cq.poll(8)?;
            }
        }
        owner.post(0, 100, 1)?;
        let mut last = owner.next()?.imm;
        while last != MESSAGES - 1 {
            owner.post(0, 100, 1)?;
            let next = owner.next()?.imm;
            ensure!(next == last + 1, "{next} after {last}");
            last = next;
        }
        owner.end()
    });
}

/// IBA annex A14: what a request names is memory of the SRQ's protection domain.
#[test]
fn memory_is_of_the_srq_that_the_request_names() {
    in_world(|| {
        let mut owner = Owner::of(FILE)?;
        let part = Part::of(FILE)?;
        let ends = part.pair(&Options::default())?;
        let pages = Arc::clone(part.mr.pages());
        for (seed, length) in (1..).zip([1, 1024, 5000, 1 << 20]) {
            pages.write(0, &pattern(seed, length));
            let write = SendWr::new(Op::Write(owner.at(3)), &[part.mr.sge(0, length)]).to_srq(owner.srq);
            ends.succeed(&part, &write)?;
            ensure!(owner.holds(3, length, seed)?, "{length} bytes written");
            owner.tell(FILL, 3, length as u64, seed + 100)?;
            let read = SendWr::new(Op::Read(owner.at(3)), &[part.mr.sge(0, length)]).to_srq(owner.srq);
            ends.succeed(&part, &read)?;
            ensure!(pages.read(0, length) == pattern(seed + 100, length), "{length} bytes read");
        }
        // With immediate data, which takes a receive.
        pages.write(0, &pattern(7, 3000));
        let write = SendWr::new(Op::WriteImm(owner.at(0), 5), &[part.mr.sge(0, 3000)]).to_srq(owner.srq);
        owner.post(0, 0, 70)?;
        ends.succeed(&part, &write)?;
        let arrived = owner.next()?;
        let opcode = v::IBV_WC_RECV_RDMA_WITH_IMM.into();
        ensure!(arrived == Arrived { opcode, ..received(&ends.target, 70, 3000, Some(5)) }, "{arrived:?}");
        ensure!(owner.holds(0, 3000, 7)?);

        pages.write(0, &[0; 8]);
        let word = SendWr::new(Op::Write(owner.at(8)), &[part.mr.sge(0, 8)]).to_srq(owner.srq);
        ends.succeed(&part, &word)?;
        let add = SendWr::new(Op::FetchAdd { remote: owner.at(8), add: 40 }, &[part.mr.sge(0, 8)]).to_srq(owner.srq);
        for before in [0, 40] {
            ends.succeed(&part, &add)?;
            ensure!(pages.read_u64(0) == before);
        }
        let swap = Op::CmpSwp { remote: owner.at(8), compare: 80, swap: 9 };
        ends.succeed(&part, &SendWr::new(swap, &[part.mr.sge(0, 8)]).to_srq(owner.srq))?;
        ensure!(pages.read_u64(0) == 80 && owner.tell(WORD, 8, 0, 0)? == 9);

        // Another protection domain of the same process is none of its business.
        let write = SendWr::new(Op::Write(owner.stranger), &[part.mr.sge(0, 8)]).to_srq(owner.srq);
        ensure!(ends.complete(&part, &write)? == Status::REM_ACCESS_ERR);
        part.event(v::IBV_EVENT_QP_ACCESS_ERR, ends.target.address())?;
        owner.end()
    });
}

#[test]
fn a_receive_that_is_too_small_fails_both() {
    in_world(|| {
        let mut owner = Owner::of(FILE)?;
        let part = Part::of(FILE)?;
        let ends = part.pair(&Options::default())?;
        owner.post(0, 2000, 4)?;
        owner.post(4096, 8, 5)?;
        ensure!(ends.complete(&part, &owner.send(&part, 0, 2001))? == Status::REM_INV_REQ_ERR);
        let arrived = owner.next()?;
        ensure!(arrived.wr_id == 4 && arrived.status == u64::from(v::IBV_WC_LOC_LEN_ERR), "{arrived:?}");
        // The SRQ goes on.
        let ends = part.pair(&Options::default())?;
        ends.succeed(&part, &owner.send(&part, 0, 8))?;
        ensure!(owner.next()?.wr_id == 5);
        owner.end()
    });
}

#[test]
fn without_a_receive_it_is_not_ready() {
    in_world(|| {
        let mut owner = Owner::of(FILE)?;
        let part = Part::of(FILE)?;
        let ends = part.pair(&Options { rnr_retry: 2, ..Options::default() })?;
        ensure!(ends.complete(&part, &owner.send(&part, 0, 8))? == Status::RNR_RETRY_EXC_ERR);
        let ends = part.pair(&Options::default())?;
        ends.initiator.post_send(&owner.send(&part, 0, 8))?;
        std::thread::sleep(Duration::from_millis(20));
        ensure!(part.cq.poll(1)?.is_empty(), "there is no receive");
        owner.post(0, 8, 5)?;
        ensure!(part.cq.next()?.status == Status::SUCCESS && owner.next()?.wr_id == 5);
        owner.end()
    });
}

/// Channels, solicited events, the SRQ's limit, and a completion queue that overruns: all as for messages of one's own.
#[test]
fn events_are_raised_where_the_srq_is() {
    in_world(|| {
        let mut owner = Owner::of(FILE)?;
        let part = Part::of(FILE)?;
        let ends = part.pair(&Options::default())?;
        for wr_id in 0..4 {
            owner.post(0, 8, wr_id)?;
        }
        owner.tell(LIMIT, 3, 0, 0)?;
        owner.tell(ARM, 0, 0, 0)?;
        ends.succeed(&part, &owner.send(&part, 0, 8))?;
        owner.tell(EVENT, 0, 0, 0)?;
        ensure!(owner.next()?.wr_id == 0);
        owner.tell(ARM, 1, 0, 0)?;
        ends.succeed(&part, &owner.send(&part, 0, 8))?;
        owner.tell(LIMIT_EVENT, 0, 0, 0)?;
        ensure!(owner.next()?.wr_id == 1);
        owner.tell(QUIET, 0, 0, 0)?;
        ends.succeed(&part, &owner.send(&part, 0, 8).with(v::IBV_SEND_SOLICITED))?;
        owner.tell(EVENT, 0, 0, 0)?;
        ensure!(owner.next()?.wr_id == 2);
        // As many as its queue holds, and more: nobody takes them.
        for wr_id in 0..u64::from(ROOM) * 2 {
            owner.post(0, 8, wr_id)?;
            ends.succeed(&part, &owner.send(&part, 0, 8))?;
        }
        owner.tell(OVERRUN, 0, 0, 0)?;
        owner.end()
    });
}

/// Two processes that are each other's target: neither waits for the other's receiving thread.
#[test]
fn crosswise() {
    in_world(|| {
        const MESSAGES: u32 = 400;
        fn exchange(
            part: &Part,
            tell: impl FnOnce(u32) -> Result<()>,
            hear: impl FnOnce() -> Result<u32>,
        ) -> Result<()> {
            let srq = part.srq()?;
            let ends = part.pair(&Options { cap: v::ibv_qp_cap { max_send_wr: 32, ..CAP }, ..Options::default() })?;
            for id in 0..16 {
                srq.post_recv(&RecvWr::new(id, &[part.mr.sge(1 << 16, 5000)]))?;
            }
            tell(srq.number()?)?;
            let peer = hear()?;
            let (mut sent, mut done, mut came) = (0, 0, 0);
            while done < MESSAGES || came < MESSAGES {
                while sent < MESSAGES && sent - done < 16 {
                    let send = SendWr::new(Op::SendImm(sent), &[part.mr.sge(0, 5000)]).to_srq(peer).id(1000);
                    ends.initiator.post_send(&send)?;
                    sent += 1;
                }
                let wc = part.cq.next()?;
                ensure!(wc.status == Status::SUCCESS, "{wc:?} after {done} and {came}");
                if wc.wr_id == 1000 {
                    done += 1;
                } else {
                    ensure!(wc.imm == came && wc.byte_len == 5000, "{wc:?} after {came}");
                    came += 1;
                    srq.post_recv(&RecvWr::new(1, &[part.mr.sge(1 << 16, 5000)]))?;
                }
            }
            Ok(())
        }
        let child = Child::fork(|parent| {
            let part = Part::of(FILE)?;
            let parent = std::cell::RefCell::new(parent);
            let tell = |number: u32| parent.borrow_mut().send(&[number.into()]);
            let hear = || {
                let [number] = parent.borrow_mut().receive()?;
                Ok(u32::try_from(number)?)
            };
            exchange(&part, tell, hear)?;
            // Until the other end is through.
            let [_] = parent.borrow_mut().receive()?;
            Ok(())
        })?;
        let child = std::cell::RefCell::new(child);
        let part = Part::of(FILE)?;
        let tell = |number: u32| child.borrow_mut().send(&[number.into()]);
        let hear = || {
            let [number] = child.borrow_mut().receive()?;
            Ok(u32::try_from(number)?)
        };
        exchange(&part, tell, hear)?;
        let mut child = child.into_inner();
        child.send(&[0])?;
        child.finish()
    });
}

/// The SRQ of a process that is gone is not there (IBA annex A14); those of others go on.
//= spec/hosts.md#net-011
//= type=test
//# An XRC SRQ whose process has ended MUST be refused as one that is not there, and nothing MUST hang.
#[test]
fn an_owner_that_is_killed() {
    in_world(|| {
        let (mut one, mut other) = (Owner::of(FILE)?, Owner::of(FILE)?);
        let part = Part::of(FILE)?;
        let options = Options::default();
        let [to_one, to_other, midway] = [part.pair(&options)?, part.pair(&options)?, part.pair(&options)?];
        for (owner, ends) in [(&mut one, &to_one), (&mut other, &to_other)] {
            owner.post(0, 8, 1)?;
            ends.succeed(&part, &owner.send(&part, 0, 8))?;
            ensure!(owner.next()?.wr_id == 1);
        }
        // In the middle of a message: it is long enough to be under way for a while.
        let long = (0..30).map(|_| SendWr::new(Op::Write(one.at(0)), &[part.mr.sge(0, MEMORY)]).to_srq(one.srq));
        midway.initiator.post_sends(&long.collect::<Vec<_>>())?;
        part.cq.next()?;
        one.child.signal(libc::SIGKILL)?;
        let statuses: Vec<_> = part.cq.take(29)?.into_iter().map(|wc| wc.status).collect();
        let failed = statuses.iter().position(|status| *status != Status::SUCCESS).context("all were written")?;
        ensure!(statuses[failed] == Status::REM_INV_REQ_ERR, "{statuses:?}");
        part.event(v::IBV_EVENT_QP_REQ_ERR, midway.target.address())?;
        ensure!(to_one.complete(&part, &one.send(&part, 0, 8))? == Status::REM_INV_REQ_ERR);
        other.post(0, 8, 2)?;
        to_other.succeed(&part, &other.send(&part, 0, 8))?;
        ensure!(other.next()?.wr_id == 2);
        drop(one);
        other.end()
    });
}

/// One that is stopped has no receives; when it goes on, so do messages.
#[test]
fn an_owner_that_is_stopped() {
    in_world(|| {
        // First here: who opens the device first is the port's owner, and new flows wait for one that is stopped.
        let part = Part::of(FILE)?;
        let mut owner = Owner::of(FILE)?;
        let ends = part.pair(&Options::default())?;
        for wr_id in 0..8 {
            owner.post(0, 8, wr_id)?;
        }
        owner.child.stop()?;
        let impatient = part.pair(&Options { rnr_retry: 1, ..Options::default() })?;
        let status = impatient.complete(&part, &owner.send(&part, 0, 8))?;
        ensure!(status == Status::RNR_RETRY_EXC_ERR, "{status:?}");
        let write = SendWr::new(Op::Write(owner.at(0)), &[part.mr.sge(0, 8)]).to_srq(owner.srq);
        let writer = part.pair(&Options::default())?;
        let status = writer.complete(&part, &write)?;
        ensure!(status == Status::RETRY_EXC_ERR, "{status:?}");
        ends.initiator.post_send(&owner.send(&part, 0, 8))?;
        ensure!(part.cq.poll(1)?.is_empty());
        owner.child.signal(libc::SIGCONT)?;
        ensure!(part.cq.next()?.status == Status::SUCCESS);
        // No WQE was lost to what was asked and not waited for.
        ensure!(owner.next()?.wr_id == 0);
        for wr_id in 1..8 {
            ends.succeed(&part, &owner.send(&part, 0, 8))?;
            let arrived = owner.next()?;
            ensure!(arrived.wr_id == wr_id, "{arrived:?}");
        }
        owner.end()
    });
}

/// One that is stopped for a moment, in the middle of messages: they take longer.
#[test]
fn an_owner_that_stops_now_and_then() {
    in_world(|| {
        let part = Part::of(FILE)?;
        let mut owner = Owner::of(FILE)?;
        // 268 ms, seven times over.
        let ends = part.pair(&Options { timeout: 16, ..Options::default() })?;
        for round in 0..4 {
            part.mr.pages().write(0, &pattern(round, MEMORY));
            owner.post(0, MEMORY, round)?;
            ends.initiator.post_send(&owner.send(&part, 0, MEMORY))?;
            // Somewhere in its course.
            std::thread::sleep(Duration::from_millis(5 * round + 1));
            owner.child.stop()?;
            std::thread::sleep(Duration::from_millis(300));
            owner.child.signal(libc::SIGCONT)?;
            let wc = part.cq.next()?;
            ensure!(wc.status == Status::SUCCESS, "round {round}: {wc:?}");
            let arrived = owner.next()?;
            ensure!(arrived == received(&ends.target, round, MEMORY, None), "{arrived:?}");
            ensure!(owner.holds(0, MEMORY, round)?, "round {round}: bytes differ");
        }
        owner.end()
    });
}

/// What a process has taken and not used is there again when it ends.
#[test]
fn a_sender_that_is_killed_leaves_the_receive() {
    in_world(|| {
        let part = Part::of(FILE)?;
        let srq = part.srq()?;
        srq.post_recv(&RecvWr::new(1, &[part.mr.sge(0, MEMORY)]))?;
        let number = srq.number()?;
        let child = Child::fork(move |parent| {
            let part = Part::of(FILE)?;
            let ends = part.pair(&Options::default())?;
            part.mr.pages().write(0, &[1; MEMORY]);
            ends.initiator.post_send(&SendWr::new(Op::Send, &[part.mr.sge(0, MEMORY)]).to_srq(number))?;
            let [_] = parent.receive()?;
            Ok(())
        })?;
        wait_until("the message begins", || Ok(part.mr.pages().read(0, 1) == [1]))?;
        drop(child);
        // It may have been through by then: then there is a completion, and nothing to give back.
        let whole = part.mr.pages().read(MEMORY - 1, 1) == [1];
        let ends = part.pair(&Options::default())?;
        if whole {
            ensure!(part.cq.next()?.wr_id == 1);
            srq.post_recv(&RecvWr::new(1, &[part.mr.sge(0, MEMORY)]))?;
        }
        ends.initiator.post_send(&SendWr::new(Op::Send, &[part.mr.sge(0, 8)]).to_srq(number).id(2))?;
        let mut ids: Vec<_> = part.cq.take(2)?.into_iter().map(|wc| (wc.wr_id, wc.status)).collect();
        ids.sort_by_key(|(id, _)| *id);
        ensure!(ids == [(1, Status::SUCCESS), (2, Status::SUCCESS)], "{ids:?}");
        Ok(())
    });
}

/// Who has another file is in another domain.
//= spec/hosts.md#net-010
//= type=test
//# Nobody MUST get at another process' part of an XRC domain but who is of the same user and shows the domain's file.
#[test]
fn another_file_is_another_domain() {
    in_world(|| {
        let mut owner = Owner::of(FILE)?;
        owner.post(0, 8, 1)?;
        let part = Part::of("/bin/sh")?;
        let ends = part.pair(&Options::default())?;
        ensure!(ends.complete(&part, &owner.send(&part, 0, 8))? == Status::REM_INV_REQ_ERR);
        let write = SendWr::new(Op::Write(owner.at(0)), &[part.mr.sge(0, 8)]).to_srq(owner.srq);
        let ends = part.pair(&Options::default())?;
        ensure!(ends.complete(&part, &write)? == Status::REM_INV_REQ_ERR);
        // The number next to it is nobody's.
        let part = Part::of(FILE)?;
        let ends = part.pair(&Options::default())?;
        let wrong = SendWr::new(Op::Send, &[]).to_srq(owner.srq ^ 1);
        ensure!(ends.complete(&part, &wrong)? == Status::REM_INV_REQ_ERR);
        owner.tell(QUIET, 0, 0, 0)?;
        owner.end()
    });
}

/// The door is open as long as there is an SRQ, and a second one opens it again.
#[test]
fn an_srq_that_is_destroyed() {
    in_world(|| {
        let open = || -> Result<usize> {
            Ok(fs::read_to_string("/proc/net/unix")?.lines().filter(|line| line.contains("@urxe/1/xrc/")).count())
        };
        let mut owner = Owner::of(FILE)?;
        let part = Part::of(FILE)?;
        let ends = part.pair(&Options::default())?;
        ensure!(open()? > 0);
        owner.post(0, 8, 1)?;
        ends.succeed(&part, &owner.send(&part, 0, 8))?;
        owner.tell(DESTROY, 0, 0, 0)?;
        ensure!(open()? == 0, "{}", fs::read_to_string("/proc/net/unix")?);
        ensure!(ends.complete(&part, &owner.send(&part, 0, 8))? == Status::REM_INV_REQ_ERR);
        for _ in 0..3 {
            let srq = part.srq()?;
            ensure!(open()? == 1);
            srq.destroy()?;
            ensure!(open()? == 0);
        }
        owner.child.send(&[END, 0, 0, 0])?;
        owner.child.finish()
    });
}

/// A target queue pair stays with its process.
#[test]
fn a_target_of_another_process_cannot_be_opened() {
    in_world(|| {
        let mut child = Child::fork(|parent| {
            let part = Part::of(FILE)?;
            let [target] = parent.receive()?;
            let opened = Qp::open(&part.pd, &part.xrcd, u32::try_from(target)?);
            ensure!(opened.err() == Some(Errno(libc::EINVAL)));
            Ok(())
        })?;
        let part = Part::of(FILE)?;
        let target = Qp::xrc_target(&part.pd, &part.xrcd)?;
        child.send(&[target.number().into()])?;
        child.finish()
    });
}
