//! An InfiniBand subnet without a switch and without a subnet manager: hosts on an Ethernet that answer as if there were both.
//!
//! A [`Subnet`] is what one process knows of it. Hosts tell each other that they are there by announcements; the switches they
//! hang on ([`urxe_wire::mad::topology`]) exist in every process alike, so what a program asks a switch is answered in its own
//! process, and what leaves by a port of a switch goes to the host there. The process that owns a host's address answers for
//! the host's port. A built-in subnet manager has every port active, and the built-in subnet administration knows what the
//! process knows; both stand aside where a program of some host is the subnet's manager.
//!
//! | | |
//! |---|---|
//! | commands | [`Subnet::send`], [`set_owner`](Subnet::set_owner), [`set_sm`](Subnet::set_sm), [`configure`](Subnet::configure) |
//! | input | [`Subnet::handle_smp`], [`handle_announcement`](Subnet::handle_announcement), [`handle_administration`](Subnet::handle_administration), [`handle_relayed`](Subnet::handle_relayed), [`process_is_gone`](Subnet::process_is_gone), [`handle_timeout`](Subnet::handle_timeout) |
//! | output | [`Subnet::poll_output`], [`take_event`](Subnet::take_event), [`poll_timeout`](Subnet::poll_timeout) |

mod announcement;
mod hosts;
mod manager;
mod membership;
mod notices;
mod own_port;
mod port_events;
mod presence;
mod route;
mod sa;
mod send;
mod sma;
mod types;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use urxe_wire::mad::node::{notice, port_info};
use urxe_wire::mad::smp::Attribute;
use urxe_wire::mad::topology::{Switch, leaf_lid};
use urxe_wire::mad::{MAD_LEN, Mad};
use urxe_wire::{Lid, Qpn};

use crate::mad::{Address, AgentId};
use crate::time::Instant;
use announcement::{Announcement, Facts};
use hosts::Hosts;
pub use membership::PortMembership;
use port_events::PortEvents;
use sa::Administration;
use sma::SwitchSettings;
pub use types::{Event, Output, PortConfig, Refusal};

/// Interval of announcements,
const INTERVAL: Duration = Duration::from_secs(1);
/// and while no other host is known: one that comes asks, but one that comes back from behind a broken link does not.
const INTERVAL_ALONE: Duration = Duration::from_secs(10);
/// Least time between announcements: other hosts can cause them.
const SPACING: Duration = Duration::from_millis(50);
/// How long a process that has just begun waits for answers before it takes the subnet as it knows it, and when it asks again.
const READY: Duration = Duration::from_millis(300);
const AGAIN: Duration = Duration::from_millis(100);
/// Datagrams of programs that wait for the subnet to be known.
const HELD: usize = 256;
/// Datagrams that answer questions within an interval.
const QUESTIONS: u32 = 256;
/// Datagrams to send that wait to be collected; more are dropped.
const OUTPUTS: usize = 4096;
/// How long a trap waits to be repressed, and how often it is sent again.
const TRAP_TIMEOUT: Duration = Duration::from_secs(1);

/// A datagram of a program that waits for the subnet to be known.
#[derive(Debug)]
enum Held {
    Sent(Lid, Qpn, [u8; MAD_LEN]),
    Administration(Address, Vec<u8>),
    Membership(Address, PortMembership),
}

/// The subnet, as a process knows it: see the [module documentation](self).
#[derive(Debug)]
pub struct Subnet {
    config: PortConfig,
    own: Facts,
    m_key: u64,
    is_owner: bool,
    /// An agent of this process takes traps.
    takes_traps: bool,
    reregister: bool,
    own_has_changed: bool,
    /// Time at which the own port was told that its host is the master, while no program of it was known to be a subnet manager.
    told_master: Option<Instant>,
    /// Capability mask that a master knows, by a trap or as that of a port that has just come.
    told_mask: u64,
    /// The state of the port was Active when programs were told last.
    is_active: bool,
    hosts: Hosts,
    switches: BTreeMap<Switch, SwitchSettings>,
    administration: Administration,
    activity: u32,
    /// Transaction of the own questions.
    transaction_id: u64,
    /// Number of this process, and of the one that owned the address when it was heard last.
    instance: u32,
    owner_instance: Option<u32>,
    owner_has_changed: bool,
    ready_at: Option<Instant>,
    ask_at: Option<Instant>,
    has_asked: bool,
    announce_at: Option<Instant>,
    /// Last announcement, the last with the own groups, and whether those have changed since.
    announced: Option<Instant>,
    groups_told: Option<Instant>,
    groups_have_changed: bool,
    /// Datagrams that have answered questions since then.
    questions: (u32, Instant),
    held: VecDeque<Held>,
    outputs: VecDeque<Output>,
    events: PortEvents,
    sm_lid: Lid,
}

