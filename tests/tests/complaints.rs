//! Missing set-up is reported in one line on standard error that names the remedy.

use anyhow::{Context, Result, ensure};
use urxe_tests::{Finished, World, artifacts, wait_until};

/// The one line of `output` that is urxe's.
fn complaint(output: &Finished) -> Result<&str> {
    let lines: Vec<&str> = output.stderr.lines().filter(|line| line.starts_with("urxe: ")).collect();
    let [line] = lines.as_slice() else { anyhow::bail!("{} lines of urxe's, not one: {output}", lines.len()) };
    Ok(line)
}

/// Output of ibv_devinfo, which opens every device.
fn devinfo(world: &World) -> Result<Finished> {
    world.host().try_run("ibv_devinfo", &[])
}

//= spec/hosts.md#net-003
//= type=test
//# A port that another program holds MUST be an error that says so.
#[test]
fn port_4791_taken_by_another_program() -> Result<()> {
    let world = World::new()?;
    let script = "import socket, time\n\
                  s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
                  s.bind(('127.0.0.1', 4791))\n\
                  time.sleep(600)";
    let _other = world.host().spawn("python3", &["-c", script])?;
    wait_until("another program holds the port", || {
        Ok(world.host().run("cat", &["/proc/net/udp"])?.stdout.contains("0100007F:12B7"))
    })?;
    let output = devinfo(&world)?.failure()?;
    let line = complaint(&output)?;
    ensure!(line.contains("127.0.0.1:4791") && line.contains("another program"), "{output}");
    Ok(())
}

#[test]
fn an_interface_without_an_address() -> Result<()> {
    let world = World::new()?;
    let host = world.host();
    host.run("ip", &["link", "add", "bare0", "type", "veth", "peer", "name", "bare1"])?;
    host.run("ip", &["link", "set", "bare0", "addrgenmode", "none", "up"])?;
    host.set_env("URXE_NETDEV", "bare0");
    // An address may come; the library has nothing to say, and `urxe run` warns.
    let output = devinfo(&world)?.success()?;
    ensure!(output.stdout.contains("hca_id:\turxe0") && output.stderr.is_empty(), "{output}");
    let output = host.run(artifacts::urxe()?, &["run", "--", "ibv_devices"])?;
    let line = complaint(&output)?;
    ensure!(line.contains("bare0") && line.contains("no IP address") && line.contains("ip address add"), "{output}");
    Ok(())
}

#[test]
fn an_interface_that_is_down() -> Result<()> {
    let world = World::new()?;
    let host = world.host();
    host.run("ip", &["link", "add", "down0", "type", "veth", "peer", "name", "down1"])?;
    host.set_env("URXE_NETDEV", "down0");
    let output = devinfo(&world)?.success()?;
    ensure!(output.stdout.contains("PORT_DOWN (1)") && output.stderr.is_empty(), "{output}");
    let output = host.run(artifacts::urxe()?, &["run", "--", "ibv_devices"])?;
    let line = complaint(&output)?;
    ensure!(line.contains("warning") && line.contains("ip link set down0 up"), "{output}");
    Ok(())
}

#[test]
fn no_such_interface() -> Result<()> {
    let world = World::new()?;
    world.host().set_env("URXE_NETDEV", "nope0");
    let output = devinfo(&world)?.failure()?;
    let line = complaint(&output)?;
    ensure!(line.contains("nope0") && line.contains("URXE_NETDEV"), "{output}");
    Ok(())
}

/// libibverbs loads no provider then, so only the command can say it.
#[test]
fn no_dev_infiniband() -> Result<()> {
    let world = World::new()?;
    let host = world.host();
    host.run("rm", &["-r", "/dev/infiniband"])?;
    let output = host.run(artifacts::urxe()?, &["env"])?;
    let line = complaint(&output)?;
    ensure!(line.contains("/dev/infiniband/uverbs0 is missing") && line.contains("urxe install"), "{output}");

    // What it says helps: /dev is new after every boot.
    host.run(artifacts::urxe()?, &["install"])?;
    ensure!(host.run(artifacts::urxe()?, &["env"])?.stderr.is_empty());
    host.run("test", &["-c", "/dev/infiniband/uverbs0"]).context("still no device")?;
    Ok(())
}

/// Without `SYSFS_PATH` libibverbs finds no device and loads no provider; `urxe env` is what prints it.
#[test]
fn not_installed() -> Result<()> {
    let world = World::bare()?;
    let output = world.host().try_run(artifacts::urxe()?, &["env"])?.failure()?;
    ensure!(complaint(&output)?.contains("run `sudo urxe install`"), "{output}");
    Ok(())
}
