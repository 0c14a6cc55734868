//! `urxe run` with the programs that people have: no root, nothing installed, no `/dev/infiniband`.

use anyhow::{Context, Result, ensure};
use urxe_tests::Launcher;

/// The value behind `key` in the output of a program.
fn value<'a>(output: &'a str, key: &str) -> Result<&'a str> {
    let line = output.lines().find_map(|line| line.trim().strip_prefix(key));
    Ok(line.with_context(|| format!("no {key:?} in {output}"))?.trim())
}

/// Names of devices as `ibv_devices` lists them.
fn devices(launcher: &Launcher) -> Result<Vec<(String, String)>> {
    let listed = launcher.run(&["ibv_devices"])?;
    let row = |line: &str| line.split_once(char::is_whitespace).map(|(name, guid)| (name.into(), guid.trim().into()));
    Ok(listed.stdout.lines().skip(2).filter_map(|line| row(line.trim())).collect())
}

/// Runs it as an ordinary user, and as one who cannot make user namespaces.
fn everywhere(act: impl Fn(&Launcher) -> Result<()>) -> Result<()> {
    act(&Launcher::new()?)?;
    let without = Launcher::without_user_namespaces()?;
    let can = without.try_run(&[], &["unshare", "--user", "true"])?;
    ensure!(!can.status.success(), "they are not forbidden: {can}");
    act(&without).context("without user namespaces")
}

#[test]
fn ibv_devinfo() -> Result<()> {
    everywhere(devinfo)
}

fn devinfo(launcher: &Launcher) -> Result<()> {
    let told = launcher.run(&["ibv_devinfo"])?;
    for wanted in ["hca_id:\turxe0", "PORT_ACTIVE", "Ethernet"] {
        ensure!(told.stdout.contains(wanted), "no {wanted:?}: {told}");
    }
    ensure!(told.stderr.is_empty(), "complaints: {told}");
    Ok(())
}

#[test]
fn ibstat_and_ibstatus() -> Result<()> {
    everywhere(ibstat)
}

fn ibstat(launcher: &Launcher) -> Result<()> {
    let [(name, guid)] = &devices(launcher)?[..] else { anyhow::bail!("not one device") };
    let told = launcher.run(&["/usr/sbin/ibstat"])?.stdout;
    ensure!(told.contains(&format!("CA '{name}'")), "{told}");
    ensure!(value(&told, "State:")? == "Active" && value(&told, "Physical state:")? == "LinkUp", "{told}");
    ensure!(value(&told, "Link layer:")? == "Ethernet", "{told}");
    ensure!(value(&told, "Node GUID:")? == format!("0x{guid}"), "ibv_devices says {guid}: {told}");
    // A script: `cat` and the shell's own patterns.
    let told = launcher.run(&["/usr/sbin/ibstatus"])?.stdout;
    ensure!(told.contains("'urxe0' port 1") && told.contains("4: ACTIVE") && told.contains("5: LinkUp"), "{told}");
    Ok(())
}

/// LIDs where they are asked for, in the files of sysfs as well, which is where ibstat reads them.
#[test]
fn lids_in_sysfs() -> Result<()> {
    let launcher = Launcher::new()?;
    let file = "/sys/class/infiniband/urxe0/ports/1/lid";
    for (options, lid, base) in [(&["--lid", "1"][..], "0x1\n", "1"), (&[], "0x0\n", "0")] {
        let said = launcher.try_run(options, &["cat", file])?.success()?;
        ensure!(said.stdout == lid, "{options:?}: {said}");
        let told = launcher.try_run(options, &["/usr/sbin/ibstat"])?.success()?.stdout;
        ensure!(value(&told, "Base lid:")? == base, "{options:?}: {told}");
    }
    Ok(())
}

const PING_PONG: &str = "ibv_rc_pingpong -d urxe0 -g 1 -n 100 & server=$!
     until ibv_rc_pingpong -d urxe0 -g 1 -n 100 127.0.0.1; do sleep 0.1; done
     wait $server";

fn ping_pong(launcher: &Launcher) -> Result<()> {
    let said = launcher.sh(PING_PONG)?;
    ensure!(said.stdout.matches("100 iters in").count() == 2, "{said}");
    Ok(())
}

