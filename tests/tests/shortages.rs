//! Hosts that are short of buffers, or do not let packets out for a while: programs finish with the right data.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use urxe_tests::{Perftest, PingPong, TIMEOUT, World, wait_until};

/// A world in whose programs `short.c` stands in front of libc, and in which all packets go over UDP.
fn short_of(variable: &str, value: &str) -> Result<World> {
    let world = World::new()?;
    let library = world.dir().join("short.so");
    let library = library.to_str().context("a path that is not UTF-8")?;
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/shortages/short.c");
    world.host().run("cc", &["-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", library, source])?;
    world.host().set_env("LD_PRELOAD", library);
    world.host().set_env(variable, value);
    world.host().set_env("URXE_LOOPBACK", "udp");
    Ok(world)
}

fn finishes(world: &World, sizes: &[(u64, u32)]) -> Result<()> {
    for &(size, iters) in sizes {
        PingPong { size, iters, validate: true, ..PingPong::default() }
            .run(world.host(), world.host())
            .with_context(|| format!("{size} bytes"))?;
    }
    Ok(())
}

#[test]
fn receive_buffers_of_4_kib() -> Result<()> {
    let world = short_of("SHORT_BUFFER", "4096")?;
    finishes(&world, &[(8, 1000), (4096, 300), (65_536, 20), (1 << 20, 3)])
}

#[test]
fn no_buffers_to_send_from_now_and_then() -> Result<()> {
    let world = short_of("SHORT_SEND", "50")?;
    for (size, iters) in [(8, 500), (65_536, 100)] {
        // The last ACK may be what finds no buffer, and who sends it ends.
        let pingpong = PingPong { size, iters, validate: true, ..PingPong::default() };
        pingpong.run_despite_loss(world.host(), world.host()).with_context(|| format!("{size} bytes"))?;
    }
    // That it really stands in front of libc: without any buffer nothing can be sent.
    world.host().set_env("SHORT_SEND", "1");
    let pair = PingPong { size: 8, iters: 1, ..PingPong::default() }.start(world.host(), world.host())?;
    let client = pair.client.finish(TIMEOUT)?.failure()?;
    ensure!(client.stderr.contains("transport retry counter exceeded (12)"), "it ended otherwise: {client}");
    Ok(())
}

#[test]
fn a_firewall_that_lets_nothing_out_for_a_while() -> Result<()> {
    let (world, other) = World::linked()?;
    // Eight tries of two seconds: nft(8) has to be started several times meanwhile.
    let stream = Perftest::start("ib_write_bw", &["-u", "19", "-D", "20"], world.host(), &other)?;
    wait_until("packets flow", || Ok(other.packets_sent("veth0")? > 1000))?;
    // sendmsg says EPERM where the way out drops a packet.
    const WALL: &str = "add table inet wall; add chain inet wall out { type filter hook output priority 0; }; \
                        add rule inet wall out udp dport 4791 counter drop";
    other.run("nft", &[WALL])?;
    wait_until("packets are dropped", || {
        Ok(!other.run("nft", &["list", "table", "inet", "wall"])?.stdout.contains("packets 0 "))
    })?;
    thread::sleep(Duration::from_millis(200));
    other.run("nft", &["delete", "table", "inet", "wall"])?;
    stream.finish()
}
