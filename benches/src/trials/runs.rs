//! Messages whose first packet is longer than the others by its RETH: a GSO run has packets of one length, but for a shorter last.

use std::io::{self, IoSlice};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::Duration;

use urxe_wire::icrc::Flow;

use super::Outcome;
use super::stream::{FIRST, PlainReceiver, fill, goodput, taken};
use crate::bare::{Control, MESSAGE, PACKET, granted, header, socket};

/// Goodput in Gbit/s of messages as runs of so many packets. All runs of a message leave `together`, or each by a call of its own.
pub(super) fn stream(run: Duration, plan: &[usize], together: bool) -> io::Result<Outcome> {
    let (sending, receiving) = (socket(), socket());
    let to = receiving.local_addr()?;
    let flow = Flow::new(sending.local_addr()?, to);
    let (window, to) = (granted(&receiving) / 3, socket2::SockAddr::from(to));
    let source = vec![0x5A_u8; MESSAGE];
    let bytes = |nth: usize, packets: usize| packets * PACKET + if nth == 0 { FIRST - PACKET } else { 0 };
    let mut runs: Vec<Vec<u8>> = plan.iter().enumerate().map(|(nth, &packets)| vec![0; bytes(nth, packets)]).collect();
    let (mut at, total) = (0, runs.iter().map(Vec::len).sum());
    let value = goodput(run, window, &flow, PlainReceiver::new(receiving)?, || {
        for (nth, run) in runs.iter_mut().enumerate() {
            let mut rest = run.as_mut_slice();
            for index in 0.. {
                if rest.is_empty() {
                    break;
                }
                let headers = if nth == 0 && index == 0 { 12 + FIRST - PACKET } else { 12 };
                let (packet, others) = rest.split_at_mut(headers + PACKET - 12);
                fill(packet, headers, &source, &mut at, &flow, index);
                rest = others;
            }
        }
        let calls = if together { runs.len() } else { 1 };
        for runs in runs.chunks(calls) {
            send(&sending, &to, runs)?;
        }
        Ok(total)
    })?;
    Ok(value.into())
}

/// Sends runs by one call, and what it does not take by others.
fn send(socket: &UdpSocket, to: &socket2::SockAddr, runs: &[Vec<u8>]) -> io::Result<()> {
    let parts: Vec<_> = runs.iter().map(|run| [IoSlice::new(run)]).collect();
    let mut controls: Vec<_> = runs.iter().map(|_| Control::new()).collect();
    let mut messages: Vec<libc::mmsghdr> = runs
        .iter()
        .zip(&parts)
        .zip(&mut controls)
        .map(|((run, parts), control)| {
            let segment = if run.len().is_multiple_of(PACKET) { PACKET } else { FIRST };
            libc::mmsghdr { msg_hdr: header(to, parts, segment, control), msg_len: 0 }
        })
        .collect();
    let mut rest = messages.as_mut_slice();
    while !rest.is_empty() {
        let count = rest.len() as libc::c_uint;
        // SAFETY: headers that point to the address, the parts and the controls above.
        let sent = unsafe { libc::sendmmsg(socket.as_raw_fd(), rest.as_mut_ptr(), count, libc::MSG_DONTWAIT as _) };
        let sent = usize::try_from(sent).or_else(|_| taken(Err(io::Error::last_os_error())).map(usize::from))?;
        rest = &mut rest[sent..];
    }
    Ok(())
}
