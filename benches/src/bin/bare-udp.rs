//! The ceiling: what bare UDP does on loopback. Prints its figures, separated by spaces.
//!
//! * `bare-udp ping-pong`: half a round trip in µs, median and 99th percentile
//! * `bare-udp exchanges`: the same of each exchange, shortest first
//! * `bare-udp stream`: Gbit/s of payload
//! * `bare-udp small`: 10^6 packets a second

use std::process::ExitCode;
use std::time::Duration;

use urxe_benches::bare;

const RUN: Duration = Duration::from_millis(500);
const EXCHANGES: usize = 20_000;

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("ping-pong") => {
            let times = bare::ping_pong(EXCHANGES);
            let [median, p99] = [0.5, 0.99].map(|fraction| bare::percentile(&times, fraction) / 1000.0);
            println!("{median:.3} {p99:.3}");
        }
        Some("exchanges") => {
            let times: Vec<_> =
                bare::ping_pong(EXCHANGES).iter().map(|&time| format!("{:.3}", time as f64 / 1000.0)).collect();
            println!("{}", times.join(" "));
        }
        Some("stream") => println!("{:.3}", bare::stream(RUN)),
        Some("small") => println!("{:.3}", bare::small_rate(RUN)),
        _ => {
            eprintln!("usage: bare-udp ping-pong | exchanges | stream | small");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
