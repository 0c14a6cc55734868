//! `urxe doctor`: each message, provoked.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use urxe_tests::{
    Finished, Launcher, TIMEOUT, World, artifacts, copy_program, wait_for_device, wait_for_listener, wait_until,
};

/// Runs the doctor on this machine, as its root.
fn consult(world: &World, options: &[&str]) -> Result<Finished> {
    world.host().try_run(artifacts::urxe()?, &[&["doctor"], options].concat())
}

/// The line that follows the one with `what`, which has this label: the remedy.
fn remedy<'a>(said: &'a Finished, label: &str, what: &str) -> Result<&'a str> {
    let mut lines = said.stdout.lines().skip_while(|line| !(line.starts_with(label) && line.contains(what)));
    let found = lines.next().with_context(|| format!("no {label} with {what:?}: {said}"))?;
    Ok(lines.next().filter(|line| line.starts_with(' ')).unwrap_or(found).trim())
}

/// A problem, its remedy, and a status that says so.
fn problem(said: &Finished, what: &str, wanted: &str) -> Result<()> {
    let advice = remedy(said, "problem", what)?;
    ensure!(advice.contains(wanted), "{advice:?} has no {wanted:?}: {said}");
    ensure!(said.status.code() == Some(1), "{said}");
    Ok(())
}

/// A warning, its remedy, and a status that is that of success.
fn warning(said: &Finished, what: &str, wanted: &str) -> Result<()> {
    let advice = remedy(said, "warning", what)?;
    ensure!(advice.contains(wanted), "{advice:?} has no {wanted:?}: {said}");
    ensure!(said.status.success(), "{said}");
    Ok(())
}

/// A library that takes the place of libc's functions, or of another library.
fn library(world: &World, name: &str, source: &str) -> Result<PathBuf> {
    let (file, path) = (world.dir().join("source.c"), world.dir().join(name));
    std::fs::write(&file, source)?;
    let (from, to) = (file.to_string_lossy().into_owned(), path.to_string_lossy().into_owned());
    world.host().run("gcc", &["-shared", "-fPIC", "-w", "-o", &to, &from])?;
    Ok(path)
}

/// The doctor, with a library preloaded.
fn consult_with(world: &World, options: &[&str], preload: &str) -> Result<Finished> {
    let mut command = world.host().command(artifacts::urxe()?);
    command.arg("doctor").args(options).env("LD_PRELOAD", library(world, "preload.so", preload)?);
    world.host().start(command)?.finish(TIMEOUT)
}

fn fine(said: &Finished) -> Result<()> {
    ensure!(said.status.success() && !said.stdout.contains("problem"), "{said}");
    Ok(())
}

/// Asks for the status of this way.
const INSTALLED: &[&str] = &["--for", "installed"];

#[test]
fn nothing_is_wrong() -> Result<()> {
    let launcher = Launcher::new()?;
    let urxe = launcher.urxe();
    let words = [urxe.to_str().context("a path that is not UTF-8")?, "doctor"];
    let said = launcher.host().start(launcher.plain(&words))?.finish(TIMEOUT)?;
    fine(&said)?;
    for wanted in [
        "private ABI",
        "urxe0 is on lo: 127.0.0.1",
        "users who do not trust each other need a network namespace each",
        "`urxe run` opens urxe0",
        "\nurxe run   works\n",
        "\ninstalled  no: start programs with `urxe run",
    ] {
        ensure!(said.stdout.contains(wanted), "no {wanted:?}: {said}");
    }
    // An installation that works is looked at too.
    let said = consult(&World::new()?, &[])?;
    fine(&said)?;
    ensure!(said.stdout.contains("a program opens urxe0"), "{said}");
    ensure!(said.stdout.ends_with("\nurxe run   works\ninstalled  works\n"), "{said}");
    Ok(())
}

/// Each way has a verdict of its own, and a status on request.
#[test]
fn one_way_may_work_where_the_other_does_not() -> Result<()> {
    let world = World::bare()?;
    let said = consult(&world, &["--for", "installed"])?;
    problem(&said, "SYSFS_PATH is not set", "urxe env")?;
    ensure!(said.stdout.contains("\ninstalled  does not work: SYSFS_PATH is not set"), "{said}");
    ensure!(!said.stdout.contains("urxe run   "), "{said}");
    let said = consult(&world, &["--for", "run"])?;
    ensure!(said.status.success() && said.stdout.ends_with("\nurxe run   works\n"), "{said}");
    // What is wrong with the installation is told, and the other way works.
    world.host().set_env("SYSFS_PATH", "/nowhere");
    let said = consult(&world, &[])?;
    ensure!(said.status.success() && said.stdout.contains("\nurxe run   works\ninstalled  does not work: "), "{said}");
    // What both need stops both.
    for options in [&["--netdev", "nope0"][..], &["--netdev", "nope0", "--for", "run"]] {
        let said = consult(&world, options)?;
        ensure!(said.status.code() == Some(1) && !said.stdout.contains("  works"), "{said}");
    }
    Ok(())
}

