//! Completion queues.

use alloc::collections::VecDeque;

use urxe_wire::{ImmDt, Lid, Qpn, RKey, grh};

use crate::moderation::Moderation;
use crate::mr::Refusal;
use crate::quirks::Quirks;
use crate::time::Instant;

/// Outcome of a work request (`enum ibv_wc_status`, IBA 11.6.2); the numbers are libibverbs'.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
#[expect(missing_docs, reason = "the names are the specification's")]
pub enum WcStatus {
    Success = 0,
    LocalLengthError = 1,
    LocalQpOperationError = 2,
    LocalProtectionError = 4,
    WrFlushError = 5,
    MwBindError = 6,
    BadResponseError = 7,
    LocalAccessError = 8,
    RemoteInvalidRequestError = 9,
    RemoteAccessError = 10,
    RemoteOperationError = 11,
    RetryExceededError = 12,
    RnrRetryExceededError = 13,
    RemoteAbortedError = 16,
    FatalError = 19,
}

impl WcStatus {
    /// Takes libibverbs' number; `None` for those that no queue pair of ours has.
    #[must_use]
    pub const fn from_u32(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::Success,
            1 => Self::LocalLengthError,
            2 => Self::LocalQpOperationError,
            4 => Self::LocalProtectionError,
            5 => Self::WrFlushError,
            6 => Self::MwBindError,
            7 => Self::BadResponseError,
            8 => Self::LocalAccessError,
            9 => Self::RemoteInvalidRequestError,
            10 => Self::RemoteAccessError,
            11 => Self::RemoteOperationError,
            12 => Self::RetryExceededError,
            13 => Self::RnrRetryExceededError,
            16 => Self::RemoteAbortedError,
            19 => Self::FatalError,
            _ => return None,
        })
    }
}

/// Kind of work request that ended (`enum ibv_wc_opcode`); the numbers are libibverbs'.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
#[expect(missing_docs, reason = "the names are the specification's")]
pub enum WcOpcode {
    Send = 0,
    RdmaWrite = 1,
    RdmaRead = 2,
    CompSwap = 3,
    FetchAdd = 4,
    BindMw = 5,
    LocalInv = 6,
    Tso = 7,
    Flush = 8,
    AtomicWrite = 9,
    Recv = 128,
    RecvRdmaWithImm = 129,
}

/// A completion queue element.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cqe {
    /// The consumer's number for the work request.
    pub wr_id: u64,
    /// Outcome. If it is an error, only `wr_id`, `status` and `qpn` mean anything.
    pub status: WcStatus,
    /// Kind of work request.
    pub opcode: WcOpcode,
    /// The QP it was posted to.
    pub qpn: Qpn,
    /// Bytes received, or read.
    pub byte_len: u32,
    /// Immediate data that came with a message.
    pub imm: Option<ImmDt>,
    /// The key that the message has invalidated.
    pub invalidated: Option<RKey>,
    /// Time at which it was made, if its queue [wants it](crate::Consumer::wants_time).
    pub at: Instant,
    /// The QP that sent the message: on UD; elsewhere the connected peer.
    pub src_qp: Qpn,
    /// The message asked for a solicited event.
    pub solicited: bool,
    /// The network header that the receive buffer starts with: on UD. None if the sender's packet had none.
    pub grh: Option<grh::Kind>,
    /// The sender's LID: on UD, if ports have any.
    pub slid: Lid,
    /// Checksums, VLAN tag and flow tag of a raw frame.
    pub frame: FrameCompletion,
    /// Why the buffers of a send request are refused, if it completes with a local protection error.
    pub refusal: Option<Refusal>,
}

/// Contents of the completion of a received raw frame, besides those of any message; else all of it is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FrameCompletion {
    /// The checksums in the frame are right (`IBV_WC_IP_CSUM_OK`).
    pub csum_ok: bool,
    /// Tag control information of the VLAN tag that was taken out of the frame.
    pub cvlan: u16,
    /// Tag of the flow rule that the frame belongs to.
    pub flow_tag: u32,
}

/// Completions for which a CQ raises a completion event (IBA 11.4.2.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arm {
    /// No completion.
    Disarmed,
    /// Receive completions of solicited messages, and errors.
    Solicited,
    /// Any completion.
    Next,
}

