//! What no stock program measures ([`urxe_benches::own`]). Prints its figures, separated by spaces.
//!
//! * `own-verbs one-sided polls|sleeps`: µs from posting a WRITE of 8 bytes to its completion, median and 99th percentile,
//!   while the target's program polls or sleeps
//! * `own-verbs queue-pairs N`: Gbit/s of N queue pairs between two processes

use std::process::ExitCode;
use std::time::Duration;

use urxe_benches::bare::percentile;
use urxe_benches::own::{Target, one_sided, queue_pairs};

const RUN: Duration = Duration::from_millis(500);
const EXCHANGES: usize = 10_000;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let one_sided = |what| {
        let times = one_sided(what, EXCHANGES)?;
        let [median, p99] = [0.5, 0.99].map(|fraction| percentile(&times, fraction) / 1000.0);
        anyhow::Ok(format!("{median:.3} {p99:.3}"))
    };
    let figures = match args.as_slice() {
        ["one-sided", "polls"] => one_sided(Target::Polls),
        ["one-sided", "sleeps"] => one_sided(Target::Sleeps),
        ["queue-pairs", count] if count.parse().is_ok_and(|count: usize| count > 0) => {
            queue_pairs(count.parse().unwrap_or(1), RUN).map(|rate| format!("{rate:.3}"))
        }
        _ => {
            eprintln!("usage: own-verbs one-sided polls|sleeps | queue-pairs N");
            return ExitCode::FAILURE;
        }
    };
    match figures {
        Ok(figures) => {
            println!("{figures}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("own-verbs: {error:#}");
            ExitCode::FAILURE
        }
    }
}