#[test]
fn libraries() -> Result<()> {
    let world = World::bare()?;
    // In the place of a libibverbs that is not there: the loader finds this first, and cannot use it.
    let empty = world.dir().join("empty");
    std::fs::create_dir(&empty)?;
    let with_path = |world: &World| -> Result<Finished> {
        let mut command = world.host().command(artifacts::urxe()?);
        command.arg("doctor").env("LD_LIBRARY_PATH", &empty);
        world.host().start(command)?.finish(TIMEOUT)
    };
    for name in ["libibverbs.so.1", "librdmacm.so.1"] {
        std::fs::write(empty.join(name), "")?;
    }
    let said = with_path(&world)?;
    problem(&said, "libibverbs.so.1 is not installed", "apt-get install libibverbs1")?;
    ensure!(remedy(&said, "warning", "librdmacm.so.1 is not installed")?.contains("librdmacm1"), "{said}");

    library(
        &world,
        "empty/libibverbs.so.1",
        "const char suffix[] = \"/lib%s-rdmav99.so\"; void ibv_get_device_list(void) {} void verbs_register_driver_99(void) {}",
    )?;
    problem(&with_path(&world)?, "has private ABI 99; urxe knows 34", "rdma-core 36 to 65")?;
    library(&world, "empty/libibverbs.so.1", "void ibv_get_device_list(void) {}")?;
    problem(&with_path(&world)?, "has an unknown private ABI; urxe knows 34", "rdma-core 36 to 65")?;
    library(&world, "empty/libibverbs.so.1", "void something_else(void) {}")?;
    problem(&with_path(&world)?, "libibverbs.so.1 has no ibv_get_device_list", "another library")?;
    Ok(())
}

#[test]
fn the_file_beside_the_command() -> Result<()> {
    let launcher = Launcher::new()?;
    let (urxe, library) = (launcher.urxe(), launcher.urxe().with_file_name("liburxe.so"));
    std::fs::write(&library, "another machine's")?;
    problem(&launcher.host().try_run(&urxe, &["doctor"])?, "liburxe.so cannot be loaded", "make build")?;
    std::fs::remove_file(&library)?;
    problem(&launcher.host().try_run(&urxe, &["doctor"])?, "liburxe.so is missing", "same folder as `urxe`")
}

#[test]
fn port_4791_and_by_whom() -> Result<()> {
    let world = World::bare()?;
    let script = "import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('127.0.0.1', 4791))
time.sleep(600)";
    let other = world.host().spawn("/usr/bin/python3", &["-c", script])?;
    wait_until("another program holds the port", || {
        Ok(world.host().run("cat", &["/proc/net/udp"])?.stdout.contains("0100007F:12B7"))
    })?;
    let said = consult(&world, &[])?;
    problem(&said, &format!("held by python3 (process {})", other.pid()), &format!("kill {}", other.pid()))
}

#[test]
fn firewalls() -> Result<()> {
    let world = World::bare()?;
    for (chain, said) in [("input", "do not arrive"), ("output", "refuses to send")] {
        world.host().run("nft", &["add", "table", "inet", "wall"])?;
        let hook = format!("{{ type filter hook {chain} priority 0; }}");
        world.host().run("nft", &["add", "chain", "inet", "wall", chain, &hook])?;
        world.host().run("nft", &["add", "rule", "inet", "wall", chain, "udp", "dport", "4791", "drop"])?;
        problem(&consult(&world, &[])?, said, &format!("its {chain} chain"))?;
        world.host().run("nft", &["delete", "table", "inet", "wall"])?;
    }
    fine(&consult(&world, &[])?)
}

