//! Agreement of two ends on selective repeat, and what one has to tell the other of.

use urxe_wire::Psn;

use crate::time::Instant;

/// Selective repeat of a queue pair, as far as it is agreed.
#[derive(Debug, Default)]
pub(super) struct Agreement {
    /// Offers sent.
    pub(super) offers: u8,
    /// PSN of the requester at the last one.
    pub(super) offered_at: Psn,
    /// An offer of the peer is to be answered.
    pub(super) owes_answer: bool,
    /// The peer understands selective acknowledgements.
    pub(super) peer_listens: bool,
    /// A selective acknowledgement is to be sent.
    pub(super) owes_ack: bool,
    /// Requests that came out of order, or filled a part of a gap, since the last one.
    pub(super) untold: u8,
    /// Time by which the first of these is to be told of.
    pub(super) tell_by: Option<Instant>,
    /// PSN behind the last request that came out of order: another one is behind a new gap.
    pub(super) behind: Option<Psn>,
    /// Requests until one that is to be told of at once; 0: none is.
    pub(super) until_told: u8,
    /// Requests that arrived more than once.
    pub(super) duplicates: u32,
    /// Knowledge of the peer's requester that answers may come in any order.
    pub(super) announced: Announced,
    /// Path of the last answers.
    pub(super) answers_path: u8,
}

/// Knowledge of the peer's requester that packets are kept, and that answers may come in any order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Announced {
    /// No news has left yet.
    #[default]
    No,
    /// The first news left while this PSN was expected.
    At(Psn),
    /// The news has arrived: more requests came since than may be in flight.
    Heard,
}

impl Agreement {
    /// Forgets packets that are to be sent.
    pub(super) const fn owe_nothing(&mut self) {
        self.owes_answer = false;
        self.told();
    }

    /// Notes that the peer is told of all that came out of order.
    pub(super) const fn told(&mut self) {
        (self.owes_ack, self.untold, self.tell_by) = (false, 0, None);
    }

    /// Notes that the peer's requester was told that packets are kept, while `expected` was.
    pub(super) fn announced_at(&mut self, expected: Psn) {
        if self.announced == Announced::No {
            self.announced = Announced::At(expected);
        }
    }
}
