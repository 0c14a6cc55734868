//! Explanations of rdma_cm: each event that tells of a failure, and each call that is refused, once.

use std::net::{Ipv4Addr, SocketAddrV4};

use anyhow::{Context as _, Result, bail, ensure};
use urxe_tests::rdmacm::{Channel, kind, loopback};
use urxe_tests::verbs::memory::PAGE;
use urxe_tests::verbs::{Op, Options, PATIENCE, Pair, SendWr};
use urxe_tests::{Stderr, World, in_world_with};

/// A mistake, and words of the line that explains it.
struct Case {
    name: &'static str,
    act: fn() -> Result<()>,
    cause: &'static str,
    remedy: &'static str,
}

/// An address that the routes lead to through an interface without a device.
const BESIDE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 79, 0, 2), 7301);
/// An address that no route leads to.
const NOWHERE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 7302);

#[expect(clippy::needless_pass_by_value, reason = "takes what calls return")]
fn fails<T, E>(result: Result<T, E>) -> Result<()> {
    ensure!(result.is_err(), "it was not refused");
    Ok(())
}

const CASES: &[Case] = &[
    Case {
        name: "nobody listens",
        act: || {
            let channel = Channel::new()?;
            let _id = channel.connect(loopback(7303), &[])?;
            ensure!(channel.next_within(PATIENCE)?.kind == kind::REJECTED);
            Ok(())
        },
        cause: "nobody listens at 127.0.0.1:7303 (RDMA_CM_EVENT_REJECTED, status 8, from 127.0.0.1:",
        remedy: "start the listening side first",
    },
    Case {
        name: "the application refuses",
        act: || {
            let (near, far) = (Channel::new()?, Channel::new()?);
            let _listener = far.listen(loopback(7304), 1)?;
            let _id = near.connect(loopback(7304), &[])?;
            far.expect(kind::CONNECT_REQUEST)?.id.context("no id")?.reject(b"no")?;
            ensure!(near.next_within(PATIENCE)?.kind == kind::REJECTED);
            Ok(())
        },
        cause: "the application at 127.0.0.1:7304 has refused, by rdma_reject",
        remedy: "look at the private data of the event",
    },
    Case {
        name: "nobody listens for datagrams",
        act: || {
            let channel = Channel::new()?;
            let _id = channel.look_up(loopback(7311))?;
            ensure!(channel.next_within(PATIENCE)?.kind == kind::UNREACHABLE);
            Ok(())
        },
        cause: "nobody listens at 127.0.0.1:7311 for datagrams (RDMA_CM_EVENT_UNREACHABLE, status 1, from 127.0.0.1:",
        remedy: "compare port and port space",
    },
    Case {
        name: "the application refuses datagrams",
        act: || {
            let (near, far) = (Channel::new()?, Channel::new()?);
            let _listener = far.listen_for_datagrams(loopback(7312))?;
            let _id = near.look_up(loopback(7312))?;
            far.expect(kind::CONNECT_REQUEST)?.id.context("no id")?.reject(b"no")?;
            ensure!(near.next_within(PATIENCE)?.kind == kind::UNREACHABLE);
            Ok(())
        },
        cause: "the application at 127.0.0.1:7312 has refused (RDMA_CM_EVENT_UNREACHABLE, status 2, from 127.0.0.1:",
        remedy: "look at the private data of the event",
    },
    Case {
        name: "no route",
        act: || fails(Channel::new()?.connect(NOWHERE, &[])),
        cause: "no route leads to 192.0.2.1:7302 (RDMA_CM_EVENT_ADDR_ERROR, status -101",
        remedy: "ip route get ADDRESS",
    },
    Case {
        name: "a route beside the device",
        act: || fails(Channel::new()?.connect(BESIDE, &[])),
        cause: "the way to 10.79.0.2:7301 is not through an interface with a device: urxe0 is on lo",
        remedy: "--netdev (URXE_NETDEV=eth0), or auto",
    },
    Case {
        name: "an address that no device has",
        act: || fails(Channel::new()?.id()?.bind(SocketAddrV4::new(Ipv4Addr::new(10, 79, 0, 1), 7305))),
        cause: "no device has the address 10.79.0.1: urxe0 is on lo (rdma_bind_addr failed with ENODEV)",
        remedy: "choose the interface with --netdev",
    },
    Case {
        name: "a port that is taken",
        act: || {
            let channel = Channel::new()?;
            let _listener = channel.listen(loopback(7306), 1)?;
            fails(channel.id()?.bind(loopback(7306)))
        },
        cause: "another id listens at port 7306 of 127.0.0.1",
        remedy: "end the other program, or choose another port",
    },
    Case {
        name: "a port that is taken, of every address",
        act: || {
            let channel = Channel::new()?;
            let _listener = channel.listen(loopback(7313), 1)?;
            fails(channel.id()?.bind(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 7313)))
        },
        cause: "another id listens at port 7313 of 0.0.0.0, perhaps of another process (rdma_bind_addr failed with EADDRNOTAVAIL)",
        remedy: "choose another port",
    },
    Case {
        name: "connecting before there is a route",
        act: || {
            let channel = Channel::new()?;
            let id = channel.id()?;
            id.bind(loopback(7314))?;
            fails(id.connect(&[]))
        },
        cause: "its peer's address is not resolved (rdma_connect failed with EINVAL)",
        remedy: "wait for RDMA_CM_EVENT_ROUTE_RESOLVED",
    },
    Case {
        name: "accepting on the listener",
        act: || fails(Channel::new()?.listen(loopback(7315), 1)?.accept()),
        cause: "the id listens (rdma_accept failed with EINVAL)",
        remedy: "accept the id of an RDMA_CM_EVENT_CONNECT_REQUEST, not the listener",
    },
    Case {
        name: "listening twice",
        act: || fails(Channel::new()?.listen(loopback(7307), 1)?.listen(1)),
        cause: "the id listens (rdma_listen failed with EINVAL)",
        remedy: "bind before listening",
    },
    Case {
        name: "binding twice",
        act: || {
            let channel = Channel::new()?;
            let id = channel.id()?;
            id.bind(loopback(7308))?;
            fails(id.bind(loopback(7309)))
        },
        cause: "the id is bound, and its peer's address is not resolved (rdma_bind_addr failed with EINVAL)",
        remedy: "bind an id once",
    },
];

