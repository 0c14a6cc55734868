//! Quirks picked by a seed.
//!
//! [`TABLE`] has a row for each: where the specification allows it, and what a program must therefore not rely on. A
//! [`QuirkSet`] picks among them by a seed, and says how each object behaves: a queue pair by its [`QpQuirks`], a
//! completion queue by its [`CqDelay`] and [`Moderation`], a shared receive queue by its [`SrqOrder`]. With the same seed
//! the n-th object of a kind behaves the same.

use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use super::{AckPolicy, CreditPolicy, Quirks, WritePolicy};
use crate::moderation::Moderation;
use crate::rng::Rng;

/// A behaviour that the specification allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "`TABLE` says what each is")]
#[non_exhaustive]
pub enum Quirk {
    SrqOrder,
    ErrorFields,
    LateCompletions,
    Credits,
    Acks,
    Events,
    WriteOrder,
}

/// Description of a quirk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    /// Quirk that the row describes.
    pub quirk: Quirk,
    /// The name to ask for it by.
    pub name: &'static str,
    /// Effect.
    pub what: &'static str,
    /// Clause that allows it.
    pub source: &'static str,
    /// The lesson for programs: what not to rely on.
    pub lesson: &'static str,
}

/// Every quirk.
pub const TABLE: [Row; 7] = [
    Row {
        quirk: Quirk::SrqOrder,
        name: "srq-order",
        what: "messages take the receive requests of an SRQ in another order than that of posting",
        source: "IBA 10.8.3.2",
        lesson: "find the buffer of a message by the wr_id of its completion, never by counting",
    },
    Row {
        quirk: Quirk::ErrorFields,
        name: "error-fields",
        what: "the fields of a completion with an error hold garbage, but for wr_id, status, qp_num and vendor_err",
        source: "ibv_poll_cq(3); IBA 11.4.2.1",
        lesson: "look at status first, and at no other field (not opcode, not byte_len) unless it is IBV_WC_SUCCESS",
    },
    Row {
        quirk: Quirk::LateCompletions,
        name: "late-completions",
        what: "completions can be polled only some time after what they are about, in order in each CQ",
        source: "ibv_poll_cq(3); IBA 11.4.2.1, 10.8.5",
        lesson: "wait for the completion; the peer's answer, or another CQ's completion, may be there before it",
    },
    Row {
        quirk: Quirk::Credits,
        name: "credits",
        what: "acknowledgements tell of fewer receive requests than are posted, of none, or do not count them",
        source: "IBA 9.7.7.2",
        lesson: "a sender may be let through one message at a time, or run into RNR NAKs: set rnr_retry, and post early",
    },
    Row {
        quirk: Quirk::Acks,
        name: "acks",
        what: "every packet is acknowledged by itself, or all of them once, and late",
        source: "IBA 9.7.5.1.2",
        lesson: "how soon a send completes says nothing about the peer; the ACK timeout must allow for some delay",
    },
    Row {
        quirk: Quirk::Events,
        name: "events",
        what: "one completion event stands for several completions, and comes some time after the first",
        source: "ibv_req_notify_cq(3), ibv_modify_cq(3); IBA 11.4.2.2",
        lesson: "after an event poll until the CQ is empty, ask for the next one, and poll once more",
    },
    Row {
        quirk: Quirk::WriteOrder,
        name: "write-order",
        what: "the last bytes of a WRITE can be seen before the others, which come later and in any order",
        source: "IBA 9.5, 10.8.3.3",
        lesson: "do not wait for the last byte of a WRITE: take WRITE with immediate, or a SEND behind it",
    },
];

impl Quirk {
    /// Description of the quirk.
    #[must_use]
    pub fn row(self) -> &'static Row {
        // `TABLE` is in the order of declaration, and a test sees to it.
        &TABLE[self as usize]
    }
}

/// The quirks that are shown, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QuirkSet {
    seed: u64,
    /// In the order of [`TABLE`].
    shown: [bool; TABLE.len()],
}

/// Choices of a queue pair. The default is that of ordinary devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QpQuirks {
    /// Credits for receive requests.
    pub credits: CreditPolicy,
    /// Acknowledgement of requests.
    pub acks: AckPolicy,
    /// Delay and order in which the bytes of a WRITE are stored.
    pub writes: Option<WritePolicy>,
}

impl Quirks for QpQuirks {
    #[inline]
    fn credits(&self) -> CreditPolicy {
        self.credits
    }

    #[inline]
    fn acks(&self) -> AckPolicy {
        self.acks
    }

    #[inline]
    fn writes(&self) -> Option<WritePolicy> {
        self.writes
    }
}

/// A random delay of completions.
#[derive(Clone, Debug)]
pub struct CqDelay {
    rng: Rng,
    most: Duration,
}

