//! Addresses and MTU of an interface: getifaddrs(3) and netdevice(7).

use core::ffi::CStr;
use core::mem::zeroed;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;

use socket2::{Domain, Socket, Type};
use urxe_wire::ROCE_PORT;

use super::socket_address;

/// Whether an IPv6 address means something on one link only (RFC 4007), so that the kernel wants the interface with it.
pub(crate) fn needs_scope(ip: Ipv6Addr) -> bool {
    let [high, low, ..] = ip.octets();
    (high == 0xFE && low & 0xC0 == 0x80) || (high == 0xFF && matches!(low & 0x0F, 1 | 2))
}

/// Index and flags, hardware address and IP addresses of an interface.
#[derive(Default)]
pub(crate) struct Entries {
    pub(crate) link: Option<(u32, u32)>,
    pub(crate) mac: [u8; 6],
    pub(crate) addresses: Vec<SocketAddr>,
    /// Prefix lengths of the IPv4 addresses.
    pub(crate) prefixes: Vec<(Ipv4Addr, u8)>,
}

/// Collects what getifaddrs(3) says about one interface.
pub(crate) fn read_entries(name: &str) -> io::Result<Entries> {
    let mut list: *mut libc::ifaddrs = core::ptr::null_mut();
    // SAFETY: `list` is writable.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut entries = Entries::default();
    let mut next = list;
    while !next.is_null() {
        // SAFETY: a non-null `ifa_next` (or the list's head) is a valid entry until freeifaddrs.
        let entry = unsafe { &*next };
        next = entry.ifa_next;
        // SAFETY: `ifa_name` is a NUL-terminated string that lives as long as the list.
        let label = unsafe { CStr::from_ptr(entry.ifa_name) }.to_str().unwrap_or("");
        // An IPv4 address carries its label, which may be `eth0:something`.
        let of_interface = label.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'));
        if !of_interface || entry.ifa_addr.is_null() {
            continue;
        }
        // SAFETY: `ifa_addr` is non-null, and every address starts with its family.
        match i32::from(unsafe { (*entry.ifa_addr).sa_family }) {
            libc::AF_PACKET => {
                // SAFETY: the family says that this is a sockaddr_ll.
                let link = unsafe { entry.ifa_addr.cast::<libc::sockaddr_ll>().read_unaligned() };
                entries.link = Some((link.sll_ifindex.cast_unsigned(), entry.ifa_flags));
                let [a, b, c, d, e, f, ..] = link.sll_addr;
                if link.sll_halen == 6 {
                    entries.mac = [a, b, c, d, e, f];
                }
            }
            libc::AF_INET => {
                // SAFETY: the family says that this is a sockaddr_in.
                let v4 = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned() };
                let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
                entries.addresses.push(socket_address(IpAddr::V4(ip), ROCE_PORT, 0));
                if !entry.ifa_netmask.is_null() {
                    // SAFETY: non-null, and of the address's family.
                    let mask = unsafe { entry.ifa_netmask.cast::<libc::sockaddr_in>().read_unaligned() };
                    let ones = mask.sin_addr.s_addr.count_ones();
                    entries.prefixes.push((ip, u8::try_from(ones).unwrap_or(u8::MAX)));
                }
            }
            libc::AF_INET6 => {
                // SAFETY: the family says that this is a sockaddr_in6.
                let v6 = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned() };
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                let scope = if needs_scope(ip) { v6.sin6_scope_id } else { 0 };
                entries.addresses.push(socket_address(IpAddr::V6(ip), ROCE_PORT, scope));
            }
            _ => {}
        }
    }
    // SAFETY: `list` came from getifaddrs, and nothing borrowed from it is left.
    unsafe { libc::freeifaddrs(list) };
    Ok(entries)
}

/// SIOCGIFMTU, netdevice(7).
pub(crate) fn read_mtu(name: &str) -> io::Result<u32> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    // SAFETY: all-zero bytes are a valid ifreq.
    let mut request: libc::ifreq = unsafe { zeroed() };
    let (_, room) = request.ifr_name.split_last_mut().ok_or(io::ErrorKind::InvalidInput)?;
    for (to, from) in room.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed() as libc::c_char;
    }
    // SAFETY: `request` is a writable ifreq with a NUL-terminated name.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU as _, &raw mut request) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: SIOCGIFMTU fills in this member.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    Ok(u32::try_from(mtu).unwrap_or(0))
}
