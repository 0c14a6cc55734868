//! Collects packets into GSO runs and sends them.

use core::mem;
use core::sync::atomic::AtomicU64;
use std::io;
use std::sync::Arc;

use urxe_wire::{ICRC_LEN, icrc};

use crate::counters::add;
use crate::port::Port;
use crate::route::Route;
use crate::shm;
use crate::sys::wait_writable;

use super::gso::{MAX_CALL, send};
use super::inside::{InsideRun, InsideRuns};
use super::segments::TxSegments;

/// Bytes a batch holds: a full run, and room to begin another.
const CAPACITY: usize = shm::BATCH;
/// Runs a batch holds.
const MAX_RUNS: usize = 32;
/// Segments of a run (UDP_MAX_SEGMENTS; newer kernels take 128).
const MAX_SEGMENTS: u16 = 64;
/// How often a full socket buffer is waited for, a millisecond each, before the run is dropped. On loopback and veth the
/// send buffer is never charged beyond the call; on a NIC it drains at line rate, so a longer wait means a dead link.
const MAX_WAITS: u32 = 4;

/// The longest packet a batch takes, ICRC excluded: what fits UDP over either IP version.
pub const MAX_PACKET: usize = 65535 - 40 - 8 - ICRC_LEN;
const _: () = assert!(CAPACITY >= 2 * (MAX_PACKET + ICRC_LEN));

/// Packets on their way to the kernel, in order.
///
/// Consecutive packets of equal length on one path make a *run*, which the kernel takes in one piece (UDP GSO); the
/// last of a run may be shorter. The ICRC of an IPv4 packet covers the identification field, which the kernel sets to
/// the packet's index in its run.
#[derive(Debug)]
pub struct TxBatch {
    buffer: Box<[u8]>,
    /// End of the committed packets.
    end: usize,
    runs: Vec<TxSegments>,
    /// Length of the packet handed out and not yet committed, ICRC included; 0: there is none. It will be the next of the last
    /// run, which has been begun for it if need be.
    pending: usize,
    /// Whether runs for queue pairs of this process may be among these.
    holds_inside: bool,
    inside: InsideRuns,
}

/// A packet as it will be on the wire.
#[derive(Debug)]
pub struct CommittedPacket<'a> {
    /// Route that it leaves by.
    pub route: &'a Arc<Route>,
    /// The IPv4 identification that the kernel will give it.
    pub identification: u16,
    /// BTH to ICRC. What is changed here is sent so, and its ICRC is wrong.
    pub bytes: &'a mut [u8],
}

impl TxSegments {
    #[inline]
    fn takes(&self, route: &Arc<Route>, len: usize) -> bool {
        len <= self.room
            && len <= self.segment
            && self.shared == route.is_shared()
            && self.inside == route.is_inside()
            && (Arc::ptr_eq(&self.route, route) || self.route.same_path(route))
    }
}

impl Default for TxBatch {
    fn default() -> Self {
        Self::new()
    }
}

impl TxBatch {
    /// An empty batch. Allocates now; later only for packets that stay in the process.
    pub fn new() -> Self {
        Self {
            buffer: vec![0; CAPACITY].into_boxed_slice(),
            end: 0,
            runs: Vec::with_capacity(MAX_RUNS),
            pending: 0,
            holds_inside: false,
            inside: InsideRuns::default(),
        }
    }

    /// Room for one packet of `len` bytes (BTH to pad bytes, ICRC excluded) on `route`. The caller writes all of it:
    /// it holds old bytes. What was committed before is sent if the room is needed; a packet handed out and not
    /// committed is forgotten.
    ///
    /// # Panics
    /// When `len` exceeds [`MAX_PACKET`].
    // Inline, like what follows: it is asked for each packet.
    #[inline]
    pub fn packet(&mut self, port: &Port, route: &Arc<Route>, len: usize) -> &mut [u8] {
        assert!(len <= MAX_PACKET, "a packet of {len} bytes does not fit a UDP datagram");
        if self.pending > 0 {
            self.forget();
        }
        let len = len + ICRC_LEN;
        if !self.runs.last().is_some_and(|run| run.takes(route, len)) {
            self.begin(port, route, len);
        }
        self.pending = len;
        &mut self.buffer[self.end..self.end + len - ICRC_LEN]
    }

    /// Room for one packet as [`packet`](Self::packet) gives it, which leaves by itself with this TOS or traffic class instead of the
    /// route's. Shared memory has no traffic class.
    ///
    /// # Panics
    /// When `len` exceeds [`MAX_PACKET`].
    pub fn packet_of_class(&mut self, port: &Port, route: &Arc<Route>, len: usize, tclass: u8) -> &mut [u8] {
        assert!(len <= MAX_PACKET, "a packet of {len} bytes does not fit a UDP datagram");
        self.forget();
        let len = len + ICRC_LEN;
        self.begin(port, route, len);
        if let Some(run) = self.runs.last_mut() {
            run.room = len;
            run.tclass = Some(tclass);
        }
        self.pending = len;
        &mut self.buffer[self.end..self.end + len - ICRC_LEN]
    }

