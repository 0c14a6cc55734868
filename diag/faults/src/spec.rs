//! How scripts are written.
//!
#![doc = concat!("```text\n", include_str!("grammar.txt"), "```")]
//!
//! Steps that repeat and all end with time must take a millisecond together.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use urxe_explain::Verb;

use crate::chance::Chance;
use crate::script::{
    Action, Aim, Announcement, DictionaryFile, Direction, Occurrence, Rule, Script, Tally, WhichQp, syndrome,
};
use crate::sequence::Until;

/// The grammar, as help texts show it.
pub const GRAMMAR: &str = include_str!("grammar.txt");

/// Why a script is none.
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

/// Describes the argument of the action of this name.
macro_rules! probability {
    ($action:literal) => {
        concat!($action, "=1%, ", $action, "=0.01 or ", $action, "=1/100, up to 100%; ", $action, " alone is always")
    };
}

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
    for item in rule.split(',').map(str::trim) {
        let (key, value) = match item.split_once('=') {
            Some((key, value)) => (key.trim(), Some(value.trim())),
            None => (item, None),
        };
        let invalid = |expected| Invalid { item: item.to_owned(), expected };
        let needed = |expected| value.ok_or_else(|| invalid(expected));
        match key {
            "drop" => actions.push(Action::Drop(chance(value).ok_or_else(|| invalid(probability!("drop")))?)),
            "dup" => actions.push(Action::Duplicate(chance(value).ok_or_else(|| invalid(probability!("dup")))?)),
            "corrupt" => {
                actions.push(Action::Corrupt(chance(value).ok_or_else(|| invalid(probability!("corrupt")))?));
            }
            "mutate" => {
                const EXPECTED: &str = "mutate=payload or mutate=payload/10%";
                let value = needed(EXPECTED)?;
                let (part, often) = value.split_once('/').map_or((value, None), |(part, often)| (part, Some(often)));
                match (part, chance(often)) {
                    ("payload", Some(often)) => actions.push(Action::Mutate(often, None)),
                    _ => return Err(invalid(EXPECTED)),
                }
            }
            "dict" => {
                const EXPECTED: &str = "dict=FILE, behind mutate=payload";
                let path = needed(EXPECTED)?.to_owned();
                match actions.last_mut() {
                    Some(Action::Mutate(_, file)) if !path.is_empty() => {
                        *file = Some(DictionaryFile { path, tokens: Arc::default() });
                    }
                    _ => return Err(invalid(EXPECTED)),
                }
            }
            "burst" => {
                const EXPECTED: &str = "burst=0.1%/20, 20 packets in a row";
                match needed(EXPECTED)?.rsplit_once('/').map(|(often, len)| (chance(Some(often)), len.parse().ok())) {
                    Some((Some(often), Some(packets @ 1..))) => actions.push(Action::Burst(often, packets)),
                    _ => return Err(invalid(EXPECTED)),
                }
            }
            "reorder" => {
                const EXPECTED: &str = "reorder=1%/8";
                let (how_often, behind) = match needed(EXPECTED)?.rsplit_once('/') {
                    Some((how_often, behind)) => (chance(Some(how_often)), behind.parse().ok()),
                    None => (None, None),
                };
                match (how_often, behind) {
                    (Some(how_often), Some(behind @ 1..)) => actions.push(Action::Reorder(how_often, behind)),
                    _ => return Err(invalid(EXPECTED)),
                }
            }
            "delay" => {
                const EXPECTED: &str = "delay=1ms or delay=50us..2ms";
                let value = needed(EXPECTED)?;
                let (least, most) = value.split_once("..").unwrap_or((value, value));
                match (nanos(least), nanos(most)) {
                    (Some(least), Some(most)) if least <= most => actions.push(Action::Delay(least..=most)),
                    _ => return Err(invalid(EXPECTED)),
                }
            }
            "nak" => {
                const EXPECTED: &str = "nak=rnr, sequence, invalid, access or operational";
                let refusal = syndrome(needed(EXPECTED)?).ok_or_else(|| invalid(EXPECTED))?;
                actions.push(Action::Refuse(refusal));
            }
            "qp_error" if value.is_none() => actions.push(Action::BreakQp),
            "fail" => {
                const EXPECTED: &str = "fail=VERB:ERRNO, such as fail=reg_mr:ENOMEM";
                let (verb, errno) = needed(EXPECTED)?.split_once(':').ok_or_else(|| invalid(EXPECTED))?;
                let errno = errno_number(errno).ok_or_else(|| invalid(EXPECTED))?;
                let Some(verb) = Verb::by_name(verb).filter(|verb| verb.can_fail()) else {
                    return Err(invalid(if verb.trim_start_matches("ibv_").starts_with("wr_") {
                        "wr_complete, which returns the errors of ibv_wr_*; or post_send, for both ways to post"
                    } else {
                        "a verb of the device, such as reg_mr, create_qp, post_send"
                    }));
                };
                // An extended form stands for both.
                let verb = if verb == Verb::WrComplete { verb } else { verb.basic() };
                actions.push(Action::Verb(verb, errno));
            }
            "wc" => {
                const EXPECTED: &str = "wc=STATUS, such as wc=REM_ACCESS_ERR (`urxe explain` lists them)";
                // Those that devices without RD and tag matching have.
                const KNOWN: [u32; 14] = [1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 16, 19];
                let status = number(needed(EXPECTED)?, &urxe_explain::wc::TABLE);
                let status = status.filter(|status| KNOWN.contains(status));
                actions.push(Action::Completion(status.ok_or_else(|| invalid(EXPECTED))?));
            }
            "event" => {
                const EXPECTED: &str = "event=PORT_ERR, PORT_ACTIVE, DEVICE_FATAL or GID_CHANGE";
                const KNOWN: [u32; 4] = [8, 9, 10, 18];
                let event = number(needed(EXPECTED)?, &urxe_explain::event::TABLE);
                let event = event.filter(|event| KNOWN.contains(event)).ok_or_else(|| invalid(EXPECTED))?;
                let what = Occurrence::Event(event);
                actions.push(Action::Announce(Announcement { what, after: Duration::ZERO }));
            }
            "remove" if value.is_none() => {
                actions.push(Action::Announce(Announcement { what: Occurrence::Removal, after: Duration::ZERO }));
            }
            "after" => {
                const EXPECTED: &str = "after=100ms";
                after = Duration::from_nanos(nanos(needed(EXPECTED)?).ok_or_else(|| invalid(EXPECTED))?);
            }
            "seed" => {
                script.seed = needed("seed=42")?.parse().map_err(|_| invalid("seed=42"))?;
                seeded = true;
            }
            "qp" => {
                const EXPECTED: &str = "qp=0x11, or qp=@2 for the second that is made";
                aim.qp = Some(which_qp(needed(EXPECTED)?).ok_or_else(|| invalid(EXPECTED))?);
            }
            "opcode" => {
                let name: String = needed("opcode=READ_RESPONSE")?.chars().filter(|c| *c != '_').collect();
                let name = name.to_ascii_lowercase();
                if !urxe_wire::Operation::ALL
                    .iter()
                    .any(|known| format!("{known:?}").to_ascii_lowercase().starts_with(&name))
                {
                    return Err(invalid(
                        "the start of an operation, such as SEND, WRITE_FIRST, READ_RESPONSE, ACKNOWLEDGE",
                    ));
                }
                aim.opcode = Some(name);
            }
            "peer" => {
                const EXPECTED: &str = "peer=10.0.0.2";
                aim.peer = Some(needed(EXPECTED)?.parse().map_err(|_| invalid(EXPECTED))?);
            }
            "dir" => {
                aim.direction = Some(match value {
                    Some("rx") => Direction::Received,
                    Some("tx") => Direction::Sent,
                    _ => return Err(invalid("dir=rx or dir=tx")),
                });
            }
            "nth" => {
                const EXPECTED: &str = "nth=100 or nth=100..200, counted from 1";
                let value = needed(EXPECTED)?;
                let (first, last) = value.split_once("..").unwrap_or((value, value));
                match (first.parse(), last.parse()) {
                    (Ok(first @ 1..), Ok(last)) if first <= last => aim.nth = Some((first, last)),
                    _ => return Err(invalid(EXPECTED)),
                }
            }
            _ => return Err(invalid(ACTIONS)),
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
    let tally = Arc::new(Tally::new(rule));
    for action in actions {
        let action = match action {
            Action::Announce(announcement) => Action::Announce(Announcement { after, ..announcement }),
            other => other,
        };
        script.rules.push(Rule { action, aim: aim.clone(), step, seen: 0, left: 0, tally: Arc::clone(&tally) });
    }
    Ok(())
}

impl Action {
    /// An aim that means nothing to this action, and what does; `timed` if there is `after=T`.
    fn cannot_have(&self, aim: &Aim, timed: bool) -> Option<(&'static str, &'static str)> {
        let (all, known): (&[&str], _) = match self {
            Self::Verb(..) => (&["nth"], "no aim of `fail` but nth=N, which counts the calls"),
            Self::Completion(_) => (&["qp", "dir", "nth"], "no aims of `wc` but qp, dir and nth"),
            Self::Announce(_) => (&["after"], "after=T: `event` and `remove` happen once, to the device"),
            _ => (
                &["qp", "opcode", "peer", "dir", "nth"],
                "aims of packets (qp, opcode, peer, dir, nth): `after` is for `event` and `remove`",
            ),
        };
        let given = [
            ("qp", aim.qp.is_some()),
            ("opcode", aim.opcode.is_some()),
            ("peer", aim.peer.is_some()),
            ("dir", aim.direction.is_some()),
            ("nth", aim.nth.is_some()),
            ("after", timed),
        ];
        given.into_iter().find(|(name, given)| *given && !all.contains(name)).map(|(name, _)| (name, known))
    }
}

/// `1%`, `0.05%`, `1/1000`, `0.001`, or nothing for always.
fn chance(value: Option<&str>) -> Option<Chance> {
    let Some(value) = value else { return Some(Chance::ALWAYS) };
    let millionths = if let Some(percent) = value.strip_suffix('%') {
        let (whole, fraction) = percent.split_once('.').unwrap_or((percent, ""));
        if fraction.len() > 4 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let fraction: u32 = format!("{fraction:0<4}").parse().ok()?;
        whole.parse::<u32>().ok()?.checked_mul(10_000)?.checked_add(fraction)?
    } else if let Some((whole, fraction)) = value.split_once('.') {
        // A probability. `1` alone could be 1% as well.
        if fraction.is_empty() || fraction.len() > 6 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let fraction: u32 = format!("{fraction:0<6}").parse().ok()?;
        whole.parse::<u32>().ok()?.checked_mul(1_000_000)?.checked_add(fraction)?
    } else {
        let (part, of) = value.split_once('/')?;
        let (part, of): (u64, u64) = (part.parse().ok()?, of.parse().ok()?);
        u32::try_from(part.checked_mul(1_000_000)?.checked_div(of)?).ok()?
    };
    (millionths <= 1_000_000).then_some(Chance(millionths))
}

/// `50us`, `2ms`, `1s`, `7ns`.
fn nanos(value: &str) -> Option<u64> {
    let at = value.find(|c: char| !c.is_ascii_digit())?;
    let (digits, unit) = value.split_at(at);
    let unit = match unit {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

fn integer(value: &str) -> Option<u32> {
    match value.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => value.parse().ok(),
    }
}

fn which_qp(value: &str) -> Option<WhichQp> {
    match value.strip_prefix('@') {
        Some(nth) => nth.parse().ok().filter(|nth| *nth > 0).map(WhichQp::Made),
        None => integer(value).map(WhichQp::Number),
    }
}

fn number(value: &str, table: &urxe_explain::Table) -> Option<u32> {
    let entry = table.by_name(value).or_else(|| table.by_number(integer(value)?))?;
    Some(entry.number)
}

fn errno_number(value: &str) -> Option<u32> {
    integer(value).filter(|errno| (1..4096).contains(errno)).or_else(|| number(value, &urxe_explain::errno::TABLE))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use urxe_wire::{NakCode, Opcode, Operation, Qpn, Syndrome, Transport};

    use super::*;
    use crate::{Qp, Refused, Sight, Verdict};

    const QP: Qp = Qp { qpn: Qpn::new(17), made: Some(2) };

    fn sight(operation: Operation, direction: Direction) -> Sight {
        let opcode = Opcode::new(Transport::Rc, operation).unwrap();
        Sight { direction, opcode, qp: QP, peer: Ipv4Addr::LOCALHOST.into(), len: 100 }
    }

    fn script(text: &str) -> Script {
        text.parse().unwrap_or_else(|error: Invalid| panic!("{error}"))
    }

    #[test]
    fn the_same_seed_strikes_the_same_packets() {
        let run = |seed: u32| -> Vec<Verdict> {
            let mut script = script(&format!("drop=5%,dup=5%,reorder=5%/3,corrupt=5%,seed={seed}"));
            (0..1000).map(|_| script.packet(&sight(Operation::SendOnly, Direction::Sent))).collect()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
        let hits = run(3).iter().filter(|verdict| **verdict != Verdict::Pass).count();
        assert!((100..300).contains(&hits), "{hits}");
    }

    #[test]
    fn hits_are_counted_by_rule() {
        let mut script = script("drop,nth=2; fail=reg_mr:ENOMEM,nth=99; dup=1%,corrupt,opcode=SEND; remove");
        let mut copy = script.clone();
        for _ in 0..4 {
            script.packet(&sight(Operation::SendOnly, Direction::Sent));
        }
        copy.packet(&sight(Operation::SendOnly, Direction::Sent));
        assert_eq!(copy.verb(Verb::RegMr), None);
        let told: Vec<_> = script.tallies().map(|tally| (tally.rule(), tally.hits())).collect();
        let wanted = [("drop,nth=2", 1), ("fail=reg_mr:ENOMEM,nth=99", 0), ("dup=1%,corrupt,opcode=SEND", 4)];
        assert_eq!(told, wanted);
    }

    #[test]
    fn aims() {
        let mut aimed = script("drop,opcode=READ_RESPONSE,dir=rx,nth=2..3; nak=access,opcode=ACK");
        let responses = [0; 4].map(|_| aimed.packet(&sight(Operation::ReadResponseFirst, Direction::Received)));
        assert_eq!(responses, [Verdict::Pass, Verdict::Drop, Verdict::Drop, Verdict::Pass]);
        assert_eq!(aimed.packet(&sight(Operation::ReadResponseFirst, Direction::Sent)), Verdict::Pass);
        let refusal = Verdict::Refuse(Syndrome::Nak(NakCode::RemoteAccessError));
        assert_eq!(aimed.packet(&sight(Operation::Acknowledge, Direction::Sent)), refusal);
        assert_eq!(script("drop,qp=18").packet(&sight(Operation::SendOnly, Direction::Sent)), Verdict::Pass);
        assert_eq!(script("drop,qp=17").packet(&sight(Operation::SendOnly, Direction::Sent)), Verdict::Drop);
        assert_eq!(script("drop,qp=@1").packet(&sight(Operation::SendOnly, Direction::Sent)), Verdict::Pass);
        assert_eq!(script("drop,qp=@2").packet(&sight(Operation::SendOnly, Direction::Sent)), Verdict::Drop);
        assert_eq!(script("drop,peer=10.0.0.1").packet(&sight(Operation::SendOnly, Direction::Sent)), Verdict::Pass);
        // Requests cannot be refused, only their responses can.
        assert_eq!(script("nak=rnr").packet(&sight(Operation::SendOnly, Direction::Sent)), Verdict::Pass);
    }

    #[test]
    fn payloads_are_mutated_by_the_seed() {
        let mutated = |text: &str, operation, qp| {
            let mut all = script(text);
            all.load_dictionaries(|path| Ok(format!("\"{path}\""))).unwrap();
            let Verdict::Mutate(id) = all.packet(&Sight { qp, ..sight(operation, Direction::Sent) }) else {
                return None;
            };
            let mut bytes = [0; 64];
            all.mutate(id, &mut bytes);
            Some(bytes)
        };
        let first = mutated("mutate=payload,seed=5", Operation::SendOnly, QP).unwrap();
        assert_eq!(mutated("mutate=payload,seed=5", Operation::SendOnly, QP), Some(first));
        assert_ne!(mutated("mutate=payload,seed=6", Operation::SendOnly, QP), Some(first));
        let token = |seed: u32| {
            let text = format!("mutate=payload,dict=WORD,seed={seed}");
            mutated(&text, Operation::SendOnly, QP).unwrap().windows(4).any(|part| part == b"WORD")
        };
        assert!((0..100).any(token));
        // 100 bytes have a payload everywhere but in an ACK that is an ACK.
        assert_eq!(
            script("mutate=payload").packet(&Sight { len: 20, ..sight(Operation::Acknowledge, Direction::Sent) }),
            Verdict::Pass
        );
        assert_eq!(
            script("mutate=payload").packet(&Sight { len: 32, ..sight(Operation::WriteOnly, Direction::Sent) }),
            Verdict::Pass
        );
        let cm = Qp { qpn: Qpn::GSI, made: None };
        assert_eq!(mutated("mutate=payload", Operation::SendOnly, cm), None);
        assert!(mutated("mutate=payload,qp=1", Operation::SendOnly, cm).is_some());
        let unread = script("mutate=payload,dict=x").load_dictionaries(|_| Ok("x".to_owned())).unwrap_err();
        assert_eq!(unread.to_string(), "dict=x: line 1, column 2: expected a text in quotes");
    }

    #[test]
    fn bursts_take_packets_in_a_row() {
        let mut bursts = script("burst=100%/2,nth=2..4");
        let verdicts = [0; 5].map(|_| bursts.packet(&sight(Operation::SendOnly, Direction::Sent)));
        assert_eq!(verdicts, [Verdict::Pass, Verdict::Drop, Verdict::Drop, Verdict::Drop, Verdict::Pass]);
    }

    #[test]
    fn delays_are_within_their_range() {
        let mut delayed = script("delay=50us..2ms,seed=7");
        for _ in 0..100 {
            let Verdict::Delay(by) = delayed.packet(&sight(Operation::SendOnly, Direction::Sent)) else { panic!() };
            assert!((Duration::from_micros(50)..=Duration::from_millis(2)).contains(&by), "{by:?}");
        }
        let mut any = script(&format!("delay=0ns..{}ns", u64::MAX));
        assert!(matches!(any.packet(&sight(Operation::SendOnly, Direction::Sent)), Verdict::Delay(_)));
    }

    #[test]
    fn verbs_completions_and_events() {
        let mut all = script("fail=reg_mr:ENOMEM,nth=2; wc=REM_ACCESS_ERR,dir=tx,nth=1; event=PORT_ERR,after=100ms");
        assert_eq!([0; 3].map(|_| all.verb(Verb::RegMr)), [None, Some(Refused(12)), None]);
        assert_eq!(all.verb(Verb::CreateQp), None);
        let mut posts = script("fail=post_send:ENOMEM; fail=create_qp_ex:EAGAIN; fail=wr_complete:EIO");
        let errnos = [Verb::PostSend, Verb::WrComplete, Verb::CreateQp, Verb::CreateQpEx].map(|verb| posts.verb(verb));
        assert_eq!(errnos, [12, 12, 11, 11].map(|errno| Some(Refused(errno))));
        assert_eq!(script("fail=wr_complete:EIO").verb(Verb::PostSend), None);
        assert_eq!(all.completion(QP, Direction::Received), None);
        assert_eq!(all.completion(QP, Direction::Sent), Some(Refused(10)));
        assert_eq!(all.completion(QP, Direction::Sent), None);
        let what = Occurrence::Event(10);
        assert_eq!(all.take_announcements(), [Announcement { what, after: Duration::from_millis(100) }]);
        assert!(all.take_announcements().is_empty(), "once");
    }

    #[test]
    fn steps_follow_one_another() {
        let mut all =
            script("dup,nth=5; step,packets=2; step,packets=2; drop; step,lasts=10ms; corrupt; remove,after=1ms; step");
        let packets = |all: &mut Script, count| -> Vec<Verdict> {
            (0..count).map(|_| all.packet(&sight(Operation::SendOnly, Direction::Sent))).collect()
        };
        assert_eq!(packets(&mut all, 2), [Verdict::Pass; 2]);
        assert_eq!(packets(&mut all, 2), [Verdict::Drop; 2]);
        // What always holds counts on.
        assert_eq!(packets(&mut all, 1), [Verdict::Duplicate]);
        assert!(matches!(packets(&mut all, 1)[..], [Verdict::Corrupt(_)]));
        all.at(Duration::from_millis(4));
        assert_eq!(all.next_step(), Some(Duration::from_millis(10)));
        let removal = Announcement { what: Occurrence::Removal, after: Duration::from_millis(1) };
        assert_eq!(all.take_announcements(), [removal]);
        all.at(Duration::from_millis(10));
        assert_eq!((packets(&mut all, 3), all.next_step()), (vec![Verdict::Pass; 3], None));

        let mut again = script("step,packets=1; step,packets=2; drop,nth=1; repeat");
        let expected = [Verdict::Pass, Verdict::Drop, Verdict::Pass].repeat(3);
        assert_eq!(packets(&mut again, 9), expected, "counts begin anew with each step");
        assert!(script("step,lasts=500us; drop; step,lasts=500us; repeat").next_step().is_some());
        assert!(script("step,lasts=1ns; drop; step,packets=1; repeat").next_step().is_some());
        let mut timed = script("step,lasts=1s; step; fail=reg_mr:ENOMEM");
        assert_eq!(timed.verb(Verb::RegMr), None);
        timed.at(Duration::from_secs(1));
        assert_eq!(timed.verb(Verb::RegMr), Some(Refused(12)));
    }

    #[test]
    fn chances_in_every_notation() {
        for text in ["1%", "1.0%", "0.01", "0.010000", "1/100"] {
            assert_eq!(chance(Some(text)), Some(Chance(10_000)), "{text}");
        }
        assert_eq!(chance(Some("1.0")), Some(Chance::ALWAYS));
        for text in ["1", "1.5", "0.0000001", "0.", ".", "x"] {
            assert_eq!(chance(Some(text)), None, "{text}");
        }
        let said = "drop=1".parse::<Script>().unwrap_err().to_string();
        assert_eq!(said, "`drop=1`: expected drop=1%, drop=0.01 or drop=1/100, up to 100%; drop alone is always");
    }

    #[test]
    fn aims_that_mean_nothing_are_refused() {
        for (text, said) in [
            ("remove,nth=2", "`nth` in `remove,nth=2`: expected after=T"),
            ("event=PORT_ERR,qp=1", "`qp` in"),
            ("remove,after=1s,opcode=SEND", "`opcode` in"),
            ("fail=reg_mr:ENOMEM,qp=1", "no aim of `fail` but nth"),
            ("fail=reg_mr:ENOMEM,after=1s", "`after` in"),
            ("wc=REM_ACCESS_ERR,peer=10.0.0.1", "no aims of `wc` but qp, dir and nth"),
            ("drop,after=1s", "`after` in"),
            ("drop,remove,dir=tx", "`dir` in"),
        ] {
            let error = text.parse::<Script>().expect_err(text).to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
        for text in
            ["remove,after=1s", "wc=REM_ACCESS_ERR,qp=@1,dir=rx,nth=2", "drop,qp=1,opcode=SEND,peer=::1,dir=tx,nth=1"]
        {
            script(text);
        }
    }

    #[test]
    fn work_requests_are_posted_in_two_ways() {
        let mut both = script("fail=post_send:ENOMEM,nth=2");
        let said = [Verb::PostSend, Verb::WrComplete, Verb::PostRecv, Verb::PostSend].map(|verb| both.verb(verb));
        assert_eq!(said, [None, Some(Refused(12)), None, None]);
        let mut one = script("fail=wr_complete:ENOMEM");
        assert_eq!((one.verb(Verb::PostSend), one.verb(Verb::WrComplete)), (None, Some(Refused(12))));
        let error = "fail=wr_rdma_write:EINVAL".parse::<Script>().unwrap_err().to_string();
        assert!(error.contains("expected wr_complete"), "{error}");
    }

    #[test]
    fn the_grammar_names_what_there_is_and_its_examples_are_scripts() {
        for name in ACTIONS.split(|c: char| !c.is_ascii_lowercase() && c != '_').filter(|word| word.len() > 1) {
            let prose = ["an", "action", "or", "aim"].contains(&name);
            assert!(prose || GRAMMAR.contains(name), "{name}");
        }
        for example in GRAMMAR.split_once("Examples\n").unwrap().1.lines() {
            script(example.trim());
        }
    }

    #[test]
    fn scripts_of_several_lines() {
        let text = "# a bad day\nseed=9\ndrop=1% # now and then\n\nfail=create_qp:EAGAIN; qp_error,nth=3\n";
        let script = script(text);
        assert_eq!((script.seed, script.rules.len()), (9, 3));
        assert!(self::script("").rules.is_empty());
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, item) in [
            ("drop=101%", "drop=101%"),
            ("drop=x", "drop=x"),
            ("lose=1%", "lose=1%"),
            ("reorder=1%", "reorder=1%"),
            ("burst=1%/0", "burst=1%/0"),
            ("mutate", "mutate"),
            ("mutate=headers", "mutate=headers"),
            ("mutate=payload/2", "mutate=payload/2"),
            ("drop,dict=x", "dict=x"),
            ("mutate=payload,dict=", "dict="),
            ("delay=2ms..1ms", "delay=2ms..1ms"),
            ("delay=5", "delay=5"),
            ("nak=maybe", "nak=maybe"),
            ("fail=reg_mr", "fail=reg_mr"),
            ("fail=reg_mr:EWHAT", "fail=reg_mr:EWHAT"),
            ("fail=reg_mrs:ENOMEM", "fail=reg_mrs:ENOMEM"),
            ("wc=SUCCESS", "wc=SUCCESS"),
            ("event=CQ_ERR", "event=CQ_ERR"),
            ("drop,opcode=JUMP", "opcode=JUMP"),
            ("drop,peer=here", "peer=here"),
            ("drop,dir=up", "dir=up"),
            ("drop,nth=0", "nth=0"),
            ("drop,qp=@0", "qp=@0"),
            ("drop,qp=first", "qp=first"),
            ("drop,nth=5..2", "nth=5..2"),
            ("seed=-1", "seed=-1"),
            ("step,packets=0", "step,packets=0"),
            ("step,lasts=5", "step,lasts=5"),
            ("step,drop", "step,drop"),
            ("repeat", "repeat"),
            ("step; drop; repeat", "repeat"),
            ("step,lasts=1ns; repeat", "repeat"),
            ("step,lasts=500us; drop; step,lasts=499us; repeat", "repeat"),
            ("step,packets=9; fail=reg_mr:ENOMEM", "fail=reg_mr"),
            ("remove=1", "remove=1"),
            ("qp=17", "qp=17"),
            ("drop=1%,", ""),
        ] {
            let error = text.parse::<Script>().expect_err(text);
            assert_eq!(error.item, item, "{text}: {error}");
            assert!(!error.expected.is_empty());
        }
    }
}
