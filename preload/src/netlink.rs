//! Sockets of `NETLINK_RDMA`: where programs ask for devices, ports, queue pairs and counters (`nldev`).
//!
//! A program is handed a netlink socket of the protocol `NETLINK_USERSOCK`, which is connected to itself: then
//! only it can send there. A request is answered in the call that sends it, and the answer lies in the socket's own
//! receive queue, where poll(2), select(2), and every way to read find it. A reader is told that it came from port 0,
//! the kernel. Everything else (bind, getsockname, options, close) is the kernel's own.
//!
//! Descriptors are known by a table of their numbers and the cookies of the sockets, which are never used again: a number
//! that the program has closed, and got back for something else, is told by the cookie.

use core::ffi::{c_int, c_void};
use core::mem::size_of;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use crate::next::{fail, with_errno_kept};
use crate::pointer;

/// `NETLINK_RDMA` of `<linux/netlink.h>`.
pub(crate) const NETLINK_RDMA: c_int = 20;

/// `NETLINK_USERSOCK`: for programs among each other, without any rights.
pub(crate) const NETLINK_USERSOCK: c_int = 2;

/// How many sockets a process may have open at a time: a program that asks has one.
const MOST: usize = 32;

/// The longest datagram that a netlink socket sends: its send buffer (`net.core.wmem_default`), less 32 (`netlink_sendmsg`).
const MOST_BYTES: usize = 212_992 - 32;

/// A socket, while it is asked something.
#[derive(Debug, Clone, Copy)]
pub struct NetlinkSocket {
    /// Descriptor of the socket.
    pub fd: c_int,
    /// `SO_COOKIE` of the socket, never used again as long as the machine is up.
    pub cookie: u64,
    /// Netlink port of the socket, which messages to it name.
    pub port: u32,
}

/// The answering side.
#[derive(Debug, Clone, Copy)]
pub struct Netlink {
    /// Answers the requests in a datagram, by [`NetlinkSocket::deliver`].
    pub answer: fn(&NetlinkSocket, &[libc::iovec]),
    /// Goes on with an answer that found no room: something has been read.
    pub resume: fn(&NetlinkSocket),
}

static ANSWERER: AtomicPtr<Netlink> = AtomicPtr::new(core::ptr::null_mut());

/// Sets the functions that serve `NETLINK_RDMA`.
pub fn netlink_is(netlink: &'static Netlink) {
    ANSWERER.store(core::ptr::from_ref(netlink).cast_mut(), Ordering::Release);
}

fn answerer() -> Option<&'static Netlink> {
    // SAFETY: null, or what `netlink_is` has stored.
    unsafe { ANSWERER.load(Ordering::Acquire).as_ref() }
}

/// Whether anybody answers.
pub(crate) fn is_served() -> bool {
    answerer().is_some()
}

struct Slot {
    /// -1: free.
    fd: AtomicI32,
    cookie: AtomicU64,
}

static SLOTS: [Slot; MOST] = [const { Slot { fd: AtomicI32::new(-1), cookie: AtomicU64::new(0) } }; MOST];

/// How many of the slots have ever been taken: all that other sockets pay for.
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// Remembers a socket that was opened just now. False if there are too many.
pub(crate) fn remember(fd: c_int) -> bool {
    let Some(cookie) = cookie(fd) else { return false };
    for (index, slot) in SLOTS.iter().enumerate() {
        let old = slot.fd.load(Ordering::Acquire);
        // Of the same number: closed since. Of another one: perhaps.
        let is_free = old < 0 || old == fd || self::cookie(old) != Some(slot.cookie.load(Ordering::Acquire));
        // Nobody finds it before the cookie is there.
        if is_free && slot.fd.compare_exchange(old, -2, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            slot.cookie.store(cookie, Ordering::Release);
            slot.fd.store(fd, Ordering::Release);
            TAKEN.fetch_max(index + 1, Ordering::AcqRel);
            return true;
        }
    }
    false
}

/// The cookie of the socket `fd`, if it is one that is ours.
#[inline]
fn find(fd: c_int) -> Option<u64> {
    let taken = TAKEN.load(Ordering::Acquire);
    if taken == 0 || fd < 0 {
        return None;
    }
    SLOTS.get(..taken)?.iter().find(|slot| slot.fd.load(Ordering::Relaxed) == fd).and_then(|slot| verify(slot, fd))
}

#[cold]
fn verify(slot: &Slot, fd: c_int) -> Option<u64> {
    let known = slot.cookie.load(Ordering::Acquire);
    if with_errno_kept(|| cookie(fd)) == Some(known) {
        return Some(known);
    }
    // The program has closed it, and the number is another file's.
    let _ = slot.fd.compare_exchange(fd, -1, Ordering::AcqRel, Ordering::Relaxed);
    None
}

