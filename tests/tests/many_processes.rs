//! Many processes on one address, and the death of the one that owns the port.

use anyhow::{Context, Result, ensure};
use urxe_tests::{Leftovers, Pair, Perftest, PingPong, World, port_owner, wait_until};

const PAIRS: usize = 16;

fn start_pairs(world: &World, options: &PingPong) -> Result<Vec<Pair>> {
    (0..PAIRS).map(|_| options.start(world.host(), world.host())).collect()
}

#[test]
fn sixteen_pairs_on_one_address_finish() -> Result<()> {
    let world = World::new()?;
    world.host().set_env("URXE_LOOPBACK", "udp");
    world.host().set_env("URXE_EXPLAIN", "failure");
    // ACK timeouts of a second: ends that get no processor for that long are not taken for dead.
    let options = ["-e", "-u", "18", "-n", "2000", "-s", "4096"];
    let start = |_| Perftest::start("ib_send_bw", &options, world.host(), world.host());
    for (index, pair) in (0..PAIRS).map(start).collect::<Result<Vec<_>>>()?.into_iter().enumerate() {
        pair.finish().with_context(|| format!("pair {index}"))?;
    }
    wait_until("nothing is left behind", || Ok(Leftovers::on(world.host())?.is_empty()))
}

#[test]
fn polling_pairs_on_one_address_finish() -> Result<()> {
    let world = World::new()?;
    let options = PingPong { iters: 50, ..PingPong::default() };
    for (index, pair) in start_pairs(&world, &options)?.into_iter().enumerate() {
        pair.finish().with_context(|| format!("pair {index}"))?;
    }
    Ok(())
}

//= spec/hosts.md#net-002
//= type=test
//# When the owner of the port ends, however it ends, another process MUST take over and the others go on.
#[test]
fn the_others_finish_when_the_port_owner_is_killed() -> Result<()> {
    let world = World::new()?;
    // Through memory nobody would need the owner.
    world.host().set_env("URXE_LOOPBACK", "udp");
    world.host().set_env("URXE_EXPLAIN", "failure");
    // So many messages that the last pairs have hardly begun when the owner is killed, whoever else wants the processors. ACK
    // timeouts of a second: a program that gets no processor for that long is not taken for dead.
    let options = ["-e", "-u", "18", "-n", "20000", "-s", "4096", "-t", "4", "-Q", "1"];
    let start = || Perftest::start("ib_send_bw", &options, world.host(), world.host());
    let mut pairs = (0..PAIRS).map(|_| start()).collect::<Result<Vec<_>>>()?;

    let owner = port_owner(world.host(), "127.0.0.1")?;
    let is_owner = |pair: &Perftest| [pair.server.pid(), pair.client.pid()].contains(&owner);
    let index = pairs.iter().position(is_owner).with_context(|| format!("the owner, {owner}, is none of ours"))?;
    let victims = pairs.swap_remove(index);
    let mut others = 0;
    for pair in &mut pairs {
        others += usize::from(pair.server.is_running()? && pair.client.is_running()?);
    }
    ensure!(others > 0, "too few messages: every pair is through already");
    let end = if victims.server.pid() == owner { &victims.server } else { &victims.client };
    end.signal(libc::SIGKILL)?;

    for (index, pair) in pairs.into_iter().enumerate() {
        pair.finish().with_context(|| format!("pair {index} of those that should go on"))?;
    }
    Ok(())
}

#[test]
fn the_port_has_an_owner_again() -> Result<()> {
    let world = World::new()?;
    let options = PingPong { iters: u32::MAX >> 1, events: true, ..PingPong::default() };
    let first = options.start(world.host(), world.host())?;
    let second = options.start(world.host(), world.host())?;
    let owner = port_owner(world.host(), "127.0.0.1")?;
    let ends = [&first.server, &first.client, &second.server, &second.client];
    let end = ends.into_iter().find(|end| end.pid() == owner).context("the owner is none of ours")?;
    end.signal(libc::SIGKILL)?;
    wait_until("another process owns the port", || {
        // While the name changes hands there may be no owner.
        Ok(port_owner(world.host(), "127.0.0.1").is_ok_and(|new| new != owner))
    })
}
