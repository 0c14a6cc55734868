//! A network interface as RoCE sees it: addresses, GID table, path MTU.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use urxe_wire::{Gid, GidLayout, Guid, LOOPBACK_PORT, LidScheme, LinkLayer, ROCE_PORT};

use crate::error::PortError;
use crate::infiniband_gid::infiniband_gids;
use crate::members::{self, Joined, Member};
use crate::rxe_conflict::rxe_has_the_port;
use crate::sys::ifaddrs::needs_scope;
use crate::sys::{scope_id, socket_address, with_port};

/// The longest headers a payload of path MTU size may travel with: IPv6 40, UDP 8, BTH 12, RETH 16, ICRC 4. The
/// kernel's rxe subtracts this sum (RXE_MAX_HDR_LENGTH in rxe_param.h) whatever the IP version.
const MAX_HEADERS: u32 = 40 + 8 + 12 + 16 + 4;

/// A network interface as it was when it was read, or several that are joined to one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    name: String,
    index: u32,
    flags: u32,
    mac: [u8; 6],
    mtu: u32,
    /// The UDP port.
    port: u16,
    /// The largest path MTU wanted.
    mtu_limit: u16,
    addresses: Vec<SocketAddr>,
    /// Prefix lengths of the IPv4 addresses.
    prefixes: Vec<(Ipv4Addr, u8)>,
    link_layer: LinkLayer,
    gid_layout: GidLayout,
    gids: Vec<Gid>,
    /// Addresses wanted in the GID table; empty for all.
    chosen: Vec<IpAddr>,
    /// The interfaces that it is made of.
    members: Vec<Member>,
}

impl Interface {
    /// Reads the interface called `name` of this network namespace; `eth0+eth1` are two joined to one, with the name of the first.
    /// It may be down or have no address: the port on it is then down or has no GID but the default one, until that changes.
    ///
    /// # Errors
    /// [`PortError::NoSuchInterface`], [`PortError::NotJoinable`]; the others when the system will not even tell.
    pub fn by_name(name: &str) -> Result<Self, PortError> {
        let names = members::names(name);
        members::check(&names)?;
        Self::read(&names, None)
    }

    /// Checks that packets can come and go.
    ///
    /// # Errors
    /// [`PortError::InterfaceDown`], [`PortError::NoAddress`].
    pub fn check_usable(&self) -> Result<(), PortError> {
        let name = || self.name.clone();
        if !self.is_up() {
            return Err(PortError::InterfaceDown { name: name() });
        }
        if self.addresses.is_empty() {
            return Err(PortError::NoAddress { name: name() });
        }
        Ok(())
    }

    /// Reads the interface again. What stays keeps its place in the GID table; what comes takes the first that is
    /// empty, as in the kernel's (`ib_gid_table`).
    ///
    /// # Errors
    /// [`PortError::NoSuchInterface`]; the others when the system will not even tell.
    pub(crate) fn reread(&self) -> Result<Self, PortError> {
        let names: Vec<_> = self.members.iter().map(Member::name).collect();
        let now = Self::read(&names, Some(self.port))?.restricted(Some(self.mtu_limit), &self.chosen);
        let mut now = now.with_link_layer(self.link_layer).with_gid_layout(self.gid_layout);
        now.gids = succeed(&self.gids, &now.gids);
        Ok(now)
    }

    /// The interface when it has been removed.
    pub(crate) fn removed(&self) -> Self {
        let gids = vec![Gid::UNSPECIFIED; self.gids.len()];
        Self { flags: 0, addresses: Vec::new(), members: Vec::new(), gids, ..self.clone() }
    }

