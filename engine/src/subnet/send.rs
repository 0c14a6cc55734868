//! Datagrams of this process's programs: by LID, along a directed route, or to a switch.

use urxe_wire::mad::smp::Attribute;
use urxe_wire::mad::topology::{Switch, is_host};
use urxe_wire::mad::{MAD_LEN, Mad};
use urxe_wire::{Lid, Qpn};

use super::route::{self, Arrival};
use super::{HELD, Held, Output, Refusal, Subnet};
use crate::mad::{answer_to_unclaimed, perf};
use crate::time::Instant;

impl Subnet {
    /// Sends what a program of this process wants sent: anything to QP0, and what goes to QP1 of a switch. The permissive LID
    /// stands for a directed route.
    ///
    /// # Errors
    /// Why it leads nowhere.
    pub fn send(&mut self, now: Instant, to: Lid, qpn: Qpn, datagram: &[u8; MAD_LEN]) -> Result<(), Refusal> {
        self.prune(now);
        if self.is_ready(now) {
            return self.send_now(to, qpn, datagram);
        }
        self.hold(Held::Sent(to, qpn, *datagram))
    }

    pub(super) fn hold(&mut self, held: Held) -> Result<(), Refusal> {
        if self.held.len() >= HELD {
            return Err(Refusal::Full);
        }
        self.held.push_back(held);
        Ok(())
    }

    pub(super) fn send_now(&mut self, to: Lid, qpn: Qpn, datagram: &[u8; MAD_LEN]) -> Result<(), Refusal> {
        let header = Mad::of(datagram).ok_or(Refusal::Malformed)?;
        if header.class == Mad::CLASS_SUBN_DIRECTED && qpn == Qpn::SMI {
            return self.send_directed(to, datagram);
        }
        if let Some(switch) = Switch::of(to) {
            return self.send_to_switch(switch, qpn, &header, datagram);
        }
        let to = if to == Lid::PERMISSIVE { self.config.lid } else { to };
        if !is_host(to) {
            return Err(Refusal::NoWay);
        }
        self.put(Output::Send(to, qpn, *datagram));
        Ok(())
    }

    fn send_directed(&mut self, start: Lid, datagram: &[u8; MAD_LEN]) -> Result<(), Refusal> {
        let mut datagram = *datagram;
        match route::carry(&self.hosts, self.config.lid, start, &mut datagram).ok_or(Refusal::NoWay)? {
            Arrival::Host(lid) => self.put(Output::Send(lid, Qpn::SMI, datagram)),
            Arrival::Switch(switch, port) => {
                self.answer_for_switch(switch, port, &mut datagram).ok_or(Refusal::Malformed)?;
                route::turn(&mut datagram);
                route::arrive(&mut datagram).ok_or(Refusal::Malformed)?;
                self.put(Output::Local(Lid::PERMISSIVE, Qpn::SMI, datagram));
            }
        }
        Ok(())
    }

    fn send_to_switch(
        &mut self,
        switch: Switch,
        qpn: Qpn,
        header: &Mad,
        datagram: &[u8; MAD_LEN],
    ) -> Result<(), Refusal> {
        let mut datagram = *datagram;
        if !self.hosts.has_switch(switch) {
            return Err(Refusal::NoWay);
        }
        // The manager's LID is the switch's until a program takes over: what goes there goes to the program then.
        let master = self.master();
        let is_managers = header.class == Mad::CLASS_SUBN_ADM
            || (header.class == Mad::CLASS_SUBN_LID && header.attribute_id == Attribute::SmInfo as u16);
        match (qpn, header.class) {
            _ if is_managers && master.is_some() => self.put(Output::Send(master.unwrap_or_default(), qpn, datagram)),
            (Qpn::SMI, Mad::CLASS_SUBN_LID) => {
                if header.method == Mad::METHOD_TRAP_REPRESS {
                    return Ok(());
                }
                self.answer_for_switch(switch, 0, &mut datagram).ok_or(Refusal::Malformed)?;
                self.put(Output::Local(switch.lid(), qpn, datagram));
            }
            (Qpn::GSI, Mad::CLASS_SUBN_ADM) => self.put(Output::Send(self.config.lid, qpn, datagram)),
            (Qpn::GSI, Mad::CLASS_PERF) if perf::is_for_port(header) => {
                // Nothing passes through a switch that is not there: its counters stay at zero.
                let answer = perf::answer_of_idle_port(&datagram, switch.ports()).ok_or(Refusal::Malformed)?;
                self.put(Output::Local(switch.lid(), qpn, answer));
            }
            _ => {
                let answer = answer_to_unclaimed(&datagram).ok_or(Refusal::Malformed)?;
                self.put(Output::Local(switch.lid(), qpn, answer));
            }
        }
        Ok(())
    }
}
