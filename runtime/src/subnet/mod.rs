//! The InfiniBand subnet of a device: the engine's [`Subnet`] with its datagrams, addresses and time.
//!
//! Nodes that are no hosts, switches and the ends of directed routes, have GIDs here that never reach the network
//! ([`node_gid`]): what an agent sends there goes to the subnet first.
//!
//! A process wakes up for its subnet only while something is pending: the owner of the address to announce the port, the others
//! when a host has been silent for too long. A change of the interface, or of the address's owner, is told.

mod agent;
mod ask;
mod config;
mod memberships;
mod nodes;
mod queries;
mod roles;
mod sm_watch;

pub use agent::PortAgent;
pub use nodes::{lid_of_node, node_gid};
pub use queries::{AdministrationClient, Answer};
pub use roles::{administered, takes_traps};

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use urxe_engine::Instant;
use urxe_engine::mad::{Address, AgentId, MadPort, Outgoing, Refusal};
use urxe_engine::subnet::{self, Event, Output, PortMembership, Subnet};
use urxe_net::{Destination, Interface, Membership, PortLids, issm, random_u32};
use urxe_wire::mad::subnet_vendor::is_announcement;
use urxe_wire::mad::{MAD_LEN, Mad, smp};
use urxe_wire::{Gid, Lid, Psn, Qpn};

use crate::device::{Device, TxContext};
use crate::event::EventType;
use crate::{clock, gsi};
use config::config;
use memberships::Memberships;
use queries::{Asker, Queries};
use sm_watch::SmWatch;

/// Multicast group of announcements: of administrative scope (RFC 2365), and they do not leave the link.
const GROUP: [u8; 4] = [239, 255, 117, 114];
const ONE_LINK: u8 = 1;
/// Interval between attempts to join it.
const AGAIN: Duration = Duration::from_secs(1);
/// How often a request of the port's own is sent again.
const RETRIES: u32 = 3;

/// The subnet, and the agent by which it sends messages of its own. `C` is what agents of the process give along with
/// messages ([`Outgoing::context`]).
#[derive(Debug)]
pub struct Fabric<C> {
    subnet: Subnet,
    /// Takes subnet administration, as far as no program of this process does.
    agent: AgentId,
    /// Methods of subnet administration that it takes.
    methods: u128,
    interface: Arc<Interface>,
    /// The interface is to be looked at.
    look_at: Option<Instant>,
    sm_watch: SmWatch,
    membership: Option<Arc<Membership>>,
    queries: Queries,
    memberships: Memberships,
    answers: Vec<Answer>,
    /// Clients are to hear that their memberships have ended.
    has_ended: bool,
    /// When to look whether processes that have joined the port to groups are still there.
    probe_at: Option<Instant>,
    context: C,
}

fn group() -> Gid {
    Gid::from(std::net::IpAddr::from(GROUP))
}

impl<C: Clone> Fabric<C> {
    /// The subnet of a device; `None` if its port is not one of InfiniBand, or has no LID.
    pub fn new(device: &Device, port: &mut MadPort<C>, context: C) -> Option<Self> {
        let net = device.net();
        let interface = net.interface();
        if !has_subnet(&interface) {
            return None;
        }
        let qpn = net.alloc_qpn().ok()?;
        let agent = AgentId(random_u32() & 0xFF00_0000 | qpn.get());
        // Hosts of the link answer questions of each other: only the one that was asked counts.
        port.compare_responders(true);
        let now = clock::now();
        let subnet = Subnet::new(now, config(device, &interface), u64::from(agent.0) << 32);
        let membership = net.join_multicast(&group()).ok();
        net.report_headers();
        let mut new = Self {
            subnet,
            agent,
            methods: 0,
            interface,
            look_at: Some(now),
            sm_watch: SmWatch::default(),
            membership,
            queries: Queries::default(),
            memberships: Memberships::default(),
            answers: Vec::new(),
            has_ended: false,
            probe_at: None,
            context,
        };
        new.administrate(port, 0);
        Some(new)
    }

    /// Follows the interface, and who owns its address. The subnet begins when the port has got a LID, and ends when it has none
    /// any more: returns what was asked of it then.
    pub fn follow(
        fabric: &mut Option<Self>,
        device: &Device,
        now: Instant,
        port: &mut MadPort<C>,
        context: C,
    ) -> Vec<Answer> {
        let has_subnet = has_subnet(&device.net().interface());
        match fabric {
            Some(known) if has_subnet => known.look(device, now),
            None if has_subnet => {
                *fabric = Self::new(device, port, context);
                if fabric.is_some() {
                    device.raise_port_event(EventType::LidChange);
                }
            }
            Some(_) => {
                if let Some(mut gone) = fabric.take() {
                    port.unregister(gone.agent);
                    port.compare_responders(false);
                    device.net().free_qpn(Qpn::new(gone.agent.0));
                    device.net().lids().assign(None);
                    device.raise_port_event(EventType::LidChange);
                    return gone.give_up();
                }
            }
            None => {}
        }
        Vec::new()
    }

    /// Whether an agent of this process takes traps.
    pub const fn set_takes_traps(&mut self, takes: bool) {
        self.subnet.set_takes_traps(takes);
    }

