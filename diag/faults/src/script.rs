//! Decisions of a script.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use urxe_explain::Verb;
use urxe_wire::opcode::Role;
use urxe_wire::{NakCode, Opcode, RnrTimer, Syndrome};

use crate::chance::throw;
use crate::mutate::{Dictionary, Mutation, NotADictionary};
use crate::rule::{Action, Announcement, Refused, Rule, RuleCounter};
use crate::sequence::Sequence;
use crate::sight::{Direction, Qp, Sight};

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
    /// Hold the packet until so many others of its direction have overtaken it.
    Reorder(u32),
    /// Turn the response into a refusal with this syndrome.
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

/// Dictionary that cannot be read.
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

impl Script {
    /// Counters of the rules about packets, verbs and completions, in their order. A rule with several actions has one.
    pub fn counters(&self) -> impl Iterator<Item = &RuleCounter> {
        let counted = self.rules.iter().filter(|rule| !matches!(rule.action, Action::Announce(_)));
        let mut last: Option<&Arc<RuleCounter>> = None;
        counted.filter_map(move |rule| {
            let is_new = last.replace(&rule.counter).is_none_or(|last| !Arc::ptr_eq(last, &rule.counter));
            is_new.then_some(&*rule.counter)
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
            rule.counter.hit();
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

    /// Takes the time since the device was opened: steps that are over end, and the next begin.
    pub fn at(&mut self, elapsed: Duration) {
        while self.steps.clock(elapsed) {
            self.begin();
        }
    }

    /// Time at which the present step is over, if that is a matter of time.
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

/// Whether the packet answers a request, and may therefore be a refusal.
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
