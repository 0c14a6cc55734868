//! Syntax of scripts.
//!
#![doc = concat!("```text\n", include_str!("grammar.txt"), "```")]
//!
//! Steps that repeat and all end with time must take a millisecond together.

mod item;
mod value;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::rule::{Action, Aim, Announcement, Rule, RuleCounter};
use crate::script::Script;
use crate::sequence::Until;
use item::Item;
use value::nanos;

/// The grammar, as help texts show it.
pub const GRAMMAR: &str = include_str!("grammar.txt");

/// Error in a script.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Invalid {
    /// The item that makes no sense.
    pub item: String,
    /// Description of a valid item.
    pub expected: &'static str,
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: expected {}", self.item, self.expected)
    }
}

impl std::error::Error for Invalid {}

const ACTIONS: &str = "an action (drop, burst, dup, corrupt, mutate, reorder, delay, nak, qp_error, fail, wc, event, remove), an aim (qp, \
                       opcode, peer, dir, nth), dict, step, repeat or seed";

/// Shortest round of steps: every step is a wake-up, and shorter rounds would keep a processor busy.
const SHORTEST_ROUND: Duration = Duration::from_millis(1);

impl FromStr for Script {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let mut script = Self::default();
        let mut step = None;
        for line in text.lines() {
            let line = line.split_once('#').map_or(line, |(before, _)| before);
            for rule in line.split(';').map(str::trim).filter(|rule| !rule.is_empty()) {
                match rule.split(',').next().map(str::trim) {
                    Some("step") => step = Some(script.steps.push(until(rule)?)),
                    Some("repeat") if rule == "repeat" => script.steps.repeats = true,
                    _ => add(&mut script, step, rule)?,
                }
            }
        }
        script.check()?;
        Ok(script)
    }
}

impl Script {
    /// Checks conditions of the whole script.
    fn check(&self) -> Result<(), Invalid> {
        let invalid = |item: &str, expected| Err(Invalid { item: item.to_owned(), expected });
        if self.steps.repeats && self.steps.is_endless() {
            return invalid("repeat", "steps before it that end: with packets=N or lasts=T");
        }
        if self.steps.repeats && self.steps.round().is_some_and(|round| round < SHORTEST_ROUND) {
            return invalid("repeat", "steps before it that take 1ms together, or that count packets");
        }
        for rule in &self.rules {
            if let (Action::Verb(verb, _), Some(step)) = (&rule.action, rule.step)
                && self.steps.counts_packets(step)
            {
                return invalid(
                    &format!("fail={}", verb.name().trim_start_matches("ibv_")),
                    "only steps with lasts=T before and around it: verbs do not count packets",
                );
            }
        }
        Ok(())
    }
}

/// When a step is over, by the rule that begins it.
fn until(rule: &str) -> Result<Until, Invalid> {
    const EXPECTED: &str = "step, step,packets=200 or step,lasts=500ms";
    let invalid = || Invalid { item: rule.to_owned(), expected: EXPECTED };
    match rule.split(',').map(str::trim).collect::<Vec<_>>()[..] {
        ["step"] => Ok(Until::End),
        ["step", length] => match length.split_once('=') {
            Some(("packets", count)) => match count.parse() {
                Ok(count @ 1..) => Ok(Until::Packets(count)),
                _ => Err(invalid()),
            },
            Some(("lasts", time)) => match nanos(time) {
                Some(nanos @ 1..) => Ok(Until::Time(Duration::from_nanos(nanos))),
                _ => Err(invalid()),
            },
            _ => Err(invalid()),
        },
        _ => Err(invalid()),
    }
}

fn add(script: &mut Script, step: Option<usize>, rule: &str) -> Result<(), Invalid> {
    let (mut actions, mut aim, mut after, mut seeded) = (Vec::new(), Aim::default(), Duration::ZERO, false);
    for item in rule.split(',').map(|item| Item::new(item.trim())) {
        match item.key {
            "dict" => item.set_dictionary(&mut actions)?,
            "after" => {
                const EXPECTED: &str = "after=100ms";
                after = Duration::from_nanos(nanos(item.needed(EXPECTED)?).ok_or_else(|| item.invalid(EXPECTED))?);
            }
            "seed" => {
                script.seed = item.needed("seed=42")?.parse().map_err(|_| item.invalid("seed=42"))?;
                seeded = true;
            }
            _ => match item.action()? {
                Some(action) => actions.push(action),
                None if item.set_aim(&mut aim)? => {}
                None => return Err(item.invalid(ACTIONS)),
            },
        }
    }
    if actions.is_empty() && !(seeded && aim == Aim::default()) {
        return Err(Invalid { item: rule.to_owned(), expected: "an action to aim at something" });
    }
    for action in &actions {
        if let Some((item, expected)) = action.cannot_have(&aim, !after.is_zero()) {
            return Err(Invalid { item: format!("{item}` in `{rule}"), expected });
        }
    }
    let counter = Arc::new(RuleCounter::new(rule));
    for action in actions {
        let action = match action {
            Action::Announce(announcement) => Action::Announce(Announcement { after, ..announcement }),
            other => other,
        };
        script.rules.push(Rule { action, aim: aim.clone(), step, seen: 0, left: 0, counter: Arc::clone(&counter) });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
