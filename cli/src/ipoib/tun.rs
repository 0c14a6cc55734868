//! The network interface: a TUN device of the kernel (Documentation/networking/tuntap.rst), and its address.

use std::ffi::c_int;
use std::fs::{File, OpenOptions};
use std::io::{Error, Read, Result, Write};
use std::mem::zeroed;
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

/// A TUN device. It goes with the last descriptor.
#[derive(Debug)]
pub(super) struct Tun {
    file: File,
    name: String,
    socket: UdpSocket,
}

impl Tun {
    /// Makes the device, up, with an address and an MTU.
    pub(super) fn new(name: &str, address: Ipv4Addr, prefix_len: u8, mtu: usize) -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
        let mut request = request(name)?;
        request.ifr_ifru.ifru_flags = short(libc::IFF_TUN | libc::IFF_NO_PI)?;
        call(&file, libc::TUNSETIFF as _, &mut request)?;
        // Any socket will do.
        let socket =
            UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).or_else(|_| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)))?;
        let mask = Ipv4Addr::from_bits(u32::MAX.checked_shl(32 - u32::from(prefix_len)).unwrap_or(0));
        let new = Self { file, name: name.to_owned(), socket };
        new.set_mtu(mtu)?;
        let socket = &new.socket;
        for (number, value) in [(libc::SIOCSIFADDR, address), (libc::SIOCSIFNETMASK, mask)] {
            request.ifr_ifru.ifru_addr = sockaddr(value);
            call(socket, number as _, &mut request)?;
        }
        new.keep_addresses();
        call(socket, libc::SIOCGIFFLAGS as _, &mut request)?;
        // SAFETY: SIOCGIFFLAGS has filled in this member.
        let flags = unsafe { request.ifr_ifru.ifru_flags };
        let up = short(libc::IFF_UP | libc::IFF_MULTICAST)?;
        request.ifr_ifru.ifru_flags = flags | up;
        call(socket, libc::SIOCSIFFLAGS as _, &mut request)?;
        Ok(new)
    }

    /// Has the kernel make no address of the link: that is one of [`add_ipv6`](Self::add_ipv6). Where this cannot be set, there is one of the
    /// kernel's as well.
    pub(super) fn keep_addresses(&self) {
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{}/addr_gen_mode", self.name), "1");
    }

    /// Sets the MTU.
    pub(super) fn set_mtu(&self, mtu: usize) -> Result<()> {
        let mut request = request(&self.name)?;
        request.ifr_ifru.ifru_mtu = c_int::try_from(mtu).unwrap_or(c_int::MAX);
        call(&self.socket, libc::SIOCSIFMTU as _, &mut request)
    }

    /// Gives the device an IPv6 address: it has an MTU of 1280 at least, or none.
    pub(super) fn add_ipv6(&self, address: Ipv6Addr, prefix_len: u8) -> Result<()> {
        self.change_ipv6(libc::SIOCSIFADDR as _, address, prefix_len)
    }

    /// Takes an IPv6 address from the device.
    pub(super) fn remove_ipv6(&self, address: Ipv6Addr, prefix_len: u8) -> Result<()> {
        self.change_ipv6(libc::SIOCDIFADDR as _, address, prefix_len)
    }

    fn change_ipv6(&self, number: libc::c_ulong, address: Ipv6Addr, prefix_len: u8) -> Result<()> {
        let socket =
            UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).or_else(|_| UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)))?;
        let mut index = request(&self.name)?;
        call(&socket, libc::SIOCGIFINDEX as _, &mut index)?;
        // SAFETY: SIOCGIFINDEX has filled in this member.
        let ifr6_ifindex = unsafe { index.ifr_ifru.ifru_ifindex };
        let ifr6_addr = libc::in6_addr { s6_addr: address.octets() };
        let request = libc::in6_ifreq { ifr6_addr, ifr6_prefixlen: prefix_len.into(), ifr6_ifindex };
        // SAFETY: for a socket of IPv6, both requests read an in6_ifreq.
        let done = unsafe { libc::ioctl(socket.as_raw_fd(), number as _, &raw const request) };
        if done < 0 { Err(Error::last_os_error()) } else { Ok(()) }
    }

    /// Reads a packet that the kernel sends; `WouldBlock` if there is none.
    pub(super) fn read(&self, room: &mut [u8]) -> Result<usize> {
        (&self.file).read(room)
    }

    /// Has the kernel receive a packet.
    pub(super) fn write(&self, packet: &[u8]) -> Result<()> {
        (&self.file).write(packet).map(drop)
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Flags as an ifreq has them.
fn short(flags: c_int) -> Result<libc::c_short> {
    flags.try_into().map_err(|_| Error::from_raw_os_error(libc::EINVAL))
}

/// A request about the interface of this name.
fn request(name: &str) -> Result<libc::ifreq> {
    // SAFETY: integers and pointers that nobody reads: all-zero is a value.
    let mut request: libc::ifreq = unsafe { zeroed() };
    if name.is_empty() || name.len() >= request.ifr_name.len() {
        return Err(Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed() as libc::c_char;
    }
    Ok(request)
}

fn sockaddr(address: Ipv4Addr) -> libc::sockaddr {
    let [a, b, c, d] = address.octets().map(|byte| byte.cast_signed() as libc::c_char);
    // The port comes first, as in a `sockaddr_in`.
    let sa_data = [0, 0, a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0];
    libc::sockaddr { sa_family: libc::sa_family_t::try_from(libc::AF_INET).unwrap_or_default(), sa_data }
}

fn call(file: &impl AsRawFd, number: libc::c_ulong, request: &mut libc::ifreq) -> Result<()> {
    // SAFETY: each of these requests reads or writes an ifreq.
    if unsafe { libc::ioctl(file.as_raw_fd(), number as _, &raw mut *request) } < 0 {
        Err(Error::last_os_error())
    } else {
        Ok(())
    }
}
