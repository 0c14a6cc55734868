//! Which device an address is on, and who has which port.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::ops::RangeInclusive;

use urxe_net::Service;
use urxe_wire::Gid;
use urxe_wire::cm::ServiceId;

use super::port_space::PortSpace;
use super::{Device, State};
use crate::kernel::Errno;

/// The ports that port 0 chooses from: `net.ipv4.ip_local_port_range` of this network namespace, as `cma_alloc_any_port` of
/// the kernel's cma.c has it. Where it cannot be read, the kernel's default.
fn ephemeral_ports() -> RangeInclusive<u16> {
    const DEFAULT: RangeInclusive<u16> = 32768..=60999;
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut bounds = text.split_whitespace().map(str::parse);
    match (bounds.next(), bounds.next()) {
        (Some(Ok(low)), Some(Ok(high))) if 0 < low && low <= high => low..=high,
        _ => DEFAULT,
    }
}

/// The address from which `dst` is reached, as the system's routes have it.
pub(super) fn source_towards(dst: SocketAddr, from: Option<IpAddr>) -> Option<IpAddr> {
    let any: IpAddr = if dst.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let scope = match dst {
        SocketAddr::V6(dst) => dst.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    let bind = match from.unwrap_or(any) {
        IpAddr::V6(ip) => SocketAddr::V6(std::net::SocketAddrV6::new(ip, 0, 0, scope)),
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, 0),
    };
    let socket = UdpSocket::bind(bind).ok()?;
    // Nothing is sent: any port will do.
    let mut to = dst;
    to.set_port(9);
    socket.connect(to).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

impl State {
    /// The device that has an address. One that was taken out has none.
    pub(super) fn device_of(&self, ip: IpAddr) -> Option<usize> {
        let has = |device: &Device| {
            !device.shared.device().is_gone() && device.interface().addresses().iter().any(|address| address.ip() == ip)
        };
        self.devices.iter().position(has)
    }

    /// Whether a device has the address of this GID.
    pub(super) fn has_address(&self, gid: Gid) -> bool {
        let has = |device: &Device| device.interface().addresses().iter().any(|address| Gid::from(address.ip()) == gid);
        self.devices.iter().any(has)
    }

    /// Whether an address stands for every device, as the wildcard does. So does a loopback address that no device has
    /// (`cma_any_addr` of the kernel's cma.c, whose RoCE devices never have one).
    pub(super) fn is_any(&self, ip: IpAddr) -> bool {
        ip.is_unspecified() || ip.is_loopback() && self.device_of(ip).is_none()
    }

    /// The device that a loopback address resolves to, and its address of that family: the first device whose port is
    /// active, or else the first (`cma_bind_loopback` of the kernel's cma.c). `among` names the only candidate.
    pub(super) fn loopback_device(&self, ip: IpAddr, among: Option<usize>) -> Option<(usize, IpAddr)> {
        let address_of = |(index, device): (usize, &Device)| {
            let interface = device.interface();
            let mut own = interface.addresses().iter().map(SocketAddr::ip);
            let same_family = own.clone().find(|own| own.is_ipv4() == ip.is_ipv4());
            Some((interface.is_running(), index, same_family.or_else(|| own.next())?))
        };
        let candidates = self
            .devices
            .iter()
            .enumerate()
            .filter(|(index, device)| among.is_none_or(|only| only == *index) && !device.shared.device().is_gone());
        let (_, index, address) =
            candidates.filter_map(address_of).min_by_key(|(running, index, _)| (!running, *index))?;
        Some((index, address))
    }

    /// Takes a port on an address, or on all that the wildcard stands for. Port 0 takes any that is free.
    pub(super) fn claim(
        &mut self,
        space: PortSpace,
        address: SocketAddr,
        v6_only: bool,
    ) -> Result<(u16, Vec<Service>), Errno> {
        if address.port() != 0 {
            let claims = self.claim_port(space, address, v6_only).map_err(|errno| match errno {
                // `cma_check_port` of the kernel's cma.c, where one of the two is the wildcard. Whether the other is
                // cannot be told: it may be another process'.
                Errno(libc::EADDRINUSE) if self.is_any(address.ip()) => Errno(libc::EADDRNOTAVAIL),
                other => other,
            })?;
            return Ok((address.port(), claims));
        }
        // All of them, from a random one on.
        let ports = ephemeral_ports();
        let first = self.random_port(&ports);
        for port in (first..=*ports.end()).chain(*ports.start()..first) {
            match self.claim_port(space, SocketAddr::new(address.ip(), port), v6_only) {
                Err(Errno(libc::EADDRINUSE)) => {}
                claimed => return Ok((port, claimed?)),
            }
        }
        Err(Errno(libc::EADDRNOTAVAIL))
    }

    pub(super) fn ephemeral_port(&mut self) -> u16 {
        self.random_port(&ephemeral_ports())
    }

    fn random_port(&mut self, ports: &RangeInclusive<u16>) -> u16 {
        let offset = self.random() % (u64::from(ports.end() - ports.start()) + 1);
        ports.start() + u16::try_from(offset).unwrap_or_default()
    }

    fn claim_port(&self, space: PortSpace, address: SocketAddr, v6_only: bool) -> Result<Vec<Service>, Errno> {
        let service_id = ServiceId::new(space.number(), address.port()).0;
        let any = self.is_any(address.ip());
        let wanted = |ip: IpAddr| match address.ip() {
            IpAddr::V4(_) if any => ip.is_ipv4(),
            IpAddr::V6(_) if any => ip.is_ipv6() || !v6_only,
            one => ip == one,
        };
        let mut claims = Vec::new();
        for device in &self.devices {
            for own in device.interface().addresses().iter().filter(|own| wanted(own.ip())) {
                let claimed = device.shared.device().net().serve(service_id, Gid::from(own.ip()));
                claims.push(claimed.map_err(|error| match error.kind() {
                    std::io::ErrorKind::AddrInUse => Errno(libc::EADDRINUSE),
                    _ => Errno(error.raw_os_error().unwrap_or(libc::ENOMEM)),
                })?);
            }
        }
        Ok(claims)
    }
}
