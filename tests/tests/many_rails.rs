//! A host with sixteen devices, each on an interface of its own, named and with GID tables as on a host with cards.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, ensure};
use urxe_tests::{Host, TIMEOUT, World, artifacts, wait_until};

const RAILS: usize = 16;

/// Two hosts with a veth between them for each rail: 10.90.N.1 on the first, 10.90.N.2 on the second.
fn rails(world: &World) -> Result<Host> {
    let other = world.add_host()?;
    let mut script = String::new();
    for rail in 0..RAILS {
        writeln!(script, "ip link add eth{rail} type veth peer name eth{rail} netns {}", other.pid())?;
    }
    world.host().run("sh", &["-ec", &script])?;
    for (host, last) in [(world.host(), 1), (&other, 2)] {
        let mut script = String::new();
        for rail in 0..RAILS {
            writeln!(script, "ip address add 10.90.{rail}.{last}/24 dev eth{rail}; ip link set eth{rail} up")?;
        }
        host.run("sh", &["-ec", &script])?;
    }
    for host in [world.host(), &other] {
        host.wait_for_links(&names("eth"))?;
    }
    Ok(other)
}

fn names(name: &str) -> Vec<String> {
    (0..RAILS).map(|rail| format!("{name}{rail}")).collect()
}

fn list(name: &str) -> String {
    names(name).join(",")
}

/// The words in front of a program that sees all of them.
fn run_words(program: &[&str]) -> Result<Vec<String>> {
    let urxe = artifacts::urxe()?.to_str().context("a path that is no text")?.to_owned();
    let (netdevs, names) = (list("eth"), list("mlx5_"));
    let mut words: Vec<String> =
        [&urxe, "run", "--netdev", &netdevs, "--device-name", &names, "--gid-layout", "mlx5", "--"]
            .map(str::to_owned)
            .into();
    words.extend(program.iter().map(|&word| word.to_owned()));
    Ok(words)
}

fn command(host: &Host, program: &[&str]) -> Result<std::process::Command> {
    let words = run_words(program)?;
    let mut command = host.command(&words[0]);
    command.args(&words[1..]);
    Ok(command)
}

fn run(host: &Host, program: &[&str]) -> Result<String> {
    Ok(host.start(command(host, program)?)?.finish(TIMEOUT)?.success()?.stdout)
}

#[test]
fn sixteen_devices_are_named_and_have_tables_like_cards() -> Result<()> {
    let world = World::new()?;
    let _other = rails(&world)?;
    let told = run(world.host(), &["ibv_devinfo", "-v"])?;
    ensure!(told.matches("hca_id:").count() == RAILS && told.matches("PORT_ACTIVE (4)").count() == RAILS, "{told}");
    for rail in 0..RAILS {
        ensure!(told.contains(&format!("mlx5_{rail}\n")), "no mlx5_{rail}: {told}");
        for row in [
            format!("GID[  2]:\t\t0000:0000:0000:0000:0000:ffff:0a5a:{rail:02x}01, RoCE v1"),
            format!("GID[  3]:\t\t::ffff:10.90.{rail}.1, RoCE v2"),
        ] {
            ensure!(told.lines().any(|line| line.trim() == row), "no {row:?}: {told}");
        }
    }
    let files = "for index in 0 1 2 3; do cat /sys/class/infiniband/mlx5_15/ports/1/gid_attrs/types/$index; done
        cat /sys/class/infiniband/mlx5_15/ports/1/gid_attrs/ndevs/3 /sys/class/infiniband/mlx5_15/ports/1/gids/3";
    let told = run(world.host(), &["sh", "-ec", files])?;
    let expected = "IB/RoCE v1\nRoCE v2\nIB/RoCE v1\nRoCE v2\neth15\n0000:0000:0000:0000:0000:ffff:0a5a:0f01\n";
    ensure!(told == expected, "{told}");
    Ok(())
}

