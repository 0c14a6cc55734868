//! Raw Ethernet: perftest's programs over a cable, and a program of our own on `lo` for what these do not do.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use urxe_tests::artifacts::urxe;
use urxe_tests::{Host, Perftest, Process, TIMEOUT, World, wait_until};

const NEAR: &str = "02:00:00:00:00:01";
const FAR: &str = "02:00:00:00:00:02";

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

/// Segmentation, VLAN tags, tags and counters of rules.
#[test]
fn offloads() -> Result<()> {
    let world = World::new()?;
    let finished = world.host().run(program("raw_offloads", &world)?, &[])?;
    ensure!(finished.stdout == "ok\n" && finished.stderr.is_empty(), "{finished}");
    Ok(())
}

/// The interface goes down and up, is slower than the program, or the program closes descriptors, posts no receives or is slower than
/// the interface. What is lost is counted.
#[test]
fn trouble() -> Result<()> {
    let urxe = urxe()?.to_str().context("a path that is no text")?.to_owned();
    for trouble in ["down", "blocked", "closed", "none", "overrun"] {
        let world = World::new()?;
        if trouble == "blocked" {
            let limit =
                ["qdisc", "add", "dev", "lo", "root", "tbf", "rate", "50mbit", "burst", "64kb", "limit", "64mb"];
            world.host().run("tc", &limit)?;
        }
        let finished = world.host().run(program("raw_trouble", &world)?, &[trouble, &urxe])?;
        ensure!(finished.stdout == "ok\n" && finished.stderr.is_empty(), "{trouble}: {finished}");
    }
    Ok(())
}

/// Without CAP_NET_RAW: EPERM, and what to do about it.
#[test]
fn without_the_capability() -> Result<()> {
    let world = World::new()?;
    let mut command = world.host().command("setpriv");
    command.args(["--bounding-set=-net_raw", "--inh-caps=-net_raw"]).arg(program("raw_ethernet", &world)?);
    command.env("URXE_EXPLAIN", "1");
    let said = world.host().start(command)?.finish(TIMEOUT)?.failure()?;
    // EPERM.
    ensure!(said.stdout.is_empty() && said.stderr.contains("ibv_create_qp(pd, &init)) (errno 1)"), "{said}");
    for word in ["CAP_NET_RAW", "unshare -Urn", "setcap cap_net_raw+ep", "--cap-add=NET_RAW"] {
        ensure!(said.stderr.contains(word), "{word}: {said}");
    }
    Ok(())
}

