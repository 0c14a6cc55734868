//! A queue of receive requests for frames: of a raw queue pair, or a work queue.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use urxe_engine::{
    Consumer as _, Cqe, FrameCompletion, Instant, Pd, PostError, QpState, RecvWr, WcOpcode, WcStatus, scatter,
};
use urxe_wire::{Lid, Qpn};

use crate::cq::Cq;
use crate::device::TxContext;
use crate::{clock, lock};

/// State of a receive queue (`enum ibv_wq_state`, and what the states of a queue pair mean for receiving).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecvState {
    /// Takes no requests.
    Reset,
    /// Takes requests, and no frames: a queue pair in INIT.
    Armed,
    /// Takes requests and frames.
    Ready,
    /// Ends requests as soon as they come.
    Error,
}

/// A queue of receive requests for frames.
#[derive(Debug)]
pub struct RecvQueue {
    number: Qpn,
    pd: Pd,
    cq: Arc<Cq>,
    max_wr: u32,
    max_sge: u32,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    state: RecvState,
    queue: VecDeque<RecvWr>,
    /// `IBV_WQ_FLAGS_CVLAN_STRIPPING`.
    strips_cvlan: bool,
    /// Frames that wait for a request; there is none then.
    backlog: Backlog,
}

/// Frames that came when the application had completions to poll and no requests posted: it is about to post some. A card's
/// application is not so far behind, as the card does not compete with it for a processor.
#[derive(Debug, Default)]
struct Backlog {
    frames: VecDeque<(Box<[u8]>, FrameInfo)>,
    bytes: usize,
}

/// Bytes in the backlogs of this process: queues are many, and whoever sends frames decides how long they are.
static BACKLOGS: AtomicUsize = AtomicUsize::new(0);

impl Backlog {
    /// Most frames, and their bytes.
    const MOST: (usize, usize) = (4096, 8 << 20);
    /// Most bytes in the backlogs of this process.
    const MOST_OF_ALL: usize = 32 << 20;

    /// Adds a frame; false if there is no room.
    fn put(&mut self, frame: &[u8], info: FrameInfo) -> bool {
        let has_room = self.frames.len() < Self::MOST.0
            && self.bytes + frame.len() <= Self::MOST.1
            && BACKLOGS.load(Ordering::Relaxed) + frame.len() <= Self::MOST_OF_ALL;
        if has_room {
            BACKLOGS.fetch_add(frame.len(), Ordering::Relaxed);
            self.bytes += frame.len();
            self.frames.push_back((frame.into(), info));
        }
        has_room
    }

    fn take(&mut self) -> Option<(Box<[u8]>, FrameInfo)> {
        let taken = self.frames.pop_front()?;
        BACKLOGS.fetch_sub(taken.0.len(), Ordering::Relaxed);
        self.bytes -= taken.0.len();
        Some(taken)
    }
}

impl Drop for Backlog {
    fn drop(&mut self) {
        BACKLOGS.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Contents of a completion, besides the frame's length.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameInfo {
    pub(super) csum_ok: bool,
    pub(super) flow_tag: u32,
    pub(super) at: Instant,
}

impl RecvQueue {
    /// Makes an empty queue in state RESET. `number` is that of its queue pair or work queue.
    #[must_use]
    pub fn new(number: Qpn, pd: Pd, cq: Arc<Cq>, max_wr: u32, max_sge: u32) -> Self {
        let (state, queue, backlog) = (RecvState::Reset, VecDeque::new(), Backlog::default());
        let inner = Mutex::new(Inner { state, queue, strips_cvlan: false, backlog });
        Self { number, pd, cq, max_wr, max_sge, inner }
    }

    /// Returns the number of the queue pair or work queue.
    pub const fn number(&self) -> Qpn {
        self.number
    }

    /// Returns the completion queue.
    pub const fn cq(&self) -> &Arc<Cq> {
        &self.cq
    }

    /// Returns the state.
    pub fn state(&self) -> RecvState {
        lock(&self.inner).state
    }

    /// Says whether the first VLAN tag of a frame goes to its completion, and not to memory.
    pub fn set_strips_cvlan(&self, strips: bool) {
        lock(&self.inner).strips_cvlan = strips;
    }

    /// Posts a request. In state [`RecvState::Error`] the request ends at once.
    ///
    /// # Errors
    /// [`PostError`]; the request is not queued then.
    pub fn post(&self, work: &mut TxContext, request: RecvWr) -> Result<(), PostError> {
        let mut inner = lock(&self.inner);
        if inner.state == RecvState::Reset {
            return Err(PostError::State(QpState::Reset));
        }
        if request.buffers.as_slice().len() > self.max_sge as usize {
            return Err(PostError::TooManySge);
        }
        if inner.state == RecvState::Error {
            self.complete(work, request.wr_id, WcStatus::WrFlushError, 0, None);
            return Ok(());
        }
        if inner.queue.len() >= self.max_wr as usize {
            return Err(PostError::QueueFull);
        }
        match inner.backlog.take() {
            Some((frame, info)) => self.receive(work, &mut inner, &request, &frame, info),
            None => inner.queue.push_back(request),
        }
        Ok(())
    }

