//! A raw packet queue pair.

use std::io;
use std::sync::{Arc, Mutex};

use urxe_engine::{Consumer as _, Cqe, FrameCompletion, Pd, QpCap, QpState, WcOpcode, WcStatus};
use urxe_net::raw::RawTx;
use urxe_wire::{Lid, Qpn};

use super::rate::{Rate, RateLimit};
use super::recv_queue::{RecvQueue, RecvState};
use super::send_queue::SendQueue;
use crate::counters::bump;
use crate::cq::Cq;
use crate::device::{Device, TxContext};
use crate::{clock, lock};

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
    /// Longest header of `IBV_WR_TSO`; 0 if there is no such operation.
    pub max_tso_header: u32,
    /// `IBV_QP_CREATE_CVLAN_STRIPPING`: the VLAN tag of a received frame goes to its completion.
    pub strips_cvlan: bool,
}

/// A raw packet queue pair (`IBV_QPT_RAW_PACKET`).
pub struct RawQp {
    config: RawQpConfig,
    device: Arc<Device>,
    tx: Arc<RawTx>,
    recv: Arc<RecvQueue>,
    pub(super) send: Mutex<SendQueue>,
}

impl std::fmt::Debug for RawQp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RawQp").field("config", &self.config).finish_non_exhaustive()
    }
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
        recv.set_strips_cvlan(config.strips_cvlan);
        let send = SendQueue::default();
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
            QpState::Reset => {
                send.clear();
                send.rate = None;
            }
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

    /// Limits the rate of frames, or ends the limit. Those that wait leave by the new one.
    pub fn set_rate_limit(self: &Arc<Self>, work: &mut TxContext, limit: Option<RateLimit>) {
        let mut send = lock(&self.send);
        send.rate = limit.map(|limit| Rate::new(limit, clock::now()));
        if send.state == QpState::Rts {
            self.transmit(work, &mut send);
        }
        drop(send);
        self.device.deliver_notifications(work);
    }

    /// Returns the limit on the rate of frames, if there is one.
    pub fn rate_limit(&self) -> Option<RateLimit> {
        lock(&self.send).rate.as_ref().map(Rate::limit)
    }

    /// Tries again to send what found no room.
    pub(super) fn go_on(self: &Arc<Self>, work: &mut TxContext) {
        let mut send = lock(&self.send);
        self.follow_receive_error(work, &mut send);
        self.transmit(work, &mut send);
    }

    /// Ends the send requests if the receive side has failed.
    pub(super) fn follow_receive_error(&self, work: &mut TxContext, send: &mut SendQueue) {
        if !matches!(send.state, QpState::Reset | QpState::Err) && self.recv.state() == RecvState::Error {
            send.state = QpState::Err;
            self.flush(work, send);
        }
    }

    /// Sends what is staged, as far as there is room; nothing in SQD.
    pub(super) fn transmit(self: &Arc<Self>, work: &mut TxContext, send: &mut SendQueue) {
        if send.state == QpState::Sqd {
            return;
        }
        while let Some(first) = send.front() {
            if let Some(status) = first.failure {
                self.fail(work, send, status);
                break;
            }
            let allowed = match &send.rate {
                None => usize::MAX,
                Some(rate) => match rate.allowance(clock::now(), send.sendable().map(<[u8]>::len)) {
                    Ok(allowed) => allowed,
                    Err(at) => {
                        self.device.pace_raw(self, at);
                        send.trim();
                        return;
                    }
                },
            };
            let (sent, error) = self.tx.send(send.sendable().take(allowed));
            for _ in 0..sent {
                self.has_left(work, send);
            }
            let Some(error) = error else { continue };
            match error.raw_os_error() {
                Some(libc::EAGAIN) => {
                    self.device.raw().block(self, &self.tx);
                    send.trim();
                    return;
                }
                // The frame is none that the interface takes, mostly by its length.
                Some(libc::EMSGSIZE | libc::EINVAL) => self.fail(work, send, WcStatus::LocalLengthError),
                // A queue of the interface has dropped it, or the interface is down: a frame is lost, as on a cable.
                _ => {
                    bump(&self.device.counters().raw_tx_lost);
                    self.has_left(work, send);
                }
            }
        }
        send.trim();
    }

    /// Forgets the first frame, and ends its request if it is the last of it.
    fn has_left(&self, work: &mut TxContext, send: &mut SendQueue) {
        let Some(frame) = send.pop() else { return };
        if let Some(rate) = &mut send.rate {
            rate.sent(clock::now(), frame.length());
        }
        if frame.is_last && frame.is_signaled {
            self.complete(work, frame.wr_id, frame.opcode, WcStatus::Success);
        }
    }

    /// Ends the first send request with an error, and all behind it.
    fn fail(&self, work: &mut TxContext, send: &mut SendQueue, status: WcStatus) {
        if let Some(frame) = send.pop_request() {
            self.complete(work, frame.wr_id, frame.opcode, status);
        }
        send.state = QpState::Err;
        self.flush(work, send);
        self.recv.set_state(work, RecvState::Error);
    }

    fn flush(&self, work: &mut TxContext, send: &mut SendQueue) {
        while let Some(frame) = send.pop_request() {
            self.complete(work, frame.wr_id, frame.opcode, WcStatus::WrFlushError);
        }
        send.clear();
    }

    pub(super) fn complete(&self, work: &mut TxContext, wr_id: u64, opcode: WcOpcode, status: WcStatus) {
        let cq = &self.config.send_cq;
        let cqe = Cqe {
            wr_id,
            status,
            opcode,
            qpn: self.config.qpn,
            byte_len: 0,
            imm: None,
            invalidated: None,
            at: clock::now(),
            src_qp: Qpn::new(0),
            solicited: false,
            grh: None,
            slid: Lid::NONE,
            frame: FrameCompletion::default(),
            refusal: None,
        };
        work.notifications.complete(cq, cqe);
    }
}
