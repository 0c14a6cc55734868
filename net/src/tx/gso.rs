//! Sending of segments: one system call for a packet, for a GSO run, or for several runs.

use core::mem::{size_of, zeroed};
use core::ptr;
use std::io;

use super::segments::TxSegments;
use crate::sys::Control;

/// Runs one sendmmsg call takes.
pub(super) const MAX_CALL: usize = 16;
/// Room for one control message: UDP_SEGMENT of a run, IP_TOS or IPV6_TCLASS of a lone packet.
const CONTROL: usize = 24;
const _: () = assert!(size_of::<libc::cmsghdr>() + size_of::<u64>() <= CONTROL);

/// Hands runs, all of one socket, to the kernel; returns how many it took. An error is the first run's.
pub(super) fn send(buffer: &[u8], runs: &[TxSegments]) -> io::Result<usize> {
    match runs {
        [run] if run.packets == 1 && run.tclass.is_none() => send_packet(buffer, run),
        [run] => send_messages::<1>(buffer, core::slice::from_ref(run)),
        runs => send_messages::<MAX_CALL>(buffer, runs),
    }
}

/// One packet goes without the message header, whose fetching costs the kernel a few percent of a small packet.
fn send_packet(buffer: &[u8], run: &TxSegments) -> io::Result<usize> {
    let bytes = &buffer[run.start..run.start + run.len];
    let (name, name_len) = run.route.name();
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: bytes and name are readable for the lengths given.
    let n = unsafe {
        libc::syscall(libc::SYS_sendto, run.route.raw_fd(), bytes.as_ptr(), bytes.len(), flags, name, name_len)
    };
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(1) }
}

fn send_messages<const N: usize>(buffer: &[u8], runs: &[TxSegments]) -> io::Result<usize> {
    let Some(first) = runs.first() else { return Ok(0) };
    let mut controls = [Control([0u8; CONTROL]); N];
    let mut iovs = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; N];
    // SAFETY: all-zero bytes are valid message headers (null pointers, zero lengths).
    let mut messages: [libc::mmsghdr; N] = unsafe { zeroed() };
    let mut count = 0;
    for (((run, control), iov), message) in runs.iter().zip(&mut controls).zip(&mut iovs).zip(&mut messages) {
        let bytes = &buffer[run.start..run.start + run.len];
        *iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let (name, name_len) = run.route.name();
        let header = &mut message.msg_hdr;
        header.msg_name = name.cast_mut().cast();
        header.msg_namelen = name_len;
        header.msg_iov = iov;
        header.msg_iovlen = 1;
        let segments = (run.packets > 1).then_some(run.segment);
        if segments.is_some() || run.tclass.is_some() {
            header.msg_control = control.0.as_mut_ptr().cast();
            header.msg_controllen = CONTROL as _;
            // SAFETY: the control buffer is aligned (`Control`) and, as asserted above, large enough for one header
            // with a u16 or an int; CMSG_FIRSTHDR therefore returns its start.
            unsafe {
                let cmsg = libc::CMSG_FIRSTHDR(header);
                if let Some(segment) = segments {
                    (*cmsg).cmsg_level = libc::SOL_UDP;
                    (*cmsg).cmsg_type = libc::UDP_SEGMENT;
                    (*cmsg).cmsg_len = libc::CMSG_LEN(u16::BITS / 8) as _;
                    // A run of several packets is shorter than 64 KiB, so its segments are.
                    libc::CMSG_DATA(cmsg).cast::<u16>().write_unaligned(u16::try_from(segment).unwrap_or(u16::MAX));
                } else {
                    let is_ipv4 = run.route.remote().is_ipv4();
                    (*cmsg).cmsg_level = if is_ipv4 { libc::IPPROTO_IP } else { libc::IPPROTO_IPV6 };
                    (*cmsg).cmsg_type = if is_ipv4 { libc::IP_TOS } else { libc::IPV6_TCLASS };
                    (*cmsg).cmsg_len = libc::CMSG_LEN(libc::c_int::BITS / 8) as _;
                    libc::CMSG_DATA(cmsg).cast::<libc::c_int>().write_unaligned(run.tclass.unwrap_or_default().into());
                }
            }
        }
        count += 1;
    }
    let fd = first.route.raw_fd();
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let sent = if count == 1 {
        // SAFETY: name, iovec and control memory outlive the call, and the kernel only reads them.
        let n = unsafe { libc::syscall(libc::SYS_sendmsg, fd, &raw const messages[0].msg_hdr, flags) };
        if n < 0 { -1 } else { 1 }
    } else {
        // SAFETY: as above; `count` messages are filled in, and the kernel writes their `msg_len`.
        unsafe { libc::syscall(libc::SYS_sendmmsg, fd, messages.as_mut_ptr(), count, flags) }
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}
