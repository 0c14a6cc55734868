//! Directed routes (IBA 14.2.2): a datagram's way through the virtual switches, hop by hop.

use urxe_wire::Lid;
use urxe_wire::mad::MAD_LEN;
use urxe_wire::mad::smp::{self, Hop};
use urxe_wire::mad::topology::{Switch, place};

use super::hosts::{Hosts, Neighbour};

/// End of a way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Arrival {
    /// A host.
    Host(Lid),
    /// A switch, entered by this port.
    Switch(Switch, u8),
}

/// Takes a datagram from the host `from` to where its route ends or leaves the switches. The directed part of the route begins at
/// `start`, if another part by LID leads there. `None` if the end is nowhere: a port that does not exist, a link that is down, a
/// pointer beyond the path, a host as a hop in between, or a part by LID behind the directed one.
pub(super) fn carry(hosts: &Hosts, from: Lid, start: Lid, datagram: &mut [u8; MAD_LEN]) -> Option<Arrival> {
    let hop = Hop::of(datagram)?;
    let is_directed = |field: urxe_wire::mad::field::Field| field.get(datagram) == u64::from(Lid::PERMISSIVE.0);
    if !is_directed(smp::DR_DLID) {
        return None;
    }
    let start = if is_directed(smp::DR_SLID) { from } else { start };
    if hop.is_returning { go_back(hosts, from, datagram, hop) } else { go_there(hosts, start, datagram, hop) }
}

fn go_there(hosts: &Hosts, start: Lid, datagram: &mut [u8; MAD_LEN], mut hop: Hop) -> Option<Arrival> {
    if hop.pointer != 0 {
        return None;
    }
    let switch = Switch::of(start).filter(|switch| hosts.has_switch(*switch));
    if hop.count == 0 {
        return Some(switch.map_or(Arrival::Host(start), |switch| Arrival::Switch(switch, 0)));
    }
    hop.pointer = 1;
    let port = smp::initial_path(datagram, 1);
    let mut at = match switch {
        Some(switch) => hosts.neighbour(switch, port)?,
        None => leave_host(hosts, start, port)?,
    };
    while let Neighbour::Switch(switch, entered_by) = at {
        smp::put_return_path(datagram, hop.pointer, entered_by);
        if hop.pointer == hop.count {
            hop.pointer += 1;
            hop.put(datagram);
            return Some(Arrival::Switch(switch, entered_by));
        }
        hop.pointer += 1;
        at = hosts.neighbour(switch, smp::initial_path(datagram, hop.pointer))?;
    }
    let Neighbour::Host(lid) = at else { return None };
    // Hosts forward nothing.
    (hop.pointer == hop.count).then_some(())?;
    hop.put(datagram);
    Some(Arrival::Host(lid))
}

fn go_back(hosts: &Hosts, from: Lid, datagram: &mut [u8; MAD_LEN], mut hop: Hop) -> Option<Arrival> {
    if hop.count == 0 || hop.pointer != hop.count + 1 {
        return (hop.count == 0).then_some(Arrival::Host(from));
    }
    hop.pointer -= 1;
    let mut at = leave_host(hosts, from, smp::return_path(datagram, hop.pointer))?;
    while let Neighbour::Switch(switch, _) = at {
        // The first hop was the sender's: no route ends at a switch on its way back.
        hop.pointer = hop.pointer.checked_sub(1).filter(|pointer| *pointer > 0)?;
        at = hosts.neighbour(switch, smp::return_path(datagram, hop.pointer))?;
    }
    let Neighbour::Host(lid) = at else { return None };
    (hop.pointer == 1).then_some(())?;
    hop.put(datagram);
    Some(Arrival::Host(lid))
}

/// The other end of a host's only link.
fn leave_host(hosts: &Hosts, from: Lid, port: u8) -> Option<Neighbour> {
    let (leaf, its) = place(from).filter(|_| port == 1)?;
    hosts.has_leaf(leaf).then_some(Neighbour::Switch(Switch::Leaf(leaf), its))
}

/// Takes a datagram that has come from another host, or from a process of this one: whether its way ends here.
pub(super) fn arrive(datagram: &mut [u8; MAD_LEN]) -> Option<()> {
    let mut hop = Hop::of(datagram)?;
    if hop.is_returning {
        (hop.pointer == 1 || hop.count == 0).then_some(())?;
        hop.pointer = 0;
    } else {
        (hop.pointer == hop.count).then_some(())?;
        if hop.count > 0 {
            smp::put_return_path(datagram, hop.pointer, 1);
        }
        hop.pointer += 1;
    }
    hop.put(datagram);
    Some(())
}

/// Turns a datagram whose way has ended here into its answer, on its way back. What lies between is behind it already: it goes
/// to the address that has asked.
pub(super) fn turn(datagram: &mut [u8; MAD_LEN]) {
    if let Some(hop) = Hop::of(datagram) {
        Hop { is_returning: true, pointer: u8::from(hop.count > 0), ..hop }.put(datagram);
    }
}
