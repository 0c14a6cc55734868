//! Decisions of a script.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use urxe_explain::Verb;
use urxe_wire::opcode::Role;
use urxe_wire::{Bth, Deth, ICRC_LEN, NakCode, Opcode, Qpn, RnrTimer, Syndrome, Transport, XrcEth};

use crate::chance::{Chance, throw};
use crate::mutate::{Dictionary, Mutation, NotADictionary};
use crate::sequence::Sequence;

/// Which way a packet goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "says itself")]
pub enum Direction {
    Received,
    Sent,
}

/// A queue pair of this side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Qp {
    /// Number, which is random.
    pub qpn: Qpn,
    /// The how manieth it is that was made on the device, counted from 1; `None` if nobody knows.
    pub made: Option<u32>,
}

/// A packet, as far as rules aim at it.
#[derive(Clone, Copy, Debug)]
pub struct Sight {
    /// Which way it goes.
    pub direction: Direction,
    /// Operation and transport.
    pub opcode: Opcode,
    /// The queue pair on this side.
    pub qp: Qp,
    /// The other side.
    pub peer: IpAddr,
    /// Bytes, BTH to ICRC.
    pub len: usize,
}

/// Decision about a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Let the packet pass.
    Pass,
    /// Lose the packet.
    Drop,
    /// Deliver the packet twice.
    Duplicate,
    /// Flip a bit, counted from the first of the BTH.
    Corrupt(usize),
    /// Change the payload by [`Script::mutate`], and give the packet a right ICRC.
    Mutate(MutationId),
    /// Delay the packet.
    Delay(Duration),
    /// So many others of its direction overtake it.
    Reorder(u32),
    /// A response becomes a refusal.
    Refuse(Syndrome),
    /// Pass the packet, and move its queue pair to ERR.
    BreakQp,
}

/// A change of a payload, which [`Script::mutate`] carries out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MutationId {
    rule: usize,
    number: u64,
}

/// Why a verb fails, or with what a work request completes.
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
    fn is(self, qp: Qp) -> bool {
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
    /// In lower case, without underscores; the start of a name is enough.
    pub(crate) opcode: Option<String>,
    pub(crate) peer: Option<IpAddr>,
    pub(crate) direction: Option<Direction>,
    /// Which matches, counted from 1.
    pub(crate) nth: Option<(u64, u64)>,
}

/// One action with its aim, and how often that was hit.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    pub(crate) action: Action,
    pub(crate) aim: Aim,
    /// In which step it holds; `None` is always.
    pub(crate) step: Option<usize>,
    pub(crate) seen: u64,
    /// Packets that a burst still takes.
    pub(crate) left: u64,
    pub(crate) tally: Arc<Tally>,
}

/// A rule as it was written, and how often it struck. Copies of a script share it.
#[derive(Debug, Default)]
pub struct Tally {
    rule: String,
    hits: AtomicU64,
}

impl Tally {
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

    fn hit(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
    }
}

/// A dictionary that cannot be had.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unread {
    /// Path, as the script has it.
    pub path: String,
    /// Reason.
    pub why: String,
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dict={}: {}", self.path, self.why)
    }
}

impl std::error::Error for Unread {}

/// Rules, in order; the first that strikes decides.
#[derive(Clone, Debug, Default)]
pub struct Script {
    pub(crate) seed: u64,
    pub(crate) rules: Vec<Rule>,
    pub(crate) steps: Sequence,
}

impl Aim {
    fn takes(&self, sight: &Sight) -> bool {
        self.qp.is_none_or(|which| which.is(sight.qp))
            && self.peer.is_none_or(|peer| peer == sight.peer.to_canonical())
            && self.direction.is_none_or(|direction| direction == sight.direction)
            && self.opcode.as_ref().is_none_or(|name| opcode_name(sight.opcode).starts_with(name.as_str()))
    }
}

