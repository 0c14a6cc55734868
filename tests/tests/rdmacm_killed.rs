//! A process is killed in each state of a connection: what the peer's application is told, which is what the kernel tells,
//! for it ends the connections of a process that is killed. Here a neighbour does, to whom they were left.

use anyhow::{Context as _, Result, ensure};
use urxe_tests::in_world;
use urxe_tests::rdmacm::{Channel, Event, Id, kind, loopback, reason};
use urxe_tests::verbs::PATIENCE;
use urxe_tests::verbs::child::{Child, Parent};
use urxe_tests::{Host, Process, TIMEOUT, World, artifacts, wait_for_devices, wait_until};

/// How far a connection has come when one end is killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// The request has arrived.
    Requested,
    /// The reply has.
    Replied,
    /// Both ends say so.
    Established,
}

/// Which end is killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Victim {
    /// The one that asked.
    Active,
    /// The one that listened.
    Passive,
}

/// The process that opens its device first owns the address, and its wills go another way than the others'.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Owner {
    Victim,
    Survivor,
}

/// Victim, stage, and what the survivor is told.
const TABLE: [(Victim, Stage, u32, i32); 5] = [
    // The application has not accepted, so there is nobody to tell: see `a_requester_is_killed`.
    (Victim::Active, Stage::Replied, kind::REJECTED, reason::CONSUMER_DEFINED),
    (Victim::Active, Stage::Established, kind::DISCONNECTED, 0),
    (Victim::Passive, Stage::Requested, kind::REJECTED, reason::CONSUMER_DEFINED),
    (Victim::Passive, Stage::Replied, kind::REJECTED, reason::CONSUMER_DEFINED),
    (Victim::Passive, Stage::Established, kind::DISCONNECTED, 0),
];

/// Where the survivor or the victim listens.
const PORT: u16 = 7100;

/// Opens the device by taking a port that is not used.
fn open(channel: &Channel, port: u16) -> Result<Id> {
    let id = channel.id()?;
    id.bind(loopback(port))?;
    Ok(id)
}

/// Goes as far as `stage` and waits to be killed.
fn be_killed(parent: &mut Parent, victim: Victim, stage: Stage) -> Result<()> {
    parent.receive::<1>()?;
    let channel = Channel::new()?;
    let _device = open(&channel, PORT + 1)?;
    parent.send(&[1])?;
    parent.receive::<1>()?;
    let (_listener, id) = match victim {
        Victim::Active if stage == Stage::Established => (None, channel.connected(loopback(PORT))?),
        Victim::Active => (None, channel.connect(loopback(PORT), &[])?),
        Victim::Passive => {
            let listener = channel.listen(loopback(PORT), 1)?;
            parent.send(&[1])?;
            (Some(listener), channel.expect(kind::CONNECT_REQUEST)?.id.context("no id")?)
        }
    };
    match (victim, stage) {
        (_, Stage::Requested) | (Victim::Active, Stage::Established) => {}
        (Victim::Active, Stage::Replied) => drop(channel.expect(kind::CONNECT_RESPONSE)?),
        (Victim::Passive, Stage::Replied) => id.accept()?,
        (Victim::Passive, Stage::Established) => {
            id.accept()?;
            channel.expect(kind::ESTABLISHED)?;
        }
    }
    parent.send(&[1])?;
    // For ever: the line is closed when this process has gone.
    parent.receive::<1>()?;
    Ok(())
}

/// The survivor's end of a connection, and where it is told.
struct Survivor {
    id: Id,
    _others: Vec<Id>,
    /// Outlives its ids.
    channel: Channel,
}

/// A process that will go as far as `stage`. To be made before librdmacm is used here: its devices would be the child's.
fn victim(victim: Victim, stage: Stage) -> Result<Child> {
    Child::fork(|parent| be_killed(parent, victim, stage))
}

/// Makes a connection up to `stage`, and kills one end.
fn kill(mut child: Child, victim: Victim, stage: Stage, owner: Owner) -> Result<Survivor> {
    let channel = Channel::new()?;
    let mut others = Vec::new();
    if owner == Owner::Survivor {
        others.push(open(&channel, PORT + 2)?);
    }
    child.send(&[1])?;
    child.receive::<1>()?;
    if victim == Victim::Active {
        others.push(channel.listen(loopback(PORT), 1)?);
    }
    child.send(&[1])?;
    let id = if victim == Victim::Active {
        let id = channel.expect(kind::CONNECT_REQUEST)?.id.context("no id")?;
        if stage != Stage::Requested {
            id.accept()?;
        }
        if stage == Stage::Established {
            channel.expect(kind::ESTABLISHED)?;
        }
        id
    } else {
        child.receive::<1>()?;
        let id = channel.connect(loopback(PORT), &[])?;
        if stage != Stage::Requested {
            channel.expect(kind::CONNECT_RESPONSE)?;
        }
        if stage == Stage::Established {
            id.establish()?;
        }
        id
    };
    child.receive::<1>()?;
    drop(child);
    Ok(Survivor { id, _others: others, channel })
}

