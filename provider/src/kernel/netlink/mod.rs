//! Being the kernel's `NETLINK_RDMA` below `urxe run`: libibverbs asks there for devices, `rdma` of iproute2 for all else.
//!
//! `urxe-preload` hands programs the sockets, and brings requests here; they are answered in the call that sends them.
//! [`message`] reads and writes netlink, [`nldev`] knows what is answered, [`kinds`] which attribute is what, [`host`] whom
//! to ask: the folder of `urxe run`, interfaces, and every process that has the device.

mod host;
mod kinds;
mod message;
mod nldev;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use urxe_net::cancellation::CancelGuard;
use urxe_preload::NetlinkSocket;

use super::call_depth::UnderWay;
use urxe_runtime::fork_safe_mutex::ForkSafeMutex;

/// Questions of the preloaded library.
pub(crate) static NETLINK: urxe_preload::Netlink = urxe_preload::Netlink { answer, resume };

/// The longest datagram that is looked at: requests have a few attributes.
const LONGEST: usize = 1 << 16;

/// Answers that have found no room yet, of each socket.
static WAITING: ForkSafeMutex<Vec<Unsent>> = ForkSafeMutex::new(Vec::new());

/// A socket's descriptor and cookie, and datagrams for it.
type Unsent = (i32, u64, VecDeque<Vec<u8>>);

fn answer(socket: &NetlinkSocket, pieces: &[libc::iovec]) {
    let _guard = CancelGuard::new();
    let _under_way = UnderWay::begin();
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let datagram = gather(pieces);
        let answers: Vec<Vec<u8>> =
            message::requests(&datagram).flat_map(|request| nldev::answer(request, socket.port, &host::Host)).collect();
        let closed = WAITING.with(|waiting| {
            // What a socket that has been closed since has not read, under the same number.
            let (mine, closed): (Vec<Unsent>, Vec<Unsent>) = std::mem::take(waiting)
                .into_iter()
                .partition(|(fd, cookie, _)| *fd != socket.fd || *cookie == socket.cookie);
            *waiting = mine;
            match waiting.iter_mut().find(|(_, cookie, _)| *cookie == socket.cookie) {
                Some((.., queue)) => queue.extend(answers),
                None => waiting.push((socket.fd, socket.cookie, answers.into())),
            }
            closed
        });
        drop(closed);
        deliver(socket);
    }));
}

fn resume(socket: &NetlinkSocket) {
    let _guard = CancelGuard::new();
    let _under_way = UnderWay::begin();
    let _ = catch_unwind(AssertUnwindSafe(|| deliver(socket)));
}

/// Delivers as much as there is room for.
fn deliver(socket: &NetlinkSocket) {
    let done = WAITING.with(|waiting| {
        let at = waiting.iter().position(|(_, cookie, _)| *cookie == socket.cookie)?;
        let (.., queue) = waiting.get_mut(at)?;
        while queue.front().is_some_and(|datagram| socket.deliver(datagram)) {
            queue.pop_front();
        }
        queue.is_empty().then(|| waiting.swap_remove(at))
    });
    drop(done);
}

/// The bytes that were sent.
fn gather(pieces: &[libc::iovec]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for piece in pieces {
        let length = piece.iov_len.min(LONGEST - bytes.len());
        if length > 0 {
            // SAFETY: what a program sends is readable.
            bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), length) });
        }
    }
    bytes
}
