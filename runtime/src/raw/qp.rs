//! A raw packet queue pair.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};

use urxe_engine::{Consumer as _, Cqe, Data, Pd, PostError, QpCap, QpState, WcOpcode, WcStatus, copy_payload};
use urxe_net::raw::RawTx;
use urxe_wire::Qpn;

use super::recv_queue::{RecvQueue, RecvState};
use crate::counters::bump;
use crate::cq::Cq;
use crate::device::{Device, TxContext};
use crate::{clock, lock};

/// Shortest frame: an Ethernet header.
const SHORTEST: u64 = 14;

/// Attributes of a new raw packet queue pair.
#[derive(Debug)]
pub struct RawQpConfig {
    /// Number, of [`Port::alloc_qpn`](urxe_net::Port::alloc_qpn).
    pub qpn: Qpn,
    /// Protection domain.
    pub pd: Pd,
    /// Sizes.
    pub cap: QpCap,
    /// Every send request is signaled.
    pub sq_sig_all: bool,
    /// Completion queue of sends.
    pub send_cq: Arc<Cq>,
    /// Completion queue of receives.
    pub recv_cq: Arc<Cq>,
}

/// A raw packet queue pair (`IBV_QPT_RAW_PACKET`).
pub struct RawQp {
    config: RawQpConfig,
    device: Arc<Device>,
    tx: Arc<RawTx>,
    recv: Arc<RecvQueue>,
    send: Mutex<SendSide>,
}

impl std::fmt::Debug for RawQp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RawQp").field("config", &self.config).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct SendSide {
    state: QpState,
    /// Bytes of the frames that have not left; in front of them, some that have.
    bytes: Vec<u8>,
    frames: VecDeque<Staged>,
}

impl SendSide {
    fn forget(&mut self) {
        self.frames.clear();
        self.bytes.clear();
    }

    /// Forgets the bytes of frames that have left, when they are half of all: so each is moved about once.
    fn trim(&mut self) {
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
}

/// A frame that has not left.
#[derive(Debug)]
struct Staged {
    wr_id: u64,
    start: usize,
    end: usize,
    is_signaled: bool,
    /// Status of a request whose bytes could not be read: its turn comes behind those posted before.
    failure: Option<WcStatus>,
}

/// A send request.
#[derive(Debug)]
pub struct RawSend<'a> {
    /// The application's number for it.
    pub wr_id: u64,
    /// The frame, from the MAC addresses on, without FCS.
    pub data: &'a Data,
    /// Gives a completion also when it succeeds.
    pub is_signaled: bool,
    /// `IBV_SEND_IP_CSUM`: checksums of IPv4, TCP and UDP are to be filled in.
    pub fills_checksums: bool,
}

impl RawQp {
    /// Makes a queue pair in RESET.
    ///
    /// # Errors
    /// `PermissionDenied` without CAP_NET_RAW; what else the system refuses.
    pub fn new(device: &Arc<Device>, config: RawQpConfig) -> io::Result<Arc<Self>> {
        let tx = device.raw().tx(device.net())?;
        let recv = RecvQueue::new(
            config.qpn,
            config.pd,
            Arc::clone(&config.recv_cq),
            config.cap.max_recv_wr,
            config.cap.max_recv_sge,
        );
        let send = SendSide { state: QpState::Reset, bytes: Vec::new(), frames: VecDeque::new() };
        let device = Arc::clone(device);
        Ok(Arc::new(Self { config, device, tx, recv: Arc::new(recv), send: Mutex::new(send) }))
    }

    /// Returns the attributes that it was made with.
    pub const fn config(&self) -> &RawQpConfig {
        &self.config
    }

    /// Returns the device.
    pub const fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Returns the receive queue.
    pub const fn recv_queue(&self) -> &Arc<RecvQueue> {
        &self.recv
    }

    /// Returns the state.
    pub fn state(&self) -> QpState {
        let state = lock(&self.send).state;
        // An error of either side is one of both.
        if state != QpState::Reset && self.recv.state() == RecvState::Error { QpState::Err } else { state }
    }