    /// Begins a run of packets of `len` bytes.
    #[inline(never)]
    fn begin(&mut self, port: &Port, route: &Arc<Route>, len: usize) {
        // Only where a full one fits, so that none is cut short by the end of the buffer.
        if self.end + route.max_run() > self.buffer.len() || self.runs.len() == MAX_RUNS {
            self.flush(port);
        }
        let (shared, inside) = (route.is_shared(), route.is_inside());
        self.holds_inside |= inside;
        self.runs.push(TxSegments {
            route: Arc::clone(route),
            start: self.end,
            len: 0,
            segment: len,
            packets: 0,
            // Without GSO each packet is a run of its own, and each then has identification 0.
            room: if shared || inside || route.has_gso() { route.max_run() } else { len },
            shared,
            inside,
            has_icrc: !(shared || inside) || port.keeps_icrcs(),
            tclass: None,
        });
    }

    /// The packet last handed out, ICRC excluded, and its way.
    pub fn pending(&mut self) -> Option<(&Arc<Route>, &mut [u8])> {
        let len = self.pending.checked_sub(ICRC_LEN)?;
        Some((&self.runs.last()?.route, self.buffer.get_mut(self.end..self.end + len)?))
    }

    /// Forgets the packet last handed out.
    #[inline(never)]
    pub fn forget(&mut self) {
        if mem::take(&mut self.pending) > 0 {
            self.runs.pop_if(|run| run.packets == 0);
        }
    }

    /// Seals the packet last handed out: writes its ICRC, queues it, and shows it. Without such a packet, nothing
    /// happens.
    // Inline for those who don't look at it.
    #[inline]
    pub fn commit(&mut self) -> Option<CommittedPacket<'_>> {
        let len = mem::take(&mut self.pending);
        let (start, end) = (self.end, self.end + len);
        let (body, trailer) = self.buffer.get_mut(start..end)?.split_last_chunk_mut::<ICRC_LEN>()?;
        let run = self.runs.last_mut()?;
        let identification = run.packets;
        *trailer = if run.has_icrc { icrc_of(&run.route, identification, body) } else { [0; ICRC_LEN] };
        run.packets += 1;
        run.len += len;
        run.room = if len < run.segment || run.packets == MAX_SEGMENTS { 0 } else { run.room - len };
        self.end = end;
        Some(CommittedPacket { route: &run.route, identification, bytes: &mut self.buffer[start..end] })
    }

    /// Whether nothing waits to be sent.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.end == 0
    }

    /// Sends every committed packet, in order. What the kernel refuses is lost and counted; for the transport above
    /// that is no different from a loss in the network.
    #[inline]
    pub fn flush(&mut self, port: &Port) {
        if self.pending > 0 {
            self.forget();
        }
        if !self.is_empty() {
            self.send_all(port);
        }
    }

    /// Counts all as lost. Returns how many runs there are.
    #[cold]
    fn drop_all(&self, counter: &AtomicU64) -> usize {
        add(counter, packets(&self.runs));
        self.runs.len()
    }

    /// Drops the runs from addresses of interfaces that are down, and counts them as lost.
    #[cold]
    fn drop_unreachable(&mut self, port: &Port) {
        let dropped: Vec<_> = self.runs.extract_if(.., |run| run.route.is_down()).collect();
        add(&port.counters().tx_unreachable, packets(&dropped));
        count_sent(port, &dropped);
    }

    fn send_all(&mut self, port: &Port) {
        let is_dead = port.fds().is_dead();
        if !is_dead && !port.may_send() {
            self.drop_unreachable(port);
        }
        if mem::take(&mut self.holds_inside) && !is_dead {
            self.inside.keep_inside(&self.buffer, &self.runs);
            if self.runs.iter().all(|run| run.inside) {
                // Nothing that other threads count is touched.
                self.runs.clear();
                self.end = 0;
                return;
            }
        }
        // Under the sockets' numbers there may be the application's files.
        let mut at = if is_dead { self.drop_all(&port.counters().tx_other) } else { 0 };
        let mut waits = 0;
        while let Some((first, others)) = self.runs.get(at..).and_then(<[_]>::split_first) {
            let rest = &self.runs[at..];
            if first.inside {
                at += 1;
                continue;
            }
            if first.shared {
                let same = 1 + others.iter().take_while(|run| run.shared && run.route.same_path(&first.route)).count();
                share(port, &self.buffer, &rest[..same]);
                at += same;
                continue;
            }
            let rest = rest
                .get(..rest.iter().position(|run| run.shared || run.inside).unwrap_or(rest.len()))
                .unwrap_or_default();
            let same = rest.iter().take(MAX_CALL).take_while(|run| run.route.same_socket(&first.route)).count();
            match send(&self.buffer, &rest[..same]) {
                Ok(sent) => {
                    at += sent.max(1);
                    waits = 0;
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::EAGAIN) if waits < MAX_WAITS => {
                        waits += 1;
                        wait_writable(first.route.raw_fd(), 1);
                    }
                    // GSO refused: EIO by a device without checksum offload, EINVAL by a segment longer than the MTU.
                    Some(libc::EIO | libc::EINVAL) if first.packets > 1 => {
                        add(&port.counters().tx_gso_refused, 1);
                        send_one_by_one(port, &mut self.buffer, first);
                        at += 1;
                    }
                    _ => {
                        count_loss(port, &error, first.packets.into());
                        at += 1;
                        waits = 0;
                    }
                },
            }
        }
        count_sent(port, &self.runs);
        self.runs.clear();
        self.end = 0;
    }

    /// Whether there are runs for [`take_inside`](Self::take_inside).
    #[inline]
    pub fn has_inside(&self) -> bool {
        !self.inside.is_empty()
    }

    /// Bytes of the packets for queue pairs of this process that nobody has taken, those not flushed yet among them.
    #[inline]
    pub const fn inside_len(&self) -> usize {
        self.end + self.inside.bytes()
    }

    /// Takes the packets for queue pairs of this process that were flushed since the last call, in order.
    pub fn take_inside(&mut self) -> impl Iterator<Item = InsideRun> {
        self.inside.take()
    }
}

