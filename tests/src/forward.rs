//! A network that overtakes: joins two interfaces, and lets some RoCE packets wait for those behind them.

use std::io::ErrorKind;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use pnet_datalink::{Channel, Config, DataLinkReceiver, DataLinkSender};

/// UDP port of RoCE v2.
const ROCE_V2_PORT: u16 = 4791;
/// One in so many packets is overtaken...
const ONE_IN: u32 = 100;
/// ... by so many, at most.
const BY: u32 = 8;
/// A packet that nothing comes behind leaves after this time.
const PATIENCE: Duration = Duration::from_millis(1);

/// Passes frames on between two interfaces of this network until the process is killed. Says on standard error how many
/// packets were overtaken, now and then.
pub fn forward(left: &str, right: &str, seed: u64) -> Result<()> {
    let (mut left_out, mut left_in) = open(left)?;
    let (mut right_out, mut right_in) = open(right)?;
    let mut rng = fastrand::Rng::with_seed(seed);
    let other = rng.fork();
    println!("ready");
    thread::scope(|scope| {
        let there = scope.spawn(|| pass(&mut *left_in, &mut *right_out, rng));
        let back = scope.spawn(|| pass(&mut *right_in, &mut *left_out, other));
        there.join().and(back.join()).unwrap_or_else(|_| bail!("a thread panicked"))
    })
}

fn open(name: &str) -> Result<(Box<dyn DataLinkSender>, Box<dyn DataLinkReceiver>)> {
    let interface = pnet_datalink::interfaces().into_iter().find(|interface| interface.name == name);
    let config = Config { read_timeout: Some(PATIENCE), ..Config::default() };
    match pnet_datalink::channel(&interface.with_context(|| format!("no interface {name}"))?, config)? {
        Channel::Ethernet(sender, receiver) => Ok((sender, receiver)),
        _ => bail!("{name} is not Ethernet"),
    }
}

fn pass(from: &mut dyn DataLinkReceiver, to: &mut dyn DataLinkSender, mut rng: fastrand::Rng) -> Result<()> {
    let mut send = |frame: &[u8]| {
        // A full queue loses the frame, as networks do.
        let _ = to.send_to(frame, None);
    };
    let (mut held, mut overtaken) = (None, 0_u32);
    loop {
        match from.next() {
            Ok(frame) if held.is_none() && is_roce(frame) && rng.u32(..ONE_IN) == 0 => {
                held = Some((frame.to_vec(), rng.u32(1..=BY)));
            }
            Ok(frame) => {
                send(frame);
                if let Some((waiting, left)) = &mut held {
                    *left -= 1;
                    if *left == 0 {
                        send(waiting);
                        held = None;
                        overtaken += 1;
                        if overtaken.is_power_of_two() {
                            eprintln!("{overtaken} overtaken");
                        }
                    }
                }
            }
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                if let Some((waiting, _)) = held.take() {
                    send(&waiting);
                }
            }
            Err(error) => return Err(error).context("receiving"),
        }
    }
}

/// Whether an Ethernet frame is IPv4 or IPv6 without options, UDP, to RoCE's port.
fn is_roce(frame: &[u8]) -> bool {
    let (protocol, udp) = match frame.get(12..14) {
        Some([0x08, 0x00]) => (frame.get(23), 34),
        Some([0x86, 0xDD]) => (frame.get(20), 54),
        _ => return false,
    };
    protocol == Some(&17) && frame.get(udp + 2..udp + 4) == Some(&ROCE_V2_PORT.to_be_bytes())
}