    /// Changes the state. RESET forgets requests, and an error ends them.
    pub fn set_state(&self, work: &mut TxContext, state: RecvState) {
        let mut inner = lock(&self.inner);
        inner.state = state;
        match state {
            RecvState::Reset => {
                inner.queue.clear();
                inner.backlog = Backlog::default();
            }
            RecvState::Error => self.flush(work, &mut inner),
            RecvState::Armed | RecvState::Ready => {}
        }
    }

    fn flush(&self, work: &mut TxContext, inner: &mut Inner) {
        inner.backlog = Backlog::default();
        for request in inner.queue.drain(..) {
            self.complete(work, request.wr_id, WcStatus::WrFlushError, 0, None);
        }
    }

    /// Copies a frame to where the oldest request says. False if there is no request, and the frame is lost.
    pub(super) fn deliver(&self, work: &mut TxContext, frame: &[u8], info: FrameInfo) -> bool {
        let mut inner = lock(&self.inner);
        if inner.state != RecvState::Ready {
            // As on a card: nobody receives, and nothing is wrong.
            return true;
        }
        match inner.queue.pop_front() {
            Some(request) => self.receive(work, &mut inner, &request, frame, info),
            None if self.cq.has_unpolled() => return inner.backlog.put(frame, info),
            None => return false,
        }
        true
    }

    /// Copies a frame to where a request says, and ends the request.
    fn receive(&self, work: &mut TxContext, inner: &mut Inner, request: &RecvWr, frame: &[u8], info: FrameInfo) {
        let (macs, cvlan, rest) = if inner.strips_cvlan { without_tag(frame) } else { (&[][..], 0, frame) };
        let length = macs.len() + rest.len();
        let status = if request.buffers.length() < length as u64 {
            WcStatus::LocalLengthError
        } else {
            let _turn = work.memory.turn();
            let copy = |at, from| scatter(&work.memory, self.pd, &request.buffers, at, from);
            let copied = copy(0, macs).and_then(|()| copy(macs.len(), rest));
            if copied.is_ok() { WcStatus::Success } else { WcStatus::LocalProtectionError }
        };
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        let frame = FrameCompletion { csum_ok: info.csum_ok, cvlan, flow_tag: info.flow_tag };
        self.complete(work, request.wr_id, status, length, Some((info.at, frame)));
        if status != WcStatus::Success {
            inner.state = RecvState::Error;
            self.flush(work, inner);
        }
    }

    fn complete(
        &self,
        work: &mut TxContext,
        wr_id: u64,
        status: WcStatus,
        byte_len: u32,
        received: Option<(Instant, FrameCompletion)>,
    ) {
        let (at, frame) = received.unwrap_or_else(|| (clock::now(), FrameCompletion::default()));
        let cqe = Cqe {
            wr_id,
            status,
            opcode: WcOpcode::Recv,
            qpn: self.number,
            byte_len,
            imm: None,
            invalidated: None,
            at,
            src_qp: Qpn::new(0),
            solicited: false,
            grh: None,
            slid: Lid::NONE,
            frame,
            refusal: None,
        };
        work.notifications.complete(&self.cq, cqe);
    }
}

/// Takes the first VLAN tag out of a frame, if it is one of 802.1Q: the addresses, its TCI, and what follows it.
fn without_tag(frame: &[u8]) -> (&[u8], u16, &[u8]) {
    const MACS: usize = 12;
    match frame.get(MACS..) {
        Some([0x81, 0x00, high, low, rest @ ..]) if rest.len() >= 2 => {
            (frame.get(..MACS).unwrap_or_default(), u16::from_be_bytes([*high, *low]), rest)
        }
        _ => (&[], 0, frame),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_tag_of_8021q_is_taken_out() {
        let macs = [7; 12];
        let frame = |rest: &[u8]| [&macs[..], rest].concat();
        let tagged = frame(&[0x81, 0, 0x60, 5, 0x81, 0, 0, 6, 8, 0]);
        assert_eq!(without_tag(&tagged), (&macs[..], 0x6005, &[0x81, 0, 0, 6, 8, 0][..]));
        for rest in [&[8, 0, 1][..], &[0x88, 0xa8, 0, 5, 8, 0], &[0x81, 0, 0, 5, 8], &[]] {
            let frame = frame(rest);
            assert_eq!(without_tag(&frame), (&[][..], 0, &frame[..]));
        }
    }

    /// More queues than the process has memory for, each with frames that nobody takes.
    #[test]
    fn backlogs_share_what_the_process_gives() {
        let info = FrameInfo { csum_ok: false, flow_tag: 0, at: clock::now() };
        let frame = [0; 9000];
        let mut backlogs: Vec<_> = (0..16).map(|_| Backlog::default()).collect();
        for backlog in &mut backlogs {
            while backlog.put(&frame, info) {}
        }
        let bytes = |backlogs: &[Backlog]| backlogs.iter().map(|backlog| backlog.bytes).sum::<usize>();
        let full = bytes(&backlogs);
        assert!((Backlog::MOST_OF_ALL - frame.len()..=Backlog::MOST_OF_ALL).contains(&full), "{full}");
        assert!(backlogs[0].take().is_some() && backlogs[15].put(&frame, info));
        drop(backlogs);
        assert!(Backlog::default().put(&frame, info), "what was dropped is free again");
    }
}
