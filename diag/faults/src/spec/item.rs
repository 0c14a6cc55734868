//! Items of a rule: actions, and what they are aimed at.

use std::sync::Arc;
use std::time::Duration;

use urxe_explain::Verb;

use super::Invalid;
use super::value::{chance, errno_number, nanos, number, which_qp};
use crate::rule::{Action, Aim, Announcement, DictionaryFile, Occurrence};
use crate::script::syndrome;
use crate::sight::Direction;

/// Describes the argument of the action of this name.
macro_rules! probability {
    ($action:literal) => {
        concat!($action, "=1%, ", $action, "=0.01 or ", $action, "=1/100, up to 100%; ", $action, " alone is always")
    };
}

/// `KEY` or `KEY=VALUE`.
#[derive(Clone, Copy)]
pub(super) struct Item<'a> {
    text: &'a str,
    pub(super) key: &'a str,
    value: Option<&'a str>,
}

impl<'a> Item<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        match text.split_once('=') {
            Some((key, value)) => Self { text, key: key.trim(), value: Some(value.trim()) },
            None => Self { text, key: text, value: None },
        }
    }

    pub(super) fn invalid(&self, expected: &'static str) -> Invalid {
        Invalid { item: self.text.to_owned(), expected }
    }

    /// The value, which must be there.
    pub(super) fn needed(&self, expected: &'static str) -> Result<&'a str, Invalid> {
        self.value.ok_or_else(|| self.invalid(expected))
    }

    /// The action that the item is. `None` if it is something else.
    pub(super) fn action(&self) -> Result<Option<Action>, Invalid> {
        let invalid = |expected| self.invalid(expected);
        let needed = |expected| self.needed(expected);
        let probability = |expected| chance(self.value).ok_or_else(|| invalid(expected));
        let announce = |what| Action::Announce(Announcement { what, after: Duration::ZERO });
        let action = match self.key {
            "drop" => Action::Drop(probability(probability!("drop"))?),
            "dup" => Action::Duplicate(probability(probability!("dup"))?),
            "corrupt" => Action::Corrupt(probability(probability!("corrupt"))?),
            "mutate" => {
                const EXPECTED: &str = "mutate=payload or mutate=payload/10%";
                let value = needed(EXPECTED)?;
                let (part, often) = value.split_once('/').map_or((value, None), |(part, often)| (part, Some(often)));
                match (part, chance(often)) {
                    ("payload", Some(often)) => Action::Mutate(often, None),
                    _ => return Err(invalid(EXPECTED)),
                }
            }
            "burst" => {
                const EXPECTED: &str = "burst=0.1%/20, 20 packets in a row";
                match needed(EXPECTED)?.rsplit_once('/').map(|(often, len)| (chance(Some(often)), len.parse().ok())) {
                    Some((Some(often), Some(packets @ 1..))) => Action::Burst(often, packets),
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
                    (Some(how_often), Some(behind @ 1..)) => Action::Reorder(how_often, behind),
                    _ => return Err(invalid(EXPECTED)),
                }
            }
            "delay" => {
                const EXPECTED: &str = "delay=1ms or delay=50us..2ms";
                let value = needed(EXPECTED)?;
                let (least, most) = value.split_once("..").unwrap_or((value, value));
                match (nanos(least), nanos(most)) {
                    (Some(least), Some(most)) if least <= most => Action::Delay(least..=most),
                    _ => return Err(invalid(EXPECTED)),
                }
            }
            "nak" => {
                const EXPECTED: &str = "nak=rnr, sequence, invalid, access or operational";
                Action::Refuse(syndrome(needed(EXPECTED)?).ok_or_else(|| invalid(EXPECTED))?)
            }
            "qp_error" if self.value.is_none() => Action::BreakQp,
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
                Action::Verb(verb, errno)
            }
            "wc" => {
                const EXPECTED: &str = "wc=STATUS, such as wc=REM_ACCESS_ERR (`urxe explain` lists them)";
                // Those that devices without RD and tag matching have.
                const KNOWN: [u32; 14] = [1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 16, 19];
                let status = number(needed(EXPECTED)?, &urxe_explain::wc::TABLE);
                let status = status.filter(|status| KNOWN.contains(status));
                Action::Completion(status.ok_or_else(|| invalid(EXPECTED))?)
            }
            "event" => {
                const EXPECTED: &str = "event=PORT_ERR, PORT_ACTIVE, DEVICE_FATAL or GID_CHANGE";
                const KNOWN: [u32; 4] = [8, 9, 10, 18];
                let event = number(needed(EXPECTED)?, &urxe_explain::event::TABLE);
                let event = event.filter(|event| KNOWN.contains(event)).ok_or_else(|| invalid(EXPECTED))?;
                announce(Occurrence::Event(event))
            }
            "remove" if self.value.is_none() => announce(Occurrence::Removal),
            _ => return Ok(None),
        };
        Ok(Some(action))
    }

    /// Gives the last of the actions before the item its dictionary.
    pub(super) fn set_dictionary(&self, actions: &mut [Action]) -> Result<(), Invalid> {
        const EXPECTED: &str = "dict=FILE, behind mutate=payload";
        let path = self.needed(EXPECTED)?.to_owned();
        match actions.last_mut() {
            Some(Action::Mutate(_, file)) if !path.is_empty() => {
                *file = Some(DictionaryFile { path, tokens: Arc::default() });
                Ok(())
            }
            _ => Err(self.invalid(EXPECTED)),
        }
    }

    /// Sets the part of `aim` that the item is. False if it is something else.
    pub(super) fn set_aim(&self, aim: &mut Aim) -> Result<bool, Invalid> {
        let invalid = |expected| self.invalid(expected);
        let needed = |expected| self.needed(expected);
        match self.key {
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
                aim.direction = Some(match self.value {
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
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl Action {
    /// An aim that means nothing to this action, and what does; `timed` if there is `after=T`.
    pub(super) fn cannot_have(&self, aim: &Aim, timed: bool) -> Option<(&'static str, &'static str)> {
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
