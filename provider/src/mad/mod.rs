//! Agents for management datagrams: what the kernel's `ib_mad` module keeps for a port.
//!
//! ```text
//! kernel/umad  commands ─▶ Mads ─▶ urxe_engine::mad (a MadPort for each device) ─▶ runtime/gsi  datagrams of QP1
//!              reads    ◀─ Inbox ◀─
//! ```
//!
//! One lock a device holds its agents: it is taken inside the receive token, as that of rdma_cm's ids is, and never together
//! with that.

pub(crate) mod inbox;
mod perf;
mod zeros;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use urxe_engine::Instant;
use urxe_engine::mad::{Address, AgentId, Claim, Delivery, MadPort, Outgoing, SendError, perf as engine_perf};
use urxe_net::{Destination, MadClaim, Service};
use urxe_wire::mad::{MAD_LEN, Mad, smp};
use urxe_wire::{Psn, Qpn};

use crate::kernel::Errno;
use inbox::{Content, HEADER, Header, Inbox, Packet};
use perf::PerfWorker;
use urxe_runtime::device::{Device, TxContext};
use urxe_runtime::gsi::{self, MadHandler};
use urxe_runtime::subnet::{self, AdministrationClient, Answer, Fabric, count_refusal};
use urxe_runtime::{clock, lock};

const EINVAL: Errno = Errno(libc::EINVAL);
const ENODEV: Errno = Errno(libc::ENODEV);
const ENOMEM: Errno = Errno(libc::ENOMEM);

/// Version of communication management, whose requests the kernel's `ib_cm` takes.
const CM_REQUESTS: (u8, u8, u128) = (Mad::CLASS_CM, Mad::CM_VERSION, 1 << Mad::METHOD_SEND);

/// How long an agent of subnet management waits for the subnet to be known, at most, and between two looks.
const SUBNET_TIMEOUT: Duration = Duration::from_secs(1);
const SUBNET_LOOK: Duration = Duration::from_millis(2);

/// Header of messages that no program has sent.
const NO_HEADER: Header = [0; HEADER];

/// Agents of a device in this process.
pub(crate) struct Mads {
    device: Weak<Device>,
    state: Mutex<State>,
    perf: PerfWorker,
    /// Client within the process of what [`ask`](Self::ask) asks: rdma_cm.
    client: Mutex<Option<Arc<dyn AdministrationClient>>>,
}

#[derive(Default)]
struct State {
    port: MadPort<Header>,
    agents: HashMap<AgentId, Agent>,
    psn: Psn,
    random: u64,
    /// Of a port of InfiniBand.
    fabric: Option<Fabric<Header>>,
    /// Answers that a subnet which is gone has left.
    left: Vec<Answer>,
}

/// Place of an agent in the file that it was registered by.
struct Agent {
    inbox: Arc<Inbox>,
    id: u32,
    claim: Option<Claim>,
    /// Names by which other processes find the agent, held for as long as it is there.
    names: Vec<Service>,
}

impl Mads {
    /// Makes the agents of a device, and has it bring datagrams here.
    pub(crate) fn start(device: &Arc<Device>, random: u64) -> Arc<Self> {
        let perf = PerfWorker::new(device);
        let mut state = State { random, ..State::default() };
        state.fabric = Fabric::new(device, &mut state.port, NO_HEADER);
        device.set_mad_timer(state.poll_timeout());
        let (state, client) = (Mutex::new(state), Mutex::default());
        let mads = Arc::new(Self { device: Arc::downgrade(device), state, perf, client });
        device.set_mads(Some(mads.clone()));
        mads
    }

    fn device(&self) -> Result<Arc<Device>, Errno> {
        self.device.upgrade().filter(|device| !device.has_failed()).ok_or(ENODEV)
    }

    /// Registers an agent, which the file of `inbox` calls `id` (`ib_register_mad_agent` of the kernel's mad.c).
    pub(crate) fn register(
        &self,
        claim: Option<Claim>,
        does_rmpp: bool,
        inbox: &Arc<Inbox>,
        id: u32,
    ) -> Result<AgentId, Errno> {
        let device = self.device()?;
        let net = device.net();
        if let Some(Claim { class, version, methods, .. }) = claim
            && (class, version) == (CM_REQUESTS.0, CM_REQUESTS.1)
            && methods & CM_REQUESTS.2 != 0
        {
            return Err(EINVAL);
        }
        let qpn = net.alloc_qpn().map_err(|_| ENOMEM)?;
        let agent = {
            let mut state = lock(&self.state);
            state.set_roles(claim);
            let registered = state.register(qpn, claim, does_rmpp).inspect(|agent| {
                state.agents.insert(*agent, Agent { inbox: Arc::clone(inbox), id, claim, names: Vec::new() });
            });
            state.set_roles(None);
            registered.inspect_err(|_| net.free_qpn(qpn))?
        };
        // Up to 128 names: datagrams of other agents go on meanwhile.
        let names = claim.map_or(Ok(Vec::new()), |claim| {
            let Claim { class, version, methods, .. } = claim;
            net.claim_mads(&MadClaim { class, version, oui: claim.vendor(), methods })
        });
        match names {
            Ok(names) => {
                if let Some(agent) = lock(&self.state).agents.get_mut(&agent) {
                    agent.names = names;
                }
                if claim.is_some_and(|claim| smp::is_class(claim.class) || claim.class == Mad::CLASS_SUBN_ADM) {
                    self.wait_for_subnet(&device);
                }
                // For the GRH of what arrives.
                net.report_headers();
                Ok(agent)
            }
            Err(error) => {
                self.unregister(agent);
                Err(if error.kind() == std::io::ErrorKind::AddrInUse { EINVAL } else { ENOMEM })
            }
        }
    }