#[test]
fn pingpong_in_a_shell() -> Result<()> {
    everywhere(ping_pong)
}

/// Two launchers on one host are one network: nothing but the address and the port have to be known.
#[test]
fn pingpong_between_two_runs() -> Result<()> {
    let launcher = Launcher::new()?;
    let args = ["ibv_rc_pingpong", "-d", "urxe0", "-g", "1", "-n", "100"];
    let server = launcher.host().start(launcher.command(&[], &args)?)?;
    let server = urxe_tests::wait_for_listener(launcher.host(), server, 18515)?;
    launcher.run(&[&args[..], &["127.0.0.1"]].concat())?;
    server.finish(urxe_tests::TIMEOUT)?.success()?;
    Ok(())
}

#[test]
fn rping_in_a_shell() -> Result<()> {
    everywhere(rping)
}

fn rping(launcher: &Launcher) -> Result<()> {
    let said = launcher.sh("rping -s -a 127.0.0.1 -C 10 & server=$!
         until rping -c -a 127.0.0.1 -C 10 -v; do sleep 0.1; done
         wait $server")?;
    ensure!(said.stdout.contains("ping data: rdma-ping-9"), "{said}");
    Ok(())
}

#[test]
fn mpirun() -> Result<()> {
    everywhere(three_ranks)
}

fn three_ranks(launcher: &Launcher) -> Result<()> {
    // It wants processors for its processes, and does not want to be root, which this user may be in its namespace.
    let args = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "3", "ibv_devices"];
    let said = launcher.run(&args)?;
    ensure!(said.stdout.matches("urxe0").count() == 3, "{said}");
    Ok(())
}

#[test]
fn pyverbs() -> Result<()> {
    everywhere(python_bindings)
}

fn python_bindings(launcher: &Launcher) -> Result<()> {
    let said = launcher.python(
        "import pyverbs.device as d
print(d.get_device_list()[0].name.decode())
print(d.Context(name='urxe0').query_gid(1, 1))",
    )?;
    ensure!(said.stdout == "urxe0\n0000:0000:0000:0000:0000:ffff:7f00:0001\n", "{said}");
    Ok(())
}

#[test]
fn ucx_finds_the_device() -> Result<()> {
    // Its transports over verbs are modules, which it loads by themselves.
    let said = Launcher::new()?.sh("UCX_TLS=rc,ud,self UCX_NET_DEVICES=urxe0:1 ucx_info -d -t rc_verbs")?;
    ensure!(said.stdout.contains("urxe0:1") && said.stdout.contains("rc_verbs"), "{said}");
    Ok(())
}

/// A program that does as NCCL: nothing is linked, and no symbol is global.
#[test]
fn a_program_that_loads_libibverbs_by_itself() -> Result<()> {
    let said = Launcher::new()?.python(
        "import ctypes, os
verbs = ctypes.CDLL('libibverbs.so.1', mode=os.RTLD_NOW | os.RTLD_LOCAL)
verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
verbs.ibv_get_device_name.restype = ctypes.c_char_p
verbs.ibv_open_device.restype = ctypes.c_void_p
count = ctypes.c_int()
devices = verbs.ibv_get_device_list(ctypes.byref(count))
device = ctypes.c_void_p(devices[0])
print(count.value, verbs.ibv_get_device_name(device).decode())
context = ctypes.c_void_p(verbs.ibv_open_device(device))
assert context.value
verbs.ibv_close_device(context)",
    )?;
    ensure!(said.stdout == "1 urxe0\n", "{said}");
    Ok(())
}

/// The real `/dev/infiniband` is not seen. (The real `/sys/class/infiniband` goes the same way.)
#[test]
fn devices_of_the_machine_are_hidden() -> Result<()> {
    let launcher = Launcher::new()?;
    launcher.host().run("mkdir", &["/dev/infiniband"])?;
    for name in ["uverbs0", "uverbs7", "umad0"] {
        launcher.host().run("touch", &[&format!("/dev/infiniband/{name}")])?;
    }
    let seen = launcher.run(&["ls", "/dev/infiniband"])?;
    ensure!(seen.stdout == "issm0\nrdma_cm\numad0\nuverbs0\n", "{seen}");
    // Nor is the machine's netlink: all that there is on it is urxe's.
    let netlink = launcher.run(&["rdma", "-j", "dev"])?;
    ensure!(netlink.stdout.matches("ifname").count() == 1 && netlink.stdout.contains("urxe0"), "{netlink}");
    ensure!(devices(&launcher)?.len() == 1);
    Ok(())
}