fn packets(runs: &[TxSegments]) -> usize {
    runs.iter().map(|run| usize::from(run.packets)).sum()
}

/// Counts what was to leave the process, lost or not.
fn count_sent(port: &Port, runs: &[TxSegments]) {
    let (mut count, mut packets, mut bytes) = (0, 0, 0);
    for run in runs.iter().filter(|run| !run.inside) {
        count += 1;
        packets += usize::from(run.packets);
        bytes += run.len;
    }
    let counters = port.counters();
    add(&counters.tx_runs, count);
    add(&counters.tx_packets, packets);
    add(&counters.tx_bytes, bytes);
}

/// Puts runs, all of one path, into shared memory.
fn share(port: &Port, buffer: &[u8], runs: &[TxSegments]) {
    let counters = port.counters();
    let Some(link) = runs.first().and_then(|run| run.route.link()) else {
        // The receiver has gone since they were made, and they may have no ICRC.
        return add(&counters.tx_unreachable, packets(runs));
    };
    let lost = link.send(runs.iter().map(|run| {
        let said = shm::RingRecord { len: run.len, segment: run.segment.min(run.len), has_icrc: run.has_icrc };
        (&buffer[run.start..run.start + run.len], said, run.packets)
    }));
    add(&counters.tx_ring_runs, runs.len());
    if lost > 0 {
        add(&counters.tx_no_buffer, lost);
    }
}

/// The ICRC that a packet has as segment `index` of its run.
fn icrc_of(route: &Route, index: u16, packet: &[u8]) -> [u8; ICRC_LEN] {
    icrc::compute(route.flow(), index, packet).to_le_bytes()
}

/// Sends the packets of a run that cannot go as a run. Those that pass show that the fault was with segmentation, which
/// is then no longer tried on this socket.
fn send_one_by_one(port: &Port, buffer: &mut [u8], run: &TxSegments) {
    let mut passed = 0;
    let mut start = run.start;
    for _ in 0..run.packets {
        let end = (start + run.segment).min(run.start + run.len);
        if let Some((body, trailer)) = buffer[start..end].split_last_chunk_mut() {
            *trailer = icrc_of(&run.route, 0, body);
        }
        let lone = TxSegments {
            route: Arc::clone(&run.route),
            start,
            len: end - start,
            segment: end - start,
            packets: 1,
            room: 0,
            shared: false,
            inside: false,
            has_icrc: true,
            tclass: None,
        };
        match send(buffer, core::slice::from_ref(&lone)) {
            Ok(_) => passed += 1,
            Err(error) => count_loss(port, &error, 1),
        }
        start = end;
    }
    if passed > 0 {
        run.route.give_up_gso();
    }
}

fn count_loss(port: &Port, error: &io::Error, packets: usize) {
    let counters = port.counters();
    let counter = match error.raw_os_error() {
        Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => &counters.tx_no_buffer,
        Some(libc::EPERM | libc::EACCES) => &counters.tx_not_permitted,
        Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ENETDOWN | libc::EHOSTDOWN | libc::EADDRNOTAVAIL) => {
            &counters.tx_unreachable
        }
        Some(libc::EMSGSIZE) => &counters.tx_too_long,
        _ => &counters.tx_other,
    };
    add(counter, packets);
}