    /// Waits until hosts have answered that they are there, or have had the time for it. Programs' patience begins with their first
    /// question, and is short: a tenth of a second for ibdiagnet.
    fn wait_for_subnet(&self, device: &Device) {
        let end = clock::now() + SUBNET_TIMEOUT;
        while clock::now() < end && lock(&self.state).fabric.as_ref().is_some_and(|fabric| !fabric.is_known()) {
            device.look();
            std::thread::sleep(SUBNET_LOOK);
        }
    }

    /// Ends an agent.
    pub(crate) fn unregister(&self, agent: AgentId) {
        let mut state = lock(&self.state);
        state.port.unregister(agent);
        let Some(gone) = state.agents.remove(&agent) else { return };
        state.set_roles(None);
        drop(state);
        gone.inbox.discard(gone.id);
        if let Some(device) = self.device.upgrade() {
            device.net().free_qpn(Qpn::new(agent.0));
        }
    }

    /// Sends an agent's message.
    pub(crate) fn send(&self, agent: AgentId, outgoing: Outgoing<Header>) -> Result<(), Errno> {
        let device = self.device()?;
        let mut state = lock(&self.state);
        state.port.send(clock::now(), agent, outgoing).map_err(|error| match error {
            SendError::Memory => ENOMEM,
            SendError::NoAgent | SendError::Length | SendError::Duplicate => EINVAL,
        })?;
        device.with_work(|work| state.pump(&device, work));
        drop(state);
        // What goes to another process of this address goes through its owner: if that is this process, now.
        device.look();
        Ok(())
    }

    /// Sets who hears the answers to what is [asked](Self::ask).
    pub(crate) fn set_client(&self, client: Option<Arc<dyn AdministrationClient>>) {
        *lock(&self.client) = client;
    }

    /// Sends a request to subnet administration; the client is told the answer, with this number.
    pub(crate) fn ask(&self, query: u32, request: &[u8; MAD_LEN]) {
        let mut state = lock(&self.state);
        let State { port, fabric, left, .. } = &mut *state;
        match (self.device(), fabric) {
            (Ok(device), Some(fabric)) => {
                fabric.ask(&device, clock::now(), port, query, request);
                device.with_work(|work| state.pump(&device, work));
            }
            _ => left.push(Answer { query, message: None }),
        }
        self.tell(state);
    }

    /// Gives the client its answers, with the lock released.
    fn tell(&self, mut state: MutexGuard<'_, State>) {
        let mut answers = std::mem::take(&mut state.left);
        let fabric = state.fabric.as_mut();
        let (new, has_ended) =
            fabric.map(|fabric| (fabric.take_answers(), fabric.take_end_of_memberships())).unwrap_or_default();
        answers.extend(new);
        drop(state);
        if answers.is_empty() && !has_ended {
            return;
        }
        let client = lock(&self.client).clone();
        let Some(client) = client else { return };
        answers.into_iter().for_each(|answer| client.answered(answer));
        if has_ended {
            client.memberships_ended();
        }
    }
}

impl State {
    fn register(&mut self, qpn: Qpn, claim: Option<Claim>, does_rmpp: bool) -> Result<AgentId, Errno> {
        let mut rng = urxe_engine::rng::Rng::new(self.random ^ clock::now().as_nanos());
        self.random = rng.next_u64();
        let [high, ..] = self.random.to_ne_bytes();
        let agent = AgentId(u32::from(high) << 24 | qpn.get());
        self.port.register(agent, claim, does_rmpp).map_err(|_| EINVAL)?;
        Ok(agent)
    }