/// Whether `fd` is one of these sockets.
#[inline]
pub(crate) fn is_netlink(fd: c_int) -> bool {
    find(fd).is_some()
}

/// Answers the requests that somebody sends, or says why not. `None` if `fd` is no socket of ours.
///
/// # Safety
/// Nothing else writes to the pieces and the address meanwhile.
#[inline]
pub(crate) unsafe fn sent(fd: c_int, pieces: &[libc::iovec], to: *const c_void, to_len: u32) -> Option<isize> {
    let cookie = find(fd)?;
    // SAFETY: the caller's promise.
    Some(unsafe { answer(fd, cookie, pieces, to, to_len) })
}

/// # Safety
/// As for [`sent`].
#[cold]
unsafe fn answer(fd: c_int, cookie: u64, pieces: &[libc::iovec], to: *const c_void, to_len: u32) -> isize {
    let length = pieces.iter().fold(0_usize, |sum, piece| sum.saturating_add(piece.iov_len));
    if length > MOST_BYTES {
        return fail(libc::EMSGSIZE);
    }
    let is_readable = |piece: &libc::iovec| pointer::is_readable(piece.iov_base, piece.iov_len);
    if !pieces.iter().all(is_readable) || (!to.is_null() && !pointer::is_readable(to, to_len as usize)) {
        return fail(libc::EFAULT);
    }
    if !to.is_null() && to_len as usize >= size_of::<libc::sockaddr_nl>() {
        // SAFETY: the caller's promise.
        let address = unsafe { to.cast::<libc::sockaddr_nl>().read_unaligned() };
        if address.nl_pid != 0 {
            // Some other program: nobody has this port of this protocol.
            return fail(libc::ECONNREFUSED);
        }
    }
    let Some(port) = connect_to_itself(fd) else { return -1 };
    if let Some(answerer) = answerer() {
        with_errno_kept(|| (answerer.answer)(&NetlinkSocket { fd, cookie, port }, pieces));
    }
    length.cast_signed()
}

/// Tells who sent what has been read, and goes on with the answer.
///
/// # Safety
/// `from` is null, or the address of as many bytes as `from_len` says, which the system has put there. Where `from` is
/// null the length is not asked for: the system does not look at it either, so it may be anything.
#[inline]
pub(crate) unsafe fn received(fd: c_int, from: *mut c_void, from_len: impl FnOnce() -> u32) {
    if let Some(cookie) = find(fd) {
        let from_len = if from.is_null() { 0 } else { from_len() };
        // SAFETY: the caller's promise.
        unsafe { finish_receive(fd, cookie, from, from_len) };
    }
}

/// # Safety
/// `from` is null, or the address of `from_len` bytes that the system has put there.
#[cold]
unsafe fn finish_receive(fd: c_int, cookie: u64, from: *mut c_void, from_len: u32) {
    if !from.is_null() && from_len as usize >= size_of::<libc::sockaddr_nl>() {
        // SAFETY: the caller's promise; the kernel's port is 0.
        unsafe { (&raw mut (*from.cast::<libc::sockaddr_nl>()).nl_pid).write_unaligned(0) };
    }
    with_errno_kept(|| {
        if let (Some(answerer), Some(port)) = (answerer(), port_of(fd)) {
            (answerer.resume)(&NetlinkSocket { fd, cookie, port });
        }
    });
}

impl NetlinkSocket {
    /// Puts a datagram into the socket's receive queue. False if there is no room.
    #[must_use]
    pub fn deliver(&self, datagram: &[u8]) -> bool {
        let to = address(self.port);
        // SAFETY: a descriptor, bytes, an address. By its number: libc's function of this name is ours.
        let sent = unsafe {
            libc::syscall(
                libc::SYS_sendto,
                self.fd,
                datagram.as_ptr(),
                datagram.len(),
                libc::MSG_DONTWAIT,
                &raw const to,
                size_of::<libc::sockaddr_nl>(),
            )
        };
        sent >= 0
    }
}

/// Connects a socket to itself after bind(2), and throws away messages that others have sent meanwhile.
#[cold]
pub(crate) fn bound(fd: c_int) {
    with_errno_kept(|| {
        if connect_to_itself(fd).is_some() {
            let mut byte = 0_u8;
            let room = (&raw mut byte).cast::<c_void>();
            let nobody = core::ptr::null_mut::<c_void>();
            // SAFETY: room for a byte; the rest of a datagram is cut off.
            while unsafe { libc::syscall(libc::SYS_recvfrom, fd, room, 1, libc::MSG_DONTWAIT, nobody, nobody) } >= 0 {}
        }
    });
}

