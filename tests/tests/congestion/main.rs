//! Congestion notification between programs of two hosts, on a network that marks packets.

mod classes;
mod shared_link;

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
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
