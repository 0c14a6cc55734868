//! Many processes, each connected with every other or all with one: what each writes to its peers is checked, and what it
//! costs is measured.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::child::{Child, Parent};
use super::cq::{Channel, Cq, Status};
use super::memory::{ALL_ACCESS, Mr, Pd, pattern};
use super::pair::{Options, connect_to};
use super::qp::{CAP, Init, Qp};
use super::wr::{Op, Remote, SendWr};
use super::{Context, PATIENCE, is_readable};
use crate::procfs::memory_of_our_share;

/// Topology of the connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// The first process is connected with all others.
    Star,
    /// All pairs of processes are connected.
    Mesh,
}

/// Way in which a process waits for completions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// Polls.
    Polls,
    /// Sleeps until there is an event.
    Sleeps,
}

/// Work: each process writes to each of its peers so many times, in turn, and then adds one to a counter there.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Two at least.
    pub processes: usize,
    /// Topology of the peers.
    pub shape: Shape,
    /// Messages to each peer.
    pub messages: u64,
    /// Way in which they wait.
    pub wait: Wait,
}

/// Cost of a run.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Time of a message, of all processes together.
    pub time: Duration,
    /// Bytes of memory that a process takes, once connected: its share of what several have mapped. The median.
    pub idle: usize,
    /// Memory after sending and receiving.
    pub used: usize,
}

/// Bytes of a message, which are inline.
const MESSAGE: usize = 64;
/// The counter, before the places of peers.
const COUNTER: usize = 0;
/// Where results of counting go.
const RESULT: usize = 8;
/// Messages of a process on their way at a time.
const OUTSTANDING: usize = 16;

impl Scale {
    /// Lets them, and checks that everything is where it belongs.
    ///
    /// # Errors
    /// The first thing that is not as it must be.
    pub fn run(&self) -> Result<Cost> {
        let mut children: Vec<Child> =
            (0..self.processes).map(|own| Child::fork(|parent| self.live(own, parent))).collect::<Result<_>>()?;
        // Where each process' memory is, and its queue pair for each of its peers.
        let mut homes = Vec::new();
        for (own, child) in children.iter_mut().enumerate() {
            let [addr, rkey] = child.receive().with_context(|| format!("process {own}"))?;
            let numbers = self.peers(own).iter().map(|_| Ok(child.receive::<1>()?[0])).collect::<Result<Vec<u64>>>()?;
            homes.push((addr, rkey, numbers));
        }
        for (own, child) in children.iter_mut().enumerate() {
            for peer in self.peers(own) {
                let (addr, rkey, numbers) = &homes[peer];
                let towards_us =
                    self.peers(peer).iter().position(|other| *other == own).context("no peer of its peer")?;
                child.send(&[*addr, *rkey, numbers[towards_us]])?;
            }
        }
        let idle = median(everybody(&mut children)?);
        let start = Instant::now();
        tell(&mut children)?;
        everybody(&mut children)?;
        let time = start.elapsed();
        // What all have written is where it belongs only when all have written.
        tell(&mut children)?;
        let used = median(everybody(&mut children)?);
        tell(&mut children)?;
        for (own, child) in children.into_iter().enumerate() {
            child.finish().with_context(|| format!("process {own}"))?;
        }
        let directions: usize = (0..self.processes).map(|own| self.peers(own).len()).sum();
        Ok(Cost { time: time.div_f64(directions as f64 * self.messages as f64), idle, used })
    }

    fn peers(&self, own: usize) -> Vec<usize> {
        match self.shape {
            Shape::Star if own > 0 => vec![0],
            Shape::Star | Shape::Mesh => (0..self.processes).filter(|other| *other != own).collect(),
        }
    }

