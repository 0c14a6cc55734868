//! Packets as others see them: Wireshark's dissector, and scapy's independent ICRC.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use urxe_tests::scapy::{icrc_script, python};
use urxe_tests::{
    Capture, Fields, GID_IPV4, GID_IPV6, Host, Pair, Perftest, PingPong, TIMEOUT, World, without_segmentation_offload,
};

/// Wireshark's names of what every packet has, then of what some have.
const FIELDS: [&str; 13] = [
    "frame.protocols",
    "_ws.malformed",
    "infiniband.bth.opcode",
    "infiniband.bth.destqp",
    "infiniband.bth.psn",
    "infiniband.bth.p_key",
    "infiniband.invariant.crc",
    "infiniband.reth.va",
    "infiniband.reth.r_key",
    "infiniband.reth.dmalen",
    "infiniband.aeth.syndrome",
    "infiniband.aeth.msn",
    "infiniband.atomiceth.swapdt",
];

/// RC opcodes (IBA 9.2), in Wireshark's decimal.
const SEND_FIRST: &str = "0";
const SEND_MIDDLE: &str = "1";
const SEND_LAST: &str = "2";
const WRITE_FIRST: &str = "6";
const READ_REQUEST: &str = "12";
const READ_RESPONSE_FIRST: &str = "13";
const ACKNOWLEDGE: &str = "17";
const ATOMIC_ACKNOWLEDGE: &str = "18";
const FETCH_ADD: &str = "20";

/// One field of every packet whose opcode is `opcode`.
fn field<'a>(packets: &'a Fields, opcode: &str, name: &str) -> Result<Vec<&'a str>> {
    let column = FIELDS.iter().position(|field| *field == name).with_context(|| format!("{name} is not captured"))?;
    let rows: Vec<&str> = packets.iter().filter(|row| row[2] == opcode).map(|row| row[column].as_str()).collect();
    ensure!(!rows.is_empty(), "no packet with opcode {opcode}");
    Ok(rows)
}

fn all_filled(packets: &Fields, opcode: &str, names: &[&str]) -> Result<()> {
    for name in names {
        let values = field(packets, opcode, name)?;
        ensure!(values.iter().all(|value| !value.is_empty()), "opcode {opcode} without {name}: {values:?}");
    }
    Ok(())
}

/// Every packet is dissected down to its ICRC.
fn all_dissected(packets: &Fields) -> Result<()> {
    ensure!(!packets.is_empty(), "nothing was captured");
    for (index, packet) in packets.iter().enumerate() {
        ensure!(packet[0].contains(":udp:infiniband"), "packet {index} is not RoCE v2: {packet:?}");
        ensure!(packet[1].is_empty(), "packet {index} is malformed: {packet:?}");
        ensure!(packet[2..7].iter().all(|field| !field.is_empty()), "packet {index} lacks a field: {packet:?}");
        ensure!(packet[5] == "65535" || packet[5] == "0xffff", "packet {index}: not the default P_Key: {packet:?}");
    }
    Ok(())
}

/// QPN and PSN that an end of ibv_rc_pingpong printed as its own.
fn local_address(stdout: &str) -> Result<(u32, u32)> {
    let line = stdout.lines().find(|line| line.contains("local address:")).context("no local address")?;
    let number = |name: &str| -> Result<u32> {
        let text = line.split_once(name).with_context(|| format!("no {name} in {line:?}"))?.1;
        Ok(u32::from_str_radix(text.get(..6).unwrap_or(text), 16)?)
    };
    Ok((number("QPN 0x")?, number("PSN 0x")?))
}

fn parse_number(text: &str) -> Result<u32> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.with_context(|| format!("not a number: {text:?}"))
}

/// Runs a perftest program, both ends, with small counts.
fn perftest(host: &Host, program: &str, args: &[&str]) -> Result<()> {
    Perftest::run(program, &[&["--use_old_post_send", "-n", "5"], args].concat(), host, host)
}

fn capture_file(world: &World) -> PathBuf {
    world.dir().join("capture.pcapng")
}

#[test]
fn wireshark_dissects_what_pingpong_sends() -> Result<()> {
    let world = World::new()?;
    let host = world.host();
    let capture = Capture::start(host, "lo", &capture_file(&world))?;
    let Pair { server, client, .. } = PingPong { size: 3000, iters: 5, ..PingPong::default() }.start(host, host)?;
    let (client, server) = (client.finish(TIMEOUT)?.success()?, server.finish(TIMEOUT)?.success()?);
    let packets = capture.finish(&FIELDS)?;

    all_dissected(&packets)?;
    // 3000 bytes at path MTU 1024 are a First, a Middle and a Last; five each way. Who does not get a processor in time is
    // sent something again.
    for opcode in [SEND_FIRST, SEND_MIDDLE, SEND_LAST] {
        let (to, psns) =
            (field(&packets, opcode, "infiniband.bth.destqp")?, field(&packets, opcode, "infiniband.bth.psn")?);
        let count = to.into_iter().zip(psns).collect::<BTreeSet<_>>().len();
        ensure!(count == 10, "{count} packets with opcode {opcode}, not 10");
    }
    all_filled(&packets, ACKNOWLEDGE, &["infiniband.aeth.syndrome", "infiniband.aeth.msn"])?;

    let ends = [local_address(&client.stdout)?, local_address(&server.stdout)?];
    let qpns: BTreeSet<u32> = packets.iter().map(|packet| parse_number(&packet[3])).collect::<Result<_>>()?;
    ensure!(qpns == ends.iter().map(|(qpn, _)| *qpn).collect(), "QPNs {qpns:06x?} on the wire, {ends:06x?} printed");
    // Each end starts at the PSN that it printed; the packets go to the other's QPN.
    for ((_, psn), (peer, _)) in [(ends[0], ends[1]), (ends[1], ends[0])] {
        let first =
            packets.iter().find(|packet| packet[2] == SEND_FIRST && parse_number(&packet[3]).ok() == Some(peer));
        let first = first.with_context(|| format!("no First to {peer:06x}"))?;
        ensure!(parse_number(&first[4])? == psn, "first PSN {} on the wire, {psn} printed", first[4]);
    }
    Ok(())
}