impl Aim {
    /// Whether the packet has a payload that is the program's: those of rdma_cm only if that is asked for.
    fn may_mutate(&self, sight: &Sight) -> bool {
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
    fn matched(&mut self) -> Option<u64> {
        let count = self.seen;
        self.seen += 1;
        let wanted = self.aim.nth.is_none_or(|(first, last)| (first..=last).contains(&(count + 1)));
        wanted.then_some(count)
    }
}

impl Script {
    /// Rules about packets, verbs and completions, in their order. A rule with several actions counts for all of them.
    pub fn tallies(&self) -> impl Iterator<Item = &Tally> {
        let counted = self.rules.iter().filter(|rule| !matches!(rule.action, Action::Announce(_)));
        let mut last: Option<&Arc<Tally>> = None;
        counted.filter_map(move |rule| {
            let is_new = last.replace(&rule.tally).is_none_or(|last| !Arc::ptr_eq(last, &rule.tally));
            is_new.then_some(&*rule.tally)
        })
    }

    /// Decides about a packet.
    pub fn packet(&mut self, sight: &Sight) -> Verdict {
        let verdict = self.verdict(sight);
        if self.steps.packet() {
            self.begin();
        }
        verdict
    }

    fn verdict(&mut self, sight: &Sight) -> Verdict {
        let (seed, step) = (self.seed, self.steps.now());
        for (index, rule) in self.rules.iter_mut().enumerate() {
            if !rule.holds(step) {
                continue;
            }
            // Only what is a response can be refused.
            let refusable = !matches!(rule.action, Action::Refuse(_)) || is_response(sight.opcode);
            let mutable = !matches!(rule.action, Action::Mutate(..)) || rule.aim.may_mutate(sight);
            if !rule.is_about_packets() || !refusable || !mutable || !rule.aim.takes(sight) {
                continue;
            }
            let Some(count) = rule.matched() else { continue };
            let dice = throw(seed, index as u64, count);
            // Independent of whether it strikes.
            let choice = throw(!seed, index as u64, count);
            let verdict = match &rule.action {
                Action::Burst(..) if rule.left > 0 => {
                    rule.left -= 1;
                    Verdict::Drop
                }
                Action::Burst(chance, packets) if chance.happens(dice) => {
                    rule.left = packets - 1;
                    Verdict::Drop
                }
                Action::Drop(chance) if chance.happens(dice) => Verdict::Drop,
                Action::Duplicate(chance) if chance.happens(dice) => Verdict::Duplicate,
                Action::Corrupt(chance) if chance.happens(dice) => {
                    Verdict::Corrupt(usize::try_from(choice % (sight.len.max(1) as u64 * 8)).unwrap_or(0))
                }
                Action::Mutate(chance, _) if chance.happens(dice) => {
                    Verdict::Mutate(MutationId { rule: index, number: choice })
                }
                Action::Reorder(chance, behind) if chance.happens(dice) => Verdict::Reorder(*behind),
                Action::Delay(range) => {
                    let span = (range.end() - range.start()).saturating_add(1);
                    Verdict::Delay(Duration::from_nanos(range.start() + choice % span))
                }
                Action::Refuse(syndrome) => Verdict::Refuse(*syndrome),
                Action::BreakQp => Verdict::BreakQp,
                _ => continue,
            };
            rule.tally.hit();
            return verdict;
        }
        Verdict::Pass
    }

    /// Changes a payload, as a rule has decided.
    pub fn mutate(&self, id: MutationId, payload: &mut [u8]) {
        let none = Dictionary::default();
        let tokens = match self.rules.get(id.rule).map(|rule| &rule.action) {
            Some(Action::Mutate(_, Some(dictionary))) => &*dictionary.tokens,
            _ => &none,
        };
        Mutation::new(tokens, id.number).edit(payload);
    }

    /// Reads the dictionaries of all rules with `read`, which has the path.
    ///
    /// # Errors
    /// [`Unread`]: a file cannot be read, or is none.
    pub fn load_dictionaries(&mut self, mut read: impl FnMut(&str) -> io::Result<String>) -> Result<(), Unread> {
        for rule in &mut self.rules {
            if let Action::Mutate(_, Some(dictionary)) = &mut rule.action {
                let unread = |why: String| Unread { path: dictionary.path.clone(), why };
                let text = read(&dictionary.path).map_err(|error| unread(error.to_string()))?;
                let tokens = text.parse().map_err(|error: NotADictionary| unread(error.to_string()))?;
                dictionary.tokens = Arc::new(tokens);
            }
        }
        Ok(())
    }

