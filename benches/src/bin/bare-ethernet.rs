//! Measures bare packet sockets with rings, and AF_XDP: `bare-ethernet send ring|receive ring|receive xdp NETDEV SIZE SECONDS`.

use std::process::ExitCode;
use std::time::Duration;

use urxe_benches::ethernet;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let run = |seconds: &str| Duration::from_secs(seconds.parse().unwrap_or(1));
    let rate = match args.as_slice() {
        ["send", "ring", netdev, size, seconds] => ethernet::send(netdev, size.parse().unwrap_or(64), run(seconds)),
        ["receive", "ring", netdev, _, seconds] => ethernet::receive(netdev, run(seconds)),
        ["receive", "xdp", netdev, _, seconds] => ethernet::xdp::receive(netdev, run(seconds)),
        _ => {
            eprintln!("usage: bare-ethernet send ring|receive ring|receive xdp NETDEV SIZE SECONDS");
            return ExitCode::FAILURE;
        }
    };
    match rate {
        Ok(rate) => {
            println!("{:.4}", rate / 1e6);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("bare-ethernet: {error}");
            ExitCode::FAILURE
        }
    }
}
