//! Cables for programs that send and receive raw frames.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use crate::TIMEOUT;
use crate::process::Process;
use crate::world::{Host, World, wait_until};

/// MAC address of the first host.
pub const NEAR: &str = "02:00:00:00:00:01";
/// MAC address of the other host.
pub const FAR: &str = "02:00:00:00:00:02";

/// Two hosts on a cable, whose MAC addresses are known.
pub fn cabled() -> Result<(World, Host)> {
    let (world, other) = World::linked()?;
    for (host, mac) in [(world.host(), NEAR), (&other, FAR)] {
        host.run("ip", &["link", "set", "veth0", "address", mac])?;
        // Frames of neighbour discovery are none of these programs'.
        host.run("ip", &["link", "set", "veth0", "arp", "off"])?;
    }
    Ok((world, other))
}

/// Returns how many packet sockets of a host pass frames: those of urxe do while rules are in force.
pub fn receivers(host: &Host) -> Result<usize> {
    const NONE: &str = "bpf filter (1):  0x06 0 0 0,";
    let sockets = host.run("ss", &["-0", "-b", "-n"])?.stdout;
    let filters = sockets.lines().map(str::trim).filter(|line| line.starts_with("bpf filter"));
    Ok(filters.filter(|filter| *filter != NONE).count())
}

/// Compiles a program of `tests/programs`.
pub fn program(name: &str, world: &World) -> Result<PathBuf> {
    let program = world.dir().join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(name).with_extension("c");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1", "-o"]).arg(&program).arg(source);
    ensure!(compiler.arg("-libverbs").status()?.success(), "cc failed");
    Ok(program)
}

/// Runs `raw_datagrams` at both ends: a UD queue pair gets what its rule leads to it, and another, whose number is named, none of that
/// if the rule has `taken` it.
pub fn run_datagrams(way: &str) -> Result<()> {
    let (world, other) = World::linked()?;
    world.host().set_env("URXE_RAW", if way == "taken" { "xdp" } else { "packet" });
    let program = program("raw_datagrams", &world)?;
    let receiver = world.host().spawn(&program, &["receive", way])?;
    wait_until("the receiver is ready", || {
        ensure!(receiver.stderr_so_far().is_empty(), "it failed: {}", receiver.stderr_so_far());
        Ok(receiver.stdout_so_far().ends_with('\n'))
    })?;
    let said = receiver.stdout_so_far();
    let numbers: Vec<&str> = said.split_whitespace().skip(1).collect();
    ensure!(numbers.len() == 2, "{said}");
    other.run(&program, &["send", numbers[0], numbers[1]])?;
    let finished = receiver.finish(TIMEOUT)?.success()?;
    ensure!(finished.stdout.ends_with("\nok\n") && finished.stderr.is_empty(), "{finished}");
    Ok(())
}

/// Waits until a program has said that it is ready.
pub fn is_ready(process: &Process) -> Result<()> {
    wait_until("a program is ready", || {
        ensure!(process.stderr_so_far().is_empty(), "it failed: {}", process.stderr_so_far());
        Ok(process.stdout_so_far() == "ready\n")
    })
}
