//! The subnet of the InfiniBand personality: Debian's infiniband-diags and opensm under `urxe run --link-layer infiniband`,
//! without root and with nothing installed, on one host by `lo` and between hosts.

use anyhow::{Context, Result, ensure};
use urxe_tests::{
    DIAGNOSTICS, Finished, Host, Launcher, Process, REFUSED_DIAGNOSTICS, TIMEOUT, ask_again, compile_mad_program,
    wait_until,
};

const INFINIBAND: [&str; 2] = ["--link-layer", "infiniband"];

/// Hosts on one Ethernet, the first of which is the launcher's; programs are those of a user without rights.
struct Fabric<'a> {
    launcher: &'a Launcher,
    hosts: Vec<&'a Host>,
}

impl Fabric<'_> {
    fn try_run(&self, host: usize, words: &[&str]) -> Result<Finished> {
        self.spawn(host, words)?.finish(TIMEOUT)
    }

    /// Output of a program that succeeds, and loses no ping.
    fn run(&self, host: usize, words: &[&str]) -> Result<String> {
        Ok(ask_again(|| self.try_run(host, words))?.success()?.stdout)
    }

    /// Waits until a program of the first host says all of this: one that has just begun may not have heard of every host.
    fn shows(&self, command: &str, wanted: &[&str]) -> Result<()> {
        let words: Vec<&str> = command.split(' ').collect();
        let mut said = String::new();
        wait_until(command, || {
            said = self.run(0, &words)?;
            Ok(has(&said, wanted).is_ok())
        })
        .with_context(|| format!("{wanted:?} in {said}"))
    }

    fn spawn(&self, host: usize, words: &[&str]) -> Result<Process> {
        let host = self.hosts[host];
        host.start(self.launcher.command_on(host, &INFINIBAND, words)?)
    }

    /// A server of ibping or ibsysstat on a host that answers the first one.
    fn server(&self, program: &str, host: usize, lid: &str) -> Result<Process> {
        let server = self.spawn(host, &[program, "-S"])?;
        let (count, wanted): (&[&str], _) =
            if program == "ibping" { (&["-c", "1"], "1 received") } else { (&[], "succeeded") };
        wait_until(program, || {
            let said = self.try_run(0, &[&[program], count, &[lid]].concat())?;
            Ok(said.stdout.contains(wanted))
        })?;
        Ok(server)
    }
}

fn end(process: Process) -> Result<()> {
    process.signal(libc::SIGKILL)?;
    process.finish(TIMEOUT)?;
    Ok(())
}

/// Fails unless the output has each of these.
fn has(output: &str, wanted: &[&str]) -> Result<()> {
    for wanted in wanted {
        ensure!(output.contains(wanted), "no {wanted:?} in {output}");
    }
    Ok(())
}

