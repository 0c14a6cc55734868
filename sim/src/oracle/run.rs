//! Carrying out a scenario, and checking what came of it.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use urxe_engine::attr::{AttrMask, QpAttr};
use urxe_engine::quirks::Quirk;
use urxe_engine::rng::Rng;
use urxe_engine::{Access, Event, QpState, Recipient, RecvWr, SendFlags, SendOp, SendWr, SgeList, WcStatus};
use urxe_engine::{Data, event::RetryReason};

use super::complaint::{Complaint, ensure};
use super::plan::Poison;
use super::scenario::{Profile, Scenario};
use super::stream::Stream;
use crate::NodeEvent;
use crate::counts::Counts;
use crate::fabric::{Fabric, Step};
use crate::rule::{Chance, Corrupts, Delays, Drops, Duplicates, Flight, Verdict};
use crate::{NodeConfig, NodeId};

/// Alarms.
const RECEIVES: u64 = 0;
const DRAIN: u64 = 1;
const DEREGISTER: u64 = 2;
/// Time between two drains of all send queues.
const DRAIN_INTERVAL: Duration = Duration::from_micros(150);
/// Time between batches of receives.
const RECV_INTERVAL: Duration = Duration::from_micros(700);
/// Steps after which a scenario counts as endless.
const MOST_STEPS: u64 = 3_000_000;

/// Report of a scenario that went as it should.
#[derive(Clone, Debug)]
pub struct Report {
    /// Fates of packets.
    pub counts: Counts,
    /// Packets it would take if nothing were lost and every request packet acknowledged.
    pub needed: u64,
    /// Times that a requester went back.
    pub retries: u64,
    /// Packets that were sent again alone.
    pub sent_again: u64,
    /// Requesters that agreed with their peer on selective repeat.
    pub agreed: u64,
    /// Packets that responders kept behind a gap.
    pub kept: u64,
    /// Directions in which requests failed.
    pub failed: usize,
    /// [`Fabric::digest`].
    pub digest: u64,
}

impl Scenario {
    /// Carries it out and checks everything. With `capture`, `fabric` keeps all packets.
    ///
    /// # Errors
    /// The first thing that must not be.
    pub fn run(&self, fabric: &mut Fabric) -> Result<Report, Complaint> {
        let mut run = Run::new(self, fabric)?;
        run.traffic(fabric)?;
        run.check_failures()?;
        let retries = retries(fabric);
        run.tear_down(fabric)?;
        run.check_memory(fabric)?;
        run.check_effort(fabric, &retries)?;
        Ok(Report {
            counts: *fabric.counts(),
            needed: self.needed(),
            retries: retries.total(),
            sent_again: retries.alone,
            agreed: retries.agreed,
            kept: retries.kept,
            failed: run.streams.iter().filter(|stream| !stream.is_complete()).count(),
            digest: fabric.digest(),
        })
    }

    fn needed(&self) -> u64 {
        let connections = self.connections.iter().zip(&self.plans);
        connections.map(|(c, plans)| plans.iter().map(|plan| plan.packets(c.attr.path_mtu)).sum::<u64>()).sum()
    }
}

/// How often requesters went back, by reason.
#[derive(Clone, Copy, Debug, Default)]
struct Retries {
    timeout: u64,
    sequence: u64,
    implied: u64,
    rnr: u64,
    probes: u64,
    migrations: u64,
    /// Packets sent again alone, and selective acknowledgements.
    alone: u64,
    selective_acks: u64,
    agreed: u64,
    kept: u64,
}

impl Retries {
    const fn total(&self) -> u64 {
        self.timeout + self.sequence + self.implied + self.rnr + self.probes + self.migrations
    }
}

fn retries(fabric: &Fabric) -> Retries {
    let mut retries = Retries::default();
    for (_, _, event) in fabric.journal() {
        let NodeEvent::Trace(_, event) = event else { continue };
        *match event {
            Event::Retry { reason: RetryReason::AckTimeout, .. } => &mut retries.timeout,
            Event::Retry { reason: RetryReason::SequenceNak, .. } => &mut retries.sequence,
            Event::Retry { reason: RetryReason::ImpliedNak, .. } => &mut retries.implied,
            Event::Retry { reason: RetryReason::Rnr, .. } => &mut retries.rnr,
            Event::Retry { reason: RetryReason::TailLossProbe, .. } => &mut retries.probes,
            Event::Retry { reason: RetryReason::PathMigration, .. } => &mut retries.migrations,
            Event::SentAgain { .. } => &mut retries.alone,
            Event::SentSelectiveAck => &mut retries.selective_acks,
            Event::SelectiveRepeat { .. } => &mut retries.agreed,
            Event::OutOfOrder { kept: true, .. } => &mut retries.kept,
            _ => continue,
        } += 1;
    }
    retries
}