impl Arm {
    const fn is_for(self, cqe: &Cqe) -> bool {
        match self {
            Self::Disarmed => false,
            //= spec/completions.md#cq-004
            //# A request for solicited completions MUST be answered by those and by errors only.
            Self::Solicited => cqe.solicited || !matches!(cqe.status, WcStatus::Success),
            Self::Next => true,
        }
    }
}

/// Outcome of adding a completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pushed {
    /// Added.
    Quietly,
    /// Added, and the consumer asked to be told: raise a completion event.
    RaiseEvent,
    /// Added, and [`CompletionQueue::handle_timeout`] is to be called at this time: the consumer is to be told of it
    /// then at the latest, or can poll it only then.
    LookAt(Instant),
    /// The queue was full, or had overrun before: the completion is lost and the CQ is in error (IBA 11.6.3.2 "CQ error"): raise `IBV_EVENT_CQ_ERR` the first time.
    Overrun {
        /// True for the overrun itself, not for completions after it.
        first: bool,
    },
}

/// Work left by [`CompletionQueue::handle_timeout`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Due {
    /// A completion event is to be raised.
    pub raise_event: bool,
    /// The time of the next call, if one is needed.
    pub look_at: Option<Instant>,
}

/// A completion queue: bounded, first in first out.
#[derive(Debug)]
pub struct CompletionQueue<Q = ()> {
    queue: VecDeque<Cqe>,
    /// Completions that cannot be polled before some time.
    late: VecDeque<(Instant, Cqe)>,
    quirks: Q,
    capacity: usize,
    arm: Arm,
    /// How many elements at the end of the queue came after the last event.
    unannounced: usize,
    overrun: bool,
    moderation: Option<Moderation>,
    /// Completions since it was armed that the consumer is still to be told of, and until when.
    untold: Option<(u16, Instant)>,
}

impl CompletionQueue {
    /// A queue of `capacity` elements.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self::with_quirks(capacity, ())
    }
}

impl<Q: Quirks> CompletionQueue<Q> {
    /// A queue as [`new`](CompletionQueue::new), whose completions are delayed by `quirks`.
    #[must_use]
    pub fn with_quirks(capacity: usize, quirks: Q) -> Self {
        let queue = VecDeque::with_capacity(capacity.min(4096));
        let arm = Arm::Disarmed;
        let late = VecDeque::new();
        Self { queue, late, quirks, capacity, arm, unannounced: 0, overrun: false, moderation: None, untold: None }
    }

    /// Whether completions are delayed or moderated, so that [`push`](Self::push) needs the time.
    #[must_use]
    pub fn wants_time(&self) -> bool {
        self.quirks.delays_completions() || self.moderation.is_some()
    }

    /// Adds a completion.
    // Inline, as what else is asked for each completion: moving one costs more than what is done with it.
    #[inline]
    pub fn push(&mut self, cqe: Cqe) -> Pushed {
        //= spec/completions.md#cq-002
        //# An overrun MUST be told once as IBV_EVENT_CQ_ERR, and no completion be taken after it.
        if self.overrun || self.len() >= self.capacity {
            let first = !self.overrun;
            self.overrun = true;
            return Pushed::Overrun { first };
        }
        if self.quirks.delays_completions() {
            let at = cqe.at + self.quirks.completion_delay();
            let alone = self.late.is_empty();
            // In order, however late those before it are.
            let at = self.late.back().map_or(at, |(before, _)| at.max(*before));
            if at > cqe.at || !alone {
                self.late.push_back((at, cqe));
                return if alone { Pushed::LookAt(at) } else { Pushed::Quietly };
            }
        }
        self.show(cqe, cqe.at)
    }

    /// Lets the consumer poll it.
    #[inline]
    fn show(&mut self, cqe: Cqe, now: Instant) -> Pushed {
        self.queue.push_back(cqe);
        self.unannounced += 1;
        if !self.arm.is_for(&cqe) {
            return Pushed::Quietly;
        }
        //= spec/completions.md#cq-007
        //# A moderated event MUST come with the completion that makes the count full, or when the period is over.
        let first = self.untold.is_none();
        if let Some(moderation) = self.moderation {
            let (count, by) = self.untold.unwrap_or((0, now + moderation.period));
            if count + 1 < moderation.count && now < by {
                self.untold = Some((count + 1, by));
                return if first { Pushed::LookAt(by) } else { Pushed::Quietly };
            }
        }
        self.disarm();
        Pushed::RaiseEvent
    }

