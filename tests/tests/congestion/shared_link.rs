//! Three senders and one link: with DCQCN they share it, and its queue loses nothing.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use urxe_tests::{Host, Perftest, World, without_segmentation_offload};

/// The link's Mbit/s. So slow that processors idle, and the senders share the link and not them.
const LINK: f64 = 50.0;
/// Bytes that a packet of 1024 bytes takes on it: Ethernet, IPv4, UDP, BTH and ICRC are around them.
const FRAME: f64 = 14.0 + 20.0 + 8.0 + 12.0 + 1024.0 + 4.0;
/// Packets that a sender has for the link, and packets of all by which they find their rates.
const PACKETS: u64 = 64 * 400;
const SETTLED: u64 = PACKETS;

/// How often the link is shared until all goals are met at a time.
const ATTEMPTS: usize = 10;

/// Outcome of three senders on a link of 50 Mbit/s.
#[derive(Debug)]
struct Shares {
    /// Mbit/s that each sender has sent, while all did.
    megabits: Vec<f64>,
    /// The part of the link's time that it was busy then.
    utilisation: f64,
    /// Packets in the queue in front of the link, at most, as often as somebody looked.
    longest: u64,
    /// Packets that the queue had no room for, and that were marked.
    dropped: u64,
    marked: u64,
}

impl Shares {
    /// Index of fairness by Jain: 1 if all get as much.
    fn fairness(&self) -> f64 {
        let sum: f64 = self.megabits.iter().sum();
        let squares: f64 = self.megabits.iter().map(|rate| rate * rate).sum();
        sum * sum / (self.megabits.len() as f64 * squares)
    }
}

/// Packets in the queue in front of the link, and those that it had no room for.
fn queue(switch: &Host) -> Result<[u64; 2]> {
    let shown = switch.run("tc", &["-s", "-j", "qdisc", "show", "dev", "port1"])?.stdout;
    let shaper: Value = serde_json::from_str(&shown)?;
    let count = |name: &str| shaper[0][name].as_u64().with_context(|| format!("no {name} in {shown}"));
    Ok([count("qlen")?, count("drops")?])
}

/// Packets that the switch has marked.
fn marked(switch: &Host) -> Result<u64> {
    let rules = switch.run("nft", &["list", "table", "netdev", "marks"])?.stdout;
    let mut words = rules.split_whitespace().skip_while(|word| *word != "counter");
    words.nth(2).and_then(|count| count.parse().ok()).with_context(|| format!("no counter in {rules}"))
}

/// Packets that have left senders, and the link, at a time.
#[derive(Clone, Debug)]
struct Sent {
    at: Instant,
    senders: Vec<u64>,
    link: u64,
}

impl Sent {
    fn now(senders: &[Host], switch: &Host) -> Result<Self> {
        let senders = senders.iter().map(|sender| sender.packets_sent("veth0")).collect::<Result<_>>()?;
        Ok(Self { at: Instant::now(), senders, link: switch.packets_sent("port1")? })
    }
}

