//! Answers of the responder on their way out: acknowledgements, READ responses, atomic results.
//!
//! Answers leave in the order of their PSNs, but for those to duplicates, which leave in their turn, and before all others with
//! selective repeat. At most one acknowledgement waits, behind everything else, because a later one says all that an earlier one did,
//! and so does a response (IBA 9.7.5.1.2). The responder resources bound READs and atomics, and so everything.

mod transmit;

use alloc::collections::VecDeque;

pub(in crate::qp) use transmit::{Burst, Gone};
use urxe_wire::{Msn, NakCode, Psn, Reth, Syndrome};

use crate::mr::Pd;
use crate::quirks::AckPolicy;
use crate::time::{Clock, Instant};

/// The answers waiting.
#[derive(Debug, Default)]
pub(in crate::qp) struct ResponseQueue {
    responses: VecDeque<Response>,
    /// Leaves when the responses have.
    acknowledgement: Option<Acknowledgement>,
    /// ACKs that leave before that, though it says all that they do: none without it.
    apart: VecDeque<Acknowledgement>,
    /// The acknowledgement does not leave before.
    not_before: Option<Instant>,
    /// The last packet sent said that there is no receive WQE.
    advertised_none: bool,
}

#[derive(Clone, Copy, Debug)]
struct Acknowledgement {
    psn: Psn,
    /// `None` is an ACK, with the credits there are when it leaves.
    refusal: Option<Syndrome>,
    msn: Msn,
}

/// The answer to a READ or atomic.
#[derive(Clone, Copy, Debug)]
pub(in crate::qp) enum Response {
    Atomic {
        psn: Psn,
        original: u64,
        msn: Msn,
        replayed: bool,
    },
    Read(ReadResponse),
    /// A duplicate READ cannot be answered any more.
    Refusal {
        psn: Psn,
        nak: NakCode,
        msn: Msn,
    },
}

/// A READ response being sent.
#[derive(Clone, Copy, Debug)]
pub(in crate::qp) struct ReadResponse {
    pub(in crate::qp) first: Psn,
    pub(in crate::qp) next: Psn,
    pub(in crate::qp) last: Psn,
    pub(in crate::qp) reth: Reth,
    pub(in crate::qp) msn: Msn,
    /// Protection domain of the memory.
    pub(in crate::qp) pd: Pd,
    /// The response answers a duplicate, and takes no responder resource.
    pub(in crate::qp) replayed: bool,
}

impl Response {
    const fn is_replayed(&self) -> bool {
        match self {
            Self::Atomic { replayed, .. } => *replayed,
            Self::Read(read) => read.replayed,
            Self::Refusal { .. } => true,
        }
    }
}

/// Place of an answer to a duplicate among the responses that wait.
#[derive(Clone, Copy, Debug)]
pub(in crate::qp) enum Turn {
    /// Place behind all of them.
    Last,
    /// Place behind other duplicates, before what was never answered.
    BeforeFirstAnswers,
}

impl ResponseQueue {
    pub(in crate::qp) fn is_empty(&self) -> bool {
        self.responses.is_empty() && self.acknowledgement.is_none()
    }

    /// Whether more than an acknowledgement waits.
    pub(in crate::qp) fn has_responses(&self) -> bool {
        !self.responses.is_empty()
    }

    /// Whether a refusal waits.
    pub(in crate::qp) fn has_refusal(&self) -> bool {
        self.acknowledgement.is_some_and(|waiting| waiting.refusal.is_some())
    }

    /// Whether all that waits is an ACK.
    pub(in crate::qp) fn is_lone_ack(&self) -> bool {
        self.responses.is_empty() && self.acknowledgement.is_some_and(|waiting| waiting.refusal.is_none())
    }

    /// The PSN of the ACK that waits, if it is all.
    pub(in crate::qp) fn lone_ack(&self) -> Option<Psn> {
        match self.acknowledgement {
            Some(Acknowledgement { psn, refusal: None, .. }) if self.responses.is_empty() => Some(psn),
            _ => None,
        }
    }

    pub(in crate::qp) fn clear(&mut self) {
        self.responses.clear();
        self.acknowledgement = None;
        self.apart.clear();
        self.not_before = None;
    }

