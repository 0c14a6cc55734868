//! Routing of management datagrams that are not of communication management: to the process of their agent.

use super::Meta;
use super::forward::{Forwarded, Forwarder, Way, forward};
use crate::counters::add_alone;
use crate::mad_claim::MadWay;
use crate::mailbox::Mailbox;
use crate::port::Port;

/// Forwards a datagram whose agent is another process's. One that nobody has stays: this process says so to its sender.
pub(super) fn route(forwarder: &mut Forwarder, port: &Port, meta: &Meta, index: u16, packet: &[u8]) -> Way {
    match MadWay::of(packet, port.interface_index()) {
        MadWay::Here => Way::Here,
        MadWay::Response(to) => pass(forwarder, port, meta, index, packet, to).unwrap_or(Way::Here),
        MadWay::Request(names) => {
            if names.iter().any(|name| port.owns_mailbox(*name)) {
                return Way::Here;
            }
            let mut ways = names.iter().filter_map(|name| pass(forwarder, port, meta, index, packet, *name));
            ways.next().unwrap_or(Way::Here)
        }
    }
}

/// Passes a datagram on; `None` if nobody has the mailbox.
fn pass(forwarder: &mut Forwarder, port: &Port, meta: &Meta, index: u16, packet: &[u8], to: Mailbox) -> Option<Way> {
    if port.owns_mailbox(to) {
        return Some(Way::Here);
    }
    let counters = port.counters();
    let outcome = forward(forwarder, port, meta, index, false, to, packet);
    let counter = match outcome {
        Forwarded::Unknown => return None,
        Forwarded::Sent | Forwarded::Waits => &counters.forwarded_out,
        Forwarded::Full => &counters.drop_forward_full,
        Forwarded::Refused => &counters.drop_forward_refused,
    };
    add_alone(counter, 1);
    Some(Way::Elsewhere { waits: outcome == Forwarded::Waits })
}
