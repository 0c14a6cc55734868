//! rdma_cm when the device is taken out: ids that are bound to it are told, and can do nothing more but be destroyed, as
//! the kernel's `cma_process_remove` has it.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use urxe_tests::rdmacm::{Channel, Id, kind, loopback};
use urxe_tests::verbs::memory::PAGE;
use urxe_tests::verbs::{Errno, Op, Options, Pair, SendWr, is_readable};
use urxe_tests::{Host, Process, TIMEOUT, World, in_world_with, wait_until};

/// More packets than it takes to connect once.
const REMOVED_AFTER: &str = "step,packets=60; step; remove";

/// Sends until the device is gone.
fn use_up_the_device(pair: &Pair) -> Result<()> {
    let (local, remote) = (pair.near.region(PAGE)?, pair.far.region(PAGE)?);
    let write = SendWr::new(Op::Write(remote.at(0)), &[local.sge(0, 8)]);
    for _ in 0..100 {
        if pair.near.complete(&write).is_err() {
            return Ok(());
        }
    }
    anyhow::bail!("it is still there after 100 WRITEs")
}

#[test]
fn ids_are_told_and_end() {
    in_world_with(
        |world| {
            world.host().set_env("URXE_FAULTS", REMOVED_AFTER);
            let other = world.add_host()?;
            world.link(world.host(), &other, 1500)?;
            Ok(other)
        },
        || {
            let at = |port| SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 1), port);
            let orphans = lose_the_device(at)?;
            ensure!(orphans.idle.id()?.bind(at(7103)) == Err(Errno(libc::ENODEV)), "its address can be bound to");
            let error = orphans.idle.connect(at(7102), &[]).err().context("a connection without a device")?;
            // RDMA_CM_EVENT_ADDR_ERROR, -ENODEV.
            ensure!(error.to_string() == "event 1 (status -19)", "{error}");
            Ok(())
        },
    );
}

/// A loopback address that no device has any more stands for all that are left.
#[test]
fn ids_on_lo_are_told_and_end() {
    in_world_with(
        |world| {
            world.host().set_env("URXE_FAULTS", REMOVED_AFTER);
            Ok(())
        },
        || {
            let orphans = lose_the_device(loopback)?;
            orphans.idle.id()?.bind(loopback(7103))?;
            let error = orphans.idle.connect(loopback(7102), &[]).err().context("a connection without a device")?;
            // `cma_bind_loopback` of the kernel's cma.c finds none at once.
            ensure!(error.downcast_ref() == Some(&Errno(libc::ENODEV)), "{error}");
            Ok(())
        },
    );
}

/// Ids whose device has been taken out. Destroying them must succeed, or the test fails; they go before their channels.
struct Orphans {
    _ids: Vec<Id>,
    _channels: [Channel; 3],
    /// A channel without events.
    idle: Channel,
}

/// Takes the device out under ids in every state.
fn lose_the_device(at: impl Fn(u16) -> SocketAddrV4) -> Result<Orphans> {
    let (near, far, any, idle) = (Channel::new()?, Channel::new()?, Channel::new()?, Channel::new()?);
    let pair = Pair::new(&Options::default())?;
    // One that listens everywhere would do so on other devices as well.
    let everywhere = any.listen(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 7101), 1)?;
    let unbound = idle.id()?;
    let listener = far.listen(at(7102), 1)?;
    let client = near.connect(at(7102), &[])?;
    let server = far.expect(kind::CONNECT_REQUEST)?.id.context("no id")?;
    server.accept()?;
    near.expect(kind::CONNECT_RESPONSE)?;
    client.establish()?;
    far.expect(kind::ESTABLISHED)?;
    // A request that the application knows of and has not answered is its listener's, and goes with it.
    let asking = near.connect(at(7102), &[])?;
    let asked = far.expect(kind::CONNECT_REQUEST)?.id.context("no id")?;

    use_up_the_device(&pair)?;
    for channel in [&near, &far] {
        ensure!(is_readable(channel.fd(), Duration::ZERO), "a verb has failed first");
    }
    let about = |channel: &Channel, count: usize| -> Result<BTreeSet<usize>> {
        (0..count).map(|_| Ok(channel.expect(kind::DEVICE_REMOVAL)?.about)).collect()
    };
    ensure!(about(&near, 2)? == BTreeSet::from([client.address(), asking.address()]));
    ensure!(about(&far, 2)? == BTreeSet::from([listener.address(), server.address()]));
    for channel in [&near, &far, &any, &idle] {
        ensure!(!is_readable(channel.fd(), Duration::from_millis(50)), "another event");
    }

    let gone = Err(Errno(libc::ENXIO));
    ensure!(client.disconnect() == gone && server.disconnect() == gone, "they can be disconnected");
    ensure!(asked.accept().is_err_and(|error| error.downcast_ref() == Some(&Errno(libc::ENXIO))));
    // The wildcard can be bound to as ever.
    unbound.bind(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 7102))?;
    let ids = vec![listener, client, server, asking, asked, everywhere, unbound];
    Ok(Orphans { _ids: ids, _channels: [near, far, any], idle })
}

