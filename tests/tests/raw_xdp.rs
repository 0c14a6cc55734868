//! Raw Ethernet by XDP (`URXE_RAW=xdp`): what rules take is not the host's any more.

use anyhow::{Context as _, Result, ensure};
use urxe_tests::artifacts::urxe;
use urxe_tests::raw_ethernet::{cabled, is_ready, program, run_datagrams};
use urxe_tests::{Host, Process, TIMEOUT, World, wait_until};

const RAW: &str = "URXE_RAW";

fn check_root() -> Result<()> {
    // SAFETY: no preconditions.
    ensure!(unsafe { libc::geteuid() } == 0, "this test needs root: a user namespace cannot load programs of eBPF");
    Ok(())
}

fn world() -> Result<World> {
    check_root()?;
    let world = World::new()?;
    world.host().set_env(RAW, "xdp");
    Ok(world)
}

/// Has the first of two hosts use XDP.
fn by_xdp((world, other): (World, Host)) -> Result<(World, Host)> {
    check_root()?;
    world.host().set_env(RAW, "xdp");
    Ok((world, other))
}

fn finish(process: Process) -> Result<()> {
    let said = process.finish(TIMEOUT)?.success()?;
    ensure!(said.stdout == "ready\nok\n" && said.stderr.is_empty(), "{said}");
    Ok(())
}

/// Whether a program is attached to an interface.
fn is_attached(host: &Host, netdev: &str) -> Result<bool> {
    Ok(host.run("ip", &["-d", "link", "show", "dev", netdev])?.stdout.contains("prog/xdp"))
}

/// Programs that pass on `lo` by packet sockets pass by XDP.
#[test]
#[ignore = "needs root: a user namespace cannot load programs of eBPF"]
fn programs_on_lo() -> Result<()> {
    let urxe = urxe()?.to_str().context("a path that is no text")?.to_owned();
    for (name, args) in [
        ("raw_specs", &["taken"][..]),
        ("raw_ethernet", &[]),
        ("raw_offloads", &[]),
        ("raw_queues", &["1"]),
        ("raw_queues", &["4"]),
        ("raw_queues", &["2", "leave"]),
        ("raw_trouble", &["down", &urxe]),
        ("raw_trouble", &["closed", &urxe]),
        ("raw_trouble", &["none", &urxe]),
    ] {
        let world = world()?;
        let finished = world.host().run(program(name, &world)?, args)?;
        ensure!(finished.stdout == "ok\n" && finished.stderr.is_empty(), "{name} {args:?}: {finished}");
        ensure!(!is_attached(world.host(), "lo")?, "{name} {args:?} leaves its program behind");
    }
    Ok(())
}

/// IPv4 packets that a host's network stack has got.
fn received_by_stack(host: &Host) -> Result<u64> {
    let counters = host.run("cat", &["/proc/net/snmp"])?.stdout;
    let mut lines = counters.lines().filter_map(|line| line.strip_prefix("Ip: "));
    let names = lines.next().context("no Ip")?.split(' ');
    let found = names.zip(lines.next().context("no Ip")?.split(' ')).find(|(name, _)| *name == "InReceives");
    Ok(found.context("no InReceives")?.1.parse()?)
}