impl CqDelay {
    /// Delays by a seed, none longer than `most`.
    #[must_use]
    pub const fn new(seed: u64, most: Duration) -> Self {
        Self { rng: Rng::new(seed), most }
    }
}

impl Quirks for CqDelay {
    fn delays_completions(&self) -> bool {
        true
    }

    /// Half of the completions are not delayed.
    fn completion_delay(&mut self) -> Duration {
        if self.rng.below(2) == 0 { Duration::ZERO } else { within(&mut self.rng, Duration::ZERO, self.most) }
    }
}

/// The order in which a shared receive queue hands out its WQEs.
#[derive(Clone, Debug)]
pub struct SrqOrder(Rng);

impl SrqOrder {
    /// Decides by `rng`.
    #[must_use]
    pub const fn new(rng: Rng) -> Self {
        Self(rng)
    }
}

impl Quirks for SrqOrder {
    fn next_recv(&mut self, posted: usize) -> usize {
        usize::try_from(self.0.below(posted as u64)).unwrap_or(0)
    }
}

/// A time in a range.
fn within(rng: &mut Rng, least: Duration, most: Duration) -> Duration {
    let span = u64::try_from((most - least).as_nanos()).unwrap_or(u64::MAX);
    least + Duration::from_nanos(rng.below(span))
}

/// Picks an element.
fn one_of<T: Copy>(rng: &mut Rng, all: &[T]) -> Option<T> {
    all.get(usize::try_from(rng.below(all.len() as u64)).unwrap_or(0)).copied()
}

/// The shortest and longest times that things are kept back: long enough to be seen by programs that do not expect it,
/// shorter than the ACK timeouts that anybody sets.
const LEAST: Duration = Duration::from_micros(20);
const MOST: Duration = Duration::from_micros(500);

impl QuirkSet {
    /// Picks by `seed`: each quirk with every other seed, at least one.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let mut quirks = Self { seed, shown: [false; TABLE.len()] };
        let any = usize::try_from(rng.below(TABLE.len() as u64)).unwrap_or(0);
        for (at, shown) in quirks.shown.iter_mut().enumerate() {
            *shown = at == any || rng.next_u64().is_multiple_of(2);
        }
        quirks
    }

    /// A set of these quirks; `seed` decides how.
    #[must_use]
    pub fn of(seed: u64, quirks: &[Quirk]) -> Self {
        Self { seed, shown: TABLE.map(|row| quirks.contains(&row.quirk)) }
    }

    /// Descriptions of the quirks in the set.
    pub fn shown(&self) -> impl Iterator<Item = &'static Row> {
        TABLE.iter().zip(self.shown).filter_map(|(row, shown)| shown.then_some(row))
    }

    /// Whether the set has this quirk.
    #[must_use]
    pub fn shows(&self, quirk: Quirk) -> bool {
        self.shown().any(|row| row.quirk == quirk)
    }

    /// Random numbers of the `nth` object for `quirk`; `None` if the quirk is not in the set.
    fn dice(&self, quirk: Quirk, nth: u64) -> Option<Rng> {
        let salt = (quirk as u64 + 1).wrapping_mul(0xA24B_AED4_963E_E407) ^ nth.wrapping_mul(0x9FB2_1C65_1E98_DF25);
        self.shows(quirk).then(|| Rng::new(Rng::new(self.seed ^ salt).next_u64()))
    }

    /// Behaviour of the `nth` queue pair.
    #[must_use]
    pub fn queue_pair(&self, nth: u64) -> QpQuirks {
        let mut quirks = QpQuirks::default();
        if let Some(rng) = &mut self.dice(Quirk::Credits, nth) {
            let policies = [CreditPolicy::AtMost(0), CreditPolicy::AtMost(1), CreditPolicy::Uncounted];
            quirks.credits = one_of(rng, &policies).unwrap_or_default();
        }
        if let Some(rng) = &mut self.dice(Quirk::Acks, nth) {
            let late = AckPolicy::Delayed(within(rng, LEAST, MOST));
            quirks.acks = one_of(rng, &[AckPolicy::PerPacket, late]).unwrap_or_default();
        }
        if let Some(rng) = &mut self.dice(Quirk::WriteOrder, nth) {
            quirks.writes = Some(WritePolicy { seed: rng.next_u64(), gap: within(rng, LEAST, MOST) });
        }
        quirks
    }

    /// Delay of the completions of the `nth` completion queue.
    #[must_use]
    pub fn cq_delay(&self, nth: u64) -> Option<CqDelay> {
        let mut rng = self.dice(Quirk::LateCompletions, nth)?;
        Some(CqDelay::new(rng.next_u64(), within(&mut rng, LEAST, MOST)))
    }

    /// Completions of the `nth` completion queue that an event stands for.
    #[must_use]
    pub fn moderation(&self, nth: u64) -> Option<Moderation> {
        let mut rng = self.dice(Quirk::Events, nth)?;
        let count = u16::try_from(2 + rng.below(30)).unwrap_or(2);
        Some(Moderation { count, period: within(&mut rng, LEAST, MOST) })
    }

    /// The order in which the `nth` shared receive queue hands out its WQEs.
    #[must_use]
    pub fn srq_order(&self, nth: u64) -> Option<SrqOrder> {
        self.dice(Quirk::SrqOrder, nth).map(SrqOrder)
    }

    /// Random contents of the fields of the `nth` completion with an error.
    #[must_use]
    pub fn garbage(&self, nth: u64) -> Option<Rng> {
        self.dice(Quirk::ErrorFields, nth)
    }
}

