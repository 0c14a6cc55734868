//! Captures that the library writes itself (`URXE_PCAP`), as Wireshark's dissector and scapy read them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::verbs::memory::PAGE;
use urxe_tests::verbs::{Op, Options, Pair, SendWr, Status};
use urxe_tests::{GID_IPV4, GID_IPV6, PingPong, World, dissect, in_world_with, scapy};

const FIELDS: [&str; 7] = [
    "frame.protocols",
    "_ws.malformed",
    "frame.interface_name",
    "frame.packet_flags_direction",
    "infiniband.bth.opcode",
    "infiniband.bth.psn",
    "udp.checksum.status",
];

/// Wireshark's names of directions.
const INBOUND: &str = "0x00000001";
const OUTBOUND: &str = "0x00000002";

/// Captures in a world's folder.
fn captures(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("both")) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn set(world: &World, name: &str, value: &str) {
    world.host().set_env(name, value);
}

/// Both ends of a ping-pong capture to the same name: each has its own file, with all that it sent and received.
fn two_programs(gid: u32, way: &str) -> Result<()> {
    let world = World::new()?;
    set(&world, "URXE_LOOPBACK", way);
    set(&world, "URXE_PCAP", world.dir().join("both.pcapng").to_str().context("a path")?);
    for size in [1, 5001] {
        PingPong { size, gid, iters: 10, ..PingPong::default() }.run(world.host(), world.host())?;
        let files = captures(world.dir())?;
        ensure!(files.len() == 2, "{files:?}");
        let mut seen = Vec::new();
        for file in files {
            let packets = dissect(world.host(), &file, &FIELDS)?;
            ensure!(scapy::right_icrcs(world.host(), &file)? == packets.len(), "not every packet is RoCE");
            for packet in &packets {
                ensure!(
                    packet[0] == "eth:ethertype:ip:udp:infiniband:data" || packet[0].contains(":udp:infiniband"),
                    "{packet:?}"
                );
                // tshark 4.0 takes the padding of very short SENDs for something else.
                ensure!(packet[1].is_empty() || size < 5, "malformed: {packet:?}");
                ensure!(packet[2].starts_with("ibv_rc_pingpong[") && packet[2].ends_with("] urxe0"), "{packet:?}");
                ensure!(packet[6] != "0", "a wrong UDP checksum: {packet:?}");
            }
            let of = |direction: &str| -> Vec<(String, String)> {
                let mine = packets.iter().filter(|packet| packet[3] == direction);
                mine.map(|packet| (packet[4].clone(), packet[5].clone())).collect()
            };
            let (received, sent) = (of(INBOUND), of(OUTBOUND));
            // Ten messages each way. ACKs may be coalesced; and who does not get a processor in time is sent something
            // again.
            let data = |list: &[(String, String)]| {
                list.iter().filter(|(opcode, _)| opcode != "17").collect::<BTreeSet<_>>().len()
            };
            let per_message = if size == 1 { 1 } else { 5 };
            ensure!(data(&sent) == 10 * per_message && data(&received) == 10 * per_message, "{sent:?} {received:?}");
            seen.push((sent, received));
            std::fs::remove_file(file)?;
        }
        // What one sent the other received, unless it was sent again and the other had ended by then.
        let [(sent, received), (sent_there, received_there)] = &seen[..] else { return Ok(()) };
        for (sent, received) in [(sent, received_there), (sent_there, received)] {
            let late = sent.strip_prefix(&received[..]).with_context(|| format!("{sent:?} became {received:?}"))?;
            ensure!(late.iter().all(|packet| received.contains(packet)), "never received: {late:?} of {sent:?}");
        }
    }
    Ok(())
}

#[test]
fn two_programs_over_ipv4() -> Result<()> {
    two_programs(GID_IPV4, "udp")
}

#[test]
fn two_programs_over_ipv6() -> Result<()> {
    two_programs(GID_IPV6, "udp")
}

/// Packets that never were on a wire look like others.
#[test]
fn two_programs_through_memory() -> Result<()> {
    two_programs(GID_IPV4, "shm")?;
    two_programs(GID_IPV6, "shm")
}

