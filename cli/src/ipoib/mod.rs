//! `urxe ipoib`: IP over InfiniBand (RFC 4391, RFC 4392) between ports of `--link-layer infiniband`.
//!
//! A TUN device of the kernel has the IP packets; a UD queue pair of a port in this process has the datagrams. In between are
//! ARP and neighbour discovery, whose table is [`neighbours`], and groups: [`groups`] follows what the kernel has joined, and [`memberships`] joins them by
//! subnet administration.

mod addresses;
mod discovery;
mod frame;
mod groups;
mod link;
mod memberships;
mod neighbours;
mod tun;

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use urxe_options::LINK_LAYER;
use urxe_wire::{Gid, LinkLayer, Qpn, mgid};

use crate::options::Options;
use crate::{devices, out};
use addresses::Addresses;
use discovery::{ALL_NODES, Discovery, Kind, solicited_node};
use frame::{Arp, ArpKind, HardwareAddress};
use link::{Link, Sender};
use memberships::{Change, Group, Memberships};
use neighbours::{Neighbours, Step};
use tun::Tun;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Make an interface for IP over InfiniBand, and keep it until SIGINT or SIGTERM (needs `CAP_NET_ADMIN`)
    Up(Box<UpArgs>),
}

#[derive(clap::Args)]
struct UpArgs {
    /// Name of the interface, such as ib0
    #[arg(value_name = "NAME")]
    name: String,
    /// IPv4 address of the interface, such as 192.0.2.1/24, in a network of its own
    #[arg(value_name = "ADDRESS/LENGTH", value_parser = address)]
    address: (Ipv4Addr, u8),
    /// IPv6 addresses of the interface, such as 2001:db8::1/64, beside the one of the link that every port has
    #[arg(value_name = "IPV6/LENGTH", value_parser = ipv6_address)]
    ipv6: Vec<(Ipv6Addr, u8)>,
    #[command(flatten)]
    options: Options,
}

fn address(text: &str) -> Result<(Ipv4Addr, u8), String> {
    let parsed = || {
        let (address, prefix_len) = text.split_once('/')?;
        Some((address.parse().ok()?, prefix_len.parse().ok().filter(|prefix_len| (1..=32).contains(prefix_len))?))
    };
    parsed().ok_or_else(|| "an IPv4 address and the length of its prefix, such as 192.0.2.1/24".to_owned())
}

fn ipv6_address(text: &str) -> Result<(Ipv6Addr, u8), String> {
    let parsed = || {
        let (address, prefix_len) = text.split_once('/')?;
        Some((address.parse().ok()?, prefix_len.parse().ok().filter(|prefix_len| (1..=128).contains(prefix_len))?))
    };
    parsed().ok_or_else(|| "an IPv6 address and the length of its prefix, such as 2001:db8::1/64".to_owned())
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let Command::Up(args) = &args.command;
    let mut choices = args.options.settings()?.choices()?;
    choices.link_layer = LinkLayer::Infiniband;
    ensure!(choices.devices.len() == 1, "an interface has one port: give --netdev one name");
    let interface = devices::interfaces(&choices)?.pop().context("no device")?;
    interface.check_usable()?;
    let netdev = interface.name().to_owned();
    let device = choices.devices.pop().context("no device")?;
    let link = Link::open(&device.name, interface)
        .with_context(|| format!("a port on {netdev} (--{} infiniband)", LINK_LAYER.name))?;
    let (own, prefix_len) = args.address;
    let mtu = link.mtu() - frame::HEADER_LEN;
    let tun = Tun::new(&args.name, own, prefix_len, mtu).with_context(|| {
        format!("cannot make the interface {} (it needs CAP_NET_ADMIN and /dev/net/tun)", args.name)
    })?;
    // One that the kernel has no IPv6 for has none.
    let _ = tun.add_ipv6(link.own().gid.ipv6(), 64);
    for (address, prefix_len) in &args.ipv6 {
        tun.add_ipv6(*address, *prefix_len).with_context(|| {
            format!("cannot give {} the address {address} (IPv6 needs an MTU of 1280: this port has {mtu})", args.name)
        })?;
    }
    let ends = Arc::new(AtomicBool::new(false));
    for signal in [libc::SIGINT, libc::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&ends))?;
    }
    let mut ipoib = Ipoib {
        name: args.name.clone(),
        netdev,
        network: Network { own, prefix_len },
        addresses: Addresses::default(),
        memberships: Memberships::new(Instant::now(), link.own().gid),
        link,
        tun,
        neighbours: Neighbours::default(),
        told: None,
        refusal: None,
    };
    ipoib.serve(&ends)?;
    ipoib.leave()
}

