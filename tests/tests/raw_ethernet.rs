//! Raw Ethernet: perftest's programs over a cable, and a program of our own on `lo` for what these do not do.

use anyhow::{Context as _, Result, ensure};
use urxe_tests::artifacts::urxe;
use urxe_tests::raw_ethernet::{FAR, NEAR, cabled, is_ready, program, receivers, run_datagrams};
use urxe_tests::{Host, Perftest, Process, TIMEOUT, World, wait_until};

/// Frames, states, errors, flow rules and what is refused.
#[test]
fn frames_and_flows_on_lo() -> Result<()> {
    let world = World::new()?;
    let finished = world.host().run(program("raw_ethernet", &world)?, &[])?;
    ensure!(finished.stdout == "ok\n" && finished.stderr.is_empty(), "{finished}");
    Ok(())
}

/// Each specification, with a frame that meets it and one that does not. The host gets both all the same.
#[test]
fn specifications() -> Result<()> {
    let world = World::new()?;
    let finished = world.host().run(program("raw_specs", &world)?, &["copied"])?;
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
        is_ready(process)?;
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

/// A UD queue pair gets by its rule what is sent to another, which gets it as well.
#[test]
fn datagrams_of_a_rule() -> Result<()> {
    run_datagrams("copied")
}

/// A TCP stream and datagrams that the sender leaves to its card to cut, as the interfaces come: frames are those of the cable, over
/// IPv4 and IPv6, and with a VLAN tag where the kernel has these.
#[test]
fn segments_that_a_card_would_cut() -> Result<()> {
    let (world, other) = World::linked()?;
    let program = program("raw_segments", &world)?;
    let mut addresses = vec!["10.77.0.1", "fd77::1"];
    let tagged = ["link", "add", "link", "veth0", "name", "tagged", "type", "vlan", "id", "5"];
    if world.host().try_run("ip", &tagged)?.status.success() {
        other.run("ip", &tagged)?;
        for (host, address) in [(world.host(), "10.77.5.1/24"), (&other, "10.77.5.2/24")] {
            host.run("ip", &["link", "set", "tagged", "up"])?;
            host.run("ip", &["address", "add", address, "dev", "tagged"])?;
            host.wait_for_links(&["tagged"])?;
        }
        addresses.push("10.77.5.1");
    }
    for address in addresses {
        let receiver = world.host().spawn(&program, &["receive", address])?;
        is_ready(&receiver)?;
        other.run(&program, &["send", address])?;
        let said = receiver.finish(TIMEOUT)?.success()?;
        ensure!(said.stdout == "ready\nok\n" && said.stderr.is_empty(), "{address}: {said}");
    }
    Ok(())
}

/// A host whose interfaces `left` and `right` lead to two others. No host sends frames of its own.
fn bridged() -> Result<(World, Host, Host)> {
    let world = World::new()?;
    let (left, right) = (world.add_host()?, world.add_host()?);
    for (host, name) in [(&left, "left"), (&right, "right")] {
        let pid = host.pid().to_string();
        world.host().run("ip", &["link", "add", name, "type", "veth", "peer", "name", "veth0", "netns", &pid])?;
        for (host, name) in [(world.host(), name), (host, "veth0")] {
            host.run("ip", &["link", "set", name, "addrgenmode", "none", "arp", "off", "up"])?;
        }
        host.set_env("URXE_NETDEV", "veth0");
    }
    for (host, names) in [(world.host(), &["left", "right"][..]), (&left, &["veth0"]), (&right, &["veth0"])] {
        host.wait_for_links(names)?;
    }
    world.host().set_env("URXE_NETDEV", "left,right");
    Ok((world, left, right))
}

/// Frames that a bridge says it has forwarded, has not received and has not sent.
fn forwarded(bridge: &Process) -> Result<[u64; 3]> {
    ensure!(bridge.stderr_so_far().is_empty(), "the bridge failed: {}", bridge.stderr_so_far());
    let said = bridge.stdout_so_far();
    let line = said.rsplit_once('\n').and_then(|(whole, _)| whole.lines().last()).unwrap_or_default();
    let numbers = line.split(' ').map_while(|word| word.parse().ok());
    Ok(numbers.collect::<Vec<u64>>().try_into().unwrap_or_default())
}

fn end_bridge(bridge: Process) -> Result<()> {
    bridge.signal(libc::SIGTERM)?;
    let said = bridge.finish(TIMEOUT)?.success()?;
    ensure!(said.stdout.ends_with("\nok\n") && said.stderr.is_empty(), "{said}");
    Ok(())
}

/// Frames from one host to another by a program with queues on both of its interfaces: each flow stays on its queue, and all frames
/// come, in order, when no more are on their way than the queues hold.
#[test]
fn forwarding_between_hosts() -> Result<()> {
    const FRAMES: u64 = 16384;
    const WINDOW: u64 = 256;
    let (frames, window) = (FRAMES.to_string(), WINDOW.to_string());
    let urxe = urxe()?.to_str().context("a path that is no text")?.to_owned();
    let (world, left, right) = bridged()?;
    let program = program("raw_forward", &world)?;
    for queues in ["1", "2", "4", "8"] {
        let bridge = world.host().spawn(&program, &["forward", queues, &urxe])?;
        is_ready(&bridge)?;
        let receiver = right.spawn(&program, &["receive", &frames, &window])?;
        is_ready(&receiver)?;
        let sent = left.run(&program, &["send", &frames, &window, &urxe])?;
        ensure!(sent.stdout == format!("{FRAMES}\nok\n"), "{sent}");
        let received = receiver.finish(TIMEOUT)?.success()?;
        ensure!(received.stdout == "ready\nok\n" && received.stderr.is_empty(), "{received}");
        wait_until("the bridge has counted", || Ok(forwarded(&bridge)? == [FRAMES + FRAMES / WINDOW, 0, 0]))?;
        end_bridge(bridge)?;
    }
    Ok(())
}

/// More frames than the rings hold, while the program that forwards stands still: those that were not forwarded are counted, all.
#[test]
fn forwarding_more_than_rings_hold() -> Result<()> {
    const FRAMES: u64 = 12000;
    let urxe = urxe()?.to_str().context("a path that is no text")?.to_owned();
    let (world, left, right) = bridged()?;
    let program = program("raw_forward", &world)?;
    let received = || -> Result<u64> {
        let interfaces = right.run("cat", &["/proc/net/dev"])?.stdout;
        let veth = interfaces.lines().find_map(|line| line.trim_start().strip_prefix("veth0:"));
        Ok(veth.and_then(|line| line.split_whitespace().nth(1)).context("no veth0")?.parse()?)
    };
    let bridge = world.host().spawn(&program, &["forward", "2", &urxe])?;
    is_ready(&bridge)?;
    let before = received()?;
    bridge.signal(libc::SIGSTOP)?;
    wait_until("the bridge stands still", || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", bridge.pid()))?;
        Ok(stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T ")))
    })?;
    let said = left.run(&program, &["send", &FRAMES.to_string(), "0", &urxe])?;
    let sent: u64 = said.stdout.strip_suffix("\nok\n").context("no number")?.parse()?;
    bridge.signal(libc::SIGCONT)?;
    wait_until("all frames are accounted for", || {
        let [passed, unreceived, _] = forwarded(&bridge)?;
        Ok(passed + unreceived == sent)
    })
    .with_context(|| format!("{sent} sent: {}", bridge.stdout_so_far()))?;
    let [passed, unreceived, unsent] = forwarded(&bridge)?;
    ensure!(passed > 0 && unreceived > 0, "{passed} forwarded, {unreceived} lost");
    wait_until("the frames are on the cable", || Ok(received()? - before == passed - unsent))?;
    end_bridge(bridge)
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

/// Frames of a bandwidth run: fewer than a ring has slots for (4096 at this MTU). Nothing slows the client down while the server has
/// no processor, and nothing repeats a frame that finds no slot.
const FRAMES: &str = "3500";

#[test]
fn perftest_bandwidth() -> Result<()> {
    run_pair("raw_ethernet_bw", &["-n", FRAMES, "-s", "1024"])
}

#[test]
fn perftest_vlan() -> Result<()> {
    run_pair("raw_ethernet_lat", &["-n", "500", "-s", "512", "--vlan_en", "--vlan_pcp", "3"])
}

/// Frames of the hosts' own are received as well: the buffers hold them, and these programs count and wait for no answers.
#[test]
fn perftest_promiscuous() -> Result<()> {
    run_pair("raw_ethernet_bw", &["-n", FRAMES, "-s", "1024", "--promiscuous"])
}

/// The server attaches to a group. Debian 12's destroys rules that it has not made and dies of it, when all is said.
#[test]
fn perftest_multicast() -> Result<()> {
    let (world, other) = cabled()?;
    let args = ["-d", "urxe0", "-n", FRAMES, "-s", "512", "--raw_mcast"];
    let end = |role, own, peer| [&[role, "-B", own, "-E", peer], &args[..]].concat();
    let mut server = other.spawn("raw_ethernet_bw", &end("--server", FAR, NEAR))?;
    wait_until("the server has rules", || {
        ensure!(server.is_running()?, "the server ended: {}", server.stderr_so_far());
        Ok(receivers(&other)? > 0)
    })?;
    world.host().run("raw_ethernet_bw", &end("--client", NEAR, FAR))?;
    let said = server.finish(TIMEOUT)?;
    ensure!(
        said.stdout.lines().any(|line| line.trim_start().starts_with("512 ") && line.contains(&format!(" {FRAMES} "))),
        "{said}"
    );
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
    run_pair("raw_ethernet_bw", &["-n", FRAMES, "-s", "1024", "--sniffer"])
}

/// Rules to each of several destination ports.
#[test]
fn perftest_flows() -> Result<()> {
    run_pair("raw_ethernet_bw", &[&UDP[..], &["-n", FRAMES, "-s", "512", "--flows", "4"]].concat())
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