/// `SEED`, or `SEED:NAME,NAME…`.
impl FromStr for QuirkSet {
    type Err = ParseQuirksError;

    fn from_str(text: &str) -> Result<Self, ParseQuirksError> {
        let (seed, names) = match text.split_once(':') {
            Some((seed, names)) => (seed, Some(names)),
            None => (text, None),
        };
        let seed = seed.trim().parse().map_err(|_| ParseQuirksError)?;
        let Some(names) = names else { return Ok(Self::new(seed)) };
        let find = |name: &str| TABLE.iter().find(|row| row.name == name.trim()).map(|row| row.quirk);
        let shown: Option<Vec<_>> = names.split(',').map(find).collect();
        Ok(Self::of(seed, &shown.ok_or(ParseQuirksError)?))
    }
}

/// Text that is neither a seed nor a seed and names of [`TABLE`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ParseQuirksError;

impl fmt::Display for ParseQuirksError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a seed, such as 7, or a seed and behaviours, such as 7:")?;
        for (index, row) in TABLE.iter().enumerate() {
            write!(f, "{}{}", if index == 0 { "" } else { "," }, row.name)?;
        }
        Ok(())
    }
}

impl core::error::Error for ParseQuirksError {}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    #[test]
    fn rows_are_where_they_are_looked_for() {
        for row in &TABLE {
            assert_eq!(row.quirk.row(), row);
            assert!(!row.source.is_empty() && !row.lesson.is_empty() && !row.what.is_empty());
            assert!(row.name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'));
        }
    }

    #[test]
    fn seeds_pick() {
        let mut seen = Vec::<&Row>::new();
        for seed in 0..100 {
            let quirks = QuirkSet::new(seed);
            assert_eq!(quirks, QuirkSet::new(seed));
            assert!(quirks.shown().next().is_some());
            seen.extend(quirks.shown());
            assert_eq!(quirks.queue_pair(3), QuirkSet::new(seed).queue_pair(3));
        }
        for row in &TABLE {
            let count = seen.iter().filter(|&&shown| shown == row).count();
            assert!((30..80).contains(&count), "{} with {count} of 100 seeds", row.name);
        }
    }

    #[test]
    fn every_extreme_is_reached() {
        let all: Vec<_> = TABLE.iter().map(|row| row.quirk).collect();
        let quirks: Vec<_> = (0..100).map(|seed| QuirkSet::of(seed, &all).queue_pair(0)).collect();
        for policy in [CreditPolicy::AtMost(0), CreditPolicy::AtMost(1), CreditPolicy::Uncounted] {
            assert!(quirks.iter().any(|its| its.credits == policy), "{policy:?}");
        }
        assert!(quirks.iter().any(|its| its.acks == AckPolicy::PerPacket));
        for its in &quirks {
            let within = |time: Duration| (LEAST..MOST).contains(&time);
            assert!(its.acks == AckPolicy::PerPacket || matches!(its.acks, AckPolicy::Delayed(by) if within(by)));
            assert!(its.writes.is_some_and(|writes| within(writes.gap)));
        }
        assert_eq!(QuirkSet::of(1, &[]).queue_pair(0), QpQuirks::default());
    }

    #[test]
    fn words() {
        assert_eq!("7".parse(), Ok(QuirkSet::new(7)));
        let two = [Quirk::WriteOrder, Quirk::Acks];
        assert_eq!("7: write-order, acks".parse(), Ok(QuirkSet::of(7, &two)));
        for wrong in ["", "x", "-1", "7:", "7:acks,", "7:lies", ":acks"] {
            assert_eq!(wrong.parse::<QuirkSet>(), Err(ParseQuirksError), "{wrong}");
        }
        assert!(ParseQuirksError.to_string().contains("7:srq-order,error-fields,"), "{ParseQuirksError}");
    }
}