#[test]
fn wireshark_dissects_write_read_and_atomic() -> Result<()> {
    let world = World::new()?;
    let capture = Capture::start(world.host(), "lo", &capture_file(&world))?;
    perftest(world.host(), "ib_write_bw", &["-s", "5000", "-m", "1024"])?;
    perftest(world.host(), "ib_read_bw", &["-s", "5000", "-m", "1024"])?;
    perftest(world.host(), "ib_atomic_bw", &["-A", "FETCH_AND_ADD"])?;
    let packets = capture.finish(&FIELDS)?;

    all_dissected(&packets)?;
    let reth = ["infiniband.reth.va", "infiniband.reth.r_key", "infiniband.reth.dmalen"];
    for opcode in [WRITE_FIRST, READ_REQUEST] {
        all_filled(&packets, opcode, &reth)?;
        let lengths = field(&packets, opcode, "infiniband.reth.dmalen")?;
        ensure!(lengths.contains(&"5000"), "opcode {opcode}: no DMA length 5000 in {lengths:?}");
        // A READ that had to be asked for again asks for the rest of it, from some packet on.
        let is_rest = |length: &str| length.parse::<u32>().is_ok_and(|length| (5000 - length.min(5000)) % 1024 == 0);
        let legal = |length: &str| length == "5000" || (opcode == READ_REQUEST && is_rest(length));
        ensure!(lengths.iter().all(|length| legal(length)), "opcode {opcode}: DMA length {lengths:?}");
    }
    let aeth = ["infiniband.aeth.syndrome", "infiniband.aeth.msn"];
    for opcode in [ACKNOWLEDGE, READ_RESPONSE_FIRST, ATOMIC_ACKNOWLEDGE] {
        all_filled(&packets, opcode, &aeth)?;
    }
    all_filled(&packets, FETCH_ADD, &["infiniband.atomiceth.swapdt"])
}

/// Has scapy recompute the ICRC of what `gid` and `netdev` carry between two hosts.
fn scapy_agrees(world: &World, server: &Host, client: &Host, netdev: &str, gid: u32) -> Result<()> {
    let file = capture_file(world);
    without_segmentation_offload(server, netdev)?;
    let capture = Capture::start(client, netdev, &file)?;
    // All pad counts, one packet and several, both directions.
    for size in [1, 2, 3, 4, 1023, 5001] {
        PingPong { size, gid, iters: 3, ..PingPong::default() }.run(server, client)?;
    }
    let packets = capture.finish(&FIELDS)?;
    let file = file.to_str().context("a path that is not UTF-8")?;
    let verdict = client.run(python()?, &[&icrc_script()?, file])?;
    ensure!(verdict.stdout.contains(&format!("{} packets, 0 wrong", packets.len())), "not all checked: {verdict}");
    Ok(())
}

#[test]
fn scapy_computes_the_same_icrc_ipv4() -> Result<()> {
    let world = World::new()?;
    scapy_agrees(&world, world.host(), world.host(), "lo", GID_IPV4)
}

#[test]
fn scapy_computes_the_same_icrc_ipv6() -> Result<()> {
    let (world, other) = World::linked()?;
    scapy_agrees(&world, world.host(), &other, "veth0", GID_IPV6)
}

/// Writes a right packet and one with a flipped payload bit to the file that it is given.
const ONE_WRONG: &str = "import sys\n\
    from scapy.all import Ether, IP, UDP, Raw, raw, wrpcap\n\
    from scapy.contrib.roce import BTH\n\
    good = Ether() / IP(src='127.0.0.1', dst='127.0.0.1') / UDP(sport=50000, dport=4791) / BTH(opcode=4, dqpn=17) / Raw(b'abcd')\n\
    good = Ether(raw(good))\n\
    bad = Ether(raw(good).replace(b'abcd', b'abce'))\n\
    wrpcap(sys.argv[1], [good, bad])";

#[test]
fn a_wrong_icrc_would_be_found() -> Result<()> {
    let world = World::bare()?;
    let file = capture_file(&world);
    let file = file.to_str().context("a path that is not UTF-8")?;
    world.host().run(python()?, &["-c", ONE_WRONG, file])?;
    let verdict = world.host().try_run(python()?, &[&icrc_script()?, file])?.failure()?;
    ensure!(verdict.stdout.contains("2 packets, 1 wrong"), "{verdict}");
    Ok(())
}

#[test]
fn a_capture_has_every_packet() -> Result<()> {
    let world = World::bare()?;
    let capture = Capture::start(world.host(), "lo", &capture_file(&world))?;
    let script = "import socket\n\
                  s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
                  for psn in range(100): s.sendto(bytes([4, 0, 255, 255, 0, 0, 0, 17, 0, 0, 0, psn]) + bytes(4), ('127.0.0.1', 4791))";
    world.host().run("python3", &["-c", script])?;
    let packets = capture.finish(&FIELDS)?;
    let psns: Vec<u32> = packets.iter().map(|packet| parse_number(&packet[4])).collect::<Result<_>>()?;
    ensure!(psns == (0..100).collect::<Vec<_>>(), "PSNs {psns:?}");
    Ok(())
}
