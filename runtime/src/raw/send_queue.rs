//! The send queue of a raw packet queue pair: frames that have not left.

use std::collections::VecDeque;

use urxe_engine::{QpState, WcOpcode, WcStatus};

use super::rate::Rate;

/// A frame that has not left.
#[derive(Debug)]
pub(super) struct Staged {
    pub(super) wr_id: u64,
    pub(super) start: usize,
    pub(super) end: usize,
    /// The last frame of its request.
    pub(super) is_last: bool,
    pub(super) is_signaled: bool,
    pub(super) opcode: WcOpcode,
    /// Status of a request whose bytes could not be read: its turn comes behind those posted before.
    pub(super) failure: Option<WcStatus>,
}

impl Staged {
    /// Returns the length of the frame.
    pub(super) const fn length(&self) -> usize {
        self.end - self.start
    }
}

/// Frames that have not left, and their state.
#[derive(Debug)]
pub(super) struct SendQueue {
    pub(super) state: QpState,
    /// Bytes of the frames that have not left; in front of them, some that have.
    pub(super) bytes: Vec<u8>,
    frames: VecDeque<Staged>,
    /// Requests among the frames.
    pub(super) requests: usize,
    /// Limit on the rate of frames, if there is one.
    pub(super) rate: Option<Rate>,
}

impl Default for SendQueue {
    fn default() -> Self {
        Self { state: QpState::Reset, bytes: Vec::new(), frames: VecDeque::new(), requests: 0, rate: None }
    }
}

impl SendQueue {
    /// Returns the number of frames.
    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Returns the first frame.
    pub(super) fn front(&self) -> Option<&Staged> {
        self.frames.front()
    }

    /// Returns the bytes of frames, up to one that has failed.
    pub(super) fn sendable(&self) -> impl Iterator<Item = &[u8]> {
        let whole = self.frames.iter().take_while(|frame| frame.failure.is_none());
        whole.map(|frame| self.bytes.get(frame.start..frame.end).unwrap_or_default())
    }

    /// Forgets the first frame, and returns it.
    pub(super) fn pop(&mut self) -> Option<Staged> {
        let frame = self.frames.pop_front()?;
        self.requests -= usize::from(frame.is_last);
        Some(frame)
    }

    /// Forgets the first request, or what is left of it, and returns its last frame.
    pub(super) fn pop_request(&mut self) -> Option<Staged> {
        loop {
            let frame = self.pop()?;
            if frame.is_last {
                return Some(frame);
            }
        }
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.frames.clear();
        self.bytes.clear();
        self.requests = 0;
    }

    /// Forgets the bytes of frames that have left, when they are half of all: so each is moved about once.
    pub(super) fn trim(&mut self) {
        let gone = self.frames.front().map_or(self.bytes.len(), |frame| frame.start);
        if gone * 2 < self.bytes.len() {
            return;
        }
        self.bytes.drain(..gone);
        for frame in &mut self.frames {
            frame.start -= gone;
            frame.end -= gone;
        }
    }

    pub(super) fn push(&mut self, frame: Staged) {
        self.requests += usize::from(frame.is_last);
        self.frames.push_back(frame);
    }

    /// Forgets the frames and bytes from here on: of a request that has failed.
    pub(super) fn truncate(&mut self, frames: usize, bytes: usize) {
        self.frames.truncate(frames);
        self.bytes.truncate(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(send: &mut SendQueue, wr_id: u64, length: usize, is_last: bool) {
        let start = send.bytes.len();
        send.bytes.resize(start + length, wr_id.to_le_bytes()[0]);
        let (end, opcode) = (start + length, WcOpcode::Send);
        send.push(Staged { wr_id, start, end, is_last, is_signaled: false, opcode, failure: None });
    }

    /// A sender that never catches up: one frame always waits.
    #[test]
    fn bytes_of_frames_that_have_left_are_forgotten() {
        const FRAME: usize = 1000;
        let mut send = SendQueue { state: QpState::Rts, ..SendQueue::default() };
        for wr_id in 0..1000_u64 {
            push(&mut send, wr_id, FRAME, true);
            if send.frames.len() > 2 {
                send.pop();
            }
            send.trim();
            assert!(send.bytes.len() <= 4 * FRAME, "{} bytes for {} frames", send.bytes.len(), send.frames.len());
            for frame in &send.frames {
                let first = frame.wr_id.to_le_bytes()[0];
                assert!(send.bytes[frame.start..frame.end].iter().all(|byte| *byte == first));
            }
        }
    }

    #[test]
    fn a_request_of_several_frames_ends_once() {
        let mut send = SendQueue::default();
        for (wr_id, is_last) in [(1, false), (1, false), (1, true), (2, true), (3, false), (3, true)] {
            push(&mut send, wr_id, 10, is_last);
        }
        assert_eq!(send.requests, 3);
        assert!(!send.pop().unwrap().is_last);
        assert_eq!((send.pop_request().unwrap().wr_id, send.requests), (1, 2));
        assert_eq!(send.sendable().count(), 3);
        assert_eq!((send.pop_request().unwrap().wr_id, send.pop_request().unwrap().wr_id), (2, 3));
        assert!(send.pop_request().is_none() && send.requests == 0);
        send.trim();
        assert!(send.bytes.is_empty());
    }
}