/// Neither the machine's devices nor `/dev/null`, which the device files lead to; also not by root.
#[test]
fn changes_reach_nothing_of_the_machine() -> Result<()> {
    let launcher = Launcher::new()?;
    let host = launcher.host();
    // SAFETY: `geteuid` has no preconditions.
    let root = unsafe { libc::geteuid() } == 0;
    if root {
        // A test that fails must not change the machine's.
        host.run("sh", &["-ec", "umount /dev/null; rm /dev/null; mknod /dev/null c 1 3; chmod 666 /dev/null"])?;
    }
    host.run(
        "sh",
        &["-ec", "mkdir /dev/infiniband; echo mine >/dev/infiniband/uverbs0; chmod 640 /dev/infiniband/uverbs0"],
    )?;
    let state = || host.run("sh", &["-c", "stat -c '%n %a %u:%g %s %Y' /dev/null /dev/infiniband/*"]);
    let before = state()?.stdout;
    let urxe = launcher.urxe();
    let urxe = urxe.to_str().context("a path that is not UTF-8")?;
    for script in [
        "chmod 600 /dev/infiniband/uverbs0",
        "chmod -R 600 /dev/infiniband",
        "cd /dev && chmod 600 infiniband/*",
        "cd /dev/infiniband && chmod 600 uverbs0 rdma_cm",
        "chown 1:1 /dev/infiniband/uverbs0",
        "chown -R 1:1 /dev/infiniband",
        "touch /dev/infiniband/new",
        "rm -rf /dev/infiniband/uverbs0",
        "mv /dev/infiniband/uverbs0 /dev/infiniband/uverbs1",
        "ln -sf /dev/zero /dev/infiniband/uverbs0",
        "/usr/bin/python3 -c 'import os; os.chmod(\"/dev/infiniband/uverbs0\", 0o600)'",
    ] {
        let refused = host.try_run(urxe, &["run", "--", "sh", "-c", script])?.failure()?;
        ensure!(refused.stderr.contains("Read-only file system"), "{refused}");
        let after = state()?.stdout;
        ensure!(before == after, "{script}: {before} became {after}");
    }
    // It opens the device, and changes the times of what it has opened.
    host.try_run(urxe, &["run", "--", "touch", "-d", "2001-01-01", "/dev/infiniband/uverbs0"])?;
    ensure!(before == state()?.stdout, "{before} became {}", state()?.stdout);
    // Writing to a device changes nothing, and is not refused.
    host.run(urxe, &["run", "--", "sh", "-ec", "echo a >/dev/infiniband/uverbs0; test -c /dev/infiniband/uverbs0"])?;
    ensure!(before == state()?.stdout, "{before}");
    Ok(())
}

/// Programs that are statically linked do not notice.
#[test]
fn a_static_program() -> Result<()> {
    let said = Launcher::new()?.run(&["/sbin/ldconfig", "--print-cache"])?;
    ensure!(said.stdout.contains("libc.so.6") && said.stderr.lines().count() == 1, "{said}");
    ensure!(said.stderr.contains("warning: /sbin/ldconfig is statically linked"), "{said}");
    Ok(())
}

/// A handler of SIGSEGV that the program installs after it has registered memory is called for the program's faults, in every
/// way that sigaction(2) knows, and never for the device's.
#[test]
fn handlers_of_faults() -> Result<()> {
    let launcher = Launcher::new()?;
    let file = launcher.world().dir().join("fault_handlers.c");
    std::fs::write(&file, include_str!("../programs/fault_handlers.c"))?;
    let (program, file) = (file.with_extension("").display().to_string(), file.display().to_string());
    launcher.host().run("gcc", &["-O1", "-Wall", "-o", &program, &file, "-libverbs"])?.success()?;
    let said = launcher.run(&[&program])?;
    ensure!(said.stdout == "handled\n", "{said}");
    Ok(())
}