    /// Whether there is but an ACK, and it does not leave yet.
    pub(in crate::qp) fn keeps_back(&mut self, policy: AckPolicy, clock: &impl Clock) -> bool {
        let AckPolicy::Delayed(by) = policy else { return false };
        if !self.is_lone_ack() {
            self.not_before = None;
            return false;
        }
        let now = clock.now();
        let at = *self.not_before.get_or_insert(now + by);
        if at <= now {
            self.not_before = None;
        }
        now < at
    }

    /// Time at which an ACK that is kept back leaves.
    pub(in crate::qp) const fn kept_until(&self) -> Option<Instant> {
        self.not_before
    }

    /// Has the acknowledgement leave now at the latest.
    pub(in crate::qp) fn flush_delayed(&mut self, policy: AckPolicy, clock: &impl Clock) {
        if matches!(policy, AckPolicy::Delayed(_)) && self.is_lone_ack() {
            self.not_before = Some(clock.now());
        }
    }

    /// Acknowledges everything before `expected`.
    pub(in crate::qp) fn acknowledge(&mut self, expected: Psn, msn: Msn) {
        let stands = |waiting: &Acknowledgement| waiting.refusal.is_some() && waiting.psn == expected;
        if !self.acknowledgement.as_ref().is_some_and(stands) {
            self.acknowledgement = Some(Acknowledgement { psn: expected.sub(1), refusal: None, msn });
        }
    }

    /// Acknowledges everything before `expected`, by an ACK besides those that wait.
    pub(in crate::qp) fn acknowledge_apart(&mut self, expected: Psn, msn: Msn) {
        const MOST: usize = 64;
        if let Some(waiting) = self.acknowledgement.filter(|waiting| waiting.refusal.is_none())
            && waiting.psn != expected.sub(1)
            && self.apart.len() < MOST
        {
            self.apart.push_back(waiting);
        }
        self.acknowledge(expected, msn);
    }

    /// Refuses the request at `psn`, which acknowledges everything before it.
    pub(in crate::qp) fn refuse(&mut self, psn: Psn, syndrome: Syndrome, msn: Msn) {
        self.acknowledgement = Some(Acknowledgement { psn, refusal: Some(syndrome), msn });
    }

    /// Answers a request that was just carried out, and thereby acknowledges all before it.
    pub(in crate::qp) fn respond(&mut self, response: Response) {
        self.acknowledgement = None;
        self.apart.clear();
        self.responses.push_back(response);
    }

    /// Answers a duplicate again, before what is acknowledged behind it. `false` if `most` duplicates wait
    /// already: the requester will ask again.
    pub(in crate::qp) fn replay(&mut self, response: Response, turn: Turn, most: u8) -> bool {
        let waiting = self.responses.iter().filter(|response| response.is_replayed()).count();
        //= spec/responder.md#rsp-023
        //# A flood of duplicates MUST NOT make anything grow.
        if waiting >= usize::from(most) {
            return false;
        }
        let before = match turn {
            Turn::Last => self.responses.len(),
            Turn::BeforeFirstAnswers => self.responses.iter().take_while(|response| response.is_replayed()).count(),
        };
        self.responses.insert(before, response);
        true
    }

    /// Whether one of the responses waiting is so.
    pub(in crate::qp) fn is_coming(&self, wanted: impl Fn(&Response) -> bool) -> bool {
        self.responses.iter().any(wanted)
    }

    /// Has the first answer to a READ, of which part has left, that at `psn`, and not that at `last`, go on from `psn`. False if there is
    /// none such.
    pub(in crate::qp) fn rewind(&mut self, psn: Psn, last: Psn) -> bool {
        let leaving = self.responses.iter_mut().find_map(|response| match response {
            Response::Read(read) if !read.replayed && psn.distance_from(read.first) >= 0 => {
                (psn.distance_from(read.next) < 0 && last.distance_from(read.next) >= 0).then_some(read)
            }
            _ => None,
        });
        leaving.is_some_and(|read| {
            read.next = psn;
            true
        })
    }

    /// Responder resources in use: READs and atomics not answered yet.
    pub(in crate::qp) fn unanswered(&self) -> usize {
        self.responses.iter().filter(|response| !response.is_replayed()).count()
    }

    /// Whether the peer was told that there is no receive WQE; forgets it.
    pub(in crate::qp) const fn take_advertised_none(&mut self) -> bool {
        core::mem::replace(&mut self.advertised_none, false)
    }
}