/// Of two ports, one has a rule: its packets are the rule's, and those to the other port the host's. A killed process gives them back.
#[test]
#[ignore = "needs root: a user namespace cannot load programs of eBPF"]
fn packets_of_a_rule_are_taken_from_the_host() -> Result<()> {
    const PACKETS: u64 = 200;
    let (world, other) = by_xdp(cabled()?)?;
    let program = program("raw_processes", &world)?;
    let send = || other.run(&program, &["send", "0", "200"]);
    let start = || -> Result<Process> {
        let receiver = world.host().spawn(&program, &["receive", "1", "200"])?;
        is_ready(&receiver)?;
        Ok(receiver)
    };
    let grows_by = |before: u64, packets: u64| {
        wait_until("the stack has got the packets", || Ok(received_by_stack(world.host())? - before >= packets))?;
        let grown = received_by_stack(world.host())? - before;
        ensure!(grown == packets, "the stack has got {grown} packets, not {packets}");
        anyhow::Ok(())
    };
    let before = received_by_stack(world.host())?;
    let receiver = start()?;
    send()?;
    finish(receiver)?;
    grows_by(before, PACKETS)?;
    ensure!(!is_attached(world.host(), "veth0")?, "a process leaves its program behind");
    let receiver = start()?;
    ensure!(is_attached(world.host(), "veth0")?, "no program");
    receiver.signal(libc::SIGKILL)?;
    receiver.finish(TIMEOUT)?;
    wait_until("the program is gone", || Ok(!is_attached(world.host(), "veth0")?))?;
    let before = received_by_stack(world.host())?;
    send()?;
    grows_by(before, 2 * PACKETS)?;
    // By packet sockets, the host has them all.
    world.host().set_env(RAW, "packet");
    let before = received_by_stack(world.host())?;
    let receiver = start()?;
    send()?;
    finish(receiver)?;
    grows_by(before, 2 * PACKETS)
}

/// Another process on the interface gets by packet sockets what the first one leaves; by XDP there is one at a time.
#[test]
#[ignore = "needs root: a user namespace cannot load programs of eBPF"]
fn processes_on_one_interface() -> Result<()> {
    let (world, other) = by_xdp(cabled()?)?;
    let program = program("raw_processes", &world)?;
    let by_xdp = world.host().spawn(&program, &["receive", "1", "100"])?;
    is_ready(&by_xdp)?;
    let mut command = world.host().command(&program);
    command.args(["receive", "2", "100"]).env("URXE_EXPLAIN", "1");
    let refused = world.host().start(command)?.finish(TIMEOUT)?.failure()?;
    ensure!(refused.stderr.contains("EBUSY") && refused.stderr.contains("URXE_RAW=packet"), "{refused}");
    world.host().set_env(RAW, "packet");
    let by_packets = world.host().spawn(&program, &["receive", "2", "100"])?;
    is_ready(&by_packets)?;
    other.run(&program, &["send", "0", "100"])?;
    finish(by_xdp)?;
    finish(by_packets)
}

/// A UD queue pair takes by its rule what is sent to another.
#[test]
#[ignore = "needs root: a user namespace cannot load programs of eBPF"]
fn datagrams_of_a_rule_are_taken() -> Result<()> {
    run_datagrams("taken")
}

/// Datagrams that the sender has left to its card to cut, and their checksums to fill in: the driver of veth cuts them when there is a
/// program.
#[test]
#[ignore = "needs root: a user namespace cannot load programs of eBPF"]
fn segments_and_checksums() -> Result<()> {
    let (world, other) = by_xdp(World::linked()?)?;
    let program = program("raw_segments", &world)?;
    for address in ["10.77.0.1", "fd77::1"] {
        let receiver = world.host().spawn(&program, &["receive-datagrams", address])?;
        is_ready(&receiver)?;
        other.run(&program, &["send-datagrams", address])?;
        finish(receiver)?;
    }
    Ok(())
}

/// In a user namespace: EPERM, and what to do about it.
#[test]
fn without_the_capability() -> Result<()> {
    let world = World::new()?;
    world.host().set_env(RAW, "xdp");
    let mut command = world.host().command("setpriv");
    let dropped = "--bounding-set=-bpf,-sys_admin";
    command
        .args([dropped, "--inh-caps=-bpf,-sys_admin"])
        .arg(program("raw_ethernet", &world)?)
        .env("URXE_EXPLAIN", "1");
    let said = world.host().start(command)?.finish(TIMEOUT)?.failure()?;
    ensure!(said.stdout.is_empty() && said.stderr.contains("ibv_create_flow"), "{said}");
    for word in ["EPERM", "CAP_BPF", "--cap-add=BPF", "URXE_RAW=packet"] {
        ensure!(said.stderr.contains(word), "{word}: {said}");
    }
    Ok(())
}
