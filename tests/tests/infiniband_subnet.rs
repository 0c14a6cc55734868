//! The subnet of the InfiniBand personality: Debian's infiniband-diags and opensm under `urxe run --link-layer infiniband`,
//! without root and with nothing installed, on one host by `lo` and between hosts.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use urxe_tests::{Finished, Host, Launcher, Process, compile_mad_program, wait_until};

const INFINIBAND: [&str; 3] = ["run", "--link-layer", "infiniband"];

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is not UTF-8")
}

/// Hosts on one Ethernet, the first of which is the launcher's.
struct Fabric<'a> {
    urxe: String,
    hosts: Vec<&'a Host>,
}

impl Fabric<'_> {
    fn words<'w>(words: &'w [&'w str]) -> Vec<&'w str> {
        [&INFINIBAND[..], &["--"], words].concat()
    }

    fn try_run(&self, host: usize, words: &[&str]) -> Result<Finished> {
        self.hosts[host].try_run(&self.urxe, &Self::words(words))
    }

    /// Output of a program that succeeds.
    fn run(&self, host: usize, words: &[&str]) -> Result<String> {
        Ok(self.try_run(host, words)?.success()?.stdout)
    }

    fn spawn(&self, host: usize, words: &[&str]) -> Result<Process> {
        self.hosts[host].spawn(&self.urxe, &Self::words(words))
    }

    /// A server of ibping on a host that answers the first one.
    fn server(&self, host: usize, lid: &str) -> Result<Process> {
        let server = self.spawn(host, &["ibping", "-S"])?;
        wait_until("a server of ibping", || {
            let said = self.try_run(0, &["ibping", "-c", "1", lid])?;
            Ok(said.stdout.contains("1 received"))
        })?;
        Ok(server)
    }
}

fn end(process: Process) -> Result<()> {
    process.signal(libc::SIGKILL)?;
    process.finish(urxe_tests::TIMEOUT)?;
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
    test(&Fabric { urxe: text(&launcher.urxe())?.to_owned(), hosts: vec![world.host(), &other] })
}

const GUIDS: [&str; 2] = ["0x02005efe0a4d0001", "0x02005efe0a4d0002"];

