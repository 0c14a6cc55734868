//! The few system calls that neither std nor socket2 wraps as this crate needs them: messages with control data, epoll, timers.
//!
//! System calls made for packets are those of rustix, or made by number (`syscall`) where it lacks their control messages: the
//! C library's functions of these names are cancellation points (pthreads(7)), which `ibv_poll_cq` and `ibv_post_send` are not
//! to be, and in a program of several threads that takes them two locked instructions and fifty others. Rare calls are behind a
//! [`CancelGuard`](crate::sys::cancellation::CancelGuard).

pub mod cancellation;
pub(crate) mod epoll_key;
pub(crate) mod fd;
pub mod identity;
pub(crate) mod ifaddrs;
pub(crate) mod process;
pub(crate) mod random;
pub(crate) mod udp;

use core::fmt;
use core::mem::{MaybeUninit, size_of, zeroed};
use core::ptr;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, recvmsg, send, sendmsg};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};

/// The size of a structure as the socket calls want it.
#[expect(clippy::cast_possible_truncation, reason = "structures of some dozen bytes")]
pub(crate) const fn socklen<T>() -> libc::socklen_t {
    size_of::<T>() as libc::socklen_t
}

#[expect(clippy::cast_possible_truncation, reason = "AF_INET is 2, AF_INET6 is 10, AF_NETLINK is 16")]
pub(crate) const fn family(constant: libc::c_int) -> libc::sa_family_t {
    constant as libc::sa_family_t
}

/// A socket address as the kernel reads and writes it: `sockaddr_in` or `sockaddr_in6`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union RawAddr {
    family: libc::sa_family_t,
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl RawAddr {
    pub(crate) const SIZE: libc::socklen_t = socklen::<Self>();

    pub(crate) fn unspecified() -> Self {
        // SAFETY: all members are plain integers, for which all-zero bytes are valid.
        unsafe { zeroed() }
    }

    /// The address and the length the kernel wants with it.
    pub(crate) fn new(address: SocketAddr) -> (Self, libc::socklen_t) {
        let mut raw = Self::unspecified();
        match address {
            SocketAddr::V4(a) => {
                raw.v4 = libc::sockaddr_in {
                    sin_family: family(libc::AF_INET),
                    sin_port: a.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(a.ip().octets()) },
                    sin_zero: [0; 8],
                };
                (raw, socklen::<libc::sockaddr_in>())
            }
            SocketAddr::V6(a) => {
                raw.v6 = libc::sockaddr_in6 {
                    sin6_family: family(libc::AF_INET6),
                    sin6_port: a.port().to_be(),
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr { s6_addr: a.ip().octets() },
                    sin6_scope_id: a.scope_id(),
                };
                (raw, socklen::<libc::sockaddr_in6>())
            }
        }
    }

    /// The address that the kernel wrote, if it is an IP address.
    pub(crate) fn get(&self) -> Option<SocketAddr> {
        // SAFETY: the union was zeroed before the kernel wrote to it, so every byte is initialised, and `family` lies
        // at offset 0 of both structures.
        match i32::from(unsafe { self.family }) {
            libc::AF_INET => {
                // SAFETY: as above; any bytes are a valid sockaddr_in.
                let a = unsafe { self.v4 };
                let ip = Ipv4Addr::from(a.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(a.sin_port))))
            }
            libc::AF_INET6 => {
                // SAFETY: as above; any bytes are a valid sockaddr_in6.
                let a = unsafe { self.v6 };
                let ip = Ipv6Addr::from(a.sin6_addr.s6_addr);
                Some(SocketAddr::V6(SocketAddrV6::new(ip, u16::from_be(a.sin6_port), 0, a.sin6_scope_id)))
            }
            _ => None,
        }
    }
}

impl fmt::Debug for RawAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

/// The address with another port.
pub(crate) fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

/// The scope of an IPv6 address, 0 for IPv4.
pub(crate) fn scope_id(address: SocketAddr) -> u32 {
    match address {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(a) => a.scope_id(),
    }
}

/// An address at `port` with a scope (which IPv4 ignores).
pub(crate) fn socket_address(ip: IpAddr, port: u16, scope: u32) -> SocketAddr {
    match ip {
        IpAddr::V4(ip) => SocketAddr::V4(SocketAddrV4::new(ip, port)),
        IpAddr::V6(ip) => SocketAddr::V6(SocketAddrV6::new(ip, port, 0, scope)),
    }
}

/// Sets an integer socket option.
pub(crate) fn set_option(fd: RawFd, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    set_struct(fd, level, name, &value)
}