    /// Looks at what changes without a datagram.
    fn look(&mut self, device: &Device, now: Instant) {
        let net = device.net();
        let interface = net.interface();
        if !Arc::ptr_eq(&interface, &self.interface) {
            self.subnet.configure(now, config(device, &interface));
            self.interface = interface;
            self.assign(device);
        }
        if self.membership.is_none() {
            self.membership = net.join_multicast(&group()).ok();
        }
        let own = self.interface.first_ipv4().map(|(_, address)| address.into());
        self.subnet.set_owner(now, own.is_some_and(|address| net.owns_address(address)));
        self.look_for_manager(now);
        self.look_at = self.membership.is_none().then(|| now + AGAIN);
    }

    /// Looks whether a program of this host is a subnet manager, unless it has just done so: the owner says so.
    fn look_for_manager(&mut self, now: Instant) {
        if !self.subnet.is_owner() {
            self.sm_watch = SmWatch::default();
        } else if self.sm_watch.take(now) {
            // Where the system does not say, what was known holds.
            if let Ok(is_sm) = issm::is_open(self.interface.name()) {
                self.subnet.set_sm(now, is_sm);
            }
        }
    }

    /// Says which LIDs the port and its subnet manager have.
    fn assign(&self, device: &Device) {
        let (lid, sm_lid) = (self.interface.lid(), self.subnet.sm_lid());
        device.net().lids().assign(Some(PortLids { lid, sm_lid, ..PortLids::default() }));
    }

    /// Handles the timers that have expired.
    pub fn handle_timeout(&mut self, device: &Device, now: Instant) {
        if self.look_at.is_some_and(|at| at <= now) {
            self.look(device, now);
        }
        if self.sm_watch.poll_timeout().is_some_and(|at| at <= now) {
            self.look_for_manager(now);
        }
        if self.subnet.poll_timeout().is_some_and(|at| at <= now) {
            self.look_for_manager(now);
            self.subnet.handle_timeout(now);
        }
        if self.probe_at.is_some_and(|at| at <= now) {
            self.probe(device, now);
        }
    }

