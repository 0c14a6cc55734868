//! Debian's opensm as the manager of a subnet of the InfiniBand personality.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use urxe_tests::{Host, Launcher, Process, TIMEOUT, compile_mad_program, wait_until};

const INFINIBAND: [&str; 4] = ["run", "--link-layer", "infiniband", "--"];

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is not UTF-8")
}

/// Two hosts on a cable, 10.77.0.1 and 10.77.0.2: LIDs 1 and 2.
struct Cable<'a> {
    urxe: PathBuf,
    dir: PathBuf,
    hosts: [&'a Host; 2],
    /// Subscribes to reports.
    program: String,
    /// Joins groups.
    joins: String,
}

impl Cable<'_> {
    fn spawn(&self, host: usize, words: &[&str]) -> Result<Process> {
        self.hosts[host].spawn(&self.urxe, &[&INFINIBAND[..], words].concat())
    }

    fn say(&self, host: usize, words: &[&str]) -> Result<String> {
        Ok(self.hosts[host].try_run(&self.urxe, &[&INFINIBAND[..], words].concat())?.stdout)
    }

    fn log(&self, host: usize) -> PathBuf {
        self.dir.join(format!("opensm{host}.log"))
    }

    /// Starts opensm with options; its files are in the world's folder.
    fn opensm(&self, host: usize, options: &[&str]) -> Result<Process> {
        let folder = self.dir.join(format!("cache{host}"));
        std::fs::create_dir_all(&folder)?;
        let variables = [format!("OSM_CACHE_DIR={}/", text(&folder)?), format!("OSM_TMP_DIR={}/", text(&folder)?)];
        let log = self.log(host);
        // Each line of the log is written at once: what is waited for is in there. A host has two seconds for an answer, three times:
        // the default, a tenth of that, is the error of a busy machine.
        let words =
            ["env", &variables[0], &variables[1], "opensm", "-D", "0x3", "-d2", "-t", "2000", "-f", text(&log)?];
        self.spawn(host, &[&words[..], options].concat())
    }

    /// Waits until the log of opensm has this.
    fn wait_for(&self, host: usize, wanted: &str) -> Result<()> {
        wait_until(wanted, || Ok(std::fs::read_to_string(self.log(host)).unwrap_or_default().contains(wanted)))
    }

    /// Fails if opensm has had errors.
    fn check_log(&self, host: usize) -> Result<()> {
        let log = std::fs::read_to_string(self.log(host))?;
        let errors: Vec<_> = log.lines().filter(|line| line.contains("ERR ")).collect();
        ensure!(errors.is_empty(), "{errors:#?}");
        Ok(())
    }

    /// Waits until a host's subnet manager is the one with this LID and GUID.
    fn wait_for_manager(&self, host: usize, manager: &str) -> Result<()> {
        wait_until(manager, || {
            let said = self.say(host, &["sminfo"])?;
            Ok(said.contains(manager) && said.contains("SMINFO_MASTER"))
        })
    }
}