/// Messages of rping when it is told. It has several threads: one that sends or receives and fails at that, because the device
/// is gone, may end the program before the one that is told has its turn. So the device goes while all of them wait.
const TOLD: &str = "cma detected device removal";

/// A server, and a client that does not end by itself and has begun.
fn rping(server: &Host, client: &Host) -> Result<(Process, Process)> {
    let mut listener = server.spawn("rping", &["-s", "-a", "10.77.0.1"])?;
    wait_until("rping listens", || {
        let listens = server.run("cat", &["/proc/net/unix"])?.stdout.contains("@urxe/1/service/");
        Ok(listens || !listener.is_running()?)
    })?;
    let pinger = client.spawn("rping", &["-c", "-a", "10.77.0.1"])?;
    Ok((listener, pinger))
}

#[test]
fn rping_whose_device_is_taken_out() -> Result<()> {
    let (world, other) = World::linked()?;
    // A silence that is shorter than all tries together (4.3 s).
    other.set_env("URXE_FAULTS", "step,packets=500; step,lasts=1500ms; drop; step; remove");
    let (server, client) = rping(world.host(), &other)?;
    let client = client.finish(TIMEOUT)?;
    ensure!(client.stderr.contains(TOLD), "{client}");
    // Nothing reaches the peer: it waits, or gives up after all of its tries.
    ensure!(!server.stderr_so_far().contains(TOLD), "{}", server.stderr_so_far());
    Ok(())
}

/// Lets no more RoCE packets in. Whoever sends them does not notice.
fn drop_incoming_packets(host: &Host) -> Result<()> {
    const RULE: &str = "add table inet drop_4791; add chain inet drop_4791 input { type filter hook input priority 0; }; \
                        add rule inet drop_4791 input udp dport 4791 drop";
    host.run("nft", &[RULE]).map(drop)
}

/// An interface that is removed takes the device along, as the kernel's rxe has it.
#[test]
fn rping_whose_interface_is_removed() -> Result<()> {
    // All tries of an end (4.3 s) may be over before the interface goes: then it ends by itself.
    for _ in 0..10 {
        if is_told_of_its_interface()? {
            return Ok(());
        }
    }
    anyhow::bail!("they give up before the interface is gone")
}

/// Whether both ends are told. Not, if one has given up before.
fn is_told_of_its_interface() -> Result<bool> {
    let (world, other) = World::linked()?;
    let (mut server, mut client) = rping(world.host(), &other)?;
    wait_until("they exchange messages", || Ok(other.packets_sent("veth0")? > 100))?;
    drop_incoming_packets(world.host())?;
    drop_incoming_packets(&other)?;
    // A thread that has been looked at may be woken by one that has not.
    wait_until("they wait for each other", || {
        let has_ended = !server.is_running()? || !client.is_running()?;
        let are_asleep = || anyhow::Ok(server.is_asleep()? && client.is_asleep()?);
        Ok(has_ended || (are_asleep()? && are_asleep()?))
    })?;
    other.run("ip", &["link", "delete", "veth0"])?;
    for end in [&mut server, &mut client] {
        wait_until("it is told", || Ok(end.stderr_so_far().contains(TOLD) || !end.is_running()?))?;
        if !end.stderr_so_far().contains(TOLD) {
            return Ok(false);
        }
    }
    Ok(true)
}