    /// Time at which [`handle_timeout`](Self::handle_timeout) wants to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let looks = self.look_at.into_iter().chain(self.sm_watch.poll_timeout()).chain(self.probe_at);
        self.subnet.poll_timeout().into_iter().chain(looks).min()
    }

    /// Whether the subnet is known, as far as hosts have answered: programs' questions to switches wait until then.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.subnet.is_known(clock::now())
    }

    fn lid(&self, device: &Device, gid: &Gid) -> Lid {
        lid_of_node(gid).unwrap_or_else(|| device.net().lids().lid_of(&self.interface, gid.ip()))
    }

    /// The address of a host, from the own one.
    fn address(&self, device: &Device, lid: Lid, qpn: Qpn) -> Option<Address> {
        let (_, own) = self.interface.first_ipv4()?;
        let peer = device.net().lids().address_of(&self.interface, lid)?;
        let gid = |address: std::net::Ipv4Addr| Gid::from(std::net::IpAddr::V4(address));
        let (local, remote) = (gid(own), gid(peer));
        Some(Address { local, remote, qpn, flow_label: 0, traffic_class: 0, hop_limit: 64 })
    }

    /// Sends a datagram of an agent to a node that is no host.
    pub fn send_to_node(&mut self, device: &Device, lid: Lid, qpn: Qpn, datagram: &[u8; MAD_LEN]) {
        if let Err(refusal) = self.subnet.send(clock::now(), lid, qpn, datagram) {
            count(device, refusal);
        }
    }

    /// Takes a datagram that may be the subnet's; returns what is left for agents.
    pub fn receive(
        &mut self,
        device: &Device,
        now: Instant,
        from: &Address,
        datagram: &[u8; MAD_LEN],
        has_agent: impl FnOnce(&Mad) -> bool,
    ) -> Option<[u8; MAD_LEN]> {
        let Some(header) = Mad::of(datagram) else { return Some(*datagram) };
        // Answers of the owner are for whoever has asked it.
        if PortMembership::parse(datagram).is_some_and(|membership| membership.is_answer()) {
            return Some(*datagram);
        }
        let result = if is_announcement(&header, datagram) {
            self.subnet.handle_announcement(now, from, self.lid(device, &from.remote), datagram).map(|()| None)
        } else if smp::is_class(header.class) {
            let is_request = matches!(header.method, Mad::METHOD_GET | Mad::METHOD_SET);
            let is_of_port = header.attribute_id == smp::Attribute::PortInfo as u16;
            if is_request && is_of_port && self.subnet.is_of_network(from) {
                self.look_for_manager(now);
            }
            self.subnet.handle_smp(now, from, datagram, has_agent(&header))
        } else {
            return Some(*datagram);
        };
        result.unwrap_or_else(|refusal| {
            count(device, refusal);
            None
        })
    }

    /// Whether an agent is the subnet's own.
    pub fn is_own(&self, agent: AgentId) -> bool {
        agent == self.agent
    }

    /// Carries out what the subnet puts out: datagrams, events and answers. Returns whether there was anything.
    pub fn pump(&mut self, device: &Device, work: &mut TxContext, psn: &mut Psn, port: &mut MadPort<C>) -> bool {
        let mut has_more = self.settle(device, port);
        while let Some(output) = self.subnet.poll_output() {
            has_more = true;
            self.put(device, work, psn, port, output);
        }
        while let Some(event) = self.subnet.take_event() {
            self.assign(device);
            if matches!(event, Event::Lid(_) | Event::Active(false) | Event::Reregister) {
                self.memberships.end();
                self.has_ended = true;
            }
            let event_type = match event {
                Event::SubnetManager(_) => EventType::SmChange,
                Event::Lid(_) => EventType::LidChange,
                Event::Active(true) => EventType::PortActive,
                Event::Active(false) => EventType::PortError,
                Event::Reregister => EventType::ClientReregister,
            };
            device.raise_port_event(event_type);
        }
        if self.subnet.take_owner_change() {
            self.claim(device, port);
            has_more = true;
        }
        self.plan_probe();
        has_more
    }

    fn put(&mut self, device: &Device, work: &mut TxContext, psn: &mut Psn, port: &mut MadPort<C>, output: Output) {
        let now = clock::now();
        if let Output::Relay(number, request) = output {
            return self.send_query(device, now, port, Asker::Process(number), &request);
        }
        let mut send = |to: &Address, datagram: &[u8; MAD_LEN]| {
            gsi::send_to(work, device.net(), *psn, &destination(to), datagram);
            *psn = psn.next();
        };
        match output {
            Output::Announce(datagram) => {
                let own = self.address(device, self.interface.lid(), Qpn::GSI);
                if let Some(own) = own.filter(|_| self.membership.is_some()) {
                    send(&Address { remote: group(), hop_limit: ONE_LINK, ..own }, &datagram);
                }
            }
            Output::Send(lid, qpn, datagram) => {
                if let Some(to) = self.address(device, lid, qpn) {
                    port.expect_response(&datagram, to.remote);
                    send(&to, &datagram);
                }
            }
            Output::Reply(to, qpn, datagram) => {
                let qpn = if qpn == Qpn::SMI { qpn } else { to.qpn };
                // A question came to the group.
                let own = self.interface.first_ipv4().map(|(_, own)| Gid::from(std::net::IpAddr::V4(own)));
                let local = if to.local == group() { own.unwrap_or(to.local) } else { to.local };
                send(&Address { qpn, local, hop_limit: 0, ..to }, &datagram);
            }
            Output::Local(lid, qpn, datagram) => {
                let Some(own) = self.address(device, self.interface.lid(), qpn) else { return };
                let from = Address { remote: node_gid(lid), ..own };
                // A trap that nobody takes is no fault of anybody's.
                if let Err(refusal @ (Refusal::NoRequest | Refusal::Rmpp)) = port.handle(now, &from, &datagram) {
                    count_refusal(device, refusal);
                }
            }
            Output::Relay(..) => {}
            Output::Message(to, message, timeout) => self.request(now, port, to, message, timeout),
            Output::Request(lid, datagram, timeout) => {
                if let Some(to) = self.address(device, lid, Qpn::SMI) {
                    self.request(now, port, to, datagram.to_vec(), Some(timeout));
                }
            }
        }
    }

    fn request(&self, now: Instant, port: &mut MadPort<C>, to: Address, message: Vec<u8>, timeout: Option<Duration>) {
        let outgoing = Outgoing { to, message, timeout, retries: RETRIES, context: self.context.clone() };
        // What cannot be sent is asked for again.
        let _ = port.send(now, self.agent, outgoing);
    }
}

fn has_subnet(interface: &Interface) -> bool {
    interface.link_layer().is_infiniband() && interface.lid() != Lid::NONE
}

/// Where packets of a datagram to this address go.
fn destination(to: &Address) -> Destination {
    let Address { local, remote, qpn, flow_label, traffic_class, hop_limit } = *to;
    Destination { local, remote, dest_qpn: qpn, flow_label, tclass: traffic_class, hop_limit }
}

/// Counts a datagram to agents that was of no use.
pub fn count_refusal(device: &Device, refusal: Refusal) {
    let counters = device.counters();
    let counter = match refusal {
        Refusal::Malformed => &counters.mad_malformed,
        Refusal::NoAgent => &counters.mad_no_agent,
        Refusal::NoRequest => &counters.mad_no_request,
        Refusal::Rmpp => &counters.mad_rmpp_refused,
    };
    counter.fetch_add(1, Ordering::Relaxed);
}

fn count(device: &Device, refusal: subnet::Refusal) {
    let counters = device.counters();
    let counter = match refusal {
        subnet::Refusal::Malformed => &counters.mad_malformed,
        subnet::Refusal::NoWay => &counters.smp_no_way,
        subnet::Refusal::Key => &counters.smp_bad_key,
        subnet::Refusal::Full => &counters.subnet_full,
        subnet::Refusal::Lie => &counters.subnet_lies,
    };
    counter.fetch_add(1, Ordering::Relaxed);
}