    /// `port`: what has been decided on already.
    fn read(names: &[&str], port: Option<u16>) -> Result<Self, PortError> {
        let Joined { entries: mut found, mtu, members } = members::read(names, port.is_some())?;
        let name = *names.first().unwrap_or(&"");
        let missing = || PortError::NoSuchInterface { name: name.to_owned() };
        let (index, flags) = found.link.ok_or_else(missing)?;
        // Stable: the kernel's order within each IP version is the order of its GID table.
        found.addresses.sort_by_key(SocketAddr::is_ipv6);
        let is_loopback = flags & libc::IFF_LOOPBACK.cast_unsigned() != 0;
        let usual = || if is_loopback && rxe_has_the_port() { LOOPBACK_PORT } else { ROCE_PORT };
        let port = port.unwrap_or_else(usual);
        let addresses = found.addresses.into_iter().map(|address| with_port(address, port)).collect();
        let new = Self::new(name.to_owned(), index, found.mac, mtu, addresses);
        Ok(Self { flags, port, prefixes: found.prefixes, members, ..new })
    }

    /// An interface that is down.
    fn new(name: String, index: u32, mac: [u8; 6], mtu: u32, addresses: Vec<SocketAddr>) -> Self {
        let mut gids = vec![Guid::from_mac(mac).gid()];
        for address in &addresses {
            let gid = Gid::from(address.ip());
            if !gids.contains(&gid) {
                gids.push(gid);
            }
        }
        let port = ROCE_PORT;
        Self {
            name,
            index,
            flags: 0,
            mac,
            mtu,
            port,
            mtu_limit: u16::MAX,
            addresses,
            prefixes: Vec::new(),
            link_layer: LinkLayer::Ethernet,
            gid_layout: GidLayout::default(),
            gids,
            chosen: Vec::new(),
            members: Vec::new(),
        }
    }

    /// Whether the interface is administratively up (`ip link set … up`).
    pub fn is_up(&self) -> bool {
        self.flags & libc::IFF_UP.cast_unsigned() != 0
    }

    /// Whether the interface is up and has a carrier: as the kernel's rxe says whether its port is active.
    pub fn is_running(&self) -> bool {
        let running = (libc::IFF_UP | libc::IFF_RUNNING).cast_unsigned();
        self.flags & running == running
    }

    /// Index and name of the interface that has the address of a GID. The first of several has the default GID, and those of InfiniBand.
    pub fn netdev_of(&self, gid: &Gid) -> (u32, &str) {
        let address = gid.ipv6().to_canonical();
        let member = self.members.iter().find(|member| member.addresses().contains(&address));
        member.map_or((self.index, self.name.as_str()), |member| (member.index(), member.name()))
    }

    /// Names of the interfaces that it is made of.
    pub fn netdevs(&self) -> impl Iterator<Item = &str> {
        self.members.iter().map(Member::name)
    }

    /// Addresses that packets can come from now: of interfaces that are running.
    pub(crate) fn usable(&self) -> impl Iterator<Item = IpAddr> {
        self.members.iter().flat_map(Member::usable).copied()
    }

    /// Whether packets can come from an own address now: an interface that is running has it.
    pub fn is_usable(&self, address: IpAddr) -> bool {
        self.usable().any(|usable| usable == address)
    }

    /// Whether all interfaces that it is made of are administratively up.
    pub(crate) fn has_all_up(&self) -> bool {
        self.members.iter().all(Member::is_up)
    }

    /// Whether an interface that is administratively up has this address.
    pub(crate) fn is_up_at(&self, address: IpAddr) -> bool {
        self.members.iter().any(|member| member.is_up() && member.addresses().contains(&address))
    }

    /// Whether the interface is the loopback interface.
    pub fn is_loopback(&self) -> bool {
        self.flags & libc::IFF_LOOPBACK.cast_unsigned() != 0
    }