/// A user without rights runs a program that has the capability: it finds an urxe that is installed.
#[test]
#[ignore = "needs root: in a user namespace of one user there are no others"]
fn a_program_with_the_capability() -> Result<()> {
    // SAFETY: no preconditions.
    ensure!(unsafe { libc::geteuid() } == 0, "this test needs root: only root can be another user");
    let world = World::new()?;
    let program = program("raw_ethernet", &world)?;
    std::fs::set_permissions(world.dir(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let path = program.to_str().context("a path that is no text")?;
    let user = ["--reuid=65533", "--regid=65533", "--clear-groups", path];
    let said = world.host().try_run("setpriv", &user)?.failure()?;
    ensure!(said.stderr.contains("ibv_create_qp(pd, &init)) (errno 1)"), "{said}");
    world.host().run("setcap", &["cap_net_raw+ep", path])?;
    let said = world.host().run("setpriv", &user)?;
    ensure!(said.stdout == "ok\n" && said.stderr.is_empty(), "{said}");
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

/// Returns how many packet sockets of a host pass frames: those of urxe do while rules are in force.
fn receivers(host: &Host) -> Result<usize> {
    const NONE: &str = "bpf filter (1):  0x06 0 0 0,";
    let sockets = host.run("ss", &["-0", "-b", "-n"])?.stdout;
    let filters = sockets.lines().map(str::trim).filter(|line| line.starts_with("bpf filter"));
    Ok(filters.filter(|filter| *filter != NONE).count())
}

/// Runs both ends of a program. Frames that come before the server has its rules are nobody's; later ones wait in its ring. The
/// client is started then.
fn run_pair(program: &str, args: &[&str]) -> Result<()> {
    let (world, other) = cabled()?;
    run_between(&world, &other, program, args)
}

/// As [`run_pair`], on a cable that there is.
fn run_between(world: &World, other: &Host, program: &str, args: &[&str]) -> Result<()> {
    let before = receivers(other)?;
    let end = |role, own, peer| [&[role, "-d", "urxe0", "-B", own, "-E", peer], args].concat();
    let mut server = other.spawn(program, &end("--server", FAR, NEAR))?;
    wait_until("the server has rules", || {
        ensure!(server.is_running()?, "the server ended: {}", server.stderr_so_far());
        Ok(receivers(other)? > before)
    })?;
    let client = world.host().spawn(program, &end("--client", NEAR, FAR))?;
    Perftest { server, client }.finish()
}

/// Two processes receive on one interface, each what its rule asks for; the end of one changes nothing for the other. A third sees
/// what another process of its host sends.
#[test]
fn processes_on_one_interface() -> Result<()> {
    let (world, other) = cabled()?;
    let program = program("raw_processes", &world)?;
    let short = world.host().spawn(&program, &["receive", "1", "100"])?;
    let long = world.host().spawn(&program, &["receive", "2", "200"])?;
    let sniffer = other.spawn(&program, &["sniff", "2", "200"])?;
    for process in [&short, &long, &sniffer] {
        wait_until("a receiver has its rule", || {
            ensure!(process.stderr_so_far().is_empty(), "a receiver failed: {}", process.stderr_so_far());
            Ok(process.stdout_so_far() == "ready\n")
        })?;
    }
    let finish = |process: Process| -> Result<()> {
        let said = process.finish(TIMEOUT)?.success()?;
        ensure!(said.stdout == "ready\nok\n" && said.stderr.is_empty(), "{said}");
        Ok(())
    };
    other.run(&program, &["send", "0", "100"])?;
    finish(short)?;
    other.run(&program, &["send", "100", "200"])?;
    finish(long)?;
    finish(sniffer)
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

/// The server attaches to a group. Debian 12's destroys rules that it has not made and dies of it, when all is said.
#[test]
fn perftest_multicast() -> Result<()> {
    let (world, other) = cabled()?;
    let args = ["-d", "urxe0", "-n", "5000", "-s", "512", "--raw_mcast"];
    let end = |role, own, peer| [&[role, "-B", own, "-E", peer], &args[..]].concat();
    let mut server = other.spawn("raw_ethernet_bw", &end("--server", FAR, NEAR))?;
    wait_until("the server has rules", || {
        ensure!(server.is_running()?, "the server ended: {}", server.stderr_so_far());
        Ok(receivers(&other)? > 0)
    })?;
    world.host().run("raw_ethernet_bw", &end("--client", NEAR, FAR))?;
    let said = server.finish(TIMEOUT)?;
    ensure!(said.stdout.lines().any(|line| line.trim_start().starts_with("512 ") && line.contains(" 5000 ")), "{said}");
    Ok(())
}

/// Both ends on `lo` of one host.
#[test]
fn perftest_processes_on_lo() -> Result<()> {
    let world = World::new()?;
    run_between(&world, world.host(), "raw_ethernet_lat", &["-n", "500", "-s", "64"])
}

#[test]
fn perftest_sniffer() -> Result<()> {
    run_pair("raw_ethernet_bw", &["-n", "5000", "-s", "1024", "--sniffer"])
}

/// Rules to each of several destination ports.
#[test]
fn perftest_flows() -> Result<()> {
    run_pair("raw_ethernet_bw", &[&UDP[..], &["-n", "5000", "-s", "512", "--flows", "4"]].concat())
}

/// Rules are made and destroyed.
#[test]
fn perftest_rate_of_rules() -> Result<()> {
    let (world, _other) = cabled()?;
    let args = ["--server", "-d", "urxe0", "-B", NEAR, "-E", FAR, "-n", "300"];
    let said = world.host().run("raw_ethernet_fs_rate", &args)?;
    ensure!(said.stdout.contains("fps[flow per sec]"), "{said}");
    Ok(())
}

/// Bursts, at a rate that the queue pair keeps. Each send has a completion of its own, for which the client waits, and there are fewer
/// than the server's queue has room for: it leaves out answers otherwise.
#[test]
fn perftest_bursts() -> Result<()> {
    let rate = ["--rate_limit_type=PP", "--rate_units=M", "--rate_limit=10000", "--burst_size=16", "--cq-mod=1"];
    run_pair("raw_ethernet_burst_lat", &[&["-n", "100", "-s", "64"][..], &rate].concat())
}

/// Frames on the cable, as tshark reads them.
#[test]
fn frames_on_the_cable() -> Result<()> {
    const FRAMES: usize = 50;
    let vlan = [&UDP[..], &["--vlan_en", "--vlan_pcp", "3"]].concat();
    let tcp = [&UDP[..], &["--tcp"]].concat();
    let ports = "4001\t4002";
    for (options, fields, expected) in [
        (&[][..], &["frame.len"][..], "508".to_owned()),
        (&UDP, &["ip.src", "ip.dst", "udp.srcport", "udp.dstport"], format!("10.77.0.1\t10.77.0.2\t{ports}")),
        (&tcp, &["ip.src", "ip.dst", "tcp.srcport", "tcp.dstport"], format!("10.77.0.1\t10.77.0.2\t{ports}")),
        (&UDP_OVER_IPV6, &["ipv6.src", "ipv6.dst", "udp.srcport", "udp.dstport"], format!("fd77::1\tfd77::2\t{ports}")),
        (&vlan, &["vlan.priority", "ip.src", "udp.dstport"], "3\t10.77.0.1\t4002".to_owned()),
    ] {
        let (world, other) = cabled()?;
        let (count, filter) = (FRAMES.to_string(), format!("ether src {NEAR} and ether dst {FAR}"));
        let mut args =
            vec!["-n", "-i", "veth0", "-f", &filter, "-c", &count, "-T", "fields", "-e", "eth.src", "-e", "eth.dst"];
        args.extend(fields.iter().flat_map(|field| ["-e", field]));
        let mut capture = other.spawn("tshark", &args)?;
        wait_until("tshark captures", || {
            ensure!(capture.is_running()?, "tshark ended: {}", capture.stderr_so_far());
            Ok(receivers(&other)? == 1)
        })?;
        run_between(&world, &other, "raw_ethernet_lat", &[options, &["-n", "500", "-s", "512"]].concat())?;
        let rows = capture.finish(TIMEOUT)?.success()?.stdout;
        let expected = format!("{NEAR}\t{FAR}\t{expected}");
        ensure!(rows.lines().count() == FRAMES && rows.lines().all(|row| row == expected), "{options:?}: {rows}");
    }
    Ok(())
}
