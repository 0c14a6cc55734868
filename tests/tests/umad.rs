//! Management datagrams through the stock libibumad and the programs of infiniband-diags, under `urxe run`: without root,
//! with nothing installed.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use urxe_tests::{Host, Launcher, Process, TIMEOUT, wait_until};

/// Compiles the program of these tests, for everybody to run.
fn program(launcher: &Launcher) -> Result<String> {
    let source = launcher.world().dir().join("umad.c");
    std::fs::write(&source, include_str!("../programs/umad.c"))?;
    let program = source.with_extension("");
    let (source, program) = (text(&source)?, text(&program)?);
    launcher.host().run("gcc", &["-O1", "-Wall", "-Werror", "-o", program, source, "-libumad"])?.success()?;
    Ok(program.to_owned())
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is not UTF-8")
}

/// Waits until the process has printed this.
fn wait_for_output(process: &Process, wanted: &str) -> Result<()> {
    wait_until(wanted, || Ok(process.stdout_so_far().contains(wanted)))
}

/// A program under `urxe run` by the unprivileged user.
fn start(launcher: &Launcher, options: &[&str], words: &[&str]) -> Result<Process> {
    launcher.host().start(launcher.command(options, words)?)
}

#[test]
fn the_files_of_user_mad() -> Result<()> {
    let launcher = Launcher::new()?;
    let said = launcher
        .sh("cd /sys/class/infiniband_mad; ls; cat abi_version umad0/ibdev umad0/port issm0/ibdev issm0/port")?;
    ensure!(said.stdout == "abi_version\nissm0\numad0\n5\nurxe0\n1\nurxe0\n1\n", "{said}");
    let said = launcher.sh(
        "test -c /dev/infiniband/umad0 && test -c /dev/infiniband/issm0 && readlink -f /sys/class/infiniband_mad/umad0",
    )?;
    ensure!(said.stdout.ends_with("/infiniband_mad/umad0\n"), "{said}");
    // One program of the host is the port's subnet manager (`ib_umad_sm_open`).
    let script = "import os, errno
held = os.open('/dev/infiniband/issm0', os.O_RDWR)
try:
    os.open('/dev/infiniband/issm0', os.O_RDWR | os.O_NONBLOCK)
except OSError as error:
    print(errno.errorcode[error.errno])
os.close(held)
os.open('/dev/infiniband/issm0', os.O_RDWR | os.O_NONBLOCK)
try:
    os.open('/dev/infiniband/umad1', os.O_RDWR)
except OSError as error:
    print(errno.errorcode[error.errno])";
    let said = launcher.python(script)?;
    ensure!(said.stdout == "EAGAIN\nENOENT\n", "{said}");
    Ok(())
}

/// A server and a client; messages of one datagram, and longer ones by RMPP, both ways.
fn exchange(server: Process, ask: impl Fn(&str) -> Result<String>) -> Result<()> {
    wait_for_output(&server, "serving\n")?;
    for (bytes, length) in [("100", 256), ("216", 256), ("217", 257), ("65536", 65576)] {
        let said = ask(bytes)?;
        ensure!(said == format!("status 0 mad status 0 length {length} same\n"), "{bytes} bytes: {said}");
    }
    let said = server.finish(TIMEOUT)?.success()?;
    ensure!(said.stdout == "serving\nneeds 257 bytes\nneeds 65576 bytes\n", "{said}");
    Ok(())
}

#[test]
fn two_processes_of_a_host() -> Result<()> {
    let launcher = Launcher::new()?;
    let program = program(&launcher)?;
    let server = start(&launcher, &[], &[&program, "serve", "4"])?;
    exchange(server, |bytes| Ok(launcher.run(&[&program, "ask", "::ffff:127.0.0.1", bytes, "20000", "7"])?.stdout))
}

#[test]
fn two_hosts() -> Result<()> {
    let launcher = Launcher::new()?;
    let program = program(&launcher)?;
    let (world, other) = (launcher.world(), launcher.world().add_host()?);
    world.link(world.host(), &other, 1500)?;
    let urxe = launcher.urxe();
    let urxe = text(&urxe)?;
    let server = other.spawn(urxe, &["run", "--", &program, "serve", "4"])?;
    let ask = |host: &Host, bytes: &str| {
        let words = ["run", "--", &program, "ask", "::ffff:10.77.0.2", bytes, "20000", "7"];
        Ok(host.run(urxe, &words)?.stdout)
    };
    exchange(server, |bytes| ask(world.host(), bytes))
}

