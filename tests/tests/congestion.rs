//! Congestion notification between programs of two hosts, on a network that marks packets.

use std::collections::BTreeSet;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use urxe_tests::scapy::{python, right_icrcs};
use urxe_tests::verbs::{Context, End, Options};
use urxe_tests::{
    Capture, GID_IPV6, Host, Perftest, World, artifacts, host_counter, host_counters, in_world_with, own_counter,
    wait_until, without_segmentation_offload,
};

/// RoCE packets that a network marks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Marked {
    /// ECN-capable ones, ECT(0).
    Capable,
    All,
}

/// Has a host's kernel mark RoCE packets that arrive: "congestion experienced".
fn mark(host: &Host, which: Marked) -> Result<()> {
    host.run("nft", &["add", "table", "inet", "marks"])?;
    host.run("nft", &["add", "chain", "inet", "marks", "input", "{ type filter hook input priority 0; }"])?;
    for protocol in ["ip", "ip6"] {
        let capable = if which == Marked::Capable { format!("{protocol} ecn ect0") } else { String::new() };
        let rule = format!("{capable} udp dport 4791 counter {protocol} ecn set ce");
        host.run("nft", &["add", "rule", "inet", "marks", "input", &rule])?;
    }
    Ok(())
}

/// A counter in a host's sysfs, as it is now.
fn in_sysfs(host: &Host, name: &str) -> Result<u64> {
    let tree = host.run("printenv", &["SYSFS_PATH"])?.stdout;
    host.run(artifacts::urxe()?, &["status", "--sysfs", tree.trim()])?;
    let path = format!("{}/class/infiniband/urxe0/ports/1/hw_counters/{name}", tree.trim());
    Ok(host.run("cat", &[&path])?.stdout.trim().parse()?)
}

/// Runs a stream of WRITEs from the second host to the first, whose network marks them, until `look` has seen enough.
fn stream(world: &World, client: &Host, how: &[&str], look: impl FnMut() -> Result<bool>) -> Result<()> {
    let args = [&["-s", "65536", "-u", "17", "--run_infinitely"], how].concat();
    Perftest::start("ib_write_bw", &args, world.host(), client)?.watch("marks have been told and obeyed", look)
}

/// Marks of IPv4 and of IPv6 are told and obeyed by each algorithm, and with each transport.
#[test]
fn marks_are_told_and_obeyed() -> Result<()> {
    let (world, client) = World::linked()?;
    let receiver = world.host();
    mark(receiver, Marked::Capable)?;
    let gid = GID_IPV6.to_string();
    let cases: [(&str, &[&str]); 6] = [
        ("window", &[]),
        ("dcqcn", &[]),
        ("swift", &[]),
        ("window", &["-x", &gid]),
        ("window", &["-c", "UC"]),
        ("window", &["-c", "XRC"]),
    ];
    for (algorithm, how) in cases {
        client.set_env("URXE_CC", algorithm);
        let told = || -> Result<[u64; 3]> {
            let [marked, sent] = ["np_ecn_marked_roce_packets", "np_cnp_sent"].map(|name| host_counter(receiver, name));
            Ok([marked?, sent?, host_counter(&client, "rp_cnp_handled")?])
        };
        // Those of the algorithm before may still count.
        let before = told()?;
        let mut last = before;
        stream(&world, &client, how, || {
            last = told()?;
            let all = last[0] > before[0] + 10 && last[1] > before[1] && last[2] > before[2];
            Ok(all && in_sysfs(receiver, "np_cnp_sent")? > 0 && in_sysfs(&client, "rp_cnp_handled")? > 0)
        })
        .with_context(|| format!("{algorithm} {how:?}: {before:?} became {last:?}"))?;
    }
    Ok(())
}

//= spec/congestion.md#ecn-001
//= type=test
//# A packet of a connection MUST leave as ECT(0) where ECN is on, unless its address vector's traffic class says otherwise.
#[test]
fn tshark_sees_ect_and_the_cnp() -> Result<()> {
    let (world, client) = World::linked()?;
    let receiver = world.host();
    mark(receiver, Marked::Capable)?;
    receiver.set_env("URXE_CC_PARAMS", "cnp_dscp=46");
    let file = world.dir().join("cnp.pcapng");
    without_segmentation_offload(&client, "veth0")?;
    let capture = Capture::start(receiver, "veth0", &file)?;
    Perftest::run("ib_write_bw", &["-s", "4096", "-n", "200", "-u", "17"], receiver, &client)?;
    let packets = capture.finish(&[
        "infiniband.bth.opcode",
        "ip.dsfield.ecn",
        "ip.dsfield.dscp",
        "infiniband.bth",
        "udp.length",
        "_ws.malformed",
        "udp.srcport",
    ])?;
    let (cnps, others): (Vec<_>, Vec<_>) = packets.iter().partition(|packet| packet[0] == "129");
    ensure!(!cnps.is_empty(), "no CNP among {} packets", packets.len());
    for cnp in &cnps {
        // BTH 12, reserved 16, ICRC 4, UDP 8.
        ensure!(cnp[2] == "46" && cnp[4] == "40" && cnp[5].is_empty(), "{cnp:?}");
        // Wireshark has no name for the byte of FECN and BECN.
        let bth = cnp[3].replace(':', "");
        ensure!(bth.starts_with("8100ffff40") && bth.len() == 24, "{cnp:?}");
    }
    let acks: BTreeSet<_> = others.iter().filter(|packet| packet[0] == "17").map(|packet| &packet[6]).collect();
    let ports: BTreeSet<_> = cnps.iter().map(|cnp| &cnp[6]).collect();
    ensure!(ports == acks, "CNPs come from {ports:?}, ACKs from {acks:?}");
    ensure!(right_icrcs(receiver, &file)? >= packets.len(), "scapy has missed some");
    let writes = others.iter().filter(|packet| packet[0] == "6" || packet[0] == "8").count();
    ensure!(writes > 0, "no WRITE among {others:?}");
    ensure!(others.iter().all(|packet| packet[1] == "2" && packet[2] == "0"), "not all are ECT(0): {others:?}");
    Ok(())
}