#[test]
fn packets_take_row_3_and_row_2_is_refused() -> Result<()> {
    let world = World::new()?;
    let other = rails(&world)?;
    for rail in [0, 15] {
        let device = format!("mlx5_{rail}");
        let ping_pong = ["ibv_rc_pingpong", "-d", &device, "-n", "100", "-g"];
        let server = world.host().start(command(world.host(), &[&ping_pong[..], &["3"]].concat())?)?;
        wait_until("the server listens", || world.host().is_listening(18515))?;
        let told = run(&other, &[&ping_pong[..], &["3", &format!("10.90.{rail}.1")]].concat())?;
        ensure!(told.contains("100 iters in"), "{told}");
        server.finish(TIMEOUT)?.success()?;
    }
    let server = world.host().start(command(world.host(), &["ibv_rc_pingpong", "-d", "mlx5_3", "-g", "2"])?)?;
    wait_until("the server listens", || world.host().is_listening(18515))?;
    let client = other.start(command(&other, &["ibv_rc_pingpong", "-d", "mlx5_3", "-g", "2", "10.90.3.1"])?)?;
    let said = server.finish(TIMEOUT)?;
    ensure!(!said.status.success() && said.stderr.contains("Failed to modify QP to RTR"), "{said}");
    client.finish(TIMEOUT)?.failure()?;
    Ok(())
}

/// Devices are there whatever their links are, and files say how these are when they are read.
#[test]
fn a_link_that_is_down_before_the_program_starts() -> Result<()> {
    let world = World::new()?;
    let _other = rails(&world)?;
    world.host().run("ip", &["link", "set", "eth5", "down"])?;
    world.host().run("ip", &["address", "flush", "dev", "eth6"])?;
    let files = "cat mlx5_4/ports/1/state mlx5_5/ports/1/*state mlx5_6/ports/1/*state
        grep -l . mlx5_6/ports/1/gid_attrs/ndevs/3 || echo none
        cat mlx5_6/ports/1/gids/3";
    let script = format!(
        "cd /sys/class/infiniband; {files}; ibv_devinfo -d mlx5_5; ibstat mlx5_5; rdma link show mlx5_5/1
        ip link set eth5 up; ip address add 10.90.6.9/24 dev eth6
        until grep -q ACTIVE mlx5_5/ports/1/state; do sleep 0.05; done; echo up; {files}; ibstat mlx5_5"
    );
    let finished = world.host().start(command(world.host(), &["sh", "-ec", &script])?)?.finish(TIMEOUT)?.success()?;
    let warned: Vec<&str> = finished.stderr.lines().filter(|line| line.starts_with("urxe: warning")).collect();
    ensure!(
        warned.len() == 2 && warned[0].contains("'eth5' is down") && warned[1].contains("'eth6' has no IP"),
        "{finished}"
    );
    let (before, after) = finished.stdout.split_once("\nup\n").with_context(|| finished.to_string())?;
    let row = "0000:0000:0000:0000:0000";
    let states = "4: ACTIVE\n3: Disabled\n1: DOWN\n5: LinkUp\n4: ACTIVE\n";
    ensure!(before.starts_with(&format!("{states}none\n{row}:0000:0000:0000\n")), "{finished}");
    for line in [
        "PORT_DOWN (1)",
        "State: Down\n",
        "Physical state: Disabled\n",
        "state DOWN physical_state DISABLED netdev eth5",
    ] {
        ensure!(before.contains(line), "no {line:?}: {finished}");
    }
    let states = "4: ACTIVE\n5: LinkUp\n4: ACTIVE\n5: LinkUp\n4: ACTIVE\n";
    ensure!(
        after.starts_with(&format!("{states}mlx5_6/ports/1/gid_attrs/ndevs/3\n{row}:ffff:0a5a:0609\n")),
        "{finished}"
    );
    ensure!(after.contains("State: Active\n") && after.contains("Physical state: LinkUp\n"), "{finished}");
    Ok(())
}

#[test]
fn one_link_of_sixteen_goes_down_and_up() -> Result<()> {
    let world = World::new()?;
    let _other = rails(&world)?;
    let watch = world.host().start(command(world.host(), &["stdbuf", "-oL", "ibv_asyncwatch", "-d", "mlx5_7"])?)?;
    let says = |words: &'static str| wait_until(words, || Ok(watch.stdout_so_far().contains(words)));
    says("mlx5_7: async event FD")?;
    world.host().run("ip", &["link", "set", "eth6", "down"])?;
    world.host().run("ip", &["link", "set", "eth7", "down"])?;
    // IBV_EVENT_PORT_ERR and IBV_EVENT_PORT_ACTIVE.
    says("(10), port 1")?;
    world.host().run("ip", &["link", "set", "eth7", "up"])?;
    says("(9), port 1")?;
    watch.signal(libc::SIGTERM)?;
    watch.finish(TIMEOUT)?;
    Ok(())
}