    /// Tells the subnet which of its tasks agents have, `coming` included.
    fn set_roles(&mut self, coming: Option<Claim>) {
        let Some(fabric) = &mut self.fabric else { return };
        let claims = || self.agents.values().filter_map(|agent| agent.claim).chain(coming);
        fabric.set_takes_traps(claims().any(|claim| subnet::takes_traps(&claim)));
        fabric.administrate(&mut self.port, claims().fold(0, |taken, claim| taken | subnet::administered(&claim)));
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let subnet = self.fabric.as_ref().and_then(Fabric::poll_timeout);
        self.port.poll_timeout().into_iter().chain(subnet).min()
    }

    /// Sends what there is to send, and delivers what has come.
    fn pump(&mut self, device: &Device, work: &mut TxContext) {
        loop {
            self.send_and_deliver(device, work);
            let Self { fabric: Some(fabric), port, psn, .. } = self else { break };
            if !fabric.pump(device, work, psn, port) {
                break;
            }
        }
        device.set_mad_timer(self.poll_timeout());
    }

    fn send_and_deliver(&mut self, device: &Device, work: &mut TxContext) {
        while let Some(transmit) = self.port.poll_transmit() {
            let Address { local, remote, qpn, flow_label, traffic_class, hop_limit } = transmit.to;
            if let (Some(lid), Some(fabric)) = (subnet::lid_of_node(&remote), &mut self.fabric) {
                fabric.send_to_node(device, lid, qpn, &transmit.payload);
                continue;
            }
            let to = Destination { local, remote, dest_qpn: qpn, flow_label, tclass: traffic_class, hop_limit };
            let psn = self.psn;
            self.psn = psn.next();
            gsi::send_to(work, device.net(), psn, &to, &transmit.payload);
        }
        while let Some((agent, delivery)) = self.port.poll_delivery() {
            if let Some(fabric) = self.fabric.as_mut().filter(|fabric| fabric.is_own(agent)) {
                match delivery {
                    Delivery::Received { from, message } => fabric.deliver(device, clock::now(), &from, message),
                    Delivery::TimedOut { header, .. } => fabric.time_out(&header),
                }
                continue;
            }
            let Some(Agent { inbox, id, .. }) = self.agents.get(&agent) else { continue };
            let content = match delivery {
                Delivery::Received { from, message } => Content::Received { from, message },
                Delivery::TimedOut { context, header } => Content::TimedOut { context, header },
            };
            if !inbox.push(Packet { agent: *id, content }) {
                count(&device.counters().mad_queue_full);
            }
        }
    }
}

fn count(counter: &std::sync::atomic::AtomicU64) {
    counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
}

impl MadHandler for Mads {
    fn receive(&self, work: &mut TxContext, now: Instant, from: &Address, datagram: &[u8; MAD_LEN]) {
        let Some(device) = self.device.upgrade() else { return };
        if subnet::lid_of_node(&from.remote).is_some() {
            // GIDs by which the nodes of a subnet are known in here; none of them sends datagrams.
            return count(&device.counters().mad_malformed);
        }
        if Mad::of(datagram).is_some_and(|header| engine_perf::is_for_port(&header)) {
            if let Some(answer) = engine_perf::answer_without_counters(datagram) {
                let mut state = lock(&self.state);
                let psn = state.psn;
                state.psn = psn.next();
                let Address { local, remote, qpn, traffic_class, .. } = *from;
                let to =
                    Destination { local, remote, dest_qpn: qpn, flow_label: 0, tclass: traffic_class, hop_limit: 0 };
                gsi::send_to(work, device.net(), psn, &to, &answer);
            } else if !self.perf.ask(from, datagram) {
                count(&device.counters().mad_perf_dropped);
            }
            return;
        }
        let mut state = lock(&self.state);
        let State { port, fabric, .. } = &mut *state;
        let left = match fabric {
            Some(fabric) => fabric.receive(&device, now, from, datagram, |header| port.takes(header, datagram)),
            None => Some(*datagram),
        };
        if let Some(datagram) = left
            && let Err(refusal) = state.port.handle(now, from, &datagram)
        {
            count_refusal(&device, refusal);
        }
        state.pump(&device, work);
        self.tell(state);
    }

    fn port_changed(&self, work: &mut TxContext, now: Instant) {
        let Some(device) = self.device.upgrade() else { return };
        let mut state = lock(&self.state);
        let State { port, fabric, left, .. } = &mut *state;
        left.extend(Fabric::follow(fabric, &device, now, port, NO_HEADER));
        state.set_roles(None);
        state.pump(&device, work);
        self.tell(state);
    }

    fn handle_timeout(&self, now: Instant) {
        let Some(device) = self.device.upgrade() else { return };
        let mut state = lock(&self.state);
        state.port.handle_timeout(now);
        if let Some(fabric) = &mut state.fabric {
            fabric.handle_timeout(&device, now);
        }
        device.with_work(|work| state.pump(&device, work));
        self.tell(state);
    }
}