    /// Goes to another state, which the caller has found to be one that it may go to.
    pub fn set_state(self: &Arc<Self>, work: &mut TxContext, state: QpState) {
        let mut send = lock(&self.send);
        send.state = state;
        match state {
            QpState::Reset => send.forget(),
            QpState::Err => self.flush(work, &mut send),
            // What was posted in SQD.
            QpState::Rts => self.transmit(work, &mut send),
            _ => {}
        }
        drop(send);
        self.recv.set_state(
            work,
            match state {
                QpState::Reset => RecvState::Reset,
                QpState::Init => RecvState::Armed,
                QpState::Err => RecvState::Error,
                _ => RecvState::Ready,
            },
        );
        if state == QpState::Reset {
            self.config.send_cq.forget(self.config.qpn);
            self.config.recv_cq.forget(self.config.qpn);
        }
        self.device.deliver_notifications(work);
    }

    /// Posts send requests, which `stage` pushes: their frames leave before this returns, as far as there is room.
    ///
    /// # Errors
    /// That of `stage`; the requests before are posted.
    pub fn post_send<E>(
        self: &Arc<Self>,
        work: &mut TxContext,
        stage: impl FnOnce(&mut Stage<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut send = lock(&self.send);
        self.follow_receive_error(work, &mut send);
        let result = stage(&mut Stage { qp: self, send: &mut send, work });
        self.transmit(work, &mut send);
        drop(send);
        self.device.deliver_notifications(work);
        result
    }

    /// Tries again to send what found no room.
    pub(super) fn go_on(self: &Arc<Self>, work: &mut TxContext) {
        let mut send = lock(&self.send);
        self.follow_receive_error(work, &mut send);
        self.transmit(work, &mut send);
    }

    /// Ends the send requests if the receive side has failed.
    fn follow_receive_error(&self, work: &mut TxContext, send: &mut SendSide) {
        if !matches!(send.state, QpState::Reset | QpState::Err) && self.recv.state() == RecvState::Error {
            send.state = QpState::Err;
            self.flush(work, send);
        }
    }

    /// Sends what is staged, as far as there is room; nothing in SQD.
    fn transmit(self: &Arc<Self>, work: &mut TxContext, send: &mut SendSide) {
        if send.state == QpState::Sqd {
            return;
        }
        while let Some(first) = send.frames.front() {
            if let Some(status) = first.failure {
                let wr_id = first.wr_id;
                send.frames.pop_front();
                self.fail(work, send, wr_id, status);
                break;
            }
            let whole = send.frames.iter().take_while(|frame| frame.failure.is_none());
            let frames = whole.map(|frame| send.bytes.get(frame.start..frame.end).unwrap_or_default());
            let (sent, error) = self.tx.send(frames);
            for frame in send.frames.drain(..sent) {
                if frame.is_signaled {
                    self.complete(work, frame.wr_id, WcStatus::Success);
                }
            }
            let Some(error) = error else { continue };
            match error.raw_os_error() {
                Some(libc::EAGAIN) => {
                    self.device.raw().block(self, &self.tx);
                    send.trim();
                    return;
                }
                // The frame is none that the interface takes, mostly by its length.
                Some(libc::EMSGSIZE | libc::EINVAL) => {
                    if let Some(frame) = send.frames.pop_front() {
                        self.fail(work, send, frame.wr_id, WcStatus::LocalLengthError);
                    }
                }
                // A queue of the interface has dropped it, or the interface is down: a frame is lost, as on a cable.
                _ => {
                    bump(&self.device.counters().raw_tx_lost);
                    if let Some(frame) = send.frames.pop_front().filter(|frame| frame.is_signaled) {
                        self.complete(work, frame.wr_id, WcStatus::Success);
                    }
                }
            }
        }
        send.bytes.clear();
    }

    /// Ends a send request with an error, and all behind it.
    fn fail(&self, work: &mut TxContext, send: &mut SendSide, wr_id: u64, status: WcStatus) {
        self.complete(work, wr_id, status);
        send.state = QpState::Err;
        self.flush(work, send);
        self.recv.set_state(work, RecvState::Error);
    }

    fn flush(&self, work: &mut TxContext, send: &mut SendSide) {
        for frame in send.frames.drain(..) {
            self.complete(work, frame.wr_id, WcStatus::WrFlushError);
        }
        send.bytes.clear();
    }

    fn complete(&self, work: &mut TxContext, wr_id: u64, status: WcStatus) {
        let cq = &self.config.send_cq;
        let cqe = Cqe {
            wr_id,
            status,
            opcode: WcOpcode::Send,
            qpn: self.config.qpn,
            byte_len: 0,
            imm: None,
            invalidated: None,
            at: clock::now(),
            src_qp: Qpn::new(0),
            solicited: false,
            grh: None,
            csum_ok: false,
            flow_tag: 0,
        };
        work.notifications.complete(cq, cqe);
    }
}

/// The send queue of a queue pair while requests are posted.
pub struct Stage<'a> {
    qp: &'a Arc<RawQp>,
    send: &'a mut SendSide,
    work: &'a mut TxContext,
}