/// The lines of a manual's page about InfiniBand.
#[test]
fn ibstat_and_ibping_between_two_hosts() -> Result<()> {
    with_two_hosts(|fabric| {
        let server = fabric.server(1, "2")?;
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

#[test]
fn diagnostics_of_two_hosts() -> Result<()> {
    with_two_hosts(|fabric| {
        let server = fabric.server(1, "2")?;
        let run = |words: &str| fabric.run(0, &words.split(' ').collect::<Vec<_>>());
        has(&run("ibhosts")?, &GUIDS)?;
        has(&run("ibswitches")?, &["ports 241 \"urxe virtual switch, leaf 0\"", "lid 48896 lmc 0"])?;
        has(&run("ibnetdiscover")?, &["Switch\t241", "H-02005efe0a4d0001", "H-02005efe0a4d0002", "lid 2 lmc 0"])?;
        let links = run("iblinkinfo -l")?;
        ensure!(links.lines().filter(|line| line.contains("Active/  LinkUp")).count() >= 2, "{links}");
        has(&run("sminfo")?, &["sm lid 48896 sm guid 0x27572fffe737700", "state 3 SMINFO_MASTER"])?;
        has(&run("ibaddr 2")?, &["LID start 0x2 end 0x2"])?;
        has(&run("smpquery nodeinfo 2")?, &["Channel Adapter", GUIDS[1]])?;
        has(&run("smpquery -D nodeinfo 0,1,2")?, &["Channel Adapter", GUIDS[1]])?;
        has(&run("smpquery -D nodeinfo 0,1")?, &["Switch", "NumPorts:........................241"])?;
        has(
            &run("smpquery portinfo 2 1")?,
            &["LinkState:.......................Active", "SMLid:...........................48896"],
        )?;
        has(&run("smpquery switchinfo 48896")?, &["LinearFdbCap:....................49152"])?;
        has(&run("smpquery pkeys 2")?, &["0: 0xffff", "32 pkeys capacity"])?;
        has(&run("smpquery guidinfo 2")?, &["0x02005efe0a4d0002"])?;
        has(&run("ibroute 48896")?, &["0x0001 001", "0x0002 002", "0xbf00 000"])?;
        has(&run("ibtracert 1 2")?, &["[1] -> switch port", "[2] -> ca port {0x02005efe0a4d0002}"])?;
        has(&run("perfquery -x 2 1")?, &["PortXmitPkts"])?;
        run("perfquery -R 2 1")?;
        has(&run("saquery NR")?, &["urxe virtual switch, leaf 0", GUIDS[0], GUIDS[1]])?;
        has(&run("saquery -p --src-to-dst 1:2")?, &["dlid....................2", "slid....................1"])?;
        has(&run("saquery PIR")?, &["LinkState:.......................Active"])?;
        has(&run("saquery LR")?, &["LinkRecord dump"])?;
        has(&run("saquery SMIR")?, &["SMState...............3"])?;
        has(&run("ibqueryerrors")?, &["0 bad nodes found"])?;
        let refused = fabric.try_run(0, &["ibccquery", "CongestionInfo", "2"])?.failure()?;
        // Where the program says it depends on its release.
        let said = format!("{}{}", refused.stdout, refused.stderr);
        ensure!(said.contains("CongestionInfo"), "{refused}");
        end(server)
    })
}

/// Programs of one host see the host and its switch, on `lo`.
#[test]
fn one_host_by_itself() -> Result<()> {
    let launcher = Launcher::new()?;
    let option = ["--link-layer", "infiniband"];
    let run = |words: &[&str]| Ok::<_, anyhow::Error>(launcher.try_run(&option, words)?.success()?.stdout);
    has(&run(&["ibstat"])?, &["State: Active", "Base lid: 1\n", "SM lid: 48896\n"])?;
    has(&run(&["sminfo"])?, &["state 3 SMINFO_MASTER"])?;
    has(&run(&["ibnetdiscover"])?, &["Switch\t241", "H-02005efe7f000001"])?;
    let server = launcher.host().start(launcher.command(&option, &["ibping", "-S"])?)?;
    wait_until("a server of ibping", || {
        let said = launcher.try_run(&option, &["ibping", "-c", "1", "-G", "0x02005efe7f000001"])?;
        Ok(said.stdout.contains("1 received"))
    })?;
    end(server)
}

/// A group that a program of one host makes by subnet administration, and one of another host joins: messages reach the first.
#[test]
fn messages_to_a_group_that_administration_knows() -> Result<()> {
    let launcher = Launcher::new()?;
    let program = compile_mad_program(launcher.world(), "sa_multicast", include_str!("../programs/sa_multicast.c"))?;
    let (world, other) = (launcher.world(), launcher.world().add_host()?);
    world.link(world.host(), &other, 1500)?;
    let fabric = Fabric { urxe: text(&launcher.urxe())?.to_owned(), hosts: vec![world.host(), &other] };
    let group = "ff12:a01b:fe00::7";
    let mut receiver = fabric.spawn(0, &[&program, "recv", group])?;
    wait_until("the receiver has joined", || {
        ensure!(receiver.is_running()?, "{}", receiver.stdout_so_far());
        Ok(receiver.stdout_so_far().contains("joined"))
    })?;
    let sender = fabric.run(1, &[&program, "send", group, "to whom it may concern"])?;
    let received = receiver.finish(urxe_tests::TIMEOUT)?.success()?.stdout;
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
    let fabric = Fabric { urxe: text(&launcher.urxe())?.to_owned(), hosts: vec![world.host(), &other] };
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
