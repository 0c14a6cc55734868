//! RMPP (IBA 13.6): a message as segments, at its sender and at its receiver.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use urxe_wire::mad::{MAD_LEN, Mad, Rmpp, data_offset};

/// Segments that a receiver grants beyond those it has, and that a sender sends at once. The kernel grants 64 of the 512
/// that its QP1 takes; here they may go through the mailbox of a process that is not on a processor, which takes 42.
const WINDOW: u32 = 16;
const BURST: u32 = WINDOW;
/// Time for which a sender waits for an ACK (`send_next_seg` of the kernel's mad_rmpp.c).
pub(super) const ACK_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause between two bursts of one window.
pub(super) const PAUSE: Duration = Duration::from_millis(1);
/// Longest message that is put together.
pub(super) const LONGEST: usize = 16 << 20;

/// A datagram that says something about another: its headers, addressed back, with another RMPP header.
pub(super) fn control(about: &[u8; MAD_LEN], kind: u8, status: u8, segment: u32, window: u32) -> [u8; MAD_LEN] {
    let mut reply = [0; MAD_LEN];
    let class = about[1];
    let headers = data_offset(class).max(Rmpp::END);
    for (to, from) in reply.iter_mut().zip(about).take(headers) {
        *to = *from;
    }
    reply[3] ^= Mad::RESPONSE;
    let time = Rmpp::of(about).time_and_flags & Rmpp::NO_RESPONSE_TIME;
    Rmpp {
        version: Rmpp::VERSION,
        kind,
        time_and_flags: time | Rmpp::ACTIVE,
        status,
        segment,
        length_or_window: window,
    }
    .put(&mut reply);
    reply
}

/// Reaction of a sender to an ACK.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Acked {
    /// The ACK is old.
    Old,
    /// The ACK moves the window, and tells of no segment more.
    Window,
    /// More segments have arrived.
    Progress,
    /// The last segment has arrived.
    Complete,
    /// The ACK lies; with the status of the ABORT.
    Abort(u8),
}

/// A message on its way out in segments.
#[derive(Debug)]
pub(super) struct SegmentSender {
    /// Bytes of headers, which every segment repeats.
    headers: usize,
    count: u32,
    /// Bytes that the last segment lacks.
    pad: u32,
    window: u32,
    acked: u32,
    sent: u32,
}

impl SegmentSender {
    /// Cuts a message that has its headers.
    pub(super) fn new(message: &[u8]) -> Self {
        let headers = data_offset(message.get(1).copied().unwrap_or_default());
        let (room, data) = (MAD_LEN - headers, message.len().saturating_sub(headers));
        // A message without data has one segment all the same.
        let count = data.div_ceil(room).max(1);
        let pad = count * room - data;
        let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        Self { headers, count: number(count), pad: number(pad), window: 1, acked: 0, sent: 0 }
    }

    pub(super) const fn is_complete(&self) -> bool {
        self.acked == self.count
    }

    /// Whether segments can leave without another ACK.
    pub(super) const fn has_more(&self) -> bool {
        self.sent < self.window && self.sent < self.count
    }

    /// The segments that leave now.
    pub(super) fn burst(&mut self, message: &[u8]) -> Vec<[u8; MAD_LEN]> {
        let end = self.window.min(self.count).min(self.sent.saturating_add(BURST));
        let segments = (self.sent.saturating_add(1)..=end).map(|number| self.segment(message, number)).collect();
        self.sent = self.sent.max(end);
        segments
    }

    /// Starts over behind the last segment that was acknowledged.
    pub(super) const fn go_back(&mut self) {
        self.sent = self.acked;
    }

    fn segment(&self, message: &[u8], number: u32) -> [u8; MAD_LEN] {
        let mut datagram = [0; MAD_LEN];
        let room = MAD_LEN - self.headers;
        let data = message.get(self.headers..).unwrap_or_default();
        let data = data.chunks(room).nth(number as usize - 1).unwrap_or_default();
        let headers = message.get(..self.headers).unwrap_or_default();
        for (to, from) in datagram.iter_mut().zip(headers.iter().chain(data)) {
            *to = *from;
        }
        let mut header = Rmpp::of(&datagram);
        header.time_and_flags = header.time_and_flags & Rmpp::NO_RESPONSE_TIME | Rmpp::ACTIVE;
        header.length_or_window = 0;
        if number == 1 {
            header.time_and_flags |= Rmpp::FIRST;
            header.length_or_window = self.count.saturating_mul(Rmpp::SEGMENT).saturating_sub(self.pad);
        }
        if number == self.count {
            header.time_and_flags |= Rmpp::LAST;
            header.length_or_window = Rmpp::SEGMENT - self.pad;
        }
        Rmpp { version: Rmpp::VERSION, kind: Rmpp::DATA, status: 0, segment: number, ..header }.put(&mut datagram);
        datagram
    }

