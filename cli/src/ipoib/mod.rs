//! `urxe ipoib`: IP over InfiniBand (RFC 4391, RFC 4392) between ports of `--link-layer infiniband`.
//!
//! A TUN device of the kernel has the IP packets; a UD queue pair of a port in this process has the datagrams. In between are
//! ARP and neighbour discovery, whose table is [`neighbours`], and groups: [`groups`] follows what the kernel has joined, and [`memberships`] joins them by
//! subnet administration.

mod addresses;
mod args;
mod discovery;
mod frame;
mod groups;
mod link;
mod memberships;
mod neighbours;
mod network;
mod resolution;
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

use crate::{devices, out};
use addresses::Addresses;
pub(crate) use args::Args;
use args::Command;
use discovery::{ALL_NODES, Discovery, Kind, solicited_node};
use frame::{Arp, ArpKind, HardwareAddress};
use link::Link;
use memberships::{Change, Group, Memberships};
use neighbours::{Neighbours, Step};
use network::{Network, Recipient};
use resolution::{discover, resolve};
use tun::Tun;

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
    let of_link = (link.own().gid.ipv6(), LINK_PREFIX);
    let _ = tun.add_ipv6(of_link.0, of_link.1);
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
        given: std::iter::once(of_link).chain(args.ipv6.iter().copied()).collect(),
        mtu,
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

/// The interface and its ends.
struct Ipoib {
    name: String,
    netdev: String,
    network: Network,
    addresses: Addresses,
    /// IPv6 addresses that the interface was given here, with the lengths of their prefixes.
    given: Vec<(Ipv6Addr, u8)>,
    mtu: usize,
    link: Link,
    tun: Tun,
    neighbours: Neighbours,
    memberships: Memberships,
    /// The broadcast group as the interface has it.
    told: Option<Group>,
    /// The last refusal of the broadcast group that was told.
    refusal: Option<u16>,
}

/// Least MTU of IPv6 (RFC 8200, section 5).
const IPV6_MTU: usize = 1280;

/// Length of the prefix of addresses of the link.
const LINK_PREFIX: u8 = 64;

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
        self.set_mtu(mtu).with_context(|| format!("setting the MTU of {} to {mtu}", self.name))?;
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

    /// Sets the MTU. The kernel takes IPv6 away from an interface of less than 1280 bytes: it gets its addresses again with a larger one.
    fn set_mtu(&mut self, mtu: usize) -> std::io::Result<()> {
        self.tun.set_mtu(mtu)?;
        let (had, has) = (self.mtu >= IPV6_MTU, mtu >= IPV6_MTU);
        self.mtu = mtu;
        if had && !has && !self.addresses.is_empty() {
            out::complain(&format!("{}: no IPv6 at an MTU of {mtu}, for which it needs {IPV6_MTU}", self.name));
        }
        if has && !had {
            // The kernel has begun anew, with an address of its own.
            for (address, prefix_len) in Addresses::of(&self.name).of_link() {
                let _ = self.tun.remove_ipv6(address, prefix_len);
            }
            self.tun.keep_addresses();
            // One that the kernel has no IPv6 for has none.
            self.given.iter().for_each(|(address, prefix_len)| drop(self.tun.add_ipv6(*address, *prefix_len)));
        }
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