impl Subnet {
    /// A process that has just begun. Answers to questions of this transaction come back to it.
    #[must_use]
    pub fn new(now: Instant, config: PortConfig, transaction_id: u64) -> Self {
        let sm_lid = leaf_lid(config.lid);
        let own = Facts {
            guid: config.guid(),
            port_info: sma::first_port_info(&config, sm_lid),
            description: config.description,
        };
        let mut hosts = Hosts::default();
        hosts.take(now, own);
        Self {
            config,
            own,
            m_key: 0,
            is_owner: false,
            takes_traps: false,
            reregister: false,
            own_has_changed: false,
            told_master: None,
            told_mask: own.field(port_info::CAPABILITY_MASK),
            is_active: own.field(port_info::STATE) == port_info::ACTIVE,
            hosts,
            switches: BTreeMap::new(),
            administration: Administration::default(),
            activity: 0,
            transaction_id,
            instance: AgentId::of(transaction_id).0,
            owner_instance: None,
            owner_has_changed: false,
            ready_at: Some(now + READY),
            ask_at: Some(now),
            has_asked: false,
            announce_at: None,
            announced: None,
            groups_told: None,
            groups_have_changed: false,
            questions: (0, now),
            held: VecDeque::new(),
            outputs: VecDeque::new(),
            events: PortEvents::default(),
            sm_lid,
        }
    }

    /// The LID of the subnet manager of the own port.
    #[must_use]
    pub const fn sm_lid(&self) -> Lid {
        self.sm_lid
    }

    /// LIDs of the hosts that are known, the own one included.
    pub fn hosts(&self) -> impl Iterator<Item = Lid> {
        self.hosts.all().map(Facts::lid)
    }

    /// Whether the own process answers for the host.
    #[must_use]
    pub const fn is_owner(&self) -> bool {
        self.is_owner
    }

    /// Whether an agent of this process takes traps, so that it is told what happens at the switches.
    pub const fn set_takes_traps(&mut self, takes: bool) {
        self.takes_traps = takes;
    }

    /// Whether a datagram has come from the network of the own port: others are dropped.
    #[must_use]
    pub fn is_of_network(&self, from: &Address) -> bool {
        self.config.is_of_network(&from.remote)
    }

    /// Takes a datagram that has come to QP0 and that no agent takes: a request to the own port. Returns it, for an agent, where
    /// it is none.
    ///
    /// # Errors
    /// Why it is dropped.
    pub fn handle_smp(
        &mut self,
        now: Instant,
        from: &Address,
        datagram: &[u8; MAD_LEN],
        has_agent: bool,
    ) -> Result<Option<[u8; MAD_LEN]>, Refusal> {
        let mut datagram = *datagram;
        let header = Mad::of(&datagram).ok_or(Refusal::Malformed)?;
        // No packet of QP0 leaves its subnet.
        if !self.is_of_network(from) {
            return Err(Refusal::Lie);
        }
        match header.class {
            Mad::CLASS_SUBN_DIRECTED => route::arrive(&mut datagram).ok_or(Refusal::NoWay)?,
            Mad::CLASS_SUBN_LID => {}
            _ => return Err(Refusal::Malformed),
        }
        let is_request = matches!(header.method, Mad::METHOD_GET | Mad::METHOD_SET);
        if !is_request || (has_agent && header.attribute_id == Attribute::SmInfo as u16) {
            return Ok(Some(datagram));
        }
        let peer = from.remote.ipv6().to_ipv4_mapped();
        let sender = self.hosts.all().find(|facts| peer.is_some() && facts.guid.ipv4() == peer).map(Facts::lid);
        self.answer_for_host(sender, &mut datagram).ok_or(Refusal::Key)?;
        if header.class == Mad::CLASS_SUBN_DIRECTED {
            route::turn(&mut datagram);
        }
        self.put(Output::Reply(*from, Qpn::SMI, datagram));
        if core::mem::take(&mut self.own_has_changed) {
            if !self.own.is_sm() && self.own.field(port_info::SM_LID) == u64::from(self.config.lid.0) {
                self.told_master = Some(now);
            }
            self.own_changes(now);
        }
        if core::mem::take(&mut self.reregister) {
            self.raise(now, Event::Reregister);
        }
        Ok(None)
    }