/// CNPs change nothing at a sender without ECN, and are counted.
#[test]
fn a_sender_without_ecn_ignores_cnps() -> Result<()> {
    let (world, client) = World::linked()?;
    let receiver = world.host();
    mark(receiver, Marked::All)?;
    client.set_env("URXE_ECN", "0");
    let mut handled = None;
    stream(&world, &client, &[], || {
        // Of one report: a client that does not answer has ignored none either.
        let counts = host_counters(&client, &["rp_cnp_ignored", "rp_cnp_handled"])?;
        handled = Some(counts[1]);
        Ok(counts[0] > 0)
    })?;
    ensure!(handled == Some(0), "{handled:?} CNPs slowed a sender without ECN");
    Ok(())
}

/// The variable with a process on the other host.
const OTHER: &str = "TEST_OTHER_HOST";

/// A peer of another make, scapy: a mark in its WRITE is answered by a CNP as it should be, its CNP is obeyed, and one with a wrong ICRC
/// is not.
#[test]
fn scapy_is_told_and_obeyed() {
    const PEER: u32 = 0x12_3456;
    let linked = |world: &World| {
        let other = world.add_host()?;
        world.link(world.host(), &other, 1500)?;
        world.host().set_env(OTHER, &other.pid().to_string());
        Ok(other)
    };
    in_world_with(linked, || {
        let options = Options::default();
        let end = End::new(&Context::open()?, &options)?;
        end.connect(PEER, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 2], &options)?;
        let region = end.region(64)?;
        let (qpn, remote) = (end.qp.number().to_string(), region.at(0));
        let psn = end.qp.query()?.0.rq_psn.to_string();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/congested_peer.py");
        let said = Command::new("nsenter")
            .arg(format!("--net=/proc/{}/ns/net", std::env::var(OTHER)?))
            .arg(python()?)
            .args([script, "10.77.0.2", "10.77.0.1", &qpn, &psn])
            .args([&remote.addr.to_string(), &remote.rkey.to_string(), "a marked one"])
            .output()?;
        let printed = String::from_utf8_lossy(&said.stdout).into_owned();
        ensure!(said.status.success(), "{printed}{}", String::from_utf8_lossy(&said.stderr));
        let [tos, cnp, icrc] = printed.split_whitespace().collect::<Vec<_>>()[..] else { bail!("{printed}") };
        // DSCP 48; CNP, BECN, the peer's number, PSN 0, 16 reserved bytes.
        let expected = format!("8100ffff40{PEER:06x}00000000{:032}", 0);
        ensure!(tos.parse::<u8>()? >> 2 == 48 && cnp == format!("{expected}{icrc}"), "{printed}");
        ensure!(region.pages().read(0, 12) == b"a marked one");
        // They may come in another order: the sender may have changed its processor between them.
        wait_until("both CNPs have come", || Ok(own_counter("rp_cnp_handled")? > 0 && own_counter("icrc_err")? > 0))?;
        for (name, value) in [
            ("np_ecn_marked_roce_packets", 1),
            ("np_cnp_sent", 1),
            ("rp_cnp_handled", 1),
            ("rp_cnp_ignored", 0),
            ("icrc_err", 1),
        ] {
            let counted = own_counter(name)?;
            ensure!(counted == value, "{name}: {counted} instead of {value}");
        }
        Ok(())
    });
}

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

/// Three senders share a link of 50 Mbit/s by DCQCN; without congestion control they fill its queue until packets are lost. Prints the
/// figures for `make shared-link`.
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
        let is_controlled = dcqcn.marked > 0 && dcqcn.dropped == 0;
        if is_controlled && dcqcn.fairness() >= 0.95 && dcqcn.utilisation >= 0.9 {
            return Ok(());
        }
        attempts.push(dcqcn);
    }
    bail!("{attempts:?}")
}