/// A scenario being carried out.
struct Run<'a> {
    scenario: &'a Scenario,
    nodes: [NodeId; 2],
    counters: [u64; 2],
    /// Two for each connection.
    streams: Vec<Stream>,
}

impl<'a> Run<'a> {
    fn new(scenario: &'a Scenario, fabric: &mut Fabric) -> Result<Self, Complaint> {
        let nodes = [1, 2].map(|nth| {
            let address = scenario.ipv6.then(|| IpAddr::V6(Ipv6Addr::new(0xFD00, 0, 0, 0, 0, 0, 0, nth)));
            fabric.add_node(NodeConfig { seed: scenario.seed ^ u64::from(nth), address, ..scenario.node })
        });
        let counters = nodes
            .map(|id| fabric.node_mut(id).memory_mut().register_new(8, Access::LOCAL_WRITE | Access::REMOTE_ATOMIC));
        if !scenario.node.quirks.is_some_and(|quirks| quirks.shows(Quirk::WriteOrder)) {
            nodes.iter().for_each(|id| fabric.node_mut(*id).memory_mut().record_stores());
        }
        if let Some(bottleneck) = scenario.bottleneck {
            nodes.iter().for_each(|id| fabric.set_bottleneck(*id, bottleneck, scenario.seed));
        }
        let [drop, duplicate, delay, corrupt] = scenario.chances;
        if let Some(last) = scenario.blackhole_after {
            fabric
                .add_rule(move |flight: &Flight<'_>| if flight.number < last { Verdict::Pass } else { Verdict::Drop });
        }
        fabric.add_rule(Drops::new(scenario.seed ^ 3, drop));
        fabric.add_rule(Duplicates::new(scenario.seed ^ 4, duplicate, Duration::from_micros(200)));
        fabric.add_rule(Delays::new(scenario.seed ^ 5, delay, Duration::from_micros(60)));
        fabric.add_rule(Corrupts::new(scenario.seed ^ 6, corrupt));
        let is_spread =
            scenario.connections.iter().flat_map(|connection| connection.selective_paths).any(|paths| paths > 1);
        if is_spread && scenario.chances != [Chance::NEVER; 4] {
            // Each source port has its own delay. A requester that has not heard yet that it may repeat selectively goes
            // back for that.
            let step = Rng::new(scenario.seed ^ 7).below(8_000);
            let delay = move |flight: &Flight<'_>| step * u64::from(flight.source_port / 0x111 % 4);
            fabric.add_rule(move |flight: &Flight<'_>| Verdict::Delay(Duration::from_nanos(delay(flight))));
        }

        let mut streams = Vec::new();
        for (connection, [there, back]) in scenario.connections.iter().zip(&scenario.plans) {
            let (a, b) = (nodes[0], nodes[1]);
            let (qp_a, qp_b) = fabric.connect(a, b, connection);
            let keeps = connection.selective_paths.iter().all(|paths| *paths > 0);
            streams.push(Stream::new(fabric, there.clone(), (a, qp_a), (b, qp_b), counters[1].remote(), keeps));
            streams.push(Stream::new(fabric, back.clone(), (b, qp_b), (a, qp_a), counters[0].remote(), keeps));
        }
        for stream in &mut streams {
            stream.post_recvs(fabric, scenario.recv_batch)?;
        }
        Ok(Self { scenario, nodes, counters: counters.map(|buffer| buffer.addr), streams })
    }

    /// Posts everything and waits until nothing happens any more.
    fn traffic(&mut self, fabric: &mut Fabric) -> Result<(), Complaint> {
        for stream in &mut self.streams {
            stream.post_sends(fabric)?;
        }
        fabric.alarm(fabric.now() + RECV_INTERVAL, RECEIVES);
        if self.scenario.profile == Profile::Draining {
            fabric.alarm(fabric.now() + DRAIN_INTERVAL, DRAIN);
        }
        if let Some(after) = self.scenario.deregister_after {
            fabric.alarm(fabric.now() + after, DEREGISTER);
        }
        let mut steps = 0;
        while let Some(step) = fabric.step() {
            steps += 1;
            ensure!(steps < MOST_STEPS, "still going on after {steps} steps at {:?}", fabric.now());
            match step {
                Step::Arrived(_) | Step::Queued(_) => {}
                Step::Alarm(DRAIN) => {
                    for stream in &mut self.streams {
                        stream.drain(fabric)?;
                        stream.go_on(fabric)?;
                    }
                    if fabric.is_busy() {
                        fabric.alarm(fabric.now() + DRAIN_INTERVAL, DRAIN);
                    }
                }
                Step::Alarm(DEREGISTER) => {
                    for (stream, nth) in self.streams.iter().zip(self.scenario.seed % 3..) {
                        stream.deregister(fabric, nth % 3);
                    }
                }
                Step::Alarm(_) => {
                    for stream in &mut self.streams {
                        stream.post_recvs(fabric, self.scenario.recv_batch)?;
                    }
                    // A direction that has failed never takes the rest.
                    if self.streams.iter().any(Stream::wants_recvs) && fabric.is_busy() {
                        fabric.alarm(fabric.now() + RECV_INTERVAL, RECEIVES);
                    }
                }
                Step::Served(node) => {
                    self.check_stores(fabric, node)?;
                    self.poll(fabric)?;
                    for stream in &mut self.streams {
                        stream.post_sends(fabric)?;
                        stream.go_on(fabric)?;
                    }
                }
            }
        }
        for stream in &mut self.streams {
            stream.go_on(fabric)?;
            stream.check_drains(fabric)?;
        }
        self.poll(fabric)
    }

    /// Checks what a node has stored since the last time.
    fn check_stores(&mut self, fabric: &Fabric, node: NodeId) -> Result<(), Complaint> {
        let stores = fabric.node(node).memory().take_stores();
        for (at, stream) in self.streams.iter_mut().enumerate().filter(|(_, stream)| stream.to == node) {
            stream.check_stores(&stores).map_err(|Complaint(why)| Complaint(format!("stream {at}: {why}")))?;
        }
        Ok(())
    }

    /// Receives first: a sender's success means that the receiver's completion is there.
    fn poll(&mut self, fabric: &mut Fabric) -> Result<(), Complaint> {
        for stream in &mut self.streams {
            stream.poll_recvs(fabric)?;
        }
        for stream in &mut self.streams {
            stream.poll_sends(fabric)?;
        }
        Ok(())
    }

    /// Failures are of the kind that the scenario provokes.
    fn check_failures(&self) -> Result<(), Complaint> {
        for (at, stream) in self.streams.iter().enumerate() {
            if self.scenario.profile.must_succeed() {
                ensure!(
                    stream.is_complete(),
                    "stream {at} did not succeed: {:?}, {:?}",
                    stream.error,
                    stream.recv_error
                );
            }
            let poisoned = stream.plan.ops.iter().enumerate().find_map(|(at, op)| Some((at, op.poison?)));
            match (poisoned, stream.error) {
                (Some((op, poison)), error) if self.scenario.profile == Profile::Poisoned => {
                    let expected = Some((op, consequence(poison)));
                    ensure!(
                        error == expected,
                        "stream {at} failed with {error:?} instead of {expected:?} by {poison:?}"
                    );
                }
                (Some((op, poison)), Some((failed, status))) => {
                    let fits = status == consequence(poison) && failed == op
                        || matches!(status, WcStatus::RetryExceededError | WcStatus::WrFlushError) && failed <= op;
                    ensure!(fits, "stream {at} failed with {status:?} at {failed} by {poison:?} at {op}");
                }
                (Some((op, poison)), None) => {
                    return Err(Complaint(format!("stream {at} did not fail by {poison:?} at {op}")));
                }
                (None, Some((failed, status))) => {
                    let fits = match status {
                        WcStatus::RetryExceededError | WcStatus::WrFlushError => true,
                        WcStatus::LocalProtectionError
                        | WcStatus::RemoteAccessError
                        | WcStatus::RemoteOperationError => self.scenario.profile == Profile::Deregister,
                        _ => false,
                    };
                    ensure!(fits, "stream {at} failed with {status:?} at {failed}");
                }
                (None, None) => {}
            }
        }
        Ok(())
    }

    /// Puts all QPs into ERR; everything left is flushed, and posts to them are flushed at once.
    fn tear_down(&mut self, fabric: &mut Fabric) -> Result<(), Complaint> {
        for at in 0..self.streams.len() {
            let (node, qp) = (self.streams[at].from, self.streams[at].qp);
            fabric
                .modify(node, qp, QpState::Err, AttrMask::NONE, &QpAttr::default())
                .map_err(|error| Complaint(format!("modify to ERR: {error:?}")))?;
            self.poll(fabric)?;
        }
        fabric.run();
        self.poll(fabric)?;
        for stream in &self.streams {
            stream.check_end(fabric)?;
            let wr = SendWr {
                wr_id: 1 << 32,
                op: SendOp::Send,
                data: Data::Gather(SgeList::new(&[])),
                flags: SendFlags::default(),
                to: Recipient::Peer,
            };
            let recv = RecvWr { wr_id: 1 << 33, buffers: SgeList::new(&[]) };
            let posted = (fabric.post_send(stream.from, stream.qp, wr), fabric.post_recv(stream.from, stream.qp, recv));
            ensure!(posted == (Ok(()), Ok(())), "posting in ERR: {posted:?}");
            // Completions may be late.
            fabric.run();
            for (cq, wr_id) in [
                (fabric.node(stream.from).send_cq(stream.qp), 1 << 32),
                (fabric.node(stream.from).recv_cq(stream.qp), 1 << 33),
            ] {
                let cqe = fabric.node_mut(stream.from).poll(cq).map(|cqe| (cqe.wr_id, cqe.status));
                ensure!(cqe == Some((wr_id, WcStatus::WrFlushError)), "posted in ERR, but got {cqe:?}");
                let extra = fabric.node_mut(stream.from).poll(cq);
                ensure!(extra.is_none(), "a completion from nowhere: {extra:?}");
            }
        }
        Ok(())
    }

    fn check_memory(&self, fabric: &Fabric) -> Result<(), Complaint> {
        for (id, addr) in self.nodes.into_iter().zip(self.counters) {
            let memory = fabric.node(id).memory();
            ensure!(memory.violations().is_empty(), "outside of regions: {:?}", memory.violations());
            let word = u64::from_ne_bytes(memory.peek(addr, 8).try_into().expect("eight bytes"));
            let (mut least, mut most, mut seen) = (0, 0, 0);
            for stream in self.streams.iter().filter(|stream| stream.to == id) {
                let (sure, possible) = stream.counts();
                (least, most, seen) = (least + sure, most + possible, seen + stream.counted.len() as u64);
                ensure!(stream.counted.iter().all(|&count| count < word), "counted beyond {word}");
            }
            ensure!(least == seen, "{least} counts succeeded, {seen} were seen");
            ensure!((least..=most).contains(&word), "counted to {word} in {least} to {most} atomics");
        }
        Ok(())
    }

    /// Packets of selective repeat.
    fn selective_bound(&self, retries: &Retries, window: u64) -> u64 {
        const OFFERS: u64 = 4 * 8;
        // Each packet may be a request for the responses to a whole window.
        let offers = if self.scenario.connections.iter().any(|c| c.selective_paths != [0; 2]) { OFFERS } else { 0 };
        offers * self.scenario.connections.len() as u64 + retries.alone * (window + 2) + retries.selective_acks
    }

    /// Sending again is explained by what the network did.
    fn check_effort(&self, fabric: &Fabric, retries: &Retries) -> Result<(), Complaint> {
        let counts = fabric.counts();
        if self.scenario.profile == Profile::Clean {
            ensure!(retries.total() == 0, "sent again for no reason: {retries:?}");
        }
        let window = self.scenario.connections.iter().map(|c| u64::from(c.window.max(2))).max().unwrap_or(0);
        let explained = counts.impaired() + counts.bad_icrc + retries.timeout + retries.probes;
        ensure!(retries.sequence + retries.implied <= 4 * explained, "went back too often: {retries:?} for {counts:?}");
        // Going back repeats at most a window of requests, each of which may be answered.
        let bound = 2 * self.scenario.needed()
            + 64
            + retries.total() * (2 * window + 8)
            + 2 * counts.duplicated
            + counts.marked
            + self.selective_bound(retries, window);
        ensure!(counts.sent <= bound, "{} packets, expected at most {bound}: {retries:?}, {counts:?}", counts.sent);
        Ok(())
    }
}

/// How a poisoned request completes (IBA 9.9.2, 9.9.3 and table 104; `ibv_poll_cq(3)`).
const fn consequence(poison: Poison) -> WcStatus {
    match poison {
        Poison::RKey | Poison::OutOfBounds => WcStatus::RemoteAccessError,
        Poison::LKey => WcStatus::LocalProtectionError,
        Poison::RecvTooShort | Poison::Misaligned => WcStatus::RemoteInvalidRequestError,
        Poison::RecvLKey => WcStatus::RemoteOperationError,
        Poison::NoRecv => WcStatus::RnrRetryExceededError,
    }
}
