//! One end vanishes: the other learns it from its queue pair, and nothing is left behind.

use anyhow::{Result, ensure};
use urxe_tests::{Finished, Host, Leftovers, Perftest, PingPong, TIMEOUT, World, host_counters, wait_until};

/// Exchanges without end, for practical purposes.
const ENDLESS: u32 = u32::MAX >> 1;

/// `IBV_WC_RETRY_EXC_ERR` in the words of ibv_wc_status_str.
const RETRY_EXCEEDED: &str = "transport retry counter exceeded (12)";

/// Starts `ib_write_bw` for minutes. Its client always has requests outstanding, so it is bound to notice.
fn write_bw(host: &Host) -> Result<Perftest> {
    Perftest::start("ib_write_bw", &["--use_old_post_send", "-s", "65536", "-D", "300"], host, host)
}

/// The ways between processes of a host.
const WAYS: [&str; 2] = ["udp", "shm"];

/// A world where processes send each other packets this way.
fn world_over(way: &str) -> Result<World> {
    let world = World::new()?;
    world.host().set_env("URXE_LOOPBACK", way);
    Ok(world)
}

/// Waits until processes of the host have sent `bytes`, all of them this way.
fn traffic(host: &Host, bytes: u64, way: &str) -> Result<()> {
    wait_until("traffic flows", || {
        let counts = host_counters(host, &["tx_bytes", "tx_ring_runs"])?;
        let (flows, rings) = (counts[0] > bytes, counts[1]);
        ensure!(!flows || (rings > 0) == (way == "shm"), "{rings} runs through memory, over {way}");
        Ok(flows)
    })
}

fn nothing_left(host: &Host) -> Result<()> {
    let mut left = Leftovers::on(host)?;
    let waited = wait_until("nothing is left behind", || {
        left = Leftovers::on(host)?;
        Ok(left.is_empty())
    });
    waited.map_err(|error| error.context(left.to_string()))
}

//= spec/requester.md#req-010
//= type=test
//# When retry_cnt tries in a row brought nothing, the oldest request MUST fail with IBV_WC_RETRY_EXC_ERR.
#[test]
fn the_requester_sees_retry_exceeded() -> Result<()> {
    WAYS.into_iter().try_for_each(requester_of_a_killed_process)
}

fn requester_of_a_killed_process(way: &str) -> Result<()> {
    let world = world_over(way)?;
    let Perftest { server, client } = write_bw(world.host())?;
    traffic(world.host(), 10 << 20, way)?;
    server.signal(libc::SIGKILL)?;
    let client = client.finish(TIMEOUT)?;
    ensure!(!client.status.success(), "the client did not notice: {client}");
    // perftest prints the number of the status.
    let text = format!("{}{}", client.stdout, client.stderr);
    ensure!(text.contains("Failed status 12"), "another status than 12 (IBV_WC_RETRY_EXC_ERR): {client}");
    drop(server);
    nothing_left(world.host())
}

#[test]
fn a_process_that_stays_stopped_is_given_up() -> Result<()> {
    WAYS.into_iter().try_for_each(requester_of_a_stopped_process)
}

fn requester_of_a_stopped_process(way: &str) -> Result<()> {
    let world = world_over(way)?;
    let Perftest { server, client } = write_bw(world.host())?;
    traffic(world.host(), 10 << 20, way)?;
    server.signal(libc::SIGSTOP)?;
    let client = client.finish(TIMEOUT)?;
    let text = format!("{}{}", client.stdout, client.stderr);
    ensure!(text.contains("Failed status 12"), "another status than 12 (IBV_WC_RETRY_EXC_ERR): {client}");
    Ok(())
}

#[test]
fn a_cut_cable_is_noticed() -> Result<()> {
    let (world, other) = World::linked()?;
    let pair = PingPong { iters: ENDLESS, ..PingPong::default() }.start(world.host(), &other)?;
    wait_until("packets flow", || Ok(other.packets_sent("veth0")? > 1000))?;
    // Frames to a MAC address that nobody has vanish, and no system call fails.
    for (host, peer) in [(world.host(), other.address()), (&other, world.host().address())] {
        let nobody = ["lladdr", "02:00:00:00:00:99", "dev", "veth0", "nud", "permanent"];
        host.run("ip", &[&["neighbour", "replace", &peer], &nobody[..]].concat())?;
    }
    // At any moment one end or the other has a message outstanding. The other may be waiting for one, for ever.
    let (mut server, mut client) = (pair.server, pair.client);
    wait_until("an end gives up", || Ok(!server.is_running()? || !client.is_running()?))?;
    let ended: Vec<Finished> = [server, client]
        .into_iter()
        .filter_map(|mut end| match end.is_running() {
            Ok(true) => None,
            _ => Some(end.finish(TIMEOUT)),
        })
        .collect::<Result<_>>()?;
    for end in &ended {
        ensure!(end.stderr.contains(RETRY_EXCEEDED), "ended otherwise than by {RETRY_EXCEEDED}: {end}");
    }
    nothing_left(world.host())?;
    nothing_left(&other)
}

//= spec/hosts.md#net-006
//= type=test
//# Nothing MUST be left behind by a process that ends, even by SIGKILL.
#[test]
fn sigkill_of_both_ends_leaves_nothing() -> Result<()> {
    WAYS.into_iter().try_for_each(sigkill_of_both_ends)
}

fn sigkill_of_both_ends(way: &str) -> Result<()> {
    let world = world_over(way)?;
    let pair = PingPong { iters: ENDLESS, events: true, ..PingPong::default() }.start(world.host(), world.host())?;
    traffic(world.host(), 1 << 20, way)?;
    ensure!(!Leftovers::on(world.host())?.names.is_empty(), "no names to begin with: this test looks at nothing");
    pair.server.signal(libc::SIGKILL)?;
    pair.client.signal(libc::SIGKILL)?;
    drop(pair);
    nothing_left(world.host())
}