/// Gives the socket a port if it has none, and sees to it that nobody else can send there. `None`, with errno, if the
/// system refuses.
fn connect_to_itself(fd: c_int) -> Option<u32> {
    let length = size_of::<libc::sockaddr_nl>();
    let mut port = port_of(fd)?;
    if port == 0 {
        let any = address(0);
        // SAFETY: a descriptor and an address.
        if unsafe { libc::syscall(libc::SYS_bind, fd, &raw const any, length) } < 0 {
            return None;
        }
        port = port_of(fd)?;
    }
    let own = address(port);
    // SAFETY: as above.
    (unsafe { libc::syscall(libc::SYS_connect, fd, &raw const own, length) } == 0).then_some(port)
}

fn port_of(fd: c_int) -> Option<u32> {
    let mut own = address(0);
    let mut length = u32::try_from(size_of::<libc::sockaddr_nl>()).unwrap_or_default();
    // SAFETY: room for an address, and its length.
    let found = unsafe { libc::syscall(libc::SYS_getsockname, fd, &raw mut own, &raw mut length) };
    (found == 0).then_some(own.nl_pid)
}

fn address(port: u32) -> libc::sockaddr_nl {
    // SAFETY: all-zero is an address.
    let mut address = unsafe { core::mem::zeroed::<libc::sockaddr_nl>() };
    address.nl_family = u16::try_from(libc::AF_NETLINK).unwrap_or_default();
    address.nl_pid = port;
    address
}

/// `SO_COOKIE` of socket(7).
fn cookie(fd: c_int) -> Option<u64> {
    let mut cookie = 0_u64;
    let mut length = u32::try_from(size_of::<u64>()).unwrap_or_default();
    // SAFETY: room for the answer, and its length.
    let found = unsafe {
        libc::syscall(libc::SYS_getsockopt, fd, libc::SOL_SOCKET, libc::SO_COOKIE, &raw mut cookie, &raw mut length)
    };
    (found == 0).then_some(cookie)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn netlink() -> c_int {
        // SAFETY: numbers.
        let fd = unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, NETLINK_USERSOCK) };
        assert!(fd >= 0);
        fd
    }

    fn receive(fd: c_int) -> Vec<u8> {
        let mut bytes = [0_u8; 64];
        // SAFETY: room.
        let length = unsafe { libc::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT) };
        usize::try_from(length).map_or_else(|_| Vec::new(), |length| bytes[..length].to_vec())
    }

    #[test]
    fn a_socket_that_talks_to_itself() {
        let fd = netlink();
        let port = connect_to_itself(fd).unwrap();
        assert!(port != 0 && connect_to_itself(fd) == Some(port), "again does no harm");
        let socket = NetlinkSocket { fd, cookie: cookie(fd).unwrap(), port };
        assert!(socket.deliver(b"one") && socket.deliver(b"two"));
        assert_eq!([receive(fd), receive(fd), receive(fd)], [&b"one"[..], b"two", b""]);
        // Until there is no room.
        assert!((0..1_000_000).any(|_| !socket.deliver(&[0; 1024])));
        // SAFETY: ours.
        unsafe { libc::close(fd) };
    }

    #[test]
    fn strangers_cannot_send_to_a_connected_socket() {
        let (fd, stranger) = (netlink(), netlink());
        let port = connect_to_itself(fd).unwrap();
        let to = address(port);
        let length = u32::try_from(size_of::<libc::sockaddr_nl>()).unwrap();
        // SAFETY: bytes and an address.
        let sent = unsafe { libc::sendto(stranger, [0_u8; 4].as_ptr().cast(), 4, 0, (&raw const to).cast(), length) };
        assert_eq!((sent, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::ECONNREFUSED)));
        // What was sent between bind and connect is thrown away.
        let early = netlink();
        let any = address(0);
        // SAFETY: as above.
        unsafe {
            assert_eq!(libc::bind(early, (&raw const any).cast(), length), 0);
            let to = address(port_of(early).unwrap());
            assert_eq!(libc::sendto(stranger, [0_u8; 4].as_ptr().cast(), 4, 0, (&raw const to).cast(), length), 4);
        }
        bound(early);
        assert!(receive(early).is_empty());
        for fd in [fd, stranger, early] {
            // SAFETY: ours.
            unsafe { libc::close(fd) };
        }
    }

    #[test]
    fn a_number_that_is_used_again() {
        let fd = netlink();
        assert!(remember(fd) && is_netlink(fd) && !is_netlink(fd + 1) && !is_netlink(-1));
        let other = netlink();
        // SAFETY: descriptors of ours: the number is another socket's from now on.
        unsafe { libc::dup2(other, fd) };
        assert!(!is_netlink(fd) && !is_netlink(other));
        // SAFETY: ours.
        unsafe { (libc::close(fd), libc::close(other)) };
        // More than there are slots, one after another.
        for _ in 0..3 * MOST {
            let fd = netlink();
            assert!(remember(fd) && is_netlink(fd));
            // SAFETY: ours.
            unsafe { libc::close(fd) };
        }
    }
}