/// The IPv4 network of the interface.
#[derive(Clone, Copy, Debug)]
struct Network {
    own: Ipv4Addr,
    prefix_len: u8,
}

/// Recipient of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recipient {
    Neighbour,
    /// For IPv4, the address of broadcasts is one of a group.
    Group(IpAddr),
    /// Beyond a gateway, which a TUN device does not tell.
    Elsewhere,
}

impl Network {
    fn recipient(self, to: Ipv4Addr) -> Recipient {
        let host_bits = u32::MAX.checked_shr(self.prefix_len.into()).unwrap_or(0);
        let differs = to.to_bits() ^ self.own.to_bits();
        match to.to_bits() & host_bits {
            _ if to.is_broadcast() => Recipient::Group(Ipv4Addr::BROADCAST.into()),
            _ if to.is_multicast() => Recipient::Group(to.into()),
            _ if differs & !host_bits != 0 => Recipient::Elsewhere,
            // The network's broadcast address, where there is one (RFC 3021).
            host if host == host_bits && self.prefix_len < 31 => Recipient::Group(Ipv4Addr::BROADCAST.into()),
            _ => Recipient::Neighbour,
        }
    }
}

/// The interface and its ends.
struct Ipoib {
    name: String,
    netdev: String,
    network: Network,
    addresses: Addresses,
    link: Link,
    tun: Tun,
    neighbours: Neighbours,
    memberships: Memberships,
    /// The broadcast group as the interface has it.
    told: Option<Group>,
    /// The last refusal of the broadcast group that was told.
    refusal: Option<u16>,
}

/// Time between two looks at groups and neighbours.
const TICK: Duration = Duration::from_millis(500);

/// Packets of the kernel that are sent in a row.
const BURST: usize = 64;

/// How long subnet administration has for its answers when the interface ends.
const FAREWELL: Duration = Duration::from_secs(1);

impl Ipoib {
    fn serve(&mut self, ends: &AtomicBool) -> Result<()> {
        let mut ticked: Option<Instant> = None;
        let mut room = vec![0; self.link.mtu()];
        while !ends.load(Ordering::Relaxed) {
            let now = Instant::now();
            if ticked.is_none_or(|at| now.duration_since(at) >= TICK) {
                ticked = Some(now);
                self.follow_addresses();
                self.follow_groups(now);
                let steps = self.neighbours.handle_timeout(now);
                self.carry_out(steps);
            }
            let has_more = self.receive();
            self.administrate(now)?;
            self.transmit(&mut room)?;
            self.wait(&[self.tun.as_fd(), self.link.as_fd()], if has_more { Duration::ZERO } else { TICK })?;
        }
        Ok(())
    }

    /// Waits until one of these is readable.
    fn wait(&self, fds: &[BorrowedFd<'_>], time: Duration) -> Result<()> {
        let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        match poll(&mut fds, Some(&Timespec::try_from(time)?)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error).with_context(|| format!("waiting for {}", self.name)),
        }
    }

    /// Leaves all groups.
    fn leave(&mut self) -> Result<()> {
        let end = Instant::now() + FAREWELL;
        self.memberships.leave();
        loop {
            self.administrate(Instant::now())?;
            let left = end.saturating_duration_since(Instant::now());
            if self.memberships.is_settled() || left.is_zero() {
                return Ok(());
            }
            self.wait(&[self.link.as_fd()], left)?;
            self.receive();
        }
    }

    /// Follows the IPv6 addresses that the kernel has: neighbours learn of a new one.
    fn follow_addresses(&mut self) {
        let now = Addresses::of(&self.name);
        let before = std::mem::replace(&mut self.addresses, now.clone());
        now.iter().filter(|address| !before.contains(*address)).for_each(|address| self.ask(address.into()));
    }