fn make_all() -> Result<Vec<(&'static Case, Vec<String>)>> {
    let mut stderr = Stderr::catch()?;
    let mut made = Vec::new();
    for case in CASES {
        (case.act)().with_context(|| case.name)?;
        made.push((case, stderr.explanations()?));
    }
    Ok(made)
}

fn beside(world: &World) -> Result<()> {
    let ip = |args: &[&str]| world.host().run("ip", args).map(drop);
    ip(&["link", "add", "v0", "type", "veth", "peer", "name", "v1"])?;
    ip(&["address", "add", "10.79.0.1/24", "dev", "v0"])?;
    ip(&["link", "set", "v0", "up"])?;
    ip(&["link", "set", "v1", "up"])
}

#[test]
fn every_failure_is_explained_once() {
    let explain = |world: &World| {
        world.host().set_env("URXE_EXPLAIN", "1");
        beside(world)
    };
    in_world_with(explain, || {
        let mut wrong = String::new();
        for (Case { name, cause, remedy, .. }, lines) in make_all()? {
            let is_told = |line: &String| line.starts_with("urxe: ") && line.contains(cause) && line.contains(remedy);
            if lines.len() != 1 || !lines.iter().all(is_told) {
                wrong += &format!("{name}:\n    {}\n", lines.join("\n    "));
            }
        }
        if wrong.is_empty() { Ok(()) } else { bail!("{wrong}") }
    });
}

#[test]
fn nothing_is_said_unless_asked() {
    in_world_with(beside, || {
        ensure!(make_all()?.iter().all(|(_, lines)| lines.is_empty()));
        Ok(())
    });
}

