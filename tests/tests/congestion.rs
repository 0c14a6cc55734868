//! Congestion notification between programs of two hosts, on a network that marks packets.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use urxe_tests::{Capture, Host, Perftest, World, artifacts, wait_until};

/// Has a host's kernel mark RoCE packets that arrive, all or `which`: "congestion experienced".
fn mark(host: &Host, which: &str) -> Result<()> {
    let rule = format!("{which} udp dport 4791 counter ip ecn set ce");
    for command in [
        &["add", "table", "inet", "marks"][..],
        &["add", "chain", "inet", "marks", "input", "{ type filter hook input priority 0; }"],
        &["add", "rule", "inet", "marks", "input", &rule],
    ] {
        host.run("nft", command)?;
    }
    Ok(())
}

/// A counter of the one device of a host, over its processes.
fn counter(host: &Host, name: &str) -> Result<u64> {
    let said = host.run(artifacts::urxe()?, &["status", "--json"])?.stdout;
    let devices: Value = serde_json::from_str(&said).with_context(|| said.clone())?;
    let counters = devices.as_array().into_iter().flatten().map(|device| &device["counters"]);
    Ok(counters.filter_map(|counters| counters[name].as_u64()).sum())
}

/// Runs a stream of WRITEs from the second host to the first, whose network marks them, until `look` has seen enough.
fn stream(world: &World, client: &Host, look: impl FnMut() -> Result<bool>) -> Result<()> {
    let args = ["-s", "65536", "--run_infinitely"];
    let pair = Perftest::start("ib_write_bw", &args, world.host(), client)?;
    let seen = wait_until("marks have been told and obeyed", look);
    for process in [pair.client, pair.server] {
        process.signal(libc::SIGKILL)?;
        let _ = process.finish(urxe_tests::TIMEOUT);
    }
    seen
}

#[test]
fn marks_are_told_and_obeyed_by_each_algorithm() -> Result<()> {
    let (world, client) = World::linked()?;
    let receiver = world.host();
    mark(receiver, "ip ecn ect0")?;
    for algorithm in ["window", "dcqcn", "swift"] {
        client.set_env("URXE_CC", algorithm);
        let told = || -> Result<[u64; 3]> {
            let [marked, sent] = ["np_ecn_marked_roce_packets", "np_cnp_sent"].map(|name| counter(receiver, name));
            Ok([marked?, sent?, counter(&client, "rp_cnp_handled")?])
        };
        // Those of the algorithm before may still count.
        let before = told()?;
        let mut last = before;
        stream(&world, &client, || {
            last = told()?;
            Ok(last[0] > before[0] + 10 && last[1] > before[1] && last[2] > before[2])
        })
        .with_context(|| format!("{algorithm}: {before:?} became {last:?}"))?;
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
    mark(receiver, "ip ecn ect0")?;
    receiver.set_env("URXE_CC_PARAMS", "cnp_dscp=46");
    let capture = Capture::start(receiver, "veth0", &world.dir().join("cnp.pcapng"))?;
    Perftest::run("ib_write_bw", &["-s", "4096", "-n", "200"], receiver, &client)?;
    let packets = capture.finish(&[
        "infiniband.bth.opcode",
        "ip.dsfield.ecn",
        "ip.dsfield.dscp",
        "infiniband.bth",
        "udp.length",
        "_ws.malformed",
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
    mark(receiver, "")?;
    client.set_env("URXE_ECN", "0");
    let mut handled = None;
    stream(&world, &client, || {
        let ignored = counter(&client, "rp_cnp_ignored")?;
        handled = Some(counter(&client, "rp_cnp_handled")?);
        Ok(ignored > 0)
    })?;
    ensure!(handled == Some(0), "{handled:?} CNPs slowed a sender without ECN");
    Ok(())
}