    /// Takes a message to subnet administration. One that comes while the subnet is not known yet waits.
    ///
    /// # Errors
    /// Why it is dropped.
    pub fn handle_administration(
        &mut self,
        now: Instant,
        from: &Address,
        lid: Lid,
        mut message: Vec<u8>,
    ) -> Result<(), Refusal> {
        let header = message.first_chunk().and_then(Mad::parse).ok_or(Refusal::Malformed)?;
        if header.is_response() {
            return Ok(());
        }
        // Each host has an administration of its own: for others there is nothing to ask, nor to fill.
        if lid != self.config.lid {
            return Err(Refusal::Lie);
        }
        self.prune(now);
        // Requests are datagrams; what comes behind one takes no room.
        message.truncate(MAD_LEN);
        if !self.is_ready(now) {
            return self.hold(Held::Administration(*from, message));
        }
        self.administrate(now, from, &message)
    }

    /// Handles the deadlines that have passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.ask_at.is_some_and(|at| at <= now) {
            let is_first = !core::mem::replace(&mut self.has_asked, true);
            self.ask_at = is_first.then_some(now + AGAIN);
            // However late this is called, there is time for answers.
            self.ready_at = self.ready_at.map(|at| if is_first { now + READY } else { at });
            self.put(Output::Announce(Announcement::question(self.transaction_id)));
        }
        if self.announce_at.is_some_and(|at| at <= now) {
            self.announce(now);
        }
        while let Some(event) = self.events.release(now) {
            if event == Event::Reregister {
                self.tell_reregister();
            }
        }
        self.prune(now);
        self.leave_unclaimed(now);
        if self.is_ready(now) {
            self.ready_at = None;
            for held in core::mem::take(&mut self.held) {
                // Whose way leads nowhere is silent, as on a network.
                let _ = match held {
                    Held::Sent(to, qpn, datagram) => self.send_now(to, qpn, &datagram),
                    Held::Administration(from, message) => self.administrate(now, &from, &message),
                    Held::Membership(from, membership) => self.broker(now, &from, membership),
                };
            }
        }
    }

    /// The next thing to be done.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// The next thing that has happened.
    pub fn take_event(&mut self) -> Option<Event> {
        self.events.pop()
    }

    /// Time at which [`handle_timeout`](Self::handle_timeout) wants to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let held = self.ready_at.filter(|_| !self.held.is_empty());
        // Known before its time: what waits goes now.
        let over = (self.ready_at.is_none() && !self.held.is_empty()).then_some(Instant::default());
        let (hosts, events) = (self.hosts.poll_timeout(), self.events.poll_timeout());
        let unclaimed = self.administration.poll_timeout();
        [self.ask_at, self.announce_at, held, over, hosts, events, unclaimed].into_iter().flatten().min()
    }

    /// Whether hosts have answered, or have had the time for it.
    #[must_use]
    pub fn is_known(&self, now: Instant) -> bool {
        self.is_ready(now)
    }

    fn is_ready(&self, now: Instant) -> bool {
        self.ready_at.is_none_or(|at| at <= now)
    }

    fn put(&mut self, output: Output) {
        if self.outputs.len() < OUTPUTS {
            self.outputs.push_back(output);
        }
    }

    /// Forgets hosts that are silent.
    fn prune(&mut self, now: Instant) {
        let mut is_gone = false;
        while self.hosts.may_be_aged(now)
            && let Some(host) = self.hosts.take_aged(now, self.config.lid)
        {
            is_gone = true;
            self.administration.forget(host.facts.lid());
            self.tell(&host.facts, notice::OUT_OF_SERVICE);
        }
        self.administration.expire(now, self.config.lid, self.is_owner);
        if is_gone {
            self.look_for_manager(now);
        }
    }
}

#[cfg(test)]
mod tests;
