//! Answers to neighbours: ARP, and neighbour discovery.

use std::time::Instant;

use urxe_wire::{Qpn, mgid};

use super::addresses::Addresses;
use super::discovery::{ALL_NODES, Discovery, Kind};
use super::frame::{self, Arp, ArpKind, HardwareAddress};
use super::link::{Link, Sender};
use super::neighbours::{Neighbours, Step};
use super::network::{Network, Recipient};

/// Takes an ARP packet, and answers it.
pub(super) fn resolve(
    link: &mut Link,
    neighbours: &mut Neighbours,
    network: Network,
    from: Sender,
    arp: &Arp,
    steps: &mut Vec<Step>,
) {
    let (address, sender) = arp.sender;
    // Nobody speaks for another queue pair, nor for an address that is not in the network.
    let is_neighbour = sender.is_unspecified() || network.recipient(sender) == Recipient::Neighbour;
    if !is_neighbour || !link.is_of(from, address) {
        return;
    }
    // Announcements and probes of this address are not answered (RFC 5227).
    let is_for_us = arp.target.1 == network.own && sender != network.own && !sender.is_unspecified();
    if sender != network.own && !sender.is_unspecified() {
        steps.extend(neighbours.learn(Instant::now(), sender.into(), address, is_for_us));
    }
    if is_for_us && arp.kind == ArpKind::Request {
        let kind = ArpKind::Reply;
        let reply = Arp { kind, sender: (link.own(), network.own), target: (Some(address), sender) };
        link.send(address, frame::encapsulate(frame::ARP, &reply.to_bytes()), true);
    }
}

/// Takes a message of neighbour discovery, and answers it.
pub(super) fn discover(
    link: &mut Link,
    neighbours: &mut Neighbours,
    addresses: &Addresses,
    from: Sender,
    message: &Discovery,
    steps: &mut Vec<Step>,
) {
    let Discovery { kind, from: sender, target, address, .. } = *message;
    // Nobody speaks for another queue pair, nor for an address of another network.
    let is_of_sender = address.is_none_or(|address| link.is_of(from, address));
    let speaker = if kind == Kind::Solicitation { sender } else { target };
    let is_neighbour = addresses.recipient(speaker) == Recipient::Neighbour && !addresses.contains(speaker);
    let is_probe = kind == Kind::Solicitation && sender.is_unspecified();
    if !is_of_sender || !(is_neighbour || is_probe) {
        return;
    }
    let is_for_us = kind == Kind::Solicitation && addresses.contains(target);
    if let Some(address) = address {
        steps.extend(neighbours.learn(Instant::now(), speaker.into(), address, is_for_us));
    }
    if !is_for_us {
        return;
    }
    let own = link.own();
    let all_nodes = HardwareAddress { qpn: Qpn::MULTICAST, gid: mgid::of_ip(ALL_NODES.into()) };
    // Without an address, the answer goes to where the question came from.
    let asker = address.or_else(|| from.gid.map(|gid| HardwareAddress { qpn: from.qpn, gid }));
    let (via, to) = if is_probe { (Some(all_nodes), ALL_NODES) } else { (asker, sender) };
    let Some(via) = via else { return };
    let kind = Kind::Advertisement(!is_probe);
    let answer = Discovery { kind, from: target, to, target, address: Some(own) }.to_packet();
    link.send(via, frame::encapsulate(frame::IPV6, &answer), true);
}
