//! The stock rdmacm-utils over librdmacm: connections made by the InfiniBand CM protocol.

use anyhow::{Result, bail, ensure};
use urxe_tests::{Host, Process, TIMEOUT, World, wait_until};

/// `RDMA_PS_TCP` of `rdma/rdma_user_cm.h`: the upper half of a service id.
const PS_TCP: u32 = 0x0106;
/// `RDMA_PS_UDP`.
const PS_UDP: u32 = 0x0111;

/// Starts `program` and waits until it listens at `port`.
fn listen(host: &Host, port: u16, program: &str, args: &[&str]) -> Result<Process> {
    let mut server = host.spawn(program, args)?;
    // Who listens holds the name of the service.
    let name = format!("@urxe/1/service/{:016x}/", PS_TCP << 16 | u32::from(port));
    let mut ended = false;
    wait_until("the server listens", || {
        ended = !server.is_running()?;
        Ok(ended || host.run("cat", &["/proc/net/unix"])?.stdout.contains(&name))
    })?;
    if ended {
        bail!("the server ended instead of listening: {}", server.finish(TIMEOUT)?);
    }
    Ok(server)
}

/// Runs a server and a client to the success of both; answers what the client printed.
fn run(
    server: &Host,
    port: u16,
    program: [&str; 2],
    server_args: &[&str],
    client: &Host,
    client_args: &[&str],
) -> Result<String> {
    let listening = listen(server, port, program[0], server_args)?;
    let connected = client.spawn(program[1], client_args)?.finish(TIMEOUT)?;
    let served = listening.finish(TIMEOUT)?;
    ensure!(connected.status.success() && served.status.success(), "{connected}\n{served}");
    Ok(connected.stdout)
}

fn rping(server: &Host, client: &Host, address: &str) -> Result<()> {
    let port = server.next_port();
    let port_arg = port.to_string();
    let common = ["-a", address, "-p", &port_arg, "-V", "-v", "-C", "100"];
    let server_args = [&["-s"], &common[..]].concat();
    let client_args = [&["-c"], &common[..]].concat();
    let said = run(server, port, ["rping"; 2], &server_args, client, &client_args)?;
    ensure!(said.lines().filter(|line| line.starts_with("ping data: rdma-ping-")).count() == 100, "{said}");
    Ok(())
}

#[test]
fn rping_over_loopback() -> Result<()> {
    let world = World::new()?;
    rping(world.host(), world.host(), "127.0.0.1")?;
    rping(world.host(), world.host(), "::1")
}

#[test]
fn rping_over_veth() -> Result<()> {
    let (world, other) = World::linked()?;
    rping(world.host(), &other, "10.77.0.1")?;
    rping(world.host(), &other, "fd77::1")
}

#[test]
fn rping_within_one_host_on_a_cable() -> Result<()> {
    let (world, _other) = World::linked()?;
    rping(world.host(), world.host(), "10.77.0.1")
}

/// librdmacm finds a device by its GUID, also one that had no interface when urxe was installed.
#[test]
fn rping_over_the_second_device() -> Result<()> {
    let (world, other) = World::linked()?;
    for host in [world.host(), &other] {
        host.set_env("URXE_NETDEV", "lo,veth0");
    }
    rping(world.host(), &other, "10.77.0.1")?;
    rping(world.host(), world.host(), "127.0.0.1")
}

#[test]
fn rdma_client_and_server() -> Result<()> {
    let (world, other) = World::linked()?;
    run(
        world.host(),
        7471,
        ["rdma_server", "rdma_client"],
        &["-p", "7471"],
        &other,
        &["-s", "10.77.0.1", "-p", "7471"],
    )?;
    Ok(())
}

fn ucmatose(server: &Host, client: &Host, more: &[&str]) -> Result<()> {
    let address = server.address();
    let client_args = [&["-s", &address], more].concat();
    run(server, 7471, ["ucmatose"; 2], more, client, &client_args)?;
    Ok(())
}

#[test]
fn ucmatose_hundred_connections() -> Result<()> {
    let (world, other) = World::linked()?;
    ucmatose(world.host(), &other, &["-c", "100"])?;
    ucmatose(world.host(), world.host(), &["-c", "100"])
}

#[test]
fn ucmatose_migrates_its_ids() -> Result<()> {
    let world = World::new()?;
    ucmatose(world.host(), world.host(), &["-c", "10", "-m"])
}

//= spec/connections.md#cm-004
//= type=test
//# A request for a service that nobody serves MUST be rejected as an invalid service id.
#[test]
fn rping_without_listener_is_rejected() -> Result<()> {
    let world = World::new()?;
    let client = world.host().try_run("rping", &["-c", "-a", "127.0.0.1", "-p", "7999", "-C", "1"])?;
    ensure!(!client.status.success(), "{client}");
    let said = format!("{}{}", client.stdout, client.stderr);
    // IB_CM_REJ_INVALID_SERVICE_ID
    ensure!(said.contains("RDMA_CM_EVENT_REJECTED, error 8"), "{client}");
    Ok(())
}

/// A port belongs to one process, and to nobody when that is gone.
#[test]
fn ports_are_owned() -> Result<()> {
    let world = World::new()?;
    let host = world.host();
    let first = listen(host, 7600, "rping", &["-s", "-p", "7600", "-a", "127.0.0.1", "-C", "1"])?;
    let second = host.try_run("rping", &["-s", "-p", "7600", "-a", "127.0.0.1", "-C", "1"])?;
    let said = format!("{}{}", second.stdout, second.stderr);
    ensure!(said.contains("Address already in use"), "{second}");
    first.signal(libc::SIGKILL)?;
    first.finish(TIMEOUT)?;
    let third = listen(host, 7600, "rping", &["-s", "-p", "7600", "-a", "127.0.0.1", "-C", "1"])?;
    let client = host.try_run("rping", &["-c", "-p", "7600", "-a", "127.0.0.1", "-C", "1"])?;
    ensure!(client.status.success(), "{client}");
    let third = third.finish(TIMEOUT)?;
    ensure!(third.status.success(), "{third}");
    Ok(())
}

#[test]
fn udaddy_looks_services_up() -> Result<()> {
    let (world, other) = World::linked()?;
    for client in [&other, world.host()] {
        let server = world.host().spawn("udaddy", &[])?;
        let name = format!("@urxe/1/service/{:016x}/", PS_UDP << 16 | 7174);
        wait_until("the server listens", || Ok(world.host().run("cat", &["/proc/net/unix"])?.stdout.contains(&name)))?;
        let client = client.spawn("udaddy", &["-s", "10.77.0.1"])?.finish(TIMEOUT)?;
        let server = server.finish(TIMEOUT)?;
        ensure!(client.status.success() && server.status.success(), "{client}\n{server}");
    }
    Ok(())
}
