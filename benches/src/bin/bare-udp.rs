//! The ceiling: what bare UDP does on loopback. Prints its figures, separated by spaces.
//!
//! * `bare-udp ping-pong`: half a round trip in µs, median and 99th percentile
//! * `bare-udp ping-pong-with-acks`: the same, with an ACK behind each packet
//! * `bare-udp exchanges`: of each exchange without ACKs, shortest first
//! * `bare-udp stream`: Gbit/s of payload
//! * `bare-udp stream-gathered`: the same, payload sent from where it is
//! * `bare-udp small`: 10^6 packets a second

use std::process::ExitCode;
use std::time::Duration;

use urxe_benches::bare::{self, Ball, Payload};

const RUN: Duration = Duration::from_millis(500);
const EXCHANGES: usize = 20_000;

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("ping-pong") => ping_pong(Ball::Packet),
        Some("ping-pong-with-acks") => ping_pong(Ball::PacketAndAck),
        Some("exchanges") => {
            let times: Vec<_> = bare::ping_pong(EXCHANGES, Ball::Packet)
                .iter()
                .map(|&time| format!("{:.3}", time as f64 / 1000.0))
                .collect();
            println!("{}", times.join(" "));
        }
        Some("stream") => println!("{:.3}", bare::stream(RUN, Payload::Copied)),
        Some("stream-gathered") => println!("{:.3}", bare::stream(RUN, Payload::Gathered)),
        Some("small") => println!("{:.3}", bare::small_rate(RUN)),
        _ => {
            eprintln!("usage: bare-udp ping-pong | ping-pong-with-acks | exchanges | stream | stream-gathered | small");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn ping_pong(ball: Ball) {
    let times = bare::ping_pong(EXCHANGES, ball);
    let [median, p99] = [0.5, 0.99].map(|fraction| bare::percentile(&times, fraction) / 1000.0);
    println!("{median:.3} {p99:.3}");
}