#[test]
fn interfaces() -> Result<()> {
    let world = World::bare()?;
    let ip = |args: &[&str]| world.host().run("ip", args).map(|_| ());
    problem(&consult(&world, &["--netdev", "nope0"])?, "no network interface 'nope0'", "`ip link`")?;
    ip(&["link", "add", "v0", "mtu", "600", "type", "veth", "peer", "name", "v1"])?;
    problem(&consult(&world, &["--netdev", "v0"])?, "'v0' is down", "ip link set v0 up")?;
    ip(&["link", "set", "v0", "up"])?;
    ip(&["link", "set", "v1", "up"])?;
    problem(&consult(&world, &["--netdev", "v0"])?, "'v0' has no IP address", "ip address add")?;
    ip(&["address", "add", "10.79.0.1/24", "dev", "v0"])?;
    warning(&consult(&world, &["--netdev", "v0"])?, "packets carry 512 bytes only", "ip link set v0 mtu 1500")?;
    warning(&consult(&world, &["--netdev", "v0", "--mtu", "1024"])?, "--mtu 1024 does not fit", "mtu 1104")?;
    ip(&["link", "set", "v0", "mtu", "300"])?;
    problem(&consult(&world, &["--netdev", "v0"])?, "the smallest RoCE packets do not fit", "ip link set v0 mtu 1500")?;
    // A container that was given no loopback interface.
    ip(&["link", "set", "lo", "down"])?;
    problem(&consult(&world, &[])?, "'lo' is down", "ip link set lo up")
}

#[test]
fn small_receive_buffers() -> Result<()> {
    let small = "#define _GNU_SOURCE
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
int setsockopt(int fd, int level, int name, const void *value, socklen_t size) {
    int small = 2304;
    if (level == SOL_SOCKET && (name == SO_RCVBUF || name == SO_RCVBUFFORCE)) value = &small;
    return syscall(SYS_setsockopt, fd, level, name, value, size);
}";
    warning(&consult_with(&World::bare()?, &[], small)?, "receive buffers hold", "net.core.rmem_max")
}

#[test]
fn a_kernel_with_rdma() -> Result<()> {
    // NETLINK_RDMA exists: another netlink family stands for it.
    let netlink = "#define _GNU_SOURCE
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
int socket(int domain, int type, int protocol) {
    return syscall(SYS_socket, domain, type, domain == AF_NETLINK && protocol == 20 ? 0 : protocol);
}";
    problem(&consult_with(&World::new()?, INSTALLED, netlink)?, "NETLINK_RDMA", "urxe run")
}

#[test]
fn installations() -> Result<()> {
    let world = World::new()?;
    let host = world.host();
    let sysfs = host.run("sh", &["-c", "echo $SYSFS_PATH"])?.stdout;
    host.set_env("SYSFS_PATH", "/nowhere");
    let said = consult(&world, INSTALLED)?;
    problem(&said, "SYSFS_PATH is /nowhere", "urxe env")?;
    problem(&said, "a program cannot open a device", "lines above")?;
    let without = |name: &str| {
        let mut command = host.command(artifacts::urxe()?);
        command.arg("doctor").args(INSTALLED).env_remove(name);
        host.start(command)?.finish(TIMEOUT)
    };
    problem(&without("SYSFS_PATH")?, "SYSFS_PATH is not set", "urxe env")?;
    host.set_env("SYSFS_PATH", sysfs.trim());
    fine(&consult(&world, INSTALLED)?)?;

    host.run("rm", &["/dev/infiniband/rdma_cm"])?;
    warning(&consult(&world, INSTALLED)?, "/dev/infiniband/rdma_cm is missing", "urxe install")?;
    host.run("rm", &["/dev/infiniband/uverbs0"])?;
    problem(&consult(&world, INSTALLED)?, "/dev/infiniband/uverbs0 is missing", "urxe run")?;
    host.run(artifacts::urxe()?, &["install"])?;
    let provider = host.run(
        "sh",
        &["-c", "ls /usr/lib*/*/libibverbs/liburxe-rdmav34.so /usr/lib*/libibverbs/liburxe-rdmav34.so 2>&-; :"],
    )?;
    let stub = provider.stdout.trim();
    let library = stub.replace("-rdmav34", "");
    warning(&without("IBV_DRIVERS")?, "IBV_DRIVERS is not set: a program that brings a libibverbs", "urxe env")?;
    host.run("mv", &[&library, "/dev/shm/liburxe.so"])?;
    for said in [without("IBV_DRIVERS")?, consult(&world, INSTALLED)?] {
        problem(&said, "liburxe.so is missing: libibverbs cannot load", "urxe install")?;
    }
    host.run("mv", &["/dev/shm/liburxe.so", &library])?;
    host.run("rm", &[stub])?;
    problem(&without("IBV_DRIVERS")?, "liburxe-rdmav34.so is missing: libibverbs cannot load", "urxe install")?;
    problem(&consult(&world, INSTALLED)?, "and there is no library of that name", "urxe env")?;
    host.run("rm", &["/etc/libibverbs.d/urxe.driver"])?;
    problem(&without("IBV_DRIVERS")?, "urxe.driver is missing", "urxe install")?;
    host.set_env("IBV_DRIVERS", "/nowhere/liburxe");
    problem(&consult(&world, INSTALLED)?, "IBV_DRIVERS is /nowhere/liburxe", "urxe env")
}