/// Sets a socket option whose value is a plain structure.
pub(crate) fn set_struct<T: Copy>(fd: RawFd, level: libc::c_int, name: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: the option value is readable, of the length given.
    let rc = unsafe { libc::setsockopt(fd, level, name, ptr::from_ref(value).cast(), socklen::<T>()) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes a socket throw away whatever arrives, before it takes buffer space: for sockets that only send.
pub(crate) fn discard_input(fd: RawFd) -> io::Result<()> {
    // BPF_RET | BPF_K with 0: accept no byte.
    let mut code = [libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0 }];
    let program = libc::sock_fprog { len: 1, filter: code.as_mut_ptr() };
    // SAFETY: `program` names one instruction, readable during the call, which copies it.
    let rc = unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            socklen::<libc::sock_fprog>(),
        )
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Room for control messages, aligned as the kernel wants them.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(crate) struct Control<const N: usize>(pub(crate) [u8; N]);

/// Room for what a receive socket asks for: segment size, traffic class, hop limit (24 bytes each).
const RECV_CONTROL: usize = 96;

/// A received datagram: length, sender and headers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    /// Bytes of payload.
    pub(crate) len: usize,
    /// Bytes of each GRO segment but the last; the payload's length when there is but one.
    pub(crate) segment: usize,
    pub(crate) peer: SocketAddr,
    pub(crate) tclass: u8,
    pub(crate) hop_limit: u8,
}

/// Receives one datagram without blocking. `None`: nothing there, or an error, which is that of an earlier packet and cleared
/// by having been told.
#[inline]
pub(crate) fn recv_udp(fd: RawFd, buffer: &mut [u8]) -> Option<Received> {
    let mut name = RawAddr::unspecified();
    let mut control = MaybeUninit::<Control<RECV_CONTROL>>::uninit();
    let mut iov = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all-zero bytes are a valid msghdr (null pointers, zero lengths).
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_name = (&raw mut name).cast();
    message.msg_namelen = RawAddr::SIZE;
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = RECV_CONTROL as _;
    // SAFETY: every pointer in `message` is to live, writable memory of the length beside it.
    let n = unsafe { libc::syscall(libc::SYS_recvmsg, fd, &raw mut message, libc::MSG_DONTWAIT) };
    let len = usize::try_from(n).ok()?;
    let mut received = Received { len, segment: len, peer: name.get()?, tclass: 0, hop_limit: 0 };
    read_control(&message, &mut received);
    Some(received)
}

fn read_control(message: &libc::msghdr, received: &mut Received) {
    // SAFETY: `message` was filled in by recvmsg, and its control buffer is alive in the caller.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !next.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR return null or a header that lies wholly in the control buffer.
        let header = unsafe { next.read_unaligned() };
        // The kernel writes IP_TOS as one byte and all else that is asked for as int (ip(7), ipv6(7), udp(7)).
        let value = match (header.cmsg_level, header.cmsg_type) {
            (libc::IPPROTO_IP, libc::IP_TOS) => {
                // SAFETY: `next` is a valid header, and this message carries one byte.
                libc::c_int::from(unsafe { libc::CMSG_DATA(next).read() })
            }
            // SAFETY: `next` is a valid header; these messages carry an int, and of any other as many bytes are
            // readable, because data is padded to 8 bytes.
            _ => unsafe { libc::CMSG_DATA(next).cast::<libc::c_int>().read_unaligned() },
        };
        match (header.cmsg_level, header.cmsg_type) {
            (libc::SOL_UDP, libc::UDP_GRO) => {
                if let Ok(size @ 1..) = usize::try_from(value) {
                    received.segment = size;
                }
            }
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                received.tclass = u8::try_from(value).unwrap_or(0);
            }
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                received.hop_limit = u8::try_from(value).unwrap_or(0);
            }
            _ => {}
        }
        // SAFETY: as for CMSG_FIRSTHDR.
        next = unsafe { libc::CMSG_NXTHDR(message, next) };
    }
}

/// Borrows a descriptor for a call. The caller has it open; if the application has closed it, the call is told EBADF, or meets another
/// file, as by number.
pub(crate) fn borrow<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: not -1, and used for one system call: no other promise about it is relied upon.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Sends `parts` as one datagram on a connected socket, without blocking.
pub(crate) fn send_parts<const N: usize>(fd: RawFd, parts: [&[u8]; N]) -> io::Result<usize> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    Ok(sendmsg(borrow(fd), &parts.map(IoSlice::new), &mut SendAncillaryBuffer::default(), flags)?)
}