fn told(event: &Event) -> (u32, i32) {
    (event.kind, event.status)
}

fn each_state(owner: Owner) -> Result<()> {
    let children: Vec<Child> = TABLE.iter().map(|&(end, stage, ..)| victim(end, stage)).collect::<Result<_>>()?;
    for (child, (victim, stage, kind, status)) in children.into_iter().zip(TABLE) {
        let context = || format!("{victim:?} end killed, {stage:?}, {owner:?} owns the address");
        let survivor = kill(child, victim, stage, owner).with_context(context)?;
        let event = survivor.channel.next_within(PATIENCE).with_context(context)?;
        ensure!(told(&event) == (kind, status), "{}: {:?}", context(), told(&event));
        if kind == kind::DISCONNECTED {
            // Agreeing is as harmless as when the peer is there.
            survivor.id.disconnect().with_context(context)?;
        }
    }
    Ok(())
}

//= spec/connections.md#cm-010
//= type=test
//# The peer of a process that was killed MUST be told what it would be told if the process had let go of its connections.
#[test]
fn beside_the_owner() {
    in_world(|| each_state(Owner::Survivor));
}

//= spec/connections.md#cm-010
//= type=test
//# The peer of a process that was killed MUST be told what it would be told if the process had let go of its connections.
#[test]
fn the_owner() {
    in_world(|| each_state(Owner::Victim));
}

/// Before the application has accepted it is told nothing; its accepting fails (`ucma_event_handler` of the kernel's ucma.c),
/// or comes first and is answered.
#[test]
fn a_requester_is_killed() {
    in_world(|| {
        let child = || victim(Victim::Active, Stage::Requested);
        for (child, owner) in [(child()?, Owner::Survivor), (child()?, Owner::Victim)] {
            let survivor = kill(child, Victim::Active, Stage::Requested, owner)?;
            if let Err(error) = survivor.id.accept() {
                ensure!(error.to_string().contains("Invalid argument"), "{error:#}");
                continue;
            }
            let event = survivor.channel.next_within(PATIENCE)?;
            let reasons = [reason::TIMEOUT, reason::INVALID_COMM_ID];
            ensure!(event.kind == kind::REJECTED && reasons.contains(&event.status), "{:?}", told(&event));
        }
        Ok(())
    });
}

/// Death between hosts: the neighbour that is left on the victim's host tells the peer on another.
//= spec/connections.md#cm-010
//= type=test
//# The peer of a process that was killed MUST be told what it would be told if the process had let go of its connections.
#[test]
fn a_peer_on_another_host() -> Result<()> {
    let (world, other) = World::linked()?;
    let server = |port: &str| world.host().spawn("rping", &["-s", "-a", "10.77.0.1", "-p", port]);
    let _neighbour = server("7200")?;
    listens(world.host(), 7200)?;
    let victim = server("7201")?;
    listens(world.host(), 7201)?;
    let client = other.spawn("rping", &["-c", "-a", "10.77.0.1", "-p", "7201"])?;
    is_told(&victim, &other, client)
}

/// Death of the last process of a host: only the process that removes the folder of `urxe run` is left there.
//= spec/connections.md#cm-010
//= type=test
//# The peer of a process that was killed MUST be told what it would be told if the process had let go of its connections.
#[test]
fn the_last_process_of_a_host() -> Result<()> {
    let world = World::bare()?;
    let other = world.add_host()?;
    world.link(world.host(), &other, 1500)?;
    let start = |host: &Host, words: &[&str]| {
        let mut command = host.command(artifacts::urxe()?);
        command.args(["run", "--", "rping", "-a", "10.77.0.1", "-p", "7201"]).args(words);
        host.start(command)
    };
    let victim = start(world.host(), &["-s"])?;
    listens(world.host(), 7201)?;
    let client = start(&other, &["-c"])?;
    is_told(&victim, &other, client)
}

/// Waits until a process listens at this port of RDMA_PS_TCP.
fn listens(host: &Host, port: u16) -> Result<()> {
    let name = format!("@urxe/1/service/{:016x}/", 0x0106 << 16 | u32::from(port));
    wait_until("a server listens", || Ok(host.run("cat", &["/proc/net/unix"])?.stdout.contains(&name)))
}

/// Kills a server when it is connected, and expects that its client is told.
fn is_told(victim: &Process, other: &Host, client: Process) -> Result<()> {
    wait_for_devices(other, "they are connected", |devices| {
        let mut qps = devices.iter().filter_map(|device| device["qps"].as_array()).flatten();
        // A server that has not heard yet that the client is ready leaves a connection that is rejected, not ended. It has once
        // it answers.
        Ok(qps.any(|qp| qp["state"] == "RTS") && other.packets_sent("veth0")? > 100)
    })?;
    victim.signal(libc::SIGKILL)?;
    let client = client.finish(TIMEOUT)?;
    ensure!(client.stderr.contains("client DISCONNECT EVENT"), "{client}");
    Ok(())
}