/// Rights as manuals of RDMA tell administrators to have them (`chown root:rdma; chmod 660`). Only root can ask as somebody else.
#[test]
fn devices_that_this_user_may_not_open() -> Result<()> {
    // SAFETY: it asks only.
    if unsafe { libc::geteuid() } != 0 {
        println!("left out: this user is not root");
        return Ok(());
    }
    let world = World::new()?;
    std::fs::set_permissions(world.dir(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    for name in ["urxe", "liburxe.so"] {
        copy_program(artifacts::bin_dir()?.join(name), world.dir().join(name))?;
    }
    let urxe = world.dir().join("urxe").display().to_string();
    let as_user = ["--reuid=65534", "--regid=65534", "--clear-groups", "--", &urxe, "doctor", "--for", "installed"];
    let ask = || world.host().try_run("setpriv", &as_user);
    ensure!(!ask()?.stdout.contains("EACCES"), "{}", ask()?);
    world.host().run("chmod", &["660", "/dev/infiniband/uverbs0"])?;
    problem(&ask()?, "/dev/infiniband/uverbs0 cannot be opened by user 65534 (EACCES): its mode is 660", "usermod")?;
    fine(&consult(&world, &[])?)
}

/// To look whether datagrams arrive, none is sent to a process that is at work.
#[test]
fn nothing_is_counted_by_others() -> Result<()> {
    let world = World::new()?;
    let host = world.host();
    let port = host.next_port();
    let server = host.spawn("ibv_rc_pingpong", &["-d", "urxe0", "-g", "1", "-p", &port.to_string()])?;
    let server = wait_for_listener(host, server, port)?;
    fine(&consult(&world, &[])?)?;
    let device = wait_for_device(host, server.pid(), "the device answers", |_| true)?;
    ensure!(device["counters"]["drop_short"] == 0, "{device}");
    server.signal(libc::SIGKILL)?;
    server.finish(TIMEOUT)?;
    Ok(())
}

/// An installation has its files below SYSFS_PATH, which libibverbs follows and other readers do not.
#[test]
fn programs_that_read_sys_themselves() -> Result<()> {
    let world = World::new()?;
    let host = world.host();
    let ibstat = host.try_run("ibstat", &["-l"])?;
    ensure!(!ibstat.stdout.contains("urxe0"), "an installed device is in /sys: {ibstat}");
    let what = "/sys/class/infiniband/urxe0 does not exist";
    warning(&consult(&world, &[])?, what, "urxe run")?;
    // The remedy works.
    let urxe = artifacts::urxe()?;
    let urxe = urxe.to_str().context("a path that is not UTF-8")?;
    let ibstat = host.run(urxe, &["run", "--", "ibstat", "-l"])?;
    ensure!(ibstat.stdout.contains("urxe0"), "{ibstat}");
    // Where nothing is installed, all programs are started that way.
    let said = consult(&World::bare()?, &[])?;
    ensure!(!said.stdout.contains(what), "{said}");
    Ok(())
}

/// Other errors of the system are passed on.
#[test]
fn no_descriptors() -> Result<()> {
    let urxe = artifacts::urxe()?;
    let urxe = urxe.to_str().context("a path that is not UTF-8")?;
    let said = World::bare()?.host().try_run("prlimit", &["--nofile=8", urxe, "doctor"])?;
    problem(&said, "no file descriptor left", "`ulimit -n`")
}

/// Obstacles without a check are reported by the program that opens a device.
#[test]
fn anything_else() -> Result<()> {
    let world = World::bare()?;
    let mut command = world.host().command(artifacts::urxe()?);
    command.arg("doctor").envs([("URXE_FAULTS", "fail=open_device:EPERM"), ("URXE_EXPLAIN", "1")]);
    let said = world.host().start(command)?.finish(TIMEOUT)?;
    problem(
        &said,
        "`urxe run` cannot open a device: URXE_FAULTS asks for it (ibv_open_device failed with EPERM)",
        "lines above",
    )
}

#[test]
fn options_that_make_no_sense() -> Result<()> {
    problem(&consult(&World::bare()?, &["--gid", "192.0.2.1"])?, "lo has no such address", "`ip address`")?;
    problem(&consult(&World::bare()?, &["--mtu", "1500"])?, "RoCE knows 256", "RoCE knows 256")?;
    problem(
        &consult(&World::bare()?, &["--explain", "maybe"])?,
        "--explain or URXE_EXPLAIN=maybe",
        "0, 1, json or failure",
    )?;
    problem(&consult(&World::bare()?, &["--config", "/no/such/file"])?, "No such file", "--config")
}