#[test]
fn silent_hosts_time_out_and_missing_agents_get_a_status() -> Result<()> {
    let launcher = Launcher::new()?;
    let program = program(&launcher)?;
    let ask = |gid: &str, timeout_ms: &str| {
        Ok::<_, anyhow::Error>(launcher.try_run(&[], &[&program, "ask", gid, "100", timeout_ms, "2"])?.stdout)
    };
    // Nobody is there; only the header comes back.
    ensure!(ask("::ffff:127.0.0.9", "100")? == format!("status {} mad status 0 length 24 same\n", libc::ETIMEDOUT));
    // The port says that it has no agent for the class (`generate_unmatched_resp`).
    ensure!(ask("::ffff:127.0.0.1", "20000")? == "status 0 mad status 12 length 256 same\n");
    Ok(())
}

#[test]
fn a_method_of_a_class_is_one_agents() -> Result<()> {
    let launcher = Launcher::new()?;
    let program = program(&launcher)?;
    let register = |class, version, method| {
        Ok::<_, anyhow::Error>(launcher.run(&[&program, "register", class, version, method])?.stdout)
    };
    let holder = start(&launcher, &[], &[&program, "hold", "0x32", "1", "1"])?;
    wait_for_output(&holder, "registered\n")?;
    ensure!(register("0x32", "1", "1")? == "Invalid argument\n");
    ensure!(register("0x32", "1", "2")? == "registered\n" && register("0x33", "1", "1")? == "registered\n");
    let server = start(&launcher, &[], &[&program, "serve", "1"])?;
    wait_for_output(&server, "register: Invalid argument\n")?;
    drop(server);
    holder.signal(libc::SIGKILL)?;
    holder.finish(TIMEOUT)?;
    wait_until("the killed agent's names", || Ok(register("0x32", "1", "1")? == "registered\n"))?;
    // Requests of communication management are the device's own, subnet management has no QP on Ethernet, and there are
    // no classes from 0x50 on.
    ensure!(register("7", "2", "3")? == "Invalid argument\n" && register("7", "2", "4")? == "registered\n");
    ensure!(
        register("1", "1", "1")? == "Protocol not supported\n" && register("0x50", "1", "1")? == "Invalid argument\n"
    );
    Ok(())
}

/// The other way to register: vendors and flags of their own fields.
#[test]
fn agents_of_the_second_kind() -> Result<()> {
    let launcher = Launcher::new()?;
    let program = program(&launcher)?;
    for (class, oui, flags, wanted) in [
        ("0x32", "0x001405", "0", "registered"),
        ("0x32", "0x001405", "1", "registered"),
        ("0x09", "0", "0", "registered"),
        // No flag has this bit, no OUI four bytes, and a class of vendors needs one.
        ("0x32", "0x001405", "2", "Invalid argument"),
        ("0x32", "0x1001405", "0", "Invalid argument"),
        ("0x32", "0", "0", "Invalid argument"),
    ] {
        let said = launcher.run(&[&program, "register2", class, oui, flags])?.stdout;
        ensure!(said == format!("{wanted}\n"), "{class} {oui} {flags}: {said}");
    }
    Ok(())
}

/// A thousand agents of a process: a file takes 32, others' messages pass, and nothing is left of them.
#[test]
fn agents_by_the_thousand() -> Result<()> {
    let launcher = Launcher::new()?;
    let program = program(&launcher)?;
    let many = start(&launcher, &[], &[&program, "many", "32"])?;
    wait_for_output(&many, "1024 agents, then Cannot allocate memory\n")?;
    let server = start(&launcher, &[], &[&program, "serve", "1"])?;
    wait_for_output(&server, "serving\n")?;
    let said = launcher.run(&[&program, "ask", "::ffff:127.0.0.1", "100", "20000", "7"])?.stdout;
    ensure!(said == "status 0 mad status 0 length 256 same\n", "{said}");
    server.finish(TIMEOUT)?.success()?;
    many.signal(libc::SIGUSR1)?;
    let said = many.finish(TIMEOUT)?.success()?.stdout;
    ensure!(said.ends_with("\n0 descriptors more\n"), "{said}");
    Ok(())
}