    /// The errno with which a call of `verb` is to fail.
    pub fn verb(&mut self, verb: Verb) -> Option<Refused> {
        let step = self.steps.now();
        self.rules.iter_mut().filter(|rule| rule.holds(step)).find_map(|rule| match &rule.action {
            Action::Verb(ruled, errno) if *ruled == verb || *ruled == verb.basic() => {
                let errno = *errno;
                rule.matched().map(|_| rule.refuses(errno))
            }
            _ => None,
        })
    }

    /// The status with which a work request on `qp` is to complete; `direction` is that of its message.
    pub fn completion(&mut self, qp: Qp, direction: Direction) -> Option<Refused> {
        let step = self.steps.now();
        self.rules.iter_mut().filter(|rule| rule.holds(step)).find_map(|rule| match rule.action {
            Action::Completion(status)
                if rule.aim.qp.is_none_or(|which| which.is(qp))
                    && rule.aim.direction.is_none_or(|wanted| wanted == direction) =>
            {
                rule.matched().map(|_| rule.refuses(status))
            }
            _ => None,
        })
    }

    /// So much time has passed since the device was opened. Steps that are over end, and the next begin.
    pub fn at(&mut self, elapsed: Duration) {
        while self.steps.clock(elapsed) {
            self.begin();
        }
    }

    /// When the present step is over, if that is a matter of time.
    #[must_use]
    pub fn next_step(&self) -> Option<Duration> {
        self.steps.ends_at()
    }

    /// Takes the announcements of the steps that have begun since the last call. Times are those
    /// since the device was opened.
    pub fn take_announcements(&mut self) -> Vec<Announcement> {
        let mut taken = Vec::new();
        for (step, begun) in self.steps.take_begun() {
            taken.extend(self.rules.iter().filter(|rule| rule.step == step).filter_map(|rule| match rule.action {
                Action::Announce(it) => Some(Announcement { after: begun + it.after, ..it }),
                _ => None,
            }));
        }
        taken
    }

    /// A step begins: its rules count anew.
    fn begin(&mut self) {
        let step = self.steps.now();
        for rule in self.rules.iter_mut().filter(|rule| rule.step.is_some() && rule.step == step) {
            (rule.seen, rule.left) = (0, 0);
        }
    }

    /// Whether any verb is to fail.
    #[must_use]
    pub fn is_about_verbs(&self) -> bool {
        self.rules.iter().any(|rule| matches!(rule.action, Action::Verb(..)))
    }
}

impl Rule {
    fn refuses(&self, code: u32) -> Refused {
        self.tally.hit();
        Refused(code)
    }

    /// Whether it holds in this step.
    fn holds(&self, step: Option<usize>) -> bool {
        self.step.is_none() || self.step == step
    }

    const fn is_about_packets(&self) -> bool {
        !matches!(self.action, Action::Verb(..) | Action::Completion(_) | Action::Announce(_))
    }
}

/// Whether it answers a request, and may therefore be a refusal.
fn is_response(opcode: Opcode) -> bool {
    opcode.info().role == Role::Response
}

/// A NAK, by the name that scripts use.
pub(crate) fn syndrome(name: &str) -> Option<Syndrome> {
    Some(match name {
        // 0.01 ms.
        "rnr" => Syndrome::RnrNak(RnrTimer::new(1)),
        "sequence" => Syndrome::Nak(NakCode::PsnSequenceError),
        "invalid" => Syndrome::Nak(NakCode::InvalidRequest),
        "access" => Syndrome::Nak(NakCode::RemoteAccessError),
        "operational" => Syndrome::Nak(NakCode::RemoteOperationalError),
        _ => return None,
    })
}