    /// Runs one process.
    fn live(&self, own: usize, parent: &mut Parent) -> Result<()> {
        let before = memory_of_our_share()?;
        let peers = self.peers(own);
        let context = Context::open()?;
        let pd = Pd::new(&context)?;
        let channel = if self.wait == Wait::Sleeps { Some(Channel::new(&context)?) } else { None };
        let cq = Cq::new(&context, i32::try_from(2 * OUTSTANDING)?, channel.as_ref())?;
        let mr = Mr::alloc(&pd, MESSAGE * (1 + self.processes), ALL_ACCESS)?;
        let mut cap = CAP;
        (cap.max_inline_data, cap.max_send_wr) = (u32::try_from(MESSAGE)?, u32::try_from(2 * OUTSTANDING)?);
        let init = Init { cap, ..Init::default() };
        let qps: Vec<Qp> = peers.iter().map(|_| Qp::new(&pd, &cq, &cq, &init)).collect::<Result<_, _>>()?;
        let Remote { addr, rkey } = mr.at(0);
        parent.send(&[addr, rkey.into()])?;
        for qp in &qps {
            parent.send(&[qp.number().into()])?;
        }

        // On a machine with far more processes than processors it takes a while until it is a peer's turn: 1 s.
        let options = Options { timeout: 18, ..Options::default() };
        let gid = context.query_gid(1, i32::try_from(options.gid)?)?;
        let mut homes = Vec::new();
        for qp in &qps {
            let [addr, rkey, number] = parent.receive()?;
            homes.push(Remote { addr, rkey: u32::try_from(rkey)? });
            connect_to(qp, u32::try_from(number)?, gid, &options)?;
        }
        let memory = || Ok::<u64, anyhow::Error>(memory_of_our_share()?.saturating_sub(before) as u64);
        parent.send(&[memory()?])?;
        parent.receive::<1>()?;

        let mut line = Line { cq: &cq, channel: channel.as_deref(), outstanding: 0 };
        for round in 1..=self.messages {
            for (qp, home) in qps.iter().zip(&homes) {
                line.wait_for_room(2)?;
                // The memory of a message that is inline is free again at once.
                let source = MESSAGE * (1 + own);
                mr.pages().write(source, &contents(own, round));
                let place = Remote { addr: home.addr + source as u64, ..*home };
                let write = SendWr::new(Op::Write(place), &[mr.sge(source, MESSAGE)]);
                qp.post_send(&write.with(urxe_ffi::verbs::IBV_SEND_INLINE))?;
                let count = Op::FetchAdd { remote: Remote { addr: home.addr + COUNTER as u64, ..*home }, add: 1 };
                if round == self.messages {
                    qp.post_send(&SendWr::new(count, &[mr.sge(RESULT, 8)]))?;
                    line.outstanding += 1;
                }
                line.outstanding += 1;
            }
        }
        line.wait_for_all()?;
        parent.send(&[0])?;
        parent.receive::<1>()?;

        for peer in &peers {
            let found = mr.pages().read(MESSAGE * (1 + peer), MESSAGE);
            ensure!(found == contents(*peer, self.messages), "process {own} has {found:?} of process {peer}");
        }
        let counted = mr.pages().read_u64(COUNTER);
        ensure!(counted == peers.len() as u64, "{counted} of {} have counted at process {own}", peers.len());
        parent.send(&[memory()?])?;
        // While others are being checked nobody goes.
        parent.receive::<1>().map(drop)
    }
}

/// The last message of a process to each of its peers.
fn contents(from: usize, round: u64) -> Vec<u8> {
    pattern((from as u64) << 32 | round, MESSAGE)
}

/// Requests on their way.
struct Line<'a> {
    cq: &'a Cq,
    channel: Option<&'a Channel>,
    outstanding: usize,
}

impl Line<'_> {
    fn wait_for_room(&mut self, requests: usize) -> Result<()> {
        while self.outstanding + requests > OUTSTANDING {
            self.take_some()?;
        }
        Ok(())
    }

    fn wait_for_all(&mut self) -> Result<()> {
        while self.outstanding > 0 {
            self.take_some()?;
        }
        Ok(())
    }

    /// Waits until there are completions, and takes them.
    fn take_some(&mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut completions = self.cq.poll(OUTSTANDING)?;
            if completions.is_empty()
                && let Some(channel) = self.channel
            {
                self.cq.arm(false)?;
                // One that came before it was armed raises no event.
                completions = self.cq.poll(OUTSTANDING)?;
                if completions.is_empty() && is_readable(channel.fd(), PATIENCE) {
                    channel.event()?;
                    self.cq.acknowledge_events(1);
                    completions = self.cq.poll(OUTSTANDING)?;
                }
            }
            if let Some(bad) = completions.iter().find(|wc| wc.status != Status::SUCCESS) {
                anyhow::bail!("a request failed: {bad:?}");
            }
            if !completions.is_empty() {
                self.outstanding -= completions.len();
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "no completion within {PATIENCE:?}");
        }
    }
}

/// Waits until each has said a number.
fn everybody(children: &mut [Child]) -> Result<Vec<u64>> {
    let said = |(own, child): (usize, &mut Child)| {
        child.receive::<1>().map(|[number]| number).with_context(|| format!("process {own}"))
    };
    children.iter_mut().enumerate().map(said).collect()
}

/// Lets all go on.
fn tell(children: &mut [Child]) -> Result<()> {
    children.iter_mut().try_for_each(|child| child.send(&[0]))
}

fn median(mut numbers: Vec<u64>) -> usize {
    numbers.sort_unstable();
    numbers.get(numbers.len() / 2).map_or(0, |number| usize::try_from(*number).unwrap_or(usize::MAX))
}
