//! Handler of management datagrams for a process whose programs have no agents: it answers for the port.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use urxe_engine::Instant;
use urxe_engine::mad::perf::{self, Performance};
use urxe_engine::mad::{Address, Delivery, MadPort};
use urxe_wire::Psn;
use urxe_wire::mad::{MAD_LEN, Mad};

use super::{AdministrationClient, Answer, Fabric, count_refusal, destination, lid_of_node};
use crate::device::{Device, TxContext};
use crate::gsi::{self, MadHandler};
use crate::{clock, lock};

/// The port's part in its subnet, and its performance counters: those of this process.
///
/// Whoever owns an address answers for the port of the host, so every process that opens a device of InfiniBand has this, or more.
#[derive(Debug)]
pub struct PortAgent {
    device: Weak<Device>,
    state: Mutex<State>,
    client: Arc<dyn AdministrationClient>,
}

#[derive(Debug, Default)]
struct State {
    port: MadPort<()>,
    fabric: Option<Fabric<()>>,
    performance: Performance,
    psn: Psn,
    /// Answers that a subnet which is gone has left.
    left: Vec<Answer>,
}

impl PortAgent {
    /// Has the device bring management datagrams to a new handler. The client hears answers to what it
    /// [asks](Self::ask).
    pub fn start(device: &Arc<Device>, client: Arc<dyn AdministrationClient>) -> Arc<Self> {
        let mut state = State::default();
        state.fabric = Fabric::new(device, &mut state.port, ());
        device.set_mad_timer(state.poll_timeout());
        let new = Arc::new(Self { device: Arc::downgrade(device), state: Mutex::new(state), client });
        device.set_mads(Some(new.clone()));
        new
    }

    /// Sends a request to subnet administration; the client is told the answer, with this number.
    pub fn ask(&self, query: u32, request: &[u8; MAD_LEN]) {
        let Some(device) = self.device.upgrade() else {
            return self.client.answered(Answer { query, message: None });
        };
        let mut state = lock(&self.state);
        let (now, State { port, fabric, left, .. }) = (clock::now(), &mut *state);
        match fabric {
            Some(fabric) => fabric.ask(&device, now, port, query, request),
            None => left.push(Answer { query, message: None }),
        }
        device.with_work(|work| state.pump(&device, work, now));
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
        answers.into_iter().for_each(|answer| self.client.answered(answer));
        if has_ended {
            self.client.memberships_ended();
        }
    }
}

impl State {
    fn poll_timeout(&self) -> Option<Instant> {
        self.port.poll_timeout().into_iter().chain(self.fabric.as_ref().and_then(Fabric::poll_timeout)).min()
    }

    /// Sends what there is to send, and gives the subnet what has come.
    fn pump(&mut self, device: &Device, work: &mut TxContext, now: Instant) {
        loop {
            while let Some(transmit) = self.port.poll_transmit() {
                self.send(device, work, &transmit.to, &transmit.payload);
            }
            let Self { fabric: Some(fabric), port, psn, .. } = self else { break };
            while let Some((agent, delivery)) = port.poll_delivery() {
                match delivery {
                    _ if !fabric.is_own(agent) => {}
                    Delivery::Received { from, message } => fabric.deliver(device, now, &from, message),
                    Delivery::TimedOut { header, .. } => fabric.time_out(&header),
                }
            }
            if !fabric.pump(device, work, psn, port) {
                break;
            }
        }
        device.set_mad_timer(self.poll_timeout());
    }

    fn send(&mut self, device: &Device, work: &mut TxContext, to: &Address, datagram: &[u8; MAD_LEN]) {
        if let (Some(lid), Some(fabric)) = (lid_of_node(&to.remote), &mut self.fabric) {
            return fabric.send_to_node(device, lid, to.qpn, datagram);
        }
        gsi::send_to(work, device.net(), self.psn, &destination(to), datagram);
        self.psn = self.psn.next();
    }
}

impl MadHandler for PortAgent {
    fn receive(&self, work: &mut TxContext, now: Instant, from: &Address, datagram: &[u8; MAD_LEN]) {
        let Some(device) = self.device.upgrade() else { return };
        if lid_of_node(&from.remote).is_some() {
            // GIDs by which the nodes of a subnet are known in here; none of them sends datagrams.
            device.counters().mad_malformed.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut state = lock(&self.state);
        if Mad::of(datagram).is_some_and(|header| perf::is_for_port(&header)) {
            let answer = perf::answer_without_counters(datagram).or_else(|| {
                let counters: Vec<_> = device.all_counters().collect();
                state.performance.answer(datagram, &urxe_status::sysfs::performance(&counters))
            });
            if let Some(answer) = answer {
                state.send(&device, work, &Address { flow_label: 0, hop_limit: 0, ..*from }, &answer);
            }
            return;
        }
        let State { port, fabric, .. } = &mut *state;
        let left = match fabric {
            Some(fabric) => fabric.receive(&device, now, from, datagram, |_| false),
            None => Some(*datagram),
        };
        if let Some(datagram) = left
            && let Err(refusal) = port.handle(now, from, &datagram)
        {
            count_refusal(&device, refusal);
        }
        state.pump(&device, work, now);
        self.tell(state);
    }

    fn port_changed(&self, work: &mut TxContext, now: Instant) {
        let Some(device) = self.device.upgrade() else { return };
        let mut state = lock(&self.state);
        let State { port, fabric, left, .. } = &mut *state;
        left.extend(Fabric::follow(fabric, &device, now, port, ()));
        state.pump(&device, work, now);
        self.tell(state);
    }

    fn handle_timeout(&self, now: Instant) {
        let Some(device) = self.device.upgrade() else { return };
        let mut state = lock(&self.state);
        state.port.handle_timeout(now);
        if let Some(fabric) = &mut state.fabric {
            fabric.handle_timeout(&device, now);
        }
        device.with_work(|work| state.pump(&device, work, now));
        self.tell(state);
    }
}