/// Where urxe knows more than the wire, packets say so.
#[test]
fn comments_say_what_the_wire_does_not() {
    let prepare = |world: &World| {
        set(world, "URXE_PCAP", world.dir().join("both.pcapng").to_str().context("a path")?);
        Ok(())
    };
    in_world_with(prepare, || {
        let Pair { near, far } = &Pair::new(&Options::default())?;
        let (local, remote) = (near.region(PAGE)?, far.region(PAGE)?);
        let wrong = SendWr::new(Op::Write(remote.at(4000)), &[local.sge(0, 200)]);
        ensure!(near.complete(&wrong)?.status == Status::REM_ACCESS_ERR);
        let pair = Pair::on(&near.context, &Options { timeout: 8, retry_cnt: 2, ..Options::default() })?;
        pair.far.qp.destroy()?;
        let local = pair.near.region(PAGE)?;
        ensure!(pair.near.complete(&SendWr::new(Op::Send, &[local.sge(0, 8)]))?.status == Status::RETRY_EXC_ERR);
        ensure!(near.qp.state()? == v::IBV_QPS_ERR);
        let file = std::env::var("URXE_PCAP")?;
        let output = std::process::Command::new("tshark")
            .args(["-r", &file, "-T", "fields", "-e", "frame.packet_flags_direction", "-e", "infiniband.bth.opcode"])
            .args(["-e", "frame.comment"])
            .output()?;
        let text = String::from_utf8(output.stdout)?;
        let has = |direction: &str, opcode: &str, words: &str| {
            let row = |line: &str| {
                let [way, code, comment] = line.split('\t').collect::<Vec<_>>()[..] else { return false };
                way == direction && code == opcode && comment.contains(words)
            };
            ensure!(text.lines().any(row), "no packet {direction} {opcode} with {words:?}:\n{text}");
            Ok(())
        };
        let range = format!("R_Key {:#x} allows [{:#x}, +4096)", remote.rkey(), remote.pages().addr());
        has(INBOUND, "10", &format!("refused: remote access: {range}"))?;
        has(OUTBOUND, "17", &format!("NAK Remote Access Error: remote access: {range}"))?;
        has(INBOUND, "17", "NAK Remote Access Error")?;
        has(INBOUND, "4", "dropped: there is no QP")?;
        has(OUTBOUND, "4", "sent again: no answer within the ACK timeout; 1 try left")?;
        Ok(())
    });
}

#[test]
fn packets_can_be_cut_and_files_turned_over() -> Result<()> {
    let world = World::new()?;
    set(&world, "URXE_PCAP", world.dir().join("both-%p.pcapng").to_str().context("a path")?);
    set(&world, "URXE_PCAP_SNAPLEN", "100");
    set(&world, "URXE_PCAP_ROTATE", "4K,2");
    PingPong { size: 4096, iters: 200, ..PingPong::default() }.run(world.host(), world.host())?;
    let files = captures(world.dir())?;
    // Two programs: the file at work and two old ones each.
    ensure!(files.len() == 6, "{files:?}");
    let mut cut = 0;
    for file in &files {
        let rows = dissect(world.host(), file, &["frame.cap_len", "frame.len"])?;
        for row in &rows {
            let [captured, whole] = [row[0].parse::<u32>()?, row[1].parse()?];
            ensure!(captured == 100.min(whole), "{row:?}: cut elsewhere");
            // The file at work may have nothing but an ACK.
            cut += usize::from(whole == 1082);
        }
        ensure!(std::fs::metadata(file)?.len() < 64 << 10, "{} is long", file.display());
    }
    ensure!(cut > 0, "no whole length of any packet of a message: {files:?}");
    Ok(())
}

/// A file that cannot be written costs the capture, not the program.
#[test]
fn a_capture_that_cannot_be_is_told() -> Result<()> {
    let world = World::new()?;
    set(&world, "URXE_PCAP", "/nowhere/both.pcapng");
    let finished = world.host().run("ibv_devinfo", &["-d", "urxe0"])?;
    ensure!(finished.stderr.contains("urxe: no capture: /nowhere/both.pcapng: "), "{finished}");
    Ok(())
}
