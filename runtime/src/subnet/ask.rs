//! Questions to subnet administration: those of this process's clients, and what the owner of the address asks for other processes.

use std::time::Duration;

use urxe_engine::Instant;
use urxe_engine::mad::{Address, AgentId, MadPort, Outgoing};
use urxe_wire::Qpn;
use urxe_wire::mad::topology::Switch;
use urxe_wire::mad::{MAD_LEN, Mad};

use super::memberships::{for_administration, for_owner, group_of};
use super::queries::{Asker, Done};
use super::{Answer, Fabric, RETRIES, count, node_gid};
use crate::clock;
use crate::device::Device;

/// How long subnet administration has for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the owner of the address has for one: it may have to ask in turn.
const OWNER_TIMEOUT: Duration = Duration::from_millis(1500);
/// How often the owner looks whether processes in its groups are still there.
const PROBE: Duration = Duration::from_secs(1);

impl<C: Clone> Fabric<C> {
    /// Asks subnet administration for a client of this process. The answer, or that there is none, is among
    /// [`take_answers`](Self::take_answers), with this number. The owner of the address keeps the port's memberships: it is asked about
    /// these.
    pub fn ask(&mut self, device: &Device, now: Instant, port: &mut MadPort<C>, query: u32, request: &[u8; MAD_LEN]) {
        self.submit(device, now, port, Asker::Client(query), request);
    }

    /// Answers of subnet administration to clients of this process.
    pub fn take_answers(&mut self) -> Vec<Answer> {
        std::mem::take(&mut self.answers)
    }

    /// Whether memberships have ended since the last call.
    pub const fn take_end_of_memberships(&mut self) -> bool {
        std::mem::replace(&mut self.has_ended, false)
    }

    fn submit(&mut self, device: &Device, now: Instant, port: &mut MadPort<C>, asker: Asker, request: &[u8; MAD_LEN]) {
        let goes_out = group_of(request).is_none_or(|mgid| self.memberships.push(mgid, asker, request));
        if goes_out {
            self.send_query(device, now, port, asker, request);
        }
    }

    /// Sends a request: one about a membership of this process's clients to the owner of the address, others to the subnet's manager.
    pub(super) fn send_query(
        &mut self,
        device: &Device,
        now: Instant,
        port: &mut MadPort<C>,
        asker: Asker,
        request: &[u8; MAD_LEN],
    ) {
        let transaction = self.queries.new_transaction();
        let own = self.address(device, self.interface.lid(), Qpn::GSI);
        let is_for_owner = !matches!(asker, Asker::Process(_));
        let for_owner = is_for_owner.then(|| for_owner(request, transaction)).flatten();
        let (to, message, timeout) = match for_owner {
            Some(message) => (own, message, OWNER_TIMEOUT),
            None => {
                let lid = self.subnet.sm_lid();
                let to = match Switch::of(lid) {
                    Some(_) => own.map(|own| Address { remote: node_gid(lid), ..own }),
                    None => self.address(device, lid, Qpn::GSI),
                };
                (to, for_administration(request, transaction), ANSWER_TIMEOUT)
            }
        };
        let context = self.context.clone();
        let outgoing = to.map(|to| Outgoing { to, message, timeout: Some(timeout), retries: RETRIES, context });
        let is_sent = outgoing.is_some_and(|outgoing| port.send(now, self.agent, outgoing).is_ok());
        self.queries.asked(asker, request, transaction, is_sent);
    }

    /// Takes a message for the subnet's own agent.
    pub fn deliver(&mut self, device: &Device, now: Instant, from: &Address, message: Vec<u8>) {
        let Some(message) = self.queries.answered(message) else { return };
        let lid = self.lid(device, &from.remote);
        // Of other hosts nothing is taken.
        if lid == self.interface.lid() {
            self.look_for_manager(now);
        }
        if let Err(refusal) = self.subnet.handle_administration(now, from, lid, message) {
            count(device, refusal);
        }
    }

    /// Takes note that nobody has answered a message of the subnet's own agent.
    pub fn time_out(&mut self, header: &[u8; Mad::LEN]) {
        let Some(header) = Mad::parse(header) else { return };
        if header.method == Mad::METHOD_REPORT {
            self.subnet.report_timed_out(header.transaction_id);
        } else {
            self.queries.timed_out(&header);
        }
    }

    /// Gives answers to whoever has asked. Returns whether there were any.
    pub(super) fn settle(&mut self, device: &Device, port: &mut MadPort<C>) -> bool {
        let all = self.queries.take_done();
        let is_busy = !all.is_empty();
        for done in all {
            // What the owner asks for others is none of this process's memberships.
            let is_own = !matches!(done.asker, Asker::Process(_));
            let next = is_own.then(|| self.memberships.done(&done)).flatten();
            if let Some((asker, request)) = next {
                self.send_query(device, clock::now(), port, asker, &request);
            }
            self.tell(done);
        }
        is_busy
    }

    fn tell(&mut self, Done { asker, message, .. }: Done) {
        match asker {
            Asker::Client(query) => self.answers.push(Answer { query, message }),
            Asker::Process(number) => self.subnet.handle_relayed(clock::now(), number, message.as_deref()),
            Asker::Nobody => {}
        }
    }

    /// Ends all that waits: the answers that clients get.
    pub(super) fn give_up(&mut self) -> Vec<Answer> {
        self.queries.give_up();
        let mut all = self.queries.take_done();
        all.extend(self.memberships.give_up());
        all.into_iter().for_each(|done| self.tell(done));
        self.take_answers()
    }

    /// Tells the owner of the address, who is another, which groups clients of this process are in.
    pub(super) fn claim(&mut self, device: &Device, port: &mut MadPort<C>) {
        for (mgid, request) in self.memberships.claims() {
            if self.memberships.push(mgid, Asker::Nobody, &request) {
                self.send_query(device, clock::now(), port, Asker::Nobody, &request);
            }
        }
    }

    /// Processes other than this one in the port's groups, of which this process is the keeper.
    fn other_processes(&self) -> impl Iterator<Item = AgentId> {
        let is_owner = self.subnet.is_owner();
        self.subnet.processes_in_groups().filter(move |process| is_owner && *process != self.agent)
    }

    /// Sets the time of the next look at these.
    pub(super) fn plan_probe(&mut self) {
        let is_needed = self.other_processes().next().is_some();
        self.probe_at = is_needed.then(|| self.probe_at.unwrap_or_else(|| clock::now() + PROBE));
    }

    /// Has processes that are gone leave the port's groups.
    pub(super) fn probe(&mut self, device: &Device, now: Instant) {
        self.probe_at = None;
        let mut all: Vec<AgentId> = self.other_processes().collect();
        all.sort_unstable();
        all.dedup();
        for process in all {
            if !device.net().has_owner(Qpn::new(process.0)) {
                self.subnet.process_is_gone(now, process);
            }
        }
        self.plan_probe();
    }
}