    /// Restricts the interface to a path MTU of `mtu` at most, and to the GIDs of these addresses, as far as it has them, in this
    /// order behind the default GID. `None` and an empty list restrict nothing.
    #[must_use]
    pub fn restricted(mut self, mtu: Option<u16>, addresses: &[IpAddr]) -> Self {
        self.mtu_limit = mtu.unwrap_or(u16::MAX);
        self.chosen = addresses.to_vec();
        if !addresses.is_empty() {
            let (default, others) = self.gids.split_at(self.gids.len().min(1));
            let chosen = addresses.iter().map(|address| Gid::from(*address)).filter(|gid| others.contains(gid));
            self.gids = default.iter().copied().chain(chosen).collect();
        }
        self
    }

    /// Gives the port a link layer: see [`gids`](Self::gids).
    #[must_use]
    pub fn with_link_layer(mut self, link_layer: LinkLayer) -> Self {
        if link_layer.is_infiniband() && !self.link_layer.is_infiniband() {
            self.gids = infiniband_gids(&self.gids);
        }
        self.link_layer = link_layer;
        self
    }

    /// Orders the rows of the GID table. A port of InfiniBand has no choice.
    #[must_use]
    pub fn with_gid_layout(mut self, layout: GidLayout) -> Self {
        self.gid_layout = layout;
        self
    }

    /// Order and types of the rows of the GID table.
    pub fn gid_layout(&self) -> GidLayout {
        if self.link_layer.is_infiniband() { GidLayout::default() } else { self.gid_layout }
    }

    /// Link layer that the port says it has.
    pub fn link_layer(&self) -> LinkLayer {
        self.link_layer
    }

    /// The scheme of LIDs of the network that the first IPv4 address of the GID table is in.
    pub fn lid_scheme(&self) -> Option<LidScheme> {
        let (_, address) = self.first_ipv4()?;
        let prefix = self.prefixes.iter().find(|(own, _)| *own == address);
        Some(LidScheme::new(address, prefix.map_or(0, |(_, prefix_len)| *prefix_len)))
    }

    /// Name of the interface.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Index of the interface in this network namespace.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Hardware address; zero where there is none, as on `lo`.
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// GUID of the node and of the port, and the lower half of the default GID: the EUI-64 of the hardware address; of
    /// InfiniBand the one that embeds the first IPv4 address, if there is one.
    pub fn guid(&self) -> Guid {
        let default = || Guid::from_mac(self.mac);
        if self.link_layer.is_infiniband() {
            self.first_ipv4().map_or_else(default, |(_, address)| Guid::from(address))
        } else {
            default()
        }
    }

    /// MTU of the interface in bytes.
    pub fn mtu(&self) -> u32 {
        self.mtu
    }

    /// RoCE path MTU in bytes: 256, 512, 1024, 2048 or 4096, as the kernel's rxe derives it.
    pub fn path_mtu(&self) -> u16 {
        path_mtu(self.mtu).min(self.mtu_limit)
    }

    /// Addresses at UDP port 4791 (on `lo` at [`LOOPBACK_PORT`], where the kernel's rxe has that): IPv4 first, then
    /// IPv6.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The GIDs in their order, which is the GID table unless [`gid_layout`](Self::gid_layout) is another: 0 is the default GID
    /// (link-local, from the hardware address, whether it is assigned or not), then the IPv4 addresses, then the IPv6 ones; no GID
    /// twice. A row that has become empty is zero.
    ///
    /// Of InfiniBand: the subnet prefix and the GUID that embeds the address, for each IPv4 address; without any, the
    /// default GID.
    pub fn gids(&self) -> &[Gid] {
        &self.gids
    }

    /// The GID in a row of the table, unless that is empty.
    pub fn gid(&self, index: usize) -> Option<Gid> {
        self.gids.get(self.gid_layout().position(index)).copied().filter(|gid| *gid != Gid::UNSPECIFIED)
    }

    /// Rows of the GID table.
    pub fn gid_rows(&self) -> usize {
        self.gid_layout().rows(self.gids.len())
    }

    /// The index of a GID, of type RoCE v2.
    pub fn gid_index(&self, gid: &Gid) -> Option<usize> {
        let gid = self.shown_gid(gid);
        let position = self.gids.iter().position(|row| *row == gid && gid != Gid::UNSPECIFIED)?;
        Some(self.gid_layout().row(position))
    }

