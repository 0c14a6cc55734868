//! `urxe trace`: what stands in the diagram of an exchange with losses and a refusal.

use anyhow::{Result, ensure};
use urxe_tests::artifacts::urxe;
use urxe_tests::verbs::{Op, Options, Pair, SendWr, Status};
use urxe_tests::{Capture, PingPong, World, in_world_with};

/// Output of `urxe trace`.
fn trace(args: &[&str]) -> Result<String> {
    let file = std::env::var("URXE_PCAP")?;
    let output = std::process::Command::new(urxe()?).arg("trace").arg(&file).args(args).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// A WRITE whose acknowledgement is lost once, then one that is refused.
fn exchange() -> Result<(u32, u32)> {
    let Pair { near, far } = &Pair::new(&Options { timeout: 8, ..Options::default() })?;
    let (local, remote) = (near.region(8192)?, far.region(4096)?);
    let write = |offset, len| SendWr::new(Op::Write(remote.at(offset)), &[local.sge(0, len)]);
    ensure!(near.complete(&write(0, 4096))?.status == Status::SUCCESS);
    ensure!(near.complete(&write(4000, 100))?.status == Status::REM_ACCESS_ERR);
    Ok((near.qp.number(), far.qp.number()))
}

fn prepare(world: &World) -> Result<()> {
    world.host().set_env("URXE_PCAP", world.dir().join("it.pcapng").to_str().unwrap_or_default());
    world.host().set_env("URXE_FAULTS", "drop,opcode=ACK,dir=rx,nth=1");
    Ok(())
}

#[test]
fn a_ladder_shows_retries_and_refusals() {
    in_world_with(prepare, || {
        let (near, far) = exchange()?;
        let drawn = trace(&["--qp", &far.to_string()])?;
        let has = |words: &[&str]| {
            let found = drawn.lines().any(|line| words.iter().all(|word| line.contains(word)));
            ensure!(found, "no line with {words:?}:\n{drawn}");
            Ok(())
        };
        has(&[&format!("127.0.0.1 QP {near:#x}"), &format!("127.0.0.1 QP {far:#x}")])?;
        has(&["--- RC RDMA WRITE First", "->|"])?;
        has(&["2 x RC RDMA WRITE Middle PSN="])?;
        has(&["|X-", "RC Acknowledge", "lost"])?;
        has(&["! 127.0.0.1 QP", "URXE_FAULTS: dropped"])?;
        has(&[":   ACK timeout: no answer for"])?;
        has(&["=== RC RDMA WRITE", "again", "retry"])?;
        has(&["! 127.0.0.1 QP", "sent again: no answer within the ACK timeout"])?;
        has(&["|<-", "Nak Remote Access Error", "NAK"])?;
        has(&["! 127.0.0.1 QP", "NAK Remote Access Error: remote access: R_Key", "allows ["])?;
        Ok(())
    });
}

#[test]
fn a_page_draws_the_same() {
    in_world_with(prepare, || {
        exchange()?;
        let page = trace(&["--html"])?;
        ensure!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"), "no page");
        let marks = ["id=\"data\">{", "URXE_FAULTS: dropped", "[\"timeout\",\"ACK timeout: no answer for", "R_Key"];
        for part in marks {
            ensure!(page.contains(part), "no {part}:\n{page}");
        }
        Ok(())
    });
}

/// The kernel shows many packets as one datagram (UDP_SEGMENT).
#[test]
fn captures_of_the_kernel_are_split_into_packets() -> Result<()> {
    let world = World::new()?;
    let (host, file) = (world.host(), world.dir().join("kernel.pcapng"));
    let capture = Capture::start_with_offload(host, "lo", &file)?;
    PingPong { size: 16 * 1024, iters: 5, ..PingPong::default() }.run(host, host)?;
    let frames = capture.finish(&["udp.length"])?;
    let longest = frames.iter().filter_map(|row| row[0].parse::<usize>().ok()).max().unwrap_or_default();
    ensure!(longest > 4096 + 128, "no datagram of several packets: {frames:?}");
    let path = file.to_str().unwrap_or_default();
    let drawn = host.run(urxe()?, &["trace", "--all", path])?;
    // 16 packets a message, five messages each way, of which some may have come twice.
    let count = |words: &str| drawn.stdout.lines().filter(|line| line.contains(words)).count();
    ensure!(count("RC SEND First") >= 10 && count("RC SEND Last") >= 10, "{drawn}");
    ensure!(count("RC SEND Middle") >= 140 && count("Len=1024") >= 160, "{drawn}");
    ensure!(drawn.stderr.is_empty(), "{drawn}");
    let page = host.run(urxe()?, &["trace", "--html", path])?;
    let data = page.stdout.split_once("id=\"data\">").and_then(|(_, rest)| rest.split_once("</script>"));
    let data: serde_json::Value = serde_json::from_str(data.map_or("", |(data, _)| data))?;
    let packets = data["exchanges"][0]["psn"].as_array().map_or(0, Vec::len);
    ensure!(packets == drawn.stdout.lines().filter(|line| line.contains("PSN=")).count(), "{packets} packets");
    Ok(())
}

#[test]
fn files_that_are_no_capture_are_refused() -> Result<()> {
    let output = std::process::Command::new(urxe()?).args(["trace", "/proc/self/status"]).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(!output.status.success() && said.contains("/proc/self/status: neither a pcapng nor a pcap file"), "{said}");
    Ok(())
}

/// Readers that leave early, as in `urxe explain | head -1`.
#[test]
fn readers_may_leave_early() -> Result<()> {
    for args in [&["explain"][..], &["faults", "drop=1%"], &["doctor"]] {
        let (reader, writer) = std::io::pipe()?;
        drop(reader);
        let output = std::process::Command::new(urxe()?).args(args).stdout(writer).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(said.is_empty() && output.status.code().is_some_and(|code| code < 2), "{args:?}: {said}");
    }
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full")?;
    let output = std::process::Command::new(urxe()?).arg("explain").stdout(full).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(1) && said.starts_with("urxe: standard output: No space left"), "{said}");
    Ok(())
}