fn with_cable(test: impl FnOnce(&Cable<'_>) -> Result<()>) -> Result<()> {
    let launcher = Launcher::new()?;
    let (world, other) = (launcher.world(), launcher.world().add_host()?);
    world.link(world.host(), &other, 1500)?;
    let program = compile_mad_program(world, "sa_reports", include_str!("../programs/sa_reports.c"))?;
    let joins = compile_mad_program(world, "sa_multicast", include_str!("../programs/sa_multicast.c"))?;
    test(&Cable { urxe: launcher.urxe(), dir: world.dir().to_owned(), hosts: [world.host(), &other], program, joins })
}

fn kill(process: Process) -> Result<()> {
    process.signal(libc::SIGKILL)?;
    process.finish(TIMEOUT)?;
    Ok(())
}

const FIRST: &str = "sm lid 1 sm guid 0x2005efe0a4d0001";
const SECOND: &str = "sm lid 2 sm guid 0x2005efe0a4d0002";
const BUILT_IN: &str = "sm lid 48896 sm guid 0x27572fffe737700";

/// opensm sweeps, is killed, which the built-in manager replaces, and is started again; a host comes, and is missed. As it does
/// not sweep from time to time, it hears of that by traps.
#[test]
fn opensm_manages_the_subnet() -> Result<()> {
    const NO_SWEEPS: [&str; 2] = ["-s", "0"];
    with_cable(|cable| {
        let server = cable.spawn(1, &["ibping", "-S"])?;
        cable.wait_for_manager(1, BUILT_IN)?;
        let opensm = cable.opensm(0, &NO_SWEEPS)?;
        cable.wait_for(0, "SUBNET UP")?;
        cable.wait_for_manager(1, FIRST)?;
        wait_until("the new manager's LID", || Ok(cable.say(1, &["ibstat"])?.contains("SM lid: 1\n")))?;
        // A process that has just begun may not have heard of the manager.
        wait_until("the new manager in PortInfo", || {
            let port = cable.say(1, &["smpquery", "portinfo", "2", "1"])?;
            Ok(port.contains("SMLid:...........................1\n") && port.contains("Active"))
        })?;
        let nodes = cable.say(1, &["saquery", "NR"])?;
        ensure!(nodes.contains("0x02005efe0a4d0001") && nodes.contains("0x02005efe0a4d0002"), "{nodes}");
        let ping = cable.say(0, &["ibping", "-c", "1", "-G", "0x02005efe0a4d0002"])?;
        ensure!(ping.contains("1 received"), "{ping}");
        kill(server)?;
        cable.wait_for(0, "num:128")?;
        cable.wait_for(0, "Removed port with GUID:0x02005efe0a4d0002")?;
        let server = cable.spawn(1, &["ibping", "-S"])?;
        cable.wait_for(0, "Discovered new port with GUID:0x02005efe0a4d0002")?;
        cable.check_log(0)?;
        kill(opensm)?;
        cable.wait_for_manager(1, BUILT_IN)?;
        let opensm = cable.opensm(0, &NO_SWEEPS)?;
        cable.wait_for_manager(1, FIRST)?;
        kill(opensm)?;
        kill(server)
    })
}

/// Programs are told that they have another subnet manager, and that it wants them to register again, in each process of the host.
#[test]
fn opensm_raises_events() -> Result<()> {
    with_cable(|cable| {
        let mut watches = Vec::new();
        for _ in 0..2 {
            let mut watch = cable.spawn(1, &["ibv_asyncwatch"])?;
            wait_until("it watches", || {
                ensure!(watch.is_running()?, "{}", watch.stderr_so_far());
                Ok(watch.stdout_so_far().contains("async event FD"))
            })?;
            watches.push(watch);
        }
        let opensm = cable.opensm(0, &[])?;
        for watch in &watches {
            for wanted in ["IBV_EVENT_SM_CHANGE", "IBV_EVENT_CLIENT_REREGISTER"] {
                wait_until(wanted, || Ok(watch.stdout_so_far().contains(wanted)))?;
            }
        }
        kill(opensm)?;
        for watch in watches {
            wait_until("the next change", || Ok(watch.stdout_so_far().matches("IBV_EVENT_SM_CHANGE").count() >= 2))?;
            kill(watch)?;
        }
        Ok(())
    })
}

/// opensm, which is the administration as well, reports hosts that come and go.
#[test]
fn opensm_reports_to_programs() -> Result<()> {
    with_cable(|cable| {
        let opensm = cable.opensm(0, &[])?;
        cable.wait_for(0, "SUBNET UP")?;
        cable.wait_for_manager(0, FIRST)?;
        let mut reports = cable.spawn(0, &[&cable.program, "64", "65"])?;
        let mut wait_for = |wanted: &str| {
            wait_until(wanted, || {
                ensure!(reports.is_running()?, "{}", reports.stdout_so_far());
                Ok(reports.stdout_so_far().contains(wanted))
            })
        };
        wait_for("subscribed\n")?;
        let server = cable.spawn(1, &["ibping", "-S"])?;
        wait_for("trap 64 guid 0x02005efe0a4d0002\n")?;
        kill(server)?;
        wait_for("trap 65 guid 0x02005efe0a4d0002\n")?;
        kill(reports)?;
        cable.check_log(0)?;
        kill(opensm)
    })
}

/// opensm makes a group as one host's program asks for, and lets the other host's join: messages go by the Q_Key and the MLID that it
/// tells both.
#[test]
fn groups_are_joined_at_opensm() -> Result<()> {
    with_cable(|cable| {
        let opensm = cable.opensm(0, &[])?;
        cable.wait_for(0, "SUBNET UP")?;
        // opensm lets no port join that it does not know.
        let server = cable.spawn(1, &["ibping", "-S"])?;
        cable.wait_for(0, "Discovered new port with GUID:0x02005efe0a4d0002")?;
        let group = "ff15:ba5e::7";
        let words = ["env", "SM_LID=1", &cable.joins];
        let mut receiver = cable.spawn(1, &[&words[..], &["recv", group]].concat())?;
        wait_until("the receiver has joined", || {
            ensure!(receiver.is_running()?, "{}", receiver.stdout_so_far());
            Ok(receiver.stdout_so_far().contains("joined"))
        })?;
        let groups = cable.say(0, &["saquery", "-g"])?;
        ensure!(groups.contains(&format!("MGID....................{group}\n")), "{groups}");
        let sender = cable.say(0, &[&words[..], &["send", group, "by opensm"]].concat())?;
        let received = receiver.finish(TIMEOUT)?.success()?.stdout;
        let joined = sender.lines().next().context("no line")?;
        // MLIDs of opensm are counted up; the built-in administration's follow from the group.
        ensure!(joined.starts_with("joined 0xc00") && joined.ends_with(" 0x1234"), "{sender}");
        ensure!(received == format!("{joined}\nmessage by opensm\n"), "{received}");
        cable.check_log(0)?;
        kill(opensm)?;
        kill(server)
    })
}

/// rdma_cm joins its groups at opensm.
#[test]
fn rdma_cm_joins_at_opensm() -> Result<()> {
    with_cable(|cable| {
        let opensm = cable.opensm(0, &[])?;
        cable.wait_for(0, "SUBNET UP")?;
        // opensm lets no port join that it does not know.
        let server = cable.spawn(1, &["ibping", "-S"])?;
        cable.wait_for(0, "Discovered new port with GUID:0x02005efe0a4d0002")?;
        cable.wait_for_manager(1, FIRST)?;
        let mckey = ["mckey", "-m", "239.7.7.7", "-C", "10"];
        let mut receiver = cable.spawn(1, &[&mckey[..], &["-b", "10.77.0.2"]].concat())?;
        wait_until("opensm knows the group", || {
            ensure!(receiver.is_running()?, "{}", receiver.stdout_so_far());
            Ok(cable.say(0, &["saquery", "-g"])?.contains("MGID....................ff12:4001:ffff::f07:707\n"))
        })?;
        wait_until("the receiver listens", || {
            Ok(cable.hosts[1].run("ip", &["maddress", "show", "dev", "veth0"])?.stdout.contains("239.7.7.7"))
        })?;
        cable.spawn(0, &[&mckey[..], &["-b", "10.77.0.1", "-s"]].concat())?.finish(TIMEOUT)?.success()?;
        receiver.finish(TIMEOUT)?.success()?;
        cable.check_log(0)?;
        kill(opensm)?;
        kill(server)
    })
}

/// Interfaces of IPoIB join the broadcast group that opensm has made, with its Q_Key and its MTU, as soon as it manages the
/// subnet, and ping each other; when it is gone, they join that of the built-in administration again.
#[test]
fn ipoib_follows_opensm() -> Result<()> {
    const BUILT_IN: &str = "MTU 1020, Q_Key 0x0b1b, MLID 0xc000, ";
    const OF_OPENSM: &str = "MTU 508, Q_Key 0x1234, MLID 0xc000, ";
    with_cable(|cable| {
        let partitions = cable.dir.join("partitions.conf");
        std::fs::write(&partitions, "Default=0x7fff, ipoib, mtu=2, Q_Key=0x1234: ALL=full;\n")?;
        let up = |host: usize, address: &str| cable.hosts[host].spawn(&cable.urxe, &["ipoib", "up", "ib0", address]);
        let mut interfaces = [up(0, "192.0.2.1/24")?, up(1, "192.0.2.2/24")?];
        let mut wait_for = |count: usize, wanted: &str| {
            for interface in &mut interfaces {
                wait_until(&format!("{count}: {wanted}"), || {
                    ensure!(interface.is_running()?, "{}", interface.stderr_so_far());
                    Ok(interface.stdout_so_far().matches(wanted).count() == count)
                })?;
            }
            // Requests for the neighbour's address may have been lost on the way.
            wait_until("the neighbour answers", || {
                let ping = cable.hosts[0].try_run("ping", &["-c", "1", "-W", "1", "192.0.2.2"])?;
                Ok(ping.status.success())
            })
        };
        wait_for(1, BUILT_IN)?;
        let opensm = cable.opensm(0, &["-P", text(&partitions)?])?;
        cable.wait_for(0, "SUBNET UP")?;
        wait_for(1, OF_OPENSM)?;
        let groups = cable.say(1, &["saquery", "-g"])?;
        for group in ["ff12:401b:ffff::ffff:ffff", "ff12:401b:ffff::1"] {
            ensure!(groups.contains(&format!("MGID....................{group}\n")), "{groups}");
        }
        let link = cable.hosts[1].run("ip", &["-o", "link", "show", "ib0"])?.stdout;
        ensure!(link.contains("mtu 508 "), "{link}");
        kill(opensm)?;
        wait_for(2, BUILT_IN)?;
        interfaces.into_iter().try_for_each(kill)
    })
}

/// opensm that configures the subnet once: the built-in manager goes on, and ports stay active.
#[test]
fn opensm_once() -> Result<()> {
    with_cable(|cable| {
        let server = cable.spawn(1, &["ibping", "-S"])?;
        cable.wait_for_manager(0, BUILT_IN)?;
        cable.opensm(0, &["-o"])?.finish(TIMEOUT)?.success()?;
        cable.wait_for(0, "SUBNET UP")?;
        cable.check_log(0)?;
        for host in [0, 1] {
            cable.wait_for_manager(host, BUILT_IN)?;
        }
        wait_until("an active port", || Ok(cable.say(0, &["smpquery", "portinfo", "2", "1"])?.contains("Active")))?;
        kill(server)
    })
}

/// opensm's own test of subnet administrations, of the built-in one: inventory, services, events.
#[test]
fn osmtest() -> Result<()> {
    with_cable(|cable| {
        let server = cable.spawn(1, &["ibping", "-S"])?;
        cable.wait_for_manager(0, BUILT_IN)?;
        let [inventory, log] = ["inventory.dat", "osmtest.log"].map(|name| cable.dir.join(name));
        for flow in ["c", "s", "e"] {
            let words = ["osmtest", "-f", flow, "-i", text(&inventory)?, "-l", text(&log)?, "-t", "2000"];
            // Leases of services end while it looks for them, on a busy machine.
            wait_until(flow, || Ok(cable.say(0, &words)?.contains("\" PASS")))?;
        }
        kill(server)
    })
}

/// opensm sweeps a subnet of many hosts, each of which comes while it runs: as many as `URXE_SUBNET_HOSTS` says.
#[test]
fn opensm_sweeps_many_hosts() -> Result<()> {
    let count: usize = std::env::var("URXE_SUBNET_HOSTS").ok().and_then(|count| count.parse().ok()).unwrap_or(16);
    let launcher = Launcher::new()?;
    let world = launcher.world();
    let others = (1..count).map(|_| world.add_host()).collect::<Result<Vec<_>>>()?;
    let hosts: Vec<&Host> = std::iter::once(world.host()).chain(&others).collect();
    let _switch = world.switch(&hosts)?;
    let cable = Cable {
        urxe: launcher.urxe(),
        dir: world.dir().to_owned(),
        hosts: [hosts[0], hosts[count - 1]],
        program: String::new(),
        joins: String::new(),
    };
    let opensm = cable.opensm(0, &[])?;
    cable.wait_for(0, "SUBNET UP")?;
    let serve = |host: &&Host| host.spawn(&cable.urxe, &[&INFINIBAND[..], &["ibping", "-S"]].concat());
    let servers = hosts[1..].iter().map(serve).collect::<Result<Vec<_>>>()?;
    for last in 2..=count {
        cable.wait_for(0, &format!("Discovered new port with GUID:0x02005efe0a4d00{last:02x}"))?;
    }
    for host in [0, 1] {
        cable.wait_for_manager(host, FIRST)?;
    }
    // Every host is in the administration's table, and follows the manager.
    wait_until("active ports", || {
        let ports = cable.say(0, &["saquery", "PIR"])?;
        Ok((2..=count).all(|lid| ports.contains(&format!("EndPortLid..............{lid}\n"))))
    })?;
    let reached = cable.say(1, &["ibping", "-c", "1", "2"])?;
    ensure!(count < 4 || reached.contains("1 received"), "{reached}");
    // Hosts that are killed leave questions without answers.
    cable.check_log(0)?;
    servers.into_iter().try_for_each(kill)?;
    for last in 2..=count {
        cable.wait_for(0, &format!("Removed port with GUID:0x02005efe0a4d00{last:02x}"))?;
    }
    kill(opensm)
}

#[test]
fn a_second_opensm_of_higher_priority_takes_over() -> Result<()> {
    with_cable(|cable| {
        let first = cable.opensm(0, &["-p", "1"])?;
        cable.wait_for(0, "SUBNET UP")?;
        let second = cable.opensm(1, &["-p", "9"])?;
        // The other port says that it has a subnet manager now.
        cable.wait_for(0, "num:144")?;
        for host in [0, 1] {
            cable.wait_for_manager(host, SECOND)?;
        }
        kill(second)?;
        for host in [0, 1] {
            cable.wait_for_manager(host, FIRST)?;
        }
        kill(first)
    })
}
