//! Raw Ethernet: perftest's programs over a cable, and a program of our own on `lo` for what these do not do.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use urxe_tests::{Host, Perftest, Process, World, wait_until};

const NEAR: &str = "02:00:00:00:00:01";
const FAR: &str = "02:00:00:00:00:02";
/// Clock ticks that a program needs for no setting up, but uses up by polling.
const POLLS: u64 = 20;

/// Compiles a program of `tests/programs`.
fn program(name: &str, world: &World) -> Result<PathBuf> {
    let program = world.dir().join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(name).with_extension("c");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1", "-o"]).arg(&program).arg(source);
    ensure!(compiler.arg("-libverbs").status()?.success(), "cc failed");
    Ok(program)
}

/// Frames, states, errors, flow rules and what is refused.
#[test]
fn frames_and_flows_on_lo() -> Result<()> {
    let world = World::new()?;
    let finished = world.host().run(program("raw_ethernet", &world)?, &[])?;
    ensure!(finished.stdout == "ok\n" && finished.stderr.is_empty(), "{finished}");
    Ok(())
}

/// The order of calls of VPP's rdma driver: every flow stays on its queue, and no frame is lost; also when the device is closed with
/// everything in use.
#[test]
fn queues_in_the_order_of_vpp() -> Result<()> {
    let world = World::new()?;
    let program = program("raw_queues", &world)?;
    for args in [&["1"][..], &["2"], &["3"], &["4"], &["8"], &["2", "leave"]] {
        let finished = world.host().run(&program, args)?;
        ensure!(finished.stdout == "ok\n" && finished.stderr.is_empty(), "{args:?}: {finished}");
    }
    Ok(())
}

/// Two hosts on a cable, whose MAC addresses are known.
fn cabled() -> Result<(World, Host)> {
    let (world, other) = World::linked()?;
    for (host, mac) in [(world.host(), NEAR), (&other, FAR)] {
        host.run("ip", &["link", "set", "veth0", "address", mac])?;
        // Frames of neighbour discovery are none of these programs'.
        host.run("ip", &["link", "set", "veth0", "arp", "off"])?;
    }
    Ok((world, other))
}

/// Clock ticks that a process has used.
fn ticks(process: &Process) -> Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.pid()))?;
    // Behind the name, in brackets: state, ppid … utime (14), stime.
    let fields = stat.rsplit_once(')').context("/proc/PID/stat")?.1;
    let times = fields.split_whitespace().skip(11).take(2).map(|ticks| Ok(ticks.parse::<u64>()?));
    times.sum()
}

/// Runs both ends of a program. Frames that come before the server receives are nobody's: the client is started when the server
/// polls.
fn run_pair(program: &str, args: &[&str]) -> Result<()> {
    let (world, other) = cabled()?;
    let end = |role, own, peer| [&[role, "-d", "urxe0", "-B", own, "-E", peer], args].concat();
    let mut server = other.spawn(program, &end("--server", FAR, NEAR))?;
    wait_until("the server has a packet socket", || {
        ensure!(server.is_running()?, "the server ended: {}", server.stderr_so_far());
        other.is_capturing()
    })?;
    let before = ticks(&server)?;
    wait_until("the server polls", || {
        ensure!(server.is_running()?, "the server ended: {}", server.stderr_so_far());
        Ok(ticks(&server)? >= before + POLLS)
    })?;
    let client = world.host().spawn(program, &end("--client", NEAR, FAR))?;
    Perftest { server, client }.finish()
}

/// Packets of IPv4 and UDP. Both ends are told the client's addresses first.
const UDP: [&str; 8] = ["-j", "10.77.0.1", "-J", "10.77.0.2", "-k", "4001", "-K", "4002"];
const UDP_OVER_IPV6: [&str; 9] = ["--raw_ipv6", "-j", "fd77::1", "-J", "fd77::2", "-k", "4001", "-K", "4002"];

#[test]
fn perftest_udp_over_ipv4() -> Result<()> {
    run_pair("raw_ethernet_lat", &[&UDP[..], &["-n", "500", "-s", "100"]].concat())
}

#[test]
fn perftest_tcp_over_ipv4() -> Result<()> {
    run_pair("raw_ethernet_lat", &[&UDP[..], &["-n", "500", "-s", "100", "--tcp"]].concat())
}

#[test]
fn perftest_udp_over_ipv6() -> Result<()> {
    run_pair("raw_ethernet_lat", &[&UDP_OVER_IPV6[..], &["-n", "500", "-s", "128"]].concat())
}

#[test]
fn perftest_latency() -> Result<()> {
    run_pair("raw_ethernet_lat", &["-n", "500", "-s", "64"])
}

#[test]
fn perftest_latency_inline() -> Result<()> {
    run_pair("raw_ethernet_lat", &["-n", "500", "-s", "100", "-I", "128"])
}

/// The window of the client is smaller than the ring and the server's queue together: no frame is lost.
#[test]
fn perftest_bandwidth() -> Result<()> {
    run_pair("raw_ethernet_bw", &["-n", "5000", "-s", "1024"])
}

#[test]
fn perftest_vlan() -> Result<()> {
    run_pair("raw_ethernet_lat", &["-n", "500", "-s", "512", "--vlan_en", "--vlan_pcp", "3"])
}

/// Frames of the hosts' own are received as well: the buffers hold them, and these programs count and wait for no answers.
#[test]
fn perftest_promiscuous() -> Result<()> {
    run_pair("raw_ethernet_bw", &["-n", "5000", "-s", "1024", "--promiscuous"])
}