/// A host without a device answers nothing; giving up takes a minute.
#[test]
fn a_silent_peer_is_explained_once() {
    let beyond = |world: &World| {
        world.host().set_env("URXE_EXPLAIN", "1");
        let other = world.add_host()?;
        world.link(world.host(), &other, 1500)?;
        Ok(other)
    };
    in_world_with(beyond, || {
        let mut stderr = Stderr::catch()?;
        let (for_connections, for_datagrams) = (Channel::new()?, Channel::new()?);
        let at = |port| SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 2), port);
        let _ids = [for_connections.connect(at(7316), &[])?, for_datagrams.look_up(at(7317))?];
        for channel in [&for_connections, &for_datagrams] {
            let event = channel.next_within(PATIENCE)?;
            ensure!(event.kind == kind::UNREACHABLE && event.status == -libc::ETIMEDOUT, "event {}", event.kind);
        }
        let mut told = stderr.explanations()?;
        told.sort();
        ensure!(told.len() == 2, "{told:?}");
        for (line, port) in told.iter().zip([7316, 7317]) {
            let cause = format!(
                "urxe: 10.77.0.2:{port} does not answer (RDMA_CM_EVENT_UNREACHABLE, status -110, from 10.77.0.1:"
            );
            let remedy = "start the peer first; it needs a device on that address (--netdev there), and UDP port 4791";
            ensure!(line.starts_with(&cause) && line.contains(remedy), "{line}");
        }
        Ok(())
    });
}

/// Verbs fail as well, and are explained; each id has one line.
#[test]
fn a_device_that_is_taken_out_is_explained_once() {
    let faults = |world: &World| {
        world.host().set_env("URXE_EXPLAIN", "1");
        world.host().set_env("URXE_FAULTS", "step,packets=60; step; remove");
        Ok(())
    };
    in_world_with(faults, || {
        let mut stderr = Stderr::catch()?;
        let channel = Channel::new()?;
        let pair = Pair::new(&Options::default())?;
        let _ids = [channel.listen(loopback(7318), 1)?, channel.listen(loopback(7319), 1)?];
        let (local, remote) = (pair.near.region(PAGE)?, pair.far.region(PAGE)?);
        let write = SendWr::new(Op::Write(remote.at(0)), &[local.sge(0, 8)]);
        while pair.near.complete(&write).is_ok() {}
        let removed = [channel.next_within(PATIENCE)?, channel.next_within(PATIENCE)?];
        ensure!(removed.iter().all(|event| event.kind == kind::DEVICE_REMOVAL));
        let mut told = stderr.explanations()?;
        told.retain(|line| line.contains("RDMA_CM_EVENT_DEVICE_REMOVAL"));
        told.sort();
        ensure!(told.len() == 2, "{told:?}");
        for (line, port) in told.iter().zip([7318, 7319]) {
            let wanted = format!(
                "urxe: URXE_FAULTS has taken the device out (RDMA_CM_EVENT_DEVICE_REMOVAL, status 0, at 127.0.0.1:{port}) \
                 see how the program takes it"
            );
            ensure!(*line == wanted, "{line}");
        }
        Ok(())
    });
}

/// A connection that is made and ends well is no failure.
#[test]
fn success_is_silent() {
    let explain = |world: &World| {
        world.host().set_env("URXE_EXPLAIN", "1");
        Ok(())
    };
    in_world_with(explain, || {
        let mut stderr = Stderr::catch()?;
        let (near, far) = (Channel::new()?, Channel::new()?);
        let _listener = far.listen(loopback(7310), 1)?;
        let id = near.connect(loopback(7310), &[])?;
        let request = far.expect(kind::CONNECT_REQUEST)?.id.context("no id")?;
        request.accept()?;
        near.expect(kind::CONNECT_RESPONSE)?;
        id.establish()?;
        far.expect(kind::ESTABLISHED)?;
        id.disconnect()?;
        far.expect(kind::DISCONNECTED)?;
        drop((id, request));
        let lines = stderr.lines()?;
        ensure!(lines.is_empty(), "{lines:?}");
        Ok(())
    });
}