    /// Joins and leaves groups as the kernel has, and those that are asked for the own addresses: a TUN device is in none of those.
    fn follow_groups(&mut self, now: Instant) {
        let solicited = self.addresses.iter().map(|address| solicited_node(address).into());
        let mut wanted: Vec<Gid> = groups::joined(&self.name).into_iter().chain(solicited).map(mgid::of_ip).collect();
        wanted.sort_unstable();
        wanted.dedup();
        for mgid in self.memberships.follow(now, &wanted) {
            self.link.detach(mgid);
        }
    }

    /// Asks subnet administration for what is wanted, and takes its answers.
    fn administrate(&mut self, now: Instant) -> Result<()> {
        if self.link.is_renewed() {
            self.memberships.renew(now);
        }
        for answer in self.link.take_answers() {
            match self.memberships.answered(now, answer.query, answer.message.as_deref()) {
                Some(Change::Joined(mgid, group)) => self.joined(now, mgid, group)?,
                Some(Change::Refused(mgid, status)) => self.refused(mgid, status),
                None => {}
            }
        }
        while let Some((query, request)) = self.memberships.poll_request(now) {
            self.link.ask(query, &request);
        }
        Ok(())
    }

    fn joined(&mut self, now: Instant, mgid: Gid, group: Group) -> Result<()> {
        if self.link.attach(mgid).is_err() {
            // Of groups of the network beneath there are only so many.
            self.memberships.fail(now, mgid);
            return Ok(());
        }
        if mgid != memberships::broadcast() || self.told == Some(group) {
            return Ok(());
        }
        self.refusal = None;
        self.link.set_q_key(group.q_key)?;
        let mtu = group.mtu.bytes().min(self.link.mtu()) - frame::HEADER_LEN;
        self.tun.set_mtu(mtu).with_context(|| format!("setting the MTU of {} to {mtu}", self.name))?;
        if self.told.replace(group).is_none_or(|told| (told.q_key, told.mtu) != (group.q_key, group.mtu)) {
            let hardware: Vec<String> = self.link.own().to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
            let Self { name, netdev, network: Network { own, prefix_len }, .. } = self;
            let (q_key, mlid, hardware) = (group.q_key.0, group.mlid.0, hardware.join(":"));
            out::print(&format!(
                "{name}: {own}/{prefix_len} over {netdev}, MTU {mtu}, Q_Key {q_key:#06x}, MLID {mlid:#x}, hardware address {hardware}\n"
            ))?;
        }
        // Neighbours that knew these addresses of another queue pair learn the new one.
        let own: Vec<IpAddr> = self.addresses.iter().map(IpAddr::from).chain([self.network.own.into()]).collect();
        own.into_iter().for_each(|address| self.ask(address));
        Ok(())
    }

    /// Tells that there is no way to the neighbours: once for each status in a row.
    fn refused(&mut self, mgid: Gid, status: Option<u16>) {
        let Some(status) = status.filter(|_| mgid == memberships::broadcast()) else { return };
        if self.refusal.replace(status) != Some(status) {
            let name = &self.name;
            out::complain(&format!(
                "{name}: subnet administration refuses the broadcast group, status {status:#06x}; it is asked again"
            ));
        }
    }

    /// Sends what the kernel has to send.
    fn transmit(&mut self, room: &mut [u8]) -> Result<()> {
        for _ in 0..BURST {
            let length = match self.tun.read(room) {
                Ok(length) => length,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => break,
                Err(error) => return Err(error).with_context(|| format!("reading from {}", self.name)),
            };
            let packet = room.get(..length).unwrap_or_default();
            let (ether_type, to, recipient) = if let Some(to) = frame::ipv4_destination(packet) {
                (frame::IPV4, IpAddr::from(to), self.network.recipient(to))
            } else if let Some(to) = frame::ipv6_destination(packet) {
                (frame::IPV6, IpAddr::from(to), self.addresses.recipient(to))
            } else {
                continue;
            };
            let datagram = frame::encapsulate(ether_type, packet);
            match recipient {
                Recipient::Group(group) => self.send_to_group(group, datagram),
                Recipient::Neighbour => {
                    let steps = self.neighbours.send(Instant::now(), to, datagram);
                    self.carry_out(steps);
                }
                Recipient::Elsewhere => {}
            }
        }
        Ok(())
    }