impl Stage<'_> {
    /// Checks requests before any of them is posted.
    ///
    /// # Errors
    /// What [`push`](Self::push) would say of the first that it would refuse.
    pub fn check<'b>(&self, requests: impl ExactSizeIterator<Item = &'b Data>) -> Result<(), PostError> {
        if self.send.frames.len() + requests.len() > self.qp.config.cap.max_send_wr as usize {
            return Err(PostError::QueueFull);
        }
        requests.into_iter().try_for_each(|data| self.check_one(data))
    }

    fn check_one(&self, data: &Data) -> Result<(), PostError> {
        if matches!(self.send.state, QpState::Reset | QpState::Init | QpState::Rtr) {
            return Err(PostError::State(self.send.state));
        }
        if let Data::Gather(list) = data
            && list.as_slice().len() > self.qp.config.cap.max_send_sge as usize
        {
            return Err(PostError::TooManySge);
        }
        if !(SHORTEST..=LONGEST).contains(&data.length()) {
            return Err(PostError::Length);
        }
        Ok(())
    }

    /// Posts a request: its bytes are copied now.
    ///
    /// # Errors
    /// [`PostError`]; the request is not posted then.
    pub fn push(&mut self, request: &RawSend<'_>) -> Result<(), PostError> {
        self.check_one(request.data)?;
        let Self { qp, send, work } = self;
        if matches!(send.state, QpState::Err | QpState::Sqe) {
            qp.complete(work, request.wr_id, WcStatus::WrFlushError);
            return Ok(());
        }
        let cap = &qp.config.cap;
        let length = usize::try_from(request.data.length()).map_err(|_| PostError::Length)?;
        if send.frames.len() >= cap.max_send_wr as usize {
            qp.transmit(work, send);
            if send.frames.len() >= cap.max_send_wr as usize {
                return Err(PostError::QueueFull);
            }
        }
        let start = send.bytes.len();
        send.bytes.resize(start + length, 0);
        let copied = {
            let _turn = work.memory.turn();
            let to = send.bytes.get_mut(start..).unwrap_or_default();
            copy_payload(&work.memory, qp.config.pd, request.data, 0, to)
        };
        if copied.is_err() {
            send.bytes.truncate(start);
            let failure = Some(WcStatus::LocalProtectionError);
            send.frames.push_back(Staged { wr_id: request.wr_id, start, end: start, is_signaled: true, failure });
            return Ok(());
        }
        if request.fills_checksums {
            urxe_engine::flow::checksum::fill(send.bytes.get_mut(start..).unwrap_or_default(), true);
        }
        let is_signaled = request.is_signaled || qp.config.sq_sig_all;
        send.frames.push_back(Staged { wr_id: request.wr_id, start, end: start + length, is_signaled, failure: None });
        Ok(())
    }
}

/// Longest frame that any interface takes.
const LONGEST: u64 = (1 << 16) + 64;

#[cfg(test)]
mod tests {
    use super::*;

    /// A sender that never catches up: one frame always waits.
    #[test]
    fn bytes_of_frames_that_have_left_are_forgotten() {
        const FRAME: usize = 1000;
        let mut send = SendSide { state: QpState::Rts, bytes: Vec::new(), frames: VecDeque::new() };
        for wr_id in 0..1000_u64 {
            let start = send.bytes.len();
            send.bytes.resize(start + FRAME, wr_id.to_le_bytes()[0]);
            let end = start + FRAME;
            send.frames.push_back(Staged { wr_id, start, end, is_signaled: false, failure: None });
            if send.frames.len() > 2 {
                send.frames.pop_front();
            }
            send.trim();
            assert!(send.bytes.len() <= 4 * FRAME, "{} bytes for {} frames", send.bytes.len(), send.frames.len());
            for frame in &send.frames {
                let first = frame.wr_id.to_le_bytes()[0];
                assert!(send.bytes[frame.start..frame.end].iter().all(|byte| *byte == first));
            }
        }
    }
}
