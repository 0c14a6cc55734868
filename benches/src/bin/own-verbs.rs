//! Measurements that no stock program makes ([`urxe_benches::own`]). Prints its figures, separated by spaces.
//!
//! * `own-verbs one-sided polls|sleeps`: µs from posting a WRITE of 8 bytes to its completion, median and 99th percentile,
//!   while the target's program polls or sleeps
//! * `own-verbs queue-pairs N`: Gbit/s of N queue pairs between two processes
//! * `own-verbs small-messages N`: ns of a WRITE of 8 bytes on N queue pairs
//! * `own-verbs lists N`: ns of a WRITE of 8 bytes, posted in lists of N
//! * `own-verbs idle-memory N`: bytes that each of N idle queue pairs takes
//! * `own-verbs star|mesh|polling-mesh N`: ns of a message and KiB of a process, of N processes that are connected with the
//!   first or with each other
//! * `own-verbs threads N`, `own-verbs processes N`: M/s of WRITEs of 8 bytes, of N threads or processes with two queue pairs
//!   each; ns of a processor for each; of threads, locks found taken for each
//! * `own-verbs dialogue polls|sleeps`: µs of a SEND of 8 bytes from one thread of a process to another
//! * `own-verbs stacks N`: ns of a message and bytes of a queue pair, of N simulated stacks

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use urxe_benches::bare::percentile;
use urxe_benches::own::{self, Target};
use urxe_benches::{dialogue, threads};
use urxe_tests::verbs::scale::{Shape, Wait};

const RUN: Duration = Duration::from_millis(500);
const EXCHANGES: usize = 10_000;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let one_sided = |what| {
        let times = own::one_sided(what, EXCHANGES)?;
        let [median, p99] = [0.5, 0.99].map(|fraction| percentile(&times, fraction) / 1000.0);
        anyhow::Ok(vec![median, p99])
    };
    let figures = match args.as_slice() {
        ["one-sided", "polls"] => one_sided(Target::Polls),
        ["one-sided", "sleeps"] => one_sided(Target::Sleeps),
        ["dialogue", "polls"] => dialogue::microseconds(Wait::Polls, EXCHANGES).map(|micros| vec![micros]),
        ["dialogue", "sleeps"] => dialogue::microseconds(Wait::Sleeps, EXCHANGES).map(|micros| vec![micros]),
        [what, count] => match count.parse() {
            Ok(count) => many(what, count),
            Err(_) => Err(usage()),
        },
        _ => Err(usage()),
    };
    match figures {
        Ok(figures) => {
            let figures: Vec<String> = figures.iter().map(|figure| format!("{figure:.3}")).collect();
            println!("{}", figures.join(" "));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("own-verbs: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn many(what: &str, count: usize) -> Result<Vec<f64>> {
    match (what, count) {
        ("queue-pairs", 1..) => Ok(vec![own::queue_pairs(count, RUN)?]),
        ("small-messages", 1..) => Ok(vec![own::small_messages(count, RUN)?]),
        ("lists", 1..) => Ok(vec![own::lists(count, RUN)?]),
        ("idle-memory", 1..) => Ok(vec![own::idle_memory(count)?]),
        ("star", 2..) => Ok(own::processes(count, Shape::Star, Wait::Sleeps)?.to_vec()),
        ("mesh", 2..) => Ok(own::processes(count, Shape::Mesh, Wait::Sleeps)?.to_vec()),
        ("polling-mesh", 2..) => Ok(own::processes(count, Shape::Mesh, Wait::Polls)?.to_vec()),
        ("threads", 1..) => {
            let (figures, contended) = threads::threads(count, RUN)?;
            Ok(vec![figures.rate / 1e6, figures.cost, contended])
        }
        ("processes", 1..) => {
            let figures = threads::processes(count, RUN)?;
            Ok(vec![figures.rate / 1e6, figures.cost])
        }
        ("stacks", 5..) => Ok(own::stacks(count)?.to_vec()),
        _ => Err(usage()),
    }
}

fn usage() -> anyhow::Error {
    anyhow::anyhow!(
        "usage: own-verbs one-sided|dialogue polls|sleeps | queue-pairs|small-messages|lists|idle-memory|threads|processes N | star|mesh|polling-mesh N (2 \
         or more) | stacks N (5 or more)"
    )
}