/// Runs a test with two hosts on a cable: 10.77.0.1 and 10.77.0.2, LIDs 1 and 2.
fn with_two_hosts(test: impl FnOnce(&Fabric<'_>) -> Result<()>) -> Result<()> {
    let launcher = Launcher::new()?;
    let (world, other) = (launcher.world(), launcher.world().add_host()?);
    world.link(world.host(), &other, 1500)?;
    test(&Fabric { launcher: &launcher, hosts: vec![world.host(), &other] })
}

const GUIDS: [&str; 2] = ["0x02005efe0a4d0001", "0x02005efe0a4d0002"];

/// The lines of a manual's page about InfiniBand.
#[test]
fn ibstat_and_ibping_between_two_hosts() -> Result<()> {
    with_two_hosts(|fabric| {
        let server = fabric.server("ibping", 1, "2")?;
        let port = fabric.run(0, &["ibstat"])?;
        has(
            &port,
            &["State: Active", "Physical state: LinkUp", "Base lid: 1\n", "SM lid: 48896\n", "Link layer: InfiniBand"],
        )?;
        has(&port, &[&format!("Port GUID: {}", GUIDS[0])])?;
        let said = fabric.run(0, &["ibping", "-c", "3", "-G", GUIDS[1]])?;
        has(&said, &["(Lid 2): time", "3 packets transmitted, 3 received, 0% packet loss"])?;
        let said = fabric.run(0, &["ibping", "-c", "1000", "-f", "2"])?;
        has(&said, &["1000 packets transmitted, 1000 received, 0% packet loss"])?;
        end(server)
    })
}

/// Every diagnostic about a host that answers, from the first host.
fn diagnose(fabric: &Fabric<'_>, lid: &str, guid: &str) -> Result<()> {
    let host = fabric.hosts.len() - 1;
    let servers = [fabric.server("ibping", host, lid)?, fabric.server("ibsysstat", host, lid)?];
    let (digits, port) = (guid.trim_start_matches("0x"), lid);
    let fill = |text: &str| {
        let known = text.replace("{lid}", lid).replace("{port}", port).replace("{own}", "1");
        known.replace("{guid}", guid).replace("{digits}", digits)
    };
    for (command, wanted) in DIAGNOSTICS {
        let wanted: Vec<String> = wanted.iter().copied().map(fill).collect();
        fabric.shows(&fill(command), &wanted.iter().map(String::as_str).collect::<Vec<_>>())?;
    }
    for (command, wanted) in REFUSED_DIAGNOSTICS {
        let command = fill(command);
        let refused = fabric.try_run(0, &command.split(' ').collect::<Vec<_>>())?.failure()?;
        // Where the program says it depends on its release.
        ensure!(format!("{}{}", refused.stdout, refused.stderr).contains(wanted), "{refused}");
    }
    servers.into_iter().try_for_each(end)
}

#[test]
fn diagnostics_of_two_hosts() -> Result<()> {
    with_two_hosts(|fabric| {
        diagnose(fabric, "2", GUIDS[1])?;
        let server = fabric.server("ibping", 1, "2")?;
        let run = |words: &str| fabric.run(0, &words.split(' ').collect::<Vec<_>>());
        fabric.shows("ibhosts", &GUIDS)?;
        fabric.shows("saquery NR", &GUIDS)?;
        let links = run("iblinkinfo -l")?;
        ensure!(links.lines().filter(|line| line.contains("Active/  LinkUp")).count() >= 2, "{links}");
        fabric.shows("ibtracert 1 2", &["[1] -> switch port", "[2] -> ca port {0x02005efe0a4d0002}"])?;
        end(server)
    })
}

/// Programs of one host see the host and its switch, on `lo`.
#[test]
fn diagnostics_of_one_host() -> Result<()> {
    let launcher = Launcher::new()?;
    let fabric = Fabric { launcher: &launcher, hosts: vec![launcher.host()] };
    diagnose(&fabric, "1", "0x02005efe7f000001")?;
    let said = fabric.run(0, &["ibnetdiscover"])?;
    ensure!(said.matches("H-02005efe7f000001").count() >= 1 && !said.contains("[2]"), "{said}");
    let server = fabric.server("ibping", 0, "1")?;
    let said = fabric.run(0, &["ibping", "-c", "1000", "-f", "1"])?;
    has(&said, &["1000 packets transmitted, 1000 received, 0% packet loss"])?;
    end(server)
}

/// A group that a program of one host makes by subnet administration, and one of another host joins: messages reach the first.
#[test]
fn messages_to_a_group_that_administration_knows() -> Result<()> {
    let launcher = Launcher::new()?;
    let program = compile_mad_program(launcher.world(), "sa_multicast", include_str!("../programs/sa_multicast.c"))?;
    let (world, other) = (launcher.world(), launcher.world().add_host()?);
    world.link(world.host(), &other, 1500)?;
    let fabric = Fabric { launcher: &launcher, hosts: vec![world.host(), &other] };
    let group = "ff12:a01c:fe00::7";
    let mut receiver = fabric.spawn(0, &[&program, "recv", group])?;
    wait_until("the receiver has joined", || {
        ensure!(receiver.is_running()?, "{}", receiver.stdout_so_far());
        Ok(receiver.stdout_so_far().contains("joined"))
    })?;
    let sender = fabric.run(1, &[&program, "send", group, "to whom it may concern"])?;
    let received = receiver.finish(TIMEOUT)?.success()?.stdout;
    let joined = sender.lines().next().context("no line")?;
    has(joined, &["joined 0x", " 0x1234"])?;
    has(&received, &[joined, "message to whom it may concern\n"])
}

/// A port without an IPv4 address is in no subnet; one that gets an address later is, and one whose address changes is with its new LID.
#[test]
fn a_port_follows_its_address() -> Result<()> {
    with_two_hosts(|fabric| {
        let address = |change: &str, last: u8| {
            let words = ["address", change, &format!("10.77.0.{last}/24"), "dev", "veth0"];
            fabric.hosts[1].run("ip", &words)?.success()
        };
        address("del", 2)?;
        let mut watch = fabric.spawn(1, &["ibv_asyncwatch"])?;
        let mut wait_for = |wanted: &str, count: usize| {
            wait_until(wanted, || {
                ensure!(watch.is_running()?, "{}", watch.stderr_so_far());
                Ok(watch.stdout_so_far().matches(wanted).count() >= count)
            })
        };
        wait_for("async event FD", 1)?;
        let is_there = |lid: &str, guid: &str| {
            wait_until(guid, || {
                let by_lid = fabric.try_run(0, &["smpquery", "nodeinfo", lid])?.stdout;
                let route = fabric.try_run(0, &["smpquery", "-D", "nodeinfo", &format!("0,1,{lid}")])?.stdout;
                Ok(by_lid.contains(guid) && route.contains(guid))
            })
        };
        let hosts = || fabric.run(0, &["ibhosts"]);
        ensure!(!hosts()?.contains(GUIDS[1]), "{}", hosts()?);
        address("add", 2)?;
        wait_for("IBV_EVENT_LID_CHANGE", 1)?;
        is_there("2", GUIDS[1])?;
        address("add", 5)?;
        address("del", 2)?;
        // The kernel may take the second address away with the first, whose network it is in.
        let _ = address("add", 5);
        wait_for("IBV_EVENT_LID_CHANGE", 2)?;
        is_there("5", "0x02005efe0a4d0005")?;
        wait_until("the old LID is gone", || {
            let said = hosts()?;
            Ok(said.contains("0x02005efe0a4d0005") && !said.contains(GUIDS[1]))
        })?;
        end(watch)
    })
}

/// A program that takes reports of subnet administration leaves questions to the built-in one, which tells it of hosts that come
/// and go.
#[test]
fn hosts_that_come_and_go_are_reported() -> Result<()> {
    let launcher = Launcher::new()?;
    let program = compile_mad_program(launcher.world(), "sa_reports", include_str!("../programs/sa_reports.c"))?;
    let (world, other) = (launcher.world(), launcher.world().add_host()?);
    world.link(world.host(), &other, 1500)?;
    let fabric = Fabric { launcher: &launcher, hosts: vec![world.host(), &other] };
    let mut reports = fabric.spawn(0, &[&program, "64", "65"])?;
    let mut wait_for = |wanted: &str| {
        wait_until(wanted, || {
            ensure!(reports.is_running()?, "{}", reports.stdout_so_far());
            Ok(reports.stdout_so_far().contains(wanted))
        })
    };
    wait_for("subscribed\n")?;
    // Questions of others have answers as well.
    has(&fabric.run(0, &["saquery", "SMIR"])?, &["SMState...............3"])?;
    let server = fabric.spawn(1, &["ibping", "-S"])?;
    wait_for(&format!("trap 64 guid {}\n", GUIDS[1]))?;
    end(server)?;
    wait_for(&format!("trap 65 guid {}\n", GUIDS[1]))?;
    end(reports)
}

/// A program of libibmad, by a user without rights.
#[test]
fn a_program_of_libibmad() -> Result<()> {
    let launcher = Launcher::new()?;
    let program = compile_mad_program(launcher.world(), "ibmad", include_str!("../programs/ibmad.c"))?;
    let said = launcher.try_run(&["--link-layer", "infiniband"], &[&program, "0", "0,1", "0,1,1", "1"])?.success()?;
    let own = "type 1 ports 1 guid 0x02005efe7f000001";
    let switch = "0,1 type 2 ports 241 guid 0x027572fffe737700";
    ensure!(said.stdout == format!("0 {own}\n{switch}\n0,1,1 {own}\nlid 1 state 4 sm 48896\n"), "{said}");
    Ok(())
}