    /// Takes an ACK (`process_rmpp_ack` of the kernel's mad_rmpp.c).
    pub(super) fn acknowledge(&mut self, ack: &Rmpp) -> Acked {
        let (segment, window) = (ack.segment, ack.length_or_window);
        if ack.status != 0 {
            return Acked::Abort(Rmpp::BAD_STATUS);
        }
        if window < segment {
            return Acked::Abort(Rmpp::WINDOW_TOO_SMALL);
        }
        if self.is_complete() {
            return Acked::Complete;
        }
        if segment > self.count || segment > self.window {
            return Acked::Abort(Rmpp::SEGMENT_TOO_BIG);
        }
        if window < self.window || segment < self.acked || (segment, window) == (self.acked, self.window) {
            return Acked::Old;
        }
        let is_progress = segment > self.acked;
        self.acked = segment;
        self.sent = self.sent.max(segment);
        self.window = window;
        match (self.is_complete(), is_progress) {
            (true, _) => Acked::Complete,
            (false, true) => Acked::Progress,
            (false, false) => Acked::Window,
        }
    }
}

/// Reaction of a receiver to a segment.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// No answer.
    Quietly,
    /// An ACK.
    Ack,
    /// An ACK; the message is complete.
    Complete(Vec<u8>),
    /// The message is longer than there is room for.
    TooLong,
}

/// A message on its way in.
#[derive(Debug)]
pub(super) struct SegmentReceiver {
    headers: usize,
    message: Vec<u8>,
    /// Segments behind a gap.
    early: BTreeMap<u32, [u8; MAD_LEN]>,
    /// The last segment of those without a gap.
    pub(super) segment: u32,
    pub(super) window: u32,
    acked: u32,
    pub(super) is_complete: bool,
}

impl SegmentReceiver {
    pub(super) fn new(class: u8) -> Self {
        Self {
            headers: data_offset(class),
            message: Vec::new(),
            early: BTreeMap::new(),
            segment: 0,
            window: 1,
            acked: 0,
            is_complete: false,
        }
    }

    /// Bytes that are kept.
    pub(super) fn memory(&self) -> usize {
        self.message.len() + self.early.len() * MAD_LEN
    }

    /// Takes a segment (`start_rmpp` and `continue_rmpp` of the kernel's mad_rmpp.c).
    pub(super) fn take(&mut self, datagram: &[u8; MAD_LEN], number: u32) -> Taken {
        if self.is_complete || number <= self.acked {
            return Taken::Ack;
        }
        if number > self.window || number <= self.segment {
            return Taken::Quietly;
        }
        self.early.insert(number, *datagram);
        while let Some(next) = self.early.remove(&(self.segment + 1)) {
            self.segment += 1;
            let from = if self.segment == 1 { 0 } else { self.headers };
            self.message.extend_from_slice(next.get(from..).unwrap_or_default());
            let header = Rmpp::of(&next);
            if header.is_last() {
                self.is_complete = true;
                self.early.clear();
                self.acked = self.segment;
                let mut message = core::mem::take(&mut self.message);
                message.truncate(message.len() - pad_of(header.length_or_window, MAD_LEN - self.headers));
                return Taken::Complete(message);
            }
        }
        if self.memory() > LONGEST {
            return Taken::TooLong;
        }
        if self.segment == self.window || self.segment == 1 && self.acked == 0 {
            self.window = self.segment.saturating_add(WINDOW);
            self.acked = self.segment;
            return Taken::Ack;
        }
        Taken::Quietly
    }
}

/// Bytes at the end of the last segment that are no data. A length that is too large, or so small that it ends within the
/// headers, counts as that of a full segment (`get_mad_len` of the kernel's mad_rmpp.c).
fn pad_of(length: u32, room: usize) -> usize {
    let pad = Rmpp::SEGMENT.saturating_sub(length) as usize;
    if pad <= room { pad } else { 0 }
}