/// Diagnostics of InfiniBand that a kernel's RoCE port refuses, and how.
#[test]
fn diagnostics_by_lid_are_refused_as_by_the_kernels_rxe() -> Result<()> {
    let launcher = Launcher::new()?;
    let refused = |words: &[&str], wanted: &str| {
        let said = launcher.try_run(&[], words)?.failure()?;
        ensure!(format!("{}{}", said.stdout, said.stderr).contains(wanted), "{said}");
        Ok(())
    };
    refused(&["perfquery"], "client_register for mgmt 1 failed")?;
    refused(&["sminfo"], "client_register for mgmt 1 failed")?;
    refused(&["ibping", "-c", "1", "-G", "0x1"], "can't resolve destination port 0x1")?;
    let said = launcher.try_run(&[], &["ibping", "-c", "1", "1"])?;
    ensure!(said.stderr.contains("send failed; Invalid argument"), "{said}");
    Ok(())
}

/// A line `name:.....value` of perfquery.
fn value(output: &str, name: &str) -> Result<u64> {
    let line = output.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let line = line.with_context(|| format!("no {name} in {output}"))?;
    Ok(line.trim_start_matches('.').parse()?)
}

/// Packets that the programs of the user have received, by `urxe status`.
fn packets_received(launcher: &Launcher) -> Result<u64> {
    let urxe = launcher.urxe();
    let said =
        launcher.host().start(launcher.plain(&[text(&urxe)?, "status", "--json"]))?.finish(TIMEOUT)?.success()?;
    let devices: Value = serde_json::from_str(&said.stdout)?;
    let devices = devices.as_array().into_iter().flatten();
    Ok(devices.filter_map(|device| device["counters"]["rx_packets"].as_u64()).sum())
}

#[test]
fn ibping_and_perfquery_by_lid() -> Result<()> {
    let launcher = Launcher::new()?;
    let lid = ["--lid", "1"];
    let server = start(&launcher, &lid, &["ibping", "-S"])?;
    wait_until("a server of ibping", || {
        let said = launcher.try_run(&lid, &["ibping", "-c", "1", "1"])?;
        Ok(said.stdout.contains("1 received"))
    })?;
    let said = launcher.try_run(&lid, &["ibping", "-c", "1000", "-f", "1"])?;
    ensure!(said.stdout.contains("1000 packets transmitted, 1000 received, 0% packet loss"), "{said}");
    // The server has got these; `urxe status` says as many as the port's answer, which has the few of the program that asks besides.
    let before = packets_received(&launcher)?;
    let shown = value(&launcher.try_run(&lid, &["perfquery", "-x", "1", "1"])?.success()?.stdout, "PortRcvPkts")?;
    let after = packets_received(&launcher)?;
    ensure!(before >= 1000 && (before..after + 50).contains(&shown), "{before} <= {shown} <= {after}");
    server.signal(libc::SIGKILL)?;
    server.finish(TIMEOUT)?;

    // Traffic, and what sysfs and perfquery say of it, within one run.
    let counter = "cat /sys/class/infiniband/urxe0/ports/1/counters/port_rcv_packets";
    let script = format!(
        "ibping -c 50 -f 1 >/dev/null; {counter}; perfquery -x 1 1; {counter}; perfquery -R 1 1; perfquery -x; perfquery 1 1"
    );
    let said = launcher.try_run(&lid, &["sh", "-c", &script])?.success()?.stdout;
    let numbers: Vec<u64> = said.lines().filter_map(|line| line.parse().ok()).collect();
    let [before, after] = numbers[..] else { anyhow::bail!("no counters in {said}") };
    let (first, rest) = said
        .split_once("# Port extended")
        .context("no answer")?
        .1
        .split_once("# Port extended")
        .context("no answer")?;
    let shown = value(first, "PortRcvPkts")?;
    ensure!(before > 50 && (before..=after).contains(&shown), "{before} <= {shown} <= {after}: {said}");
    ensure!(value(rest, "PortRcvPkts")? < 50, "it was reset: {said}");
    ensure!(value(rest, "SymbolErrorCounter")? == 0 && value(rest, "PortXmitWait")? == 0, "{said}");
    Ok(())
}
