//! Loopback addresses where no device is on `lo`: rdma_cm takes them for the wildcard, as the kernel's `cma_any_addr` does,
//! and resolves them to the first active device.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::rdmacm::{Channel, kind, loopback};
use urxe_tests::verbs::{Context, Errno, PATIENCE};
use urxe_tests::{Host, Process, TIMEOUT, World, in_world_with, wait_until};

/// The address of the device of [`World::linked`]'s first host.
const DEVICE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

fn cable(world: &World) -> Result<Host> {
    let other = world.add_host()?;
    world.link(world.host(), &other, 1500)?;
    Ok(other)
}

/// Starts an rping server and waits until it listens.
fn rping_server(host: &Host, address: &str, port: u16) -> Result<Process> {
    let port_arg = port.to_string();
    let mut server = host.spawn("rping", &["-s", "-a", address, "-p", &port_arg, "-C", "10"])?;
    let name = format!("/service/000000000106{port:04x}/");
    wait_until("the server listens", || {
        Ok(!server.is_running()? || host.run("cat", &["/proc/net/unix"])?.stdout.contains(&name))
    })?;
    Ok(server)
}

#[test]
fn rping_by_loopback_addresses_on_a_cable() -> Result<()> {
    let (world, _other) = World::linked()?;
    let host = world.host();
    let ends = [
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "::1"),
        // One of the two by the device's own address, or by the wildcard.
        ("0.0.0.0", "127.0.0.1"),
        ("::", "::1"),
        ("10.77.0.1", "127.0.0.1"),
        ("127.0.0.1", "10.77.0.1"),
        ("::1", "fd77::1"),
        ("127.0.0.1", "0.0.0.0"),
    ];
    for (listening, asked) in ends {
        let port = host.next_port();
        let server = rping_server(host, listening, port)?;
        let client = host.try_run("rping", &["-c", "-a", asked, "-p", &port.to_string(), "-C", "10"])?;
        ensure!(client.status.success(), "{listening}, {asked}: {client}");
        server.finish(TIMEOUT)?.success()?;
    }
    Ok(())
}

//= spec/connections.md#cm-015
//= type=test
//# A listener at a loopback address MUST be reached from its own host only.
#[test]
fn a_listener_at_a_loopback_address_refuses_the_network() -> Result<()> {
    let (world, other) = World::linked()?;
    for (listening, asked) in [("127.0.0.1", "10.77.0.1"), ("::1", "fd77::1")] {
        let port = world.host().next_port();
        let mut server = rping_server(world.host(), listening, port)?;
        let port_arg = port.to_string();
        let args = ["-c", "-a", asked, "-p", &port_arg, "-C", "10"];
        let refused = other.try_run("rping", &args)?;
        let said = format!("{}{}", refused.stdout, refused.stderr);
        // IB_CM_REJ_INVALID_SERVICE_ID
        ensure!(said.contains("RDMA_CM_EVENT_REJECTED, error 8"), "{refused}");
        ensure!(server.is_running()?, "the network has ended the server");
        world.host().run("rping", &args)?;
        server.finish(TIMEOUT)?.success()?;
    }
    Ok(())
}

#[test]
fn a_loopback_address_is_bound_as_the_wildcard() {
    in_world_with(cable, || {
        let channel = Channel::new()?;
        let bound = channel.id()?;
        bound.bind(loopback(7301))?;
        ensure!(!bound.has_device(), "it is bound to no device");
        // `cma_check_port`: whatever else is asked for at this port collides with the wildcard.
        for ip in [Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 9, 9, 9), Ipv4Addr::UNSPECIFIED] {
            let refused = channel.id()?.bind(SocketAddrV4::new(ip, 7301));
            ensure!(refused == Err(Errno(libc::EADDRNOTAVAIL)), "{ip}: {refused:?}");
        }
        ensure!(channel.id()?.bind(SocketAddrV4::new(DEVICE, 7301)).is_err(), "the device's own address is free");
        let other = channel.id()?;
        other.bind(SocketAddrV4::new(DEVICE, 7302))?;
        ensure!(other.has_device(), "the device has this address");
        drop(bound);
        channel.id()?.bind(loopback(7301))?;
        // Port 0 takes any.
        channel.id()?.bind(loopback(0))?;
        Ok(())
    });
}

/// The application sees the addresses that it named; packets carry the device's.
#[test]
fn a_loopback_address_resolves_to_the_device() {
    in_world_with(cable, || {
        let (near, far) = (Channel::new()?, Channel::new()?);
        let _listener = far.listen(loopback(7303), 4)?;
        let client = near.connect(loopback(7303), b"hello")?;
        ensure!(client.has_device(), "it is resolved");
        ensure!(client.addresses() == [Ipv4Addr::LOCALHOST; 2], "{:?}", client.addresses());
        let request = far.expect(kind::CONNECT_REQUEST)?;
        ensure!(request.private_data.starts_with(b"hello\0"), "{:?}", request.private_data);
        let server = request.id.context("no id")?;
        ensure!(server.addresses() == [DEVICE; 2], "{:?}", server.addresses());
        server.accept()?;
        near.expect(kind::CONNECT_RESPONSE)?;
        client.establish()?;
        far.expect(kind::ESTABLISHED)?;
        client.disconnect()?;
        far.expect(kind::DISCONNECTED)?;
        Ok(())
    });
}

