//! Processes of one host that exchange packets through shared memory.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use urxe_tests::{
    GID_IPV4, GID_IPV6, Host, Perftest, PingPong, Process, TIMEOUT, World, devices, scapy, wait_for_device,
    wait_for_devices,
};

/// Exchanges without end, for practical purposes.
const ENDLESS: u32 = u32::MAX >> 1;

/// A world in which it is shared memory, if both ends are asked.
fn world() -> Result<World> {
    let world = World::new()?;
    world.host().set_env("URXE_LOOPBACK", "shm");
    Ok(world)
}

/// The counters of each process here, once there are two of them and both have sent so many packets.
fn counters(host: &Host, packets: u64) -> Result<Vec<Value>> {
    let has_sent = |device: &Value| device["counters"]["tx_packets"].as_u64() > Some(packets);
    let both = wait_for_devices(host, "both send", |found| Ok(found.len() == 2 && found.iter().all(has_sent)))?;
    Ok(both.into_iter().map(|mut device| device["counters"].take()).collect())
}

fn end(processes: impl IntoIterator<Item = Process>) -> Result<()> {
    for process in processes {
        process.signal(libc::SIGKILL)?;
        process.finish(TIMEOUT)?;
    }
    Ok(())
}

/// Runs that did not leave through memory, if more than one: one may be counted as sent, and not as put into the ring yet.
fn by_udp(report: &Value) -> u64 {
    let count = |name: &str| report[name].as_u64().unwrap_or_default();
    count("tx_runs").abs_diff(count("tx_ring_runs"))
}

/// The counters of both ends of a ping-pong of which no end waits for its processor longer than the ACK timeout of `ibv_rc_pingpong`,
/// 67 ms: on a busy machine one of a few.
fn ping_pong_counters(gid: u32, events: bool) -> Result<Vec<Value>> {
    let attempt = || {
        let world = world()?;
        let pair = PingPong { gid, events, iters: ENDLESS, ..PingPong::default() }.start(world.host(), world.host())?;
        let reports = counters(world.host(), 1000)?;
        end([pair.server, pair.client])?;
        Ok::<_, anyhow::Error>(reports)
    };
    let begin = Instant::now();
    loop {
        let reports = attempt()?;
        if reports.iter().all(|of| of["ack_timeout"] == 0 && by_udp(of) <= 1) || begin.elapsed() >= TIMEOUT / 4 {
            return Ok(reports);
        }
    }
}

/// Packets of which none leaves by UDP, is lost, or has to be sent again.
#[test]
fn a_ping_pong_goes_through_memory() -> Result<()> {
    for (gid, events) in [(GID_IPV4, false), (GID_IPV6, false), (GID_IPV4, true)] {
        for of in ping_pong_counters(gid, events)? {
            let count = |name: &str| of[name].as_u64().unwrap_or(u64::MAX);
            ensure!(count("rx_ring_runs") > 0 && count("rings_opened") == 1 && count("rings_accepted") == 1, "{of}");
            ensure!(by_udp(&of) <= 1, "by UDP: {of}");
            for fault in [
                "tx_no_buffer",
                "completer_retry_err",
                "ack_timeout",
                "sent_nak_sequence",
                "drop_ring_bad",
                "rings_refused",
            ] {
                ensure!(count(fault) == 0, "{fault}: {of}");
            }
        }
    }
    Ok(())
}

//= spec/requester.md#req-023
//= type=test
//# Where the network loses nothing, a packet SHOULD NOT be sent again before the ACK timeout.
#[test]
fn a_peer_without_a_processor_is_sent_nothing_again_before_the_ack_timeout() -> Result<()> {
    let world = world()?;
    let host = world.host();
    // One request at a time, which leaves the ring empty; an ACK timeout of half a second, eight times.
    let args = ["--use_old_post_send", "-s", "64", "-t", "1", "-u", "17", "-D", "300"];
    let Perftest { server, client } = Perftest::start("ib_write_bw", &args, host, host)?;
    counters(host, 1000)?;
    server.signal(libc::SIGSTOP)?;
    let is_over = |device: &Value| device["counters"]["ack_timeout"].as_u64() > Some(0);
    let asker = wait_for_device(host, client.pid(), "the ACK timeout is over", is_over)?["counters"].take();
    ensure!(asker["completer_retry_err"] == 0 && asker["tx_no_buffer"] == 0, "{asker}");
    end([server, client])
}

//= spec/hosts.md#net-024
//= type=test
//# A peer of this host SHOULD NOT be taken for silent within a second after the ACK timeout while it has not read what it was sent.
#[test]
fn a_peer_may_be_without_a_processor_for_longer_than_all_retries() -> Result<()> {
    for way in ["shm", "udp"] {
        stop_a_peer_for_longer_than_all_retries(way).with_context(|| way)?;
    }
    Ok(())
}

fn stop_a_peer_for_longer_than_all_retries(way: &str) -> Result<()> {
    let world = world()?;
    let host = world.host();
    host.set_env("URXE_LOOPBACK", way);
    // An ACK timeout of 67 ms, eight times.
    let args = ["--use_old_post_send", "-s", "64", "-t", "1", "-u", "14", "-D", "300"];
    let Perftest { server, client } = Perftest::start("ib_write_bw", &args, host, host)?;
    let sent = |of: &Value| of["tx_packets"].as_u64().unwrap_or_default();
    counters(host, 1000)?;
    server.signal(libc::SIGSTOP)?;
    // Four times what the client would wait for a peer that reads.
    thread::sleep(Duration::from_secs(2));
    // Before anything is asked: who asks a stopped process waits for it.
    server.signal(libc::SIGCONT)?;
    let most = devices(host)?.iter().map(|device| sent(&device["counters"])).max().unwrap_or_default();
    for of in counters(host, most + 1000)? {
        ensure!(of["retry_exceeded_err"] == 0, "{of}");
        // By UDP, requests are sent again as probes.
        ensure!(of["completer_retry_err"] == 0 || way == "udp", "{of}");
    }
    end([server, client])
}

#[test]
fn one_end_that_wants_udp_is_enough_for_udp() -> Result<()> {
    let world = world()?;
    let host = world.host();
    let pingpong = PingPong { iters: ENDLESS, ..PingPong::default() };
    // The variable is read when a program starts: the one end before, the other after it is changed.
    let pair = pingpong.start_with(host, host, || host.set_env("URXE_LOOPBACK", "udp"))?;
    for of in counters(host, 1000)? {
        ensure!(of["tx_ring_runs"] == 0 && of["rx_ring_runs"] == 0, "{of}");
    }
    end([pair.server, pair.client])
}

/// A capture shows every packet with its ICRC, though nobody else computes any.
#[test]
fn one_end_looks() -> Result<()> {
    let world = world()?;
    let host = world.host();
    let file = world.dir().join("server.pcapng");
    host.set_env("URXE_PCAP", &file.to_string_lossy());
    let pingpong = PingPong { size: 5001, iters: 100, ..PingPong::default() };
    pingpong.start_with(host, host, || host.set_env("URXE_PCAP", ""))?.finish()?;
    // Five packets a message, from either end, and ACKs, which may be coalesced.
    let packets = scapy::right_icrcs(host, &file)?;
    ensure!(packets > 2 * 5 * 100, "{packets} packets");
    Ok(())
}