    /// Takes datagrams that have come. Returns whether there may be more.
    fn receive(&mut self) -> bool {
        let mut steps = Vec::new();
        let Self { link, tun, neighbours, network, addresses, .. } = self;
        let has_more = link.receive(|link, from, datagram| match frame::decapsulate(datagram) {
            Some((frame::IPV4, packet)) if frame::ipv4_destination(packet).is_some() => {
                // A full queue of the kernel's loses it.
                let _ = tun.write(packet);
            }
            Some((frame::IPV6, packet)) if frame::ipv6_destination(packet).is_some() => {
                match Discovery::parse(packet) {
                    Some(found) => discover(link, neighbours, addresses, from, &found, &mut steps),
                    // The kernel's device has no hardware addresses, so nothing is discovered there.
                    None if discovery::is_discovery(packet) => {}
                    None => {
                        let _ = tun.write(packet);
                    }
                }
            }
            Some((frame::ARP, packet)) => {
                if let Some(arp) = Arp::parse(packet) {
                    resolve(link, neighbours, *network, from, &arp, &mut steps);
                }
            }
            _ => {}
        });
        self.carry_out(steps);
        has_more
    }

    fn carry_out(&mut self, steps: Vec<Step>) {
        for step in steps {
            match step {
                Step::Send(to, datagram) => self.link.send(to, datagram, false),
                Step::Ask(of) => self.ask(of),
            }
        }
    }

    /// Asks everybody for the hardware address of a neighbour; for an own address, tells it.
    fn ask(&mut self, of: IpAddr) {
        let own = self.link.own();
        match of {
            IpAddr::V4(of) => {
                let sender = (own, self.network.own);
                let request = Arp { kind: ArpKind::Request, sender, target: (None, of) };
                let datagram = frame::encapsulate(frame::ARP, &request.to_bytes());
                self.send_to_group(Ipv4Addr::BROADCAST.into(), datagram);
            }
            IpAddr::V6(of) => {
                let (from, address) = (self.addresses.towards(of), Some(own));
                let (kind, from, to) = match from {
                    _ if self.addresses.contains(of) => (Kind::Advertisement(false), of, ALL_NODES),
                    Some(from) => (Kind::Solicitation, from, solicited_node(of)),
                    None => return,
                };
                let packet = Discovery { kind, from, to, target: of, address }.to_packet();
                self.send_to_group(to.into(), frame::encapsulate(frame::IPV6, &packet));
            }
        }
    }

    fn send_to_group(&mut self, group: IpAddr, datagram: Vec<u8>) {
        self.link.send(HardwareAddress { qpn: Qpn::MULTICAST, gid: mgid::of_ip(group) }, datagram, true);
    }
}

/// Takes an ARP packet, and answers it.
fn resolve(
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
fn discover(
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_interfaces() {
        assert_eq!(address("192.0.2.1/24"), Ok((Ipv4Addr::new(192, 0, 2, 1), 24)));
        for wrong in ["192.0.2.1", "192.0.2.1/33", "192.0.2.1/0", "fd00::1/64"] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
        assert_eq!(ipv6_address("2001:db8::1/64"), Ok((Ipv6Addr::new(0x2001, 0xDB8, 0, 0, 0, 0, 0, 1), 64)));
        for wrong in ["2001:db8::1", "2001:db8::1/129", "2001:db8::1/0", "192.0.2.1/24"] {
            assert!(ipv6_address(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn recipients() {
        let network = Network { own: Ipv4Addr::new(192, 0, 2, 1), prefix_len: 24 };
        let recipient = |to: [u8; 4]| network.recipient(to.into());
        assert_eq!(recipient([192, 0, 2, 9]), Recipient::Neighbour);
        assert_eq!(recipient([192, 0, 2, 255]), Recipient::Group(Ipv4Addr::BROADCAST.into()));
        assert_eq!(recipient([255; 4]), Recipient::Group(Ipv4Addr::BROADCAST.into()));
        assert_eq!(recipient([224, 0, 0, 1]), Recipient::Group(Ipv4Addr::new(224, 0, 0, 1).into()));
        assert_eq!(recipient([192, 0, 3, 1]), Recipient::Elsewhere);
        let pair = Network { prefix_len: 31, ..network };
        assert_eq!(pair.recipient([192, 0, 2, 0].into()), Recipient::Neighbour);
        let alone = Network { prefix_len: 32, ..network };
        assert_eq!(alone.recipient([192, 0, 2, 2].into()), Recipient::Elsewhere);
    }
}
