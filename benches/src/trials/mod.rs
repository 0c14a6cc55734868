//! Other ways to send and receive UDP on one host, beside those that urxe takes: figures of docs/adr/0019-udp-trials.md.
//!
//! Nothing of urxe is in them but the ICRC. The first trial of each group is urxe's way, and the others are held against it.

#![expect(clippy::cast_possible_truncation, reason = "lengths, times and segment sizes fit")]

mod ping_pong;
mod runs;
mod stream;
mod uring;
mod zero_copy;

use std::io;
use std::time::Duration;

use crate::report::markdown;
use crate::sample::Sample;
use ping_pong::{Blocking, Spinning, UringEnd, ping_pong};
use stream::{Plain, PlainReceiver, stream};
use uring::{UringReceiver, UringSender};
use zero_copy::ZeroCopy;

/// Length of a trial of throughput.
const RUN: Duration = Duration::from_millis(500);

/// A way to do what the first of its group does.
#[derive(Debug)]
pub struct Trial {
    /// Quantity that is measured, with its unit.
    pub group: &'static str,
    /// Name of the way.
    pub name: &'static str,
    measure: fn() -> io::Result<Outcome>,
}

/// Figure, and a note about it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcome {
    /// The figure, in the unit of its group.
    pub value: f64,
    /// Note of the kernel's, or none.
    pub note: String,
}

impl From<f64> for Outcome {
    fn from(value: f64) -> Self {
        Self { value, note: String::new() }
    }
}

const STREAM: &str = "stream of 4096-byte packets, Gbit/s";
const LATENCY: &str = "ping-pong of 8-byte WRITEs, one way, µs";
const MESSAGES: &str = "stream of 64 KiB messages, Gbit/s";

/// All trials. Those of one group stand together, urxe's way first.
pub const TRIALS: &[Trial] = &[
    Trial { group: STREAM, name: "sendmsg, recv", measure: || stream(RUN, Plain::new, PlainReceiver::new) },
    Trial { group: STREAM, name: "MSG_ZEROCOPY, recv", measure: || stream(RUN, ZeroCopy::new, PlainReceiver::new) },
    Trial {
        group: STREAM,
        name: "sendmsg, io_uring multishot recv",
        measure: || stream(RUN, Plain::new, UringReceiver::new),
    },
    Trial {
        group: STREAM,
        name: "io_uring send, multishot recv",
        measure: || stream(RUN, UringSender::copying, UringReceiver::new),
    },
    Trial {
        group: STREAM,
        name: "io_uring send_zc, multishot recv",
        measure: || stream(RUN, UringSender::zero_copy, UringReceiver::new),
    },
    Trial { group: LATENCY, name: "recv in a loop", measure: || ping_pong(Spinning::new) },
    Trial { group: LATENCY, name: "recv that blocks", measure: || ping_pong(|socket| Blocking::new(socket, None)) },
    Trial {
        group: LATENCY,
        name: "recv that blocks, SO_BUSY_POLL of 100 µs",
        measure: || ping_pong(|socket| Blocking::new(socket, Some(100))),
    },
    Trial { group: LATENCY, name: "send, io_uring multishot recv", measure: || ping_pong(UringEnd::plain_send) },
    Trial { group: LATENCY, name: "io_uring send, multishot recv", measure: || ping_pong(UringEnd::uring_send) },
    Trial {
        group: MESSAGES,
        name: "runs of 2 and 14 packets, one sendmmsg",
        measure: || runs::stream(RUN, &[2, 14], true),
    },
    Trial {
        group: MESSAGES,
        name: "runs of 2 and 14 packets, a call each",
        measure: || runs::stream(RUN, &[2, 14], false),
    },
    Trial {
        group: MESSAGES,
        name: "runs of 1 and 15 packets, one sendmmsg",
        measure: || runs::stream(RUN, &[1, 15], true),
    },
    Trial {
        group: MESSAGES,
        name: "runs of 1, 8 and 7 packets, one sendmmsg",
        measure: || runs::stream(RUN, &[1, 8, 7], true),
    },
    Trial {
        group: MESSAGES,
        name: "for comparison: 1 MiB, as 18 runs",
        measure: || runs::stream(RUN, &[2, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 14], true),
    },
];

/// Outcomes of a trial, by round.
#[derive(Debug, Default)]
pub struct Outcomes(Vec<Option<Outcome>>);

impl Trial {
    /// Measures once more.
    pub fn measure(&self, outcomes: &mut Outcomes) {
        let outcome = (self.measure)().inspect_err(|error| eprintln!("{}: {error}", self.name)).ok();
        outcomes.0.push(outcome);
    }
}

/// A table: medians, ratios within a round to the first of the group, and what the kernel told last. Markdown.
pub fn table(all: &[(&Trial, Outcomes)]) -> String {
    let mut rows = vec![["measured", "way", "median", "ratio", "min..max", ""].map(str::to_owned).to_vec()];
    for (trial, outcomes) in all {
        let first = all.iter().find(|(first, _)| first.group == trial.group).map(|(_, outcomes)| outcomes);
        let values: Sample = outcomes.0.iter().flatten().map(|outcome| outcome.value).collect();
        let pairs = first.into_iter().flat_map(|first| outcomes.0.iter().zip(&first.0));
        let ratios: Sample =
            pairs.filter_map(|(this, first)| Some(this.as_ref()?.value / first.as_ref()?.value)).collect();
        let text = |value: Option<f64>| value.map_or_else(|| "refused".to_owned(), |value| format!("{value:.2}"));
        let range = ratios.range().map_or_else(String::new, |(least, most)| format!("{least:.2}..{most:.2}"));
        let note = outcomes.0.iter().rev().flatten().next().map_or_else(String::new, |outcome| outcome.note.clone());
        rows.push(vec![
            trial.group.to_owned(),
            trial.name.to_owned(),
            text(values.median()),
            text(ratios.median()),
            range,
            note,
        ]);
    }
    markdown(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_to_the_first_of_the_group() {
        let trial = |group, name| Trial { group, name, measure: || Ok(Outcome::default()) };
        let outcomes = |values: [Option<f64>; 3]| Outcomes(values.map(|value| value.map(Outcome::from)).to_vec());
        let (a, b, c) = (trial("one", "a"), trial("one", "b"), trial("two", "c"));
        let table = table(&[
            (&a, outcomes([Some(2.0), Some(4.0), Some(8.0)])),
            (&b, outcomes([Some(4.0), Some(4.0), None])),
            (&c, outcomes([None, None, None])),
        ]);
        let rows: Vec<Vec<_>> =
            table.lines().skip(2).map(|row| row.split('|').map(str::trim).skip(3).take(3).collect()).collect();
        assert_eq!(rows, [["4.00", "1.00", "1.00..1.00"], ["4.00", "1.00", "1.00..2.00"], ["refused", "refused", ""]]);
    }

    /// Every way carries its packets whole: a stream checks the ICRC of each.
    #[test]
    fn ways_that_the_kernel_offers_carry_packets() {
        for trial in TRIALS {
            match (trial.measure)() {
                Ok(outcome) => assert!(outcome.value > 0.0, "{}", trial.name),
                // Containers and kernels refuse io_uring.
                Err(error) => {
                    assert!(trial.name.contains("io_uring"), "{}: {error}", trial.name);
                    eprintln!("not run: {}: {error}", trial.name);
                }
            }
        }
    }
}