    /// The time that [`Pushed::LookAt`] named has come.
    pub fn handle_timeout(&mut self, now: Instant) -> Due {
        let mut raise_event = false;
        while self.late.front().is_some_and(|(at, _)| *at <= now) {
            let Some((_, cqe)) = self.late.pop_front() else { break };
            raise_event |= self.show(cqe, now) == Pushed::RaiseEvent;
        }
        if self.untold.is_some_and(|(_, by)| by <= now) {
            self.disarm();
            raise_event = true;
        }
        let late = self.late.front().map(|(at, _)| *at);
        let untold = self.untold.map(|(_, by)| by);
        Due { raise_event, look_at: late.into_iter().chain(untold).min() }
    }

    //= spec/completions.md#cq-003
    //# One request for notification MUST give one event.
    const fn disarm(&mut self) {
        (self.arm, self.untold, self.unannounced) = (Arm::Disarmed, None, 0);
    }

    /// Raises fewer events, or with `None` one for each request again. One that is being put off is due at once: true.
    pub const fn moderate(&mut self, moderation: Option<Moderation>) -> bool {
        self.moderation = moderation;
        let due = self.untold.is_some();
        if due {
            self.disarm();
        }
        due
    }

    /// Takes the oldest completion.
    //= spec/completions.md#cq-001
    //# Completions MUST be polled in the order in which they were added.
    #[inline]
    pub fn poll(&mut self) -> Option<Cqe> {
        let cqe = self.queue.pop_front();
        self.unannounced = self.unannounced.min(self.queue.len());
        cqe
    }

    /// Shows the oldest completion to `look` where it is, and takes it. False: there is none.
    #[inline]
    pub fn poll_with(&mut self, look: impl FnOnce(&Cqe)) -> bool {
        let Some(cqe) = self.queue.front() else { return false };
        look(cqe);
        self.poll();
        true
    }

    /// Asks for one event. Asking for all overrides asking for solicited ones, not the other way round
    /// (`ibv_req_notify_cq(3)`, IBA 11.4.2.2). True if it is due at once: for a completion that came after the last event
    /// and is still there. NICs compare the consumer's index with theirs when they are asked, and consumers such as UCX's
    /// `ucp_worker_wait` count on it: they do not poll between asking and sleeping.
    //= spec/completions.md#cq-009
    //# A request MUST be answered at once where a completion came after the last event and has not been polled.
    #[must_use]
    pub fn arm(&mut self, solicited_only: bool) -> bool {
        self.arm = match (self.arm, solicited_only) {
            (Arm::Next, _) | (_, false) => Arm::Next,
            (_, true) => Arm::Solicited,
        };
        let late = self.untold.is_none() && self.queue.iter().rev().take(self.unannounced).any(|c| self.arm.is_for(c));
        if late {
            self.disarm();
        }
        late
    }

    /// Elements it can hold.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.capacity
    }

    /// Elements it holds, those that cannot be polled yet included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queue.len() + self.late.len()
    }

    /// Whether there is nothing to poll now.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether a completion was lost.
    #[must_use]
    pub const fn has_overrun(&self) -> bool {
        self.overrun
    }

    /// Changes the capacity.
    ///
    /// # Errors
    /// The number of elements it holds, if that is more (`ibv_resize_cq(3)`: EINVAL).
    //= spec/completions.md#cq-005
    //# Resizing MUST lose no completion, and be refused where one would have no place.
    pub fn resize(&mut self, capacity: usize) -> Result<(), usize> {
        if self.len() > capacity {
            return Err(self.len());
        }
        self.capacity = capacity;
        Ok(())
    }

    /// Removes the completions of a QP that is being destroyed or reset (IBA 10.2.4.4).
    //= spec/completions.md#cq-006
    //# The completions of a queue pair that is destroyed or reset MUST vanish with it.
    pub fn forget(&mut self, qpn: Qpn) {
        self.queue.retain(|cqe| cqe.qpn != qpn);
        self.late.retain(|(_, cqe)| cqe.qpn != qpn);
        self.unannounced = self.unannounced.min(self.queue.len());
    }
}