/// Streams SENDs from three hosts to a fourth, through a switch that sends 50 Mbit/s to it and keeps 500 kB of what is more. It marks
/// packets that are just about to be too many.
fn share_a_link(variables: &[(&str, &str)]) -> Result<Shares> {
    let world = World::new()?;
    let senders = [world.add_host()?, world.add_host()?, world.add_host()?];
    let hosts: Vec<&Host> = [world.host()].into_iter().chain(&senders).collect();
    let switch = world.switch(&hosts)?;
    for host in &hosts {
        // Queues and marks are those of packets, not of runs.
        without_segmentation_offload(host, "veth0")?;
        variables.iter().for_each(|(name, value)| host.set_env(name, value));
    }
    let shaper = "qdisc add dev port1 root tbf rate 50mbit burst 5kb limit 500kb";
    switch.run("tc", &shaper.split_whitespace().collect::<Vec<_>>())?;
    switch.run("nft", &["add", "table", "netdev", "marks"])?;
    let chain = "{ type filter hook ingress devices = { port2, port3, port4 } priority 0; }";
    switch.run("nft", &["add", "chain", "netdev", "marks", "ingress", chain])?;
    // The link takes 5776 packets a second. By bytes nft marks nothing for seconds: its bucket holds a whole one.
    let limit = "limit rate over 5700/second burst 80 packets";
    let rule = format!("ip ecn ect0 udp dport 4791 {limit} counter ip ecn set ce");
    switch.run("nft", &["add", "rule", "netdev", "marks", "ingress", &rule])?;

    // They sleep while they wait: three that poll would share two processors.
    let messages = (PACKETS / 64).to_string();
    let args = ["-e", "-s", "65536", "-n", &messages, "-u", "18"];
    let start = |sender| Perftest::start("ib_send_bw", &args, world.host(), sender);
    let mut streams = senders.iter().map(start).collect::<Result<Vec<_>>>()?;
    let (mut longest, mut first, mut last) = (0, None, None);
    loop {
        longest = longest.max(queue(&switch)?[0]);
        let sent = Sent::now(&senders, &switch)?;
        if sent.senders.iter().any(|packets| *packets >= PACKETS) {
            break;
        }
        if sent.link >= SETTLED && sent.senders.iter().all(|packets| *packets >= 64) {
            first.get_or_insert_with(|| sent.clone());
            last = Some(sent);
        }
        // What a stream that ended early has to say comes with its end.
        let running: Result<Vec<_>> = streams.iter_mut().map(|stream| stream.client.is_running()).collect();
        if running?.contains(&false) {
            break;
        }
        sleep(Duration::from_millis(20));
    }
    streams.into_iter().try_for_each(Perftest::finish)?;
    let (first, last) = first.zip(last).context("one sender was done before another had begun")?;
    let megabits = |packets: u64| packets as f64 * FRAME * 8.0 / (last.at - first.at).as_micros() as f64;
    Ok(Shares {
        megabits: first.senders.iter().zip(&last.senders).map(|(first, last)| megabits(last - first)).collect(),
        utilisation: megabits(last.link - first.link) / LINK,
        longest,
        dropped: queue(&switch)?[1],
        marked: marked(&switch)?,
    })
}

/// Three senders share a link of 50 Mbit/s by DCQCN, with no more than half of its queue; without congestion control they fill it until
/// packets are lost. Prints the figures for `make shared-link`.
#[test]
#[ignore = "minutes; `make shared-link`"]
fn three_senders_share_a_link() -> Result<()> {
    // Those for 1 Gbit/s of docs/internals/congestion.md, where all takes twenty times as long.
    let parameters = "min_time_between_cnps=1000,dce_tcp_rtt=1100,rpg_time_reset=30000,rpg_byte_reset=0,rpg_threshold=5,\
                      clamp_tgt_rate=1,rpg_ai_rate=1,rpg_hai_rate=5,rpg_max_rate=50";
    println!(
        "| congestion control | Mbit/s of each | fairness | of the link | longest queue, packets | dropped | marked |"
    );
    println!("|---|---|---|---|---|---|---|");
    let measure = |name: &str, variables: &[(&str, &str)]| -> Result<Shares> {
        let shares = share_a_link(variables)?;
        let (fairness, Shares { megabits, utilisation, longest, dropped, marked }) = (shares.fairness(), &shares);
        println!("| {name} | {megabits:.1?} | {fairness:.3} | {utilisation:.3} | {longest} | {dropped} | {marked} |");
        Ok(shares)
    };
    let none = measure("none", &[("URXE_ECN", "0")])?;
    ensure!(none.dropped > 0, "nothing to be controlled: {none:?}");
    let mut attempts = Vec::new();
    // A sender without a processor for a while leaves the link idle, or hears of marks late.
    for _ in 0..ATTEMPTS {
        let dcqcn = measure("dcqcn", &[("URXE_CC", "dcqcn"), ("URXE_CC_PARAMS", parameters)])?;
        let is_controlled = dcqcn.marked > 0 && dcqcn.dropped == 0 && 2 * dcqcn.longest <= none.longest;
        if is_controlled && dcqcn.fairness() >= 0.95 && dcqcn.utilisation >= 0.9 {
            return Ok(());
        }
        attempts.push(dcqcn);
    }
    bail!("{attempts:?}")
}
