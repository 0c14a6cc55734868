//! The stock libibverbs loads the library that /etc/libibverbs.d/urxe.driver names.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use anyhow::{Context, Result, ensure};
use urxe_tests::{PingPong, World};

#[test]
fn libibverbs_itself_loads_the_provider() -> Result<()> {
    let world = World::new()?;
    let mut command = world.host().command("ibv_devices");
    command.env("LD_DEBUG", "files").env_remove("IBV_DRIVERS");
    let devices = world.host().start(command)?.finish(urxe_tests::TIMEOUT)?.success()?;
    // The dynamic linker names who asked for a file: "file=… [0];  dynamically loaded by …".
    let loaded = devices.stderr.lines().find(|line| line.contains("liburxe-rdmav") && line.contains("loaded by"));
    let loaded = loaded.with_context(|| format!("the provider was not loaded: {devices}"))?;
    ensure!(loaded.contains("/libibverbs.so.1 "), "loaded by something else: {loaded}");
    ensure!(devices.stdout.contains("urxe0"), "{devices}");
    Ok(())
}

/// libibverbs keeps pointers to a provider for good, whoever has loaded it.
#[test]
fn a_program_that_closes_the_library_has_devices() -> Result<()> {
    let world = World::new()?;
    let program = world.dir().join("closes_library");
    let program = program.to_str().context("a path that is not UTF-8")?;
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/programs/closes_library.c");
    world.host().run("cc", &["-O1", "-Wall", "-Werror", "-o", program, source, "-libverbs"])?;
    let library = urxe_tests::artifacts::bin_dir()?.join("liburxe.so");
    world.host().run(program, &[library.to_str().context("a path that is not UTF-8")?])?;
    Ok(())
}

#[test]
fn only_the_chosen_interfaces_have_devices() -> Result<()> {
    let world = World::new()?;
    let devices = world.host().run("ibv_devices", &[])?;
    ensure!(devices.stdout.contains("urxe0") && !devices.stdout.contains("urxe1"), "{devices}");
    ensure!(devices.stderr.is_empty(), "not silent: {devices}");
    let other = world.add_host()?;
    world.link(world.host(), &other, 1500)?;
    world.host().set_env("URXE_NETDEV", "lo,veth0");
    let devices = world.host().run("ibv_devices", &[])?;
    ensure!(devices.stdout.contains("urxe0") && devices.stdout.contains("urxe1"), "{devices}");
    ensure!(!devices.stdout.contains("urxe2"), "{devices}");
    Ok(())
}

#[test]
fn choices_that_cannot_be_are_named() -> Result<()> {
    let world = World::new()?;
    let with = |name: &str, value: &OsStr| {
        let mut command = world.host().command("ibv_devinfo");
        command.env(name, value);
        world.host().start(command)?.finish(urxe_tests::TIMEOUT)
    };
    let said = with("URXE_GID", "127.0.0.1,192.0.2.1".as_ref())?;
    ensure!(said.stderr.contains("has the address 192.0.2.1") && !said.status.success(), "{said}");
    let said = with("URXE_NETDEV", OsStr::from_bytes(b"eth\xff"))?;
    ensure!(said.stderr.contains("no network interface 'eth"), "{said}");
    // The files that an installation made have the names that they have.
    ensure!(with("URXE_DEVICE_NAME", "first".as_ref())?.success()?.stdout.contains("hca_id:\turxe0\n"));
    Ok(())
}

#[test]
fn devinfo_shows_an_active_roce_port() -> Result<()> {
    let world = World::new()?;
    let info = world.host().run("ibv_devinfo", &["-v", "-d", "urxe0"])?;
    for line in ["PORT_ACTIVE (4)", "link_layer:\t\tEthernet", "::ffff:127.0.0.1, RoCE v2", "::1, RoCE v2"] {
        ensure!(info.stdout.contains(line), "no {line:?}: {info}");
    }
    // Neither "no vendor" nor the number that libfabric and UCX take for an unknown one.
    for vendor in ["0x0000", "0xffffff"] {
        ensure!(!info.stdout.contains(&format!("vendor_id:\t\t\t{vendor}\n")), "vendor_id {vendor}: {info}");
    }
    ensure!(info.stderr.is_empty(), "complaints: {info}");
    Ok(())
}

#[test]
fn a_prefix_installation_works_without_the_driver_file() -> Result<()> {
    let world = World::new()?;
    let (host, urxe) = (world.host(), urxe_tests::artifacts::urxe()?);
    let prefix = world.dir().join("p");
    let prefix = prefix.to_str().context("a path that is not UTF-8")?;
    host.run(&urxe, &["install", "--prefix", prefix])?;
    // What is left of the machine's own installation is /dev/infiniband.
    host.run("rm", &["/etc/libibverbs.d/urxe.driver"])?;
    host.set_env("SYSFS_PATH", &format!("{prefix}/share/urxe/sysfs"));
    host.set_env("IBV_DRIVERS", &format!("{prefix}/lib/urxe/liburxe"));
    PingPong::default().run(host, host)
}
