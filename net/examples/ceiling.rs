//! What bare UDP does on this machine's loopback: the ceiling for urxe. `name value unit` a line, medians.
//!
//! `cargo run --release -p urxe-net --example ceiling [-- REPETITIONS]`

#![expect(clippy::cast_possible_truncation, reason = "measurements fit")]

mod bare;

use std::time::Duration;

fn main() {
    let repetitions = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(5);
    let run = Duration::from_millis(500);
    let (mut stream, mut small, mut half, mut tail) = (vec![], vec![], vec![], vec![]);
    for _ in 0..repetitions {
        stream.push(bare::stream(run));
        small.push(bare::small_rate(run));
        let times = bare::ping_pong(50_000);
        half.push(bare::percentile(&times, 0.5) / 1000.0);
        tail.push(bare::percentile(&times, 0.99) / 1000.0);
    }
    println!("udp_stream {:.2} Gbit/s", bare::median(stream));
    println!("udp_small_rate {:.2} Mpackets/s", bare::median(small));
    println!("udp_pingpong_median {:.3} us", bare::median(half));
    println!("udp_pingpong_p99 {:.3} us", bare::median(tail));
}
