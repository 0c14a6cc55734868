//! Stock `ibv_rc_pingpong`, client and server in two processes: sizes, path MTUs, events, validation, IPv4 and IPv6, on
//! `lo` and over veth.
//!
//! `make test` runs a selection in which every value of every axis occurs on every network; `make matrix` runs all.

use anyhow::{Context, Result};
use urxe_tests::{GID_DEFAULT, GID_IPV4, GID_IPV6, Host, PingPong, World};

/// Around a packet, a few packets, GSO's 64 KiB, the window, and what the issue asks for at most.
const SIZES: [u64; 12] = [1, 3, 255, 256, 1024, 1025, 4096, 65_535, 65_537, 1 << 20, (1 << 20) + 3, 8 << 20];

const MTUS: [u32; 5] = [256, 512, 1024, 2048, 4096];

/// MTUs that fit an interface of MTU 1500 (the kernel's `eth_mtu_int_to_enum`).
const MTUS_OF_1500: [u32; 3] = [256, 512, 1024];

/// Few exchanges of long messages: about as many bytes in every run.
fn iters(size: u64) -> u32 {
    u32::try_from((64 << 20) / size.max(1)).unwrap_or(u32::MAX).clamp(10, 200)
}

/// Runs `options` and says which failed.
fn run(options: &PingPong, server: &Host, client: &Host) -> Result<()> {
    options.run(server, client).with_context(|| format!("{options:?}"))
}

/// All sizes once, with path MTUs, events and validation changing from run to run.
fn selection(server: &Host, client: &Host, gid: u32, mtus: &[u32]) -> Result<()> {
    for (index, size) in SIZES.into_iter().enumerate() {
        let mtu = mtus[index % mtus.len()];
        // Two bits that count at another pace than the MTU.
        let (events, validate) = (index % 2 == 1, index / 2 % 2 == 1);
        run(&PingPong { size, mtu, iters: iters(size), events, validate, gid }, server, client)?;
    }
    Ok(())
}

/// Runs every size with every other choice.
fn matrix(server: &Host, client: &Host, gid: u32, mtus: &[u32]) -> Result<()> {
    for &mtu in mtus {
        for size in SIZES {
            for events in [false, true] {
                for validate in [false, true] {
                    run(&PingPong { size, mtu, iters: iters(size), events, validate, gid }, server, client)?;
                }
            }
        }
    }
    Ok(())
}

/// A world whose first host is connected to a second.
fn linked(mtu: u32) -> Result<(World, Host)> {
    let world = World::new()?;
    let other = world.add_host()?;
    world.link(world.host(), &other, mtu)?;
    Ok((world, other))
}

#[test]
fn loopback_ipv4() -> Result<()> {
    let world = World::new()?;
    selection(world.host(), world.host(), GID_IPV4, &MTUS)
}

#[test]
fn loopback_ipv6() -> Result<()> {
    let world = World::new()?;
    selection(world.host(), world.host(), GID_IPV6, &MTUS)
}

#[test]
fn loopback_default_gid() -> Result<()> {
    let world = World::new()?;
    run(&PingPong { gid: GID_DEFAULT, ..PingPong::default() }, world.host(), world.host())
}

#[test]
fn veth_ipv4() -> Result<()> {
    let (world, other) = linked(1500)?;
    selection(world.host(), &other, GID_IPV4, &MTUS_OF_1500)
}

#[test]
fn veth_ipv6() -> Result<()> {
    let (world, other) = linked(1500)?;
    selection(world.host(), &other, GID_IPV6, &MTUS_OF_1500)
}

#[test]
fn veth_default_gid() -> Result<()> {
    let (world, other) = linked(1500)?;
    run(&PingPong { gid: GID_DEFAULT, ..PingPong::default() }, world.host(), &other)
}

#[test]
fn veth_jumbo_frames() -> Result<()> {
    let (world, other) = linked(9000)?;
    run(&PingPong { mtu: 4096, size: 1 << 20, iters: 50, ..PingPong::default() }, world.host(), &other)
}

/// One host twice: both processes share the veth interface's address.
#[test]
fn veth_address_within_one_host() -> Result<()> {
    let (world, _other) = linked(1500)?;
    run(&PingPong::default(), world.host(), world.host())
}

#[test]
fn ten_thousand_exchanges() -> Result<()> {
    let (world, other) = linked(1500)?;
    let options = PingPong { iters: 10_000, ..PingPong::default() };
    run(&options, world.host(), &other)?;
    run(&PingPong { events: true, validate: true, ..options }, world.host(), &other)
}

#[test]
#[ignore = "the whole matrix takes minutes: make matrix"]
fn matrix_loopback() -> Result<()> {
    let world = World::new()?;
    for gid in [GID_DEFAULT, GID_IPV4, GID_IPV6] {
        matrix(world.host(), world.host(), gid, &MTUS)?;
    }
    run(&PingPong { iters: 10_000, ..PingPong::default() }, world.host(), world.host())
}

#[test]
#[ignore = "the whole matrix takes minutes: make matrix"]
fn matrix_veth() -> Result<()> {
    let (world, other) = linked(1500)?;
    for gid in [GID_DEFAULT, GID_IPV4, GID_IPV6] {
        matrix(world.host(), &other, gid, &MTUS_OF_1500)?;
    }
    Ok(())
}
