//! Send requests of a raw packet queue pair on their way into its send queue.

use std::sync::Arc;

use urxe_engine::flow::checksum;
use urxe_engine::flow::segment::Template;
use urxe_engine::{Data, PostError, QpState, Refusal, WcOpcode, WcStatus, copy_payload};

use super::qp::RawQp;
use super::send_queue::{SendQueue, Staged};
use crate::device::TxContext;
use crate::{limits, lock};

/// Shortest frame: an Ethernet header.
const SHORTEST: u64 = 14;
/// Longest frame that any interface takes.
const LONGEST: u64 = (1 << 16) + 64;

/// A send request.
#[derive(Clone, Copy, Debug)]
pub struct RawSend<'a> {
    /// The application's number for it.
    pub wr_id: u64,
    /// The frame, from the MAC addresses on, without FCS; with `tso`, the payload of TCP.
    pub data: &'a Data,
    /// Gives a completion also when it succeeds.
    pub is_signaled: bool,
    /// `IBV_SEND_IP_CSUM`: checksums of IPv4, TCP and UDP are to be filled in.
    pub fills_checksums: bool,
    /// `IBV_WR_TSO`: the data is to be cut into frames.
    pub tso: Option<Tso<'a>>,
}

/// Segmentation of a send request.
#[derive(Clone, Copy, Debug)]
pub struct Tso<'a> {
    /// Headers of Ethernet, IP and TCP.
    pub header: &'a [u8],
    /// Most bytes of payload in a frame.
    pub mss: u16,
}

impl RawQp {
    /// Posts send requests, which `stage` pushes: their frames leave before this returns, as far as there is room.
    ///
    /// # Errors
    /// Errors of `stage`; the requests before are posted.
    pub fn post_send<E>(
        self: &Arc<Self>,
        work: &mut TxContext,
        stage: impl FnOnce(&mut Stage<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut send = lock(&self.send);
        self.follow_receive_error(work, &mut send);
        let result = stage(&mut Stage::new(self, &mut send, work));
        self.transmit(work, &mut send);
        drop(send);
        self.device().deliver_notifications(work);
        result
    }
}

/// The send queue of a queue pair while requests are posted.
pub struct Stage<'a> {
    qp: &'a Arc<RawQp>,
    send: &'a mut SendQueue,
    work: &'a mut TxContext,
}

impl<'a> Stage<'a> {
    pub(super) const fn new(qp: &'a Arc<RawQp>, send: &'a mut SendQueue, work: &'a mut TxContext) -> Self {
        Self { qp, send, work }
    }

    /// Checks requests before any of them is posted.
    ///
    /// # Errors
    /// The error of [`push`](Self::push) for the first request that it would refuse.
    pub fn check<'b>(&self, requests: impl ExactSizeIterator<Item = RawSend<'b>>) -> Result<(), PostError> {
        if self.send.requests + requests.len() > self.qp.config().cap.max_send_wr as usize {
            return Err(PostError::QueueFull);
        }
        requests.into_iter().try_for_each(|request| self.check_one(&request).map(|_| ()))
    }

    /// Returns the template of frames, with `tso`.
    fn check_one(&self, request: &RawSend<'_>) -> Result<Option<Template>, PostError> {
        if matches!(self.send.state, QpState::Reset | QpState::Init | QpState::Rtr) {
            return Err(PostError::State(self.send.state));
        }
        let config = self.qp.config();
        if let Data::Gather(list) = request.data
            && list.as_slice().len() > config.cap.max_send_sge as usize
        {
            return Err(PostError::TooManySge);
        }
        let Some(tso) = &request.tso else {
            let is_frame = (SHORTEST..=LONGEST).contains(&request.data.length());
            return if is_frame { Ok(None) } else { Err(PostError::Length) };
        };
        if tso.header.len() > config.max_tso_header as usize || tso.mss == 0 {
            return Err(PostError::Operation);
        }
        if request.data.length() > u64::from(limits::MAX_TSO) {
            return Err(PostError::Length);
        }
        Template::new(tso.header).map(Some).ok_or(PostError::Operation)
    }

    /// Posts a request: its bytes are copied now.
    ///
    /// # Errors
    /// [`PostError`]; the request is not posted then.
    pub fn push(&mut self, request: &RawSend<'_>) -> Result<(), PostError> {
        let template = self.check_one(request)?;
        let opcode = if template.is_some() { WcOpcode::Tso } else { WcOpcode::Send };
        let Self { qp, send, work } = self;
        if matches!(send.state, QpState::Err | QpState::Sqe) {
            qp.complete(work, request.wr_id, opcode, WcStatus::WrFlushError);
            return Ok(());
        }
        let most = qp.config().cap.max_send_wr as usize;
        if send.requests >= most {
            qp.transmit(work, send);
            if send.requests >= most {
                return Err(PostError::QueueFull);
            }
        }
        let (frames, bytes) = (send.len(), send.bytes.len());
        if self.copy(request, template, opcode).is_err() {
            let send = &mut *self.send;
            send.truncate(frames, bytes);
            let failure = Some(WcStatus::LocalProtectionError);
            let (wr_id, start) = (request.wr_id, send.bytes.len());
            send.push(Staged { wr_id, start, end: start, is_last: true, is_signaled: true, opcode, failure });
        }
        Ok(())
    }

    /// Copies the frames of a request.
    fn copy(&mut self, request: &RawSend<'_>, template: Option<Template>, opcode: WcOpcode) -> Result<(), Refusal> {
        let Self { qp, send, work } = self;
        let is_signaled = request.is_signaled || qp.config().sq_sig_all;
        let (header, mss) = request.tso.map_or((&[][..], usize::MAX), |tso| (tso.header, tso.mss.into()));
        let whole = usize::try_from(request.data.length()).unwrap_or(usize::MAX);
        let _turn = work.memory.turn();
        let mut offset = 0;
        // `MAX_TSO` bytes are no more segments than that.
        for number in 0..=u16::MAX {
            let (start, length) = (send.bytes.len(), mss.min(whole - offset));
            send.bytes.extend_from_slice(header);
            send.bytes.resize(start + header.len() + length, 0);
            let frame = send.bytes.get_mut(start..).unwrap_or_default();
            let to = frame.get_mut(header.len()..).unwrap_or_default();
            copy_payload(&work.memory, qp.config().pd, request.data, offset, to)?;
            let is_last = offset + length == whole;
            match template {
                Some(template) => template.finish(frame, number, u32::try_from(offset).unwrap_or(u32::MAX), is_last),
                None if request.fills_checksums => checksum::fill(frame),
                None => {}
            }
            let end = send.bytes.len();
            send.push(Staged { wr_id: request.wr_id, start, end, is_last, is_signaled, opcode, failure: None });
            if is_last {
                break;
            }
            offset += length;
        }
        Ok(())
    }
}
