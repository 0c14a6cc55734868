//! One rule: an action and its aim.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use urxe_explain::Verb;
use urxe_wire::opcode::Role;
use urxe_wire::{Bth, Deth, ICRC_LEN, Opcode, Qpn, Syndrome, Transport, XrcEth};

use crate::chance::Chance;
use crate::mutate::Dictionary;
use crate::sight::{Direction, Qp, Sight};

/// Code of a failure: the errno of a verb, or the status of a completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused(pub u32);

/// Occurrence at the device, and its time since the device was opened, or since the step that it belongs to began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Announcement {
    /// Event or removal.
    pub what: Occurrence,
    /// Time since the device was opened, or since the step began.
    pub after: Duration,
}

/// Occurrence at a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Occurrence {
    /// An asynchronous event: `enum ibv_event_type`.
    Event(u32),
    /// Removal of the device.
    Removal,
}

/// Action of a rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    Drop(Chance),
    /// Lose this many packets in a row.
    Burst(Chance, u64),
    Duplicate(Chance),
    Corrupt(Chance),
    /// Change the payload, with the help of a dictionary.
    Mutate(Chance, Option<DictionaryFile>),
    Delay(RangeInclusive<u64>),
    Reorder(Chance, u32),
    Refuse(Syndrome),
    BreakQp,
    /// A verb, and the errno with which it fails.
    Verb(Verb, u32),
    /// `enum ibv_wc_status`.
    Completion(u32),
    Announce(Announcement),
}

/// A dictionary, which [`Script::load_dictionaries`] reads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DictionaryFile {
    pub(crate) path: String,
    pub(crate) tokens: Arc<Dictionary>,
}

/// A queue pair, by its number or by when it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WhichQp {
    Number(u32),
    Made(u32),
}

impl WhichQp {
    /// Whether a queue pair is the one.
    pub(crate) fn is(self, qp: Qp) -> bool {
        match self {
            Self::Number(number) => number == qp.qpn.get(),
            Self::Made(nth) => qp.made == Some(nth),
        }
    }
}

/// Aim of a rule.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Aim {
    pub(crate) qp: Option<WhichQp>,
    /// Name of the opcode in lower case, without underscores; the start of a name is enough.
    pub(crate) opcode: Option<String>,
    pub(crate) peer: Option<IpAddr>,
    pub(crate) direction: Option<Direction>,
    /// First and last match that count, from 1.
    pub(crate) nth: Option<(u64, u64)>,
}

/// One action with its aim, and how often that was hit.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    pub(crate) action: Action,
    pub(crate) aim: Aim,
    /// Step in which it holds; `None` is always.
    pub(crate) step: Option<usize>,
    pub(crate) seen: u64,
    /// Packets that a burst still takes.
    pub(crate) left: u64,
    pub(crate) counter: Arc<RuleCounter>,
}

/// Counter of the packets, calls and completions that a rule struck, with the text of the rule. Copies of a script share it.
#[derive(Debug, Default)]
pub struct RuleCounter {
    rule: String,
    hits: AtomicU64,
}

impl RuleCounter {
    pub(crate) fn new(rule: &str) -> Self {
        Self { rule: rule.to_owned(), hits: AtomicU64::new(0) }
    }

    /// Text of the rule.
    #[must_use]
    pub fn rule(&self) -> &str {
        &self.rule
    }

    /// Packets, calls and completions that it struck.
    #[must_use]
    pub fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    pub(crate) fn hit(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
    }
}

impl Aim {
    /// Whether a packet is aimed at.
    pub(crate) fn takes(&self, sight: &Sight) -> bool {
        self.qp.is_none_or(|which| which.is(sight.qp))
            && self.peer.is_none_or(|peer| peer == sight.peer.to_canonical())
            && self.direction.is_none_or(|direction| direction == sight.direction)
            && self.opcode.as_ref().is_none_or(|name| opcode_name(sight.opcode).starts_with(name.as_str()))
    }

    /// Whether the packet has a payload that is the program's: those of rdma_cm only if that is asked for.
    pub(crate) fn may_mutate(&self, sight: &Sight) -> bool {
        let is_cm = sight.qp.qpn == Qpn::GSI && self.qp != Some(WhichQp::Number(Qpn::GSI.get()));
        !is_cm && sight.len > headers_len(sight.opcode) + ICRC_LEN
    }
}

/// Bytes before the payload.
fn headers_len(opcode: Opcode) -> usize {
    let service = match (opcode.transport(), opcode.info().role) {
        (Transport::Ud, _) => Deth::LEN,
        (Transport::Xrc, Role::Request) => XrcEth::LEN,
        _ => 0,
    };
    Bth::LEN + service + opcode.info().headers.len()
}

/// `sendfirst` of RC SEND First.
fn opcode_name(opcode: Opcode) -> String {
    format!("{:?}", opcode.operation()).to_ascii_lowercase()
}

impl Rule {
    /// Notes a match; whether it is one that counts, and its number from 0.
    pub(crate) fn matched(&mut self) -> Option<u64> {
        let count = self.seen;
        self.seen += 1;
        let wanted = self.aim.nth.is_none_or(|(first, last)| (first..=last).contains(&(count + 1)));
        wanted.then_some(count)
    }

    /// Counts a hit, and refuses with a code.
    pub(crate) fn refuses(&self, code: u32) -> Refused {
        self.counter.hit();
        Refused(code)
    }

    /// Whether the rule holds in this step.
    pub(crate) fn holds(&self, step: Option<usize>) -> bool {
        self.step.is_none() || self.step == step
    }

    pub(crate) const fn is_about_packets(&self) -> bool {
        !matches!(self.action, Action::Verb(..) | Action::Completion(_) | Action::Announce(_))
    }
}