/// Receives one datagram into `parts`, one after the other, without blocking. `Ok(None)`: nothing there.
pub(crate) fn recv_parts<const N: usize>(fd: RawFd, parts: [&mut [u8]; N]) -> io::Result<Option<usize>> {
    let mut parts = parts.map(IoSliceMut::new);
    match recvmsg(borrow(fd), &mut parts, &mut RecvAncillaryBuffer::default(), RecvFlags::DONTWAIT) {
        Ok(received) => Ok(Some(received.bytes)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Wakes whoever waits for the other end of a connection. It fails if nobody is there, or has bytes enough to wake it.
pub(crate) fn ring(fd: RawFd) {
    let _ = send(borrow(fd), &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// Closes a descriptor.
///
/// # Safety
/// The caller owns the descriptor and does not use it any more.
pub(crate) unsafe fn close(fd: RawFd) {
    // SAFETY: the caller's promise.
    unsafe { rustix::io::close(fd) };
}

/// Waits at most `milliseconds`, less than a second of them, until `fd` can be written to.
pub(crate) fn wait_writable(fd: RawFd, milliseconds: u16) {
    let fd = borrow(fd);
    let most = Timespec { tv_sec: 0, tv_nsec: i64::from(milliseconds) * 1_000_000 };
    // Timeout and interruption are all the same to the caller, who tries again.
    let _ = poll(&mut [PollFd::new(&fd, PollFlags::OUT)], Some(&most));
}

/// Whether the other end of a connection is gone, whatever lies unread in it.
pub(crate) fn is_hung_up(fd: RawFd) -> bool {
    let fd = borrow(fd);
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(&fd, PollFlags::RDHUP)], Some(&now)).is_ok_and(|ready| ready > 0)
}

/// A new epoll instance.
pub(crate) fn epoll_create() -> io::Result<OwnedFd> {
    Ok(epoll::create(epoll::CreateFlags::CLOEXEC)?)
}

/// Watches `fd` (level-triggered) for `events` under `key`.
pub(crate) fn epoll_add(epoll: RawFd, fd: RawFd, events: libc::c_int, key: u64) -> io::Result<()> {
    let events = epoll::EventFlags::from_bits_retain(events.cast_unsigned());
    Ok(epoll::add(borrow(epoll), borrow(fd), epoll::EventData::new_u64(key), events)?)
}

/// Stops watching `fd`.
pub(crate) fn epoll_remove(epoll: RawFd, fd: RawFd) {
    // Failure means that `fd` is not watched, which is what the caller wants.
    let _ = epoll::delete(borrow(epoll), borrow(fd));
}

/// Fetches what is ready now, without waiting: the keys of up to `N` descriptors.
pub(crate) fn epoll_ready<const N: usize>(epoll: RawFd, keys: &mut [u64; N]) -> usize {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; N];
    let room = i32::try_from(N).unwrap_or(i32::MAX);
    // By number: rustix leaves out the size of a mask that is not there, which valgrind reports.
    // SAFETY: `events` has room for `room` entries.
    let ready = unsafe {
        let no_mask = ptr::null::<libc::sigset_t>();
        libc::syscall(libc::SYS_epoll_pwait, epoll, events.as_mut_ptr(), room, 0, no_mask, 0_usize)
    };
    let ready = usize::try_from(ready).unwrap_or(0);
    for (key, event) in keys.iter_mut().zip(events.iter().take(ready)) {
        *key = event.u64;
    }
    ready
}

/// A timer descriptor, disarmed.
pub(crate) fn timer_create() -> io::Result<OwnedFd> {
    Ok(timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?)
}

/// Makes a timer descriptor readable once, after this time (zero: never); clears an earlier expiry.
pub(crate) fn timer_arm(fd: RawFd, after: Duration) {
    let it_value = Timespec::try_from(after).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
    let spec = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
    let _ = timerfd_settime(borrow(fd), TimerfdTimerFlags::empty(), &spec);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_kernel_form() {
        for text in ["127.0.0.1:4791", "[::1]:49152", "[fe80::1%7]:4791", "255.255.255.255:65535"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(RawAddr::new(address).0.get(), Some(address));
        }
        assert_eq!(RawAddr::unspecified().get(), None);
    }

    #[test]
    fn timer_becomes_readable_and_is_cleared_by_rearming() {
        use std::os::fd::AsRawFd;
        let epoll = epoll_create().unwrap();
        let timer = timer_create().unwrap();
        epoll_add(epoll.as_raw_fd(), timer.as_raw_fd(), libc::EPOLLIN, 42).unwrap();
        let mut keys = [0; 4];
        assert_eq!(epoll_ready(epoll.as_raw_fd(), &mut keys), 0);
        timer_arm(timer.as_raw_fd(), Duration::from_millis(1));
        while epoll_ready(epoll.as_raw_fd(), &mut keys) == 0 {
            std::thread::yield_now();
        }
        assert_eq!(keys[0], 42);
        timer_arm(timer.as_raw_fd(), Duration::ZERO);
        assert_eq!(epoll_ready(epoll.as_raw_fd(), &mut keys), 0);
    }
}