    /// Whether packets may come from this GID: a row of the table, or of InfiniBand an own address.
    #[must_use]
    pub fn has_gid(&self, gid: &Gid) -> bool {
        let is_own = || self.addresses.iter().any(|own| Gid::from(own.ip()) == *gid);
        self.gid_index(gid).is_some() || self.link_layer.is_infiniband() && is_own()
    }

    /// The address, at the same UDP port, that a GID stands for: this interface's or a peer's.
    ///
    /// The own default GID, when no such address is assigned (on `lo`, or with privacy addresses), stands for the first
    /// address, so that it works between the processes of this host. `None`: not an address to send to.
    pub fn resolve(&self, gid: &Gid) -> Option<SocketAddr> {
        let v6 = self.network_gid(gid).ipv6();
        if let Some(v4) = v6.to_ipv4_mapped() {
            return (!v4.is_unspecified()).then(|| socket_address(IpAddr::V4(v4), self.port, 0));
        }
        if v6.is_unspecified() {
            return None;
        }
        if let Some(own) = self.addresses.iter().find(|a| a.ip() == IpAddr::V6(v6)) {
            return Some(*own);
        }
        if self.is_placeholder(gid) {
            return self.addresses.first().copied();
        }
        let scope = if needs_scope(v6) { self.index } else { 0 };
        Some(socket_address(IpAddr::V6(v6), self.port, scope))
    }

    /// The address that a peer's GID stands for when packets come from `from`, an own address. A link-local one is on the link of
    /// that: the device may be on several.
    pub(crate) fn resolve_peer(&self, gid: &Gid, from: SocketAddr) -> Option<SocketAddr> {
        let mut to = self.resolve(gid)?;
        if let SocketAddr::V6(peer) = &mut to
            && needs_scope(*peer.ip())
            && scope_id(from) != 0
            && !self.addresses.contains(&SocketAddr::V6(*peer))
        {
            peer.set_scope_id(scope_id(from));
        }
        Some(to)
    }

    /// Whether the row is the default GID, and not an address of the interface.
    pub(crate) fn is_placeholder(&self, gid: &Gid) -> bool {
        self.gids.first() == Some(gid) && !self.addresses.iter().any(|a| Gid::from(a.ip()) == *gid)
    }
}

/// The GID table after `old` that holds what is in `new`.
fn succeed(old: &[Gid], new: &[Gid]) -> Vec<Gid> {
    let mut table: Vec<Gid> = old.iter().map(|gid| if new.contains(gid) { *gid } else { Gid::UNSPECIFIED }).collect();
    // The default GID's row is its own.
    let (default, others) = new.split_at(new.len().min(1));
    for gid in &mut table {
        if default.contains(gid) {
            *gid = Gid::UNSPECIFIED;
        }
    }
    for (row, gid) in table.iter_mut().zip(default) {
        *row = *gid;
    }
    for gid in others {
        if table.contains(gid) {
            continue;
        }
        match table.iter_mut().skip(1).find(|row| **row == Gid::UNSPECIFIED) {
            Some(row) => *row = *gid,
            None => table.push(*gid),
        }
    }
    table
}

fn path_mtu(mtu: u32) -> u16 {
    let room = mtu.saturating_sub(MAX_HEADERS);
    // An interface too narrow even for 256 gets 256, as in rxe_set_mtu.
    [4096, 2048, 1024, 512].into_iter().find(|&size| u32::from(size) <= room).unwrap_or(256)
}

/// The index of a local address, scope included.
pub(crate) fn find_local(addresses: &[Option<SocketAddr>], ip: IpAddr, scope: u32) -> Option<usize> {
    addresses.iter().position(|a| a.is_some_and(|a| a.ip() == ip && scope_id(a) == scope))
}

#[cfg(test)]
mod tests;