/// Addresses of the two devices of [`two_cables`].
const LEFT: Ipv4Addr = Ipv4Addr::new(10, 78, 1, 1);
const RIGHT: Ipv4Addr = Ipv4Addr::new(10, 78, 2, 1);

/// Two devices, `left` first, each on a cable of its own to another host.
fn two_cables(world: &World) -> Result<Host> {
    let (host, other) = (world.host(), world.add_host()?);
    let pid = other.pid().to_string();
    for (name, own) in [("left", LEFT), ("right", RIGHT)] {
        host.run("ip", &["link", "add", name, "type", "veth", "peer", "name", name, "netns", &pid])?;
        for end in [host, &other] {
            end.run("ip", &["link", "set", name, "addrgenmode", "none", "up"])?;
        }
        host.run("ip", &["address", "add", &format!("{own}/24"), "dev", name])?;
    }
    host.wait_for_links(&["left", "right"])?;
    host.set_env("URXE_NETDEV", "left,right");
    Ok(other)
}

/// The address of the device by which a client of `near` gets to a listener of `far`, which turns it away.
fn device_towards(near: &Channel, far: &Channel, listener: SocketAddrV4) -> Result<Ipv4Addr> {
    let _client = near.connect(listener, b"")?;
    let server = far.expect(kind::CONNECT_REQUEST)?.id.context("no id")?;
    let [own, peer] = server.addresses();
    ensure!(own == peer, "from {peer} to {own}");
    server.reject(b"")?;
    let answer = near.next_within(PATIENCE)?;
    ensure!(answer.kind == kind::REJECTED, "event {} (status {})", answer.kind, answer.status);
    Ok(own)
}

/// The first device is taken as long as its port is active (`cma_bind_loopback`). Once its interface is down it is passed
/// over.
#[test]
fn a_loopback_address_resolves_to_the_first_device_that_is_up() {
    in_world_with(two_cables, || {
        let left = Context::open()?;
        let (near, far) = (Channel::new()?, Channel::new()?);
        let _listener = far.listen(loopback(7304), 4)?;
        let found = device_towards(&near, &far, loopback(7304))?;
        ensure!(found == LEFT, "both are up: {found}");
        ensure!(Command::new("ip").args(["link", "set", "left", "down"]).status()?.success(), "ip link set left down");
        while left.async_event(PATIENCE)?.context("no event")?.kind() != v::IBV_EVENT_PORT_ERR {}
        ensure!(left.query_port(1)?.state == v::IBV_PORT_DOWN);
        let found = device_towards(&near, &far, loopback(7304))?;
        ensure!(found == RIGHT, "the first is down: {found}");
        Ok(())
    });
}

/// libfabric binds 127.0.0.1 to find out what is there, before a program has said which address it wants.
#[test]
fn libfabric_lists_reliable_datagrams_on_a_cable() -> Result<()> {
    let (world, _other) = World::linked()?;
    let host = world.host();
    for args in [&[][..], &["-n", "127.0.0.1", "-P", "7777"], &["-n", "10.77.0.1", "-P", "7777"]] {
        let said = host.run("fi_info", &[&["-p", "verbs;ofi_rxm"], args].concat())?.stdout;
        ensure!(said.contains("domain: urxe0") && said.contains("type: FI_EP_RDM"), "{args:?}: {said}");
    }
    Ok(())
}

#[test]
fn libfabric_ping_pong_on_a_cable() -> Result<()> {
    let (world, _other) = World::linked()?;
    let host = world.host();
    for (provider, endpoint) in [("verbs", "msg"), ("verbs;ofi_rxm", "rdm")] {
        let port = host.next_port();
        let port_arg = port.to_string();
        let args = ["-p", provider, "-e", endpoint, "-S", "1024", "-I", "20", "-B", &port_arg];
        let server = host.spawn("fi_pingpong", &args)?;
        wait_until("fi_pingpong listens", || host.is_listening(port))?;
        let client = [&args[..6], &["-I", "20", "-P", &port_arg, "127.0.0.1"]].concat();
        let client = host.spawn("fi_pingpong", &client)?.finish(TIMEOUT)?;
        let served = server.finish(TIMEOUT)?;
        ensure!(client.status.success() && served.status.success(), "{endpoint}: {client}\n{served}");
        ensure!(client.stdout.lines().any(|line| line.starts_with("1k")), "{endpoint}: {client}");
    }
    Ok(())
}

/// Open MPI chooses libfabric's verbs only if it offers reliable datagrams.
#[test]
fn open_mpi_over_libfabric() -> Result<()> {
    let (world, _other) = World::linked()?;
    let host = world.host();
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rdmacm_loopback/ring.py");
    for netdev in ["veth0", "lo"] {
        host.set_env("URXE_NETDEV", netdev);
        let provider =
            ["--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca", "mtl_ofi_provider_include", "verbs;ofi_rxm"];
        // The ranks of a machine with two processors run as its time slices let them: they must not spin.
        let launch = ["--allow-run-as-root", "--oversubscribe", "-np", "4"];
        let args = [&launch[..], &provider, &["/usr/bin/python3", program]].concat();
        let said = host.run("mpirun", &args)?;
        ensure!(said.stdout.contains("4 ranks done"), "{netdev}: {said}");
    }
    Ok(())
}
