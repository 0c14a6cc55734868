//! Debian's opensm as the manager of a subnet of the InfiniBand personality.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use urxe_tests::opensm::{BUILT_IN, Cable, FIRST, INFINIBAND, SECOND, kill, text, with_cable};
use urxe_tests::{Host, Launcher, Subnet, TIMEOUT, wait_until, wait_within};

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
        let nodes = cable.ask(1, &["saquery", "NR"])?;
        ensure!(nodes.contains("0x02005efe0a4d0001") && nodes.contains("0x02005efe0a4d0002"), "{nodes}");
        let ping = cable.ask(0, &["ibping", "-c", "1", "-G", "0x02005efe0a4d0002"])?;
        ensure!(ping.contains("1 received"), "{ping}");
        kill(server)?;
        cable.wait_for(0, "num:128")?;
        cable.wait_for(0, "Removed port with GUID:0x02005efe0a4d0002")?;
        let server = cable.spawn(1, &["ibping", "-S"])?;
        cable.wait_for(0, "Discovered new port with GUID:0x02005efe0a4d0002")?;
        cable.check_log(0)?;
        kill(opensm)?;
        cable.wait_for_manager(1, BUILT_IN)?;
        // The sweeps of the first one are in the same log.
        let sweeps = || std::fs::read_to_string(cable.log(0)).map(|log| log.matches("SUBNET UP").count());
        let before = sweeps()?;
        let mut opensm = cable.opensm(0, &NO_SWEEPS)?;
        wait_until("SUBNET UP, again", || {
            ensure!(opensm.is_running()?, "{}\n{}", opensm.stdout_so_far(), opensm.stderr_so_far());
            Ok(sweeps()? > before)
        })
        .with_context(|| std::fs::read_to_string(cable.log(0)).unwrap_or_default())?;
        cable.wait_for_manager(1, FIRST).with_context(|| server.stderr_so_far())?;
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
        let mut reports = cable.spawn(0, &[&cable.reports, "64", "65"])?;
        let mut wait_for = |wanted: &str| {
            wait_until(wanted, || {
                ensure!(reports.is_running()?, "{}", reports.stdout_so_far());
                Ok(reports.stdout_so_far().contains(wanted))
            })
        };
        wait_for("subscribed\n")?;
        let server = cable.spawn(1, &["ibping", "-S"])?;
        wait_for("trap 64 guid 0x02005efe0a4d0002\n")?;
        // A host that is killed leaves questions without answers.
        cable.check_log(0)?;
        kill(server)?;
        wait_for("trap 65 guid 0x02005efe0a4d0002\n")?;
        kill(reports)?;
        kill(opensm)
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
        cable.wait_for_port(0, 2)?;
        kill(server)
    })
}

/// Runs flows of osmtest on a host, by `say`, until each passes: leases of services end while it looks for them, on a busy machine.
fn osmtest(dir: &Path, flows: &[&str], say: impl Fn(&[&str]) -> Result<String>) -> Result<()> {
    let [inventory, log] = ["inventory.dat", "osmtest.log"].map(|name| dir.join(name));
    for flow in flows {
        let words = ["osmtest", "-f", flow, "-i", text(&inventory)?, "-l", text(&log)?, "-t", "2000"];
        let mut said = String::new();
        wait_until(flow, || {
            said = say(&words)?;
            Ok(said.contains("\" PASS"))
        })
        .with_context(|| said)?;
    }
    Ok(())
}

/// opensm's own test of subnet administrations, of the built-in one: inventory, validation, services, events, all of these.
#[test]
fn osmtest_of_two_hosts() -> Result<()> {
    with_cable(|cable| {
        let server = cable.spawn(1, &["ibping", "-S"])?;
        cable.wait_for_manager(0, BUILT_IN)?;
        // A host that comes after the inventory was made is not in it, and the validation fails for ever.
        cable.wait_for_port(0, 2)?;
        osmtest(&cable.dir, &["c", "v", "s", "e", "a"], |words| cable.say(0, words))?;
        kill(server)
    })
}

/// The flows that leave no room for another host: groups, which one of the tests joins for another host, and tables of all pairs of
/// ports.
#[test]
fn osmtest_of_one_host() -> Result<()> {
    let subnet = Subnet::on_lo()?;
    let host = subnet.server();
    let server = subnet.spawn(host, &["ibping", "-S"])?;
    // Tables are written into the folder that it runs in.
    let dir = subnet.world().dir();
    let cd = ["env", "-C", text(dir)?];
    osmtest(dir, &["c", "m", "q"], |words| Ok(subnet.try_run(host, &[&cd[..], words].concat())?.stdout))?;
    kill(server)
}

/// Asks the administration of opensm, with groups: one of the tests joins one for the other host, as opensm allows.
#[test]
fn osmtest_of_opensm() -> Result<()> {
    with_cable(|cable| {
        let partitions = cable.dir.join("partitions.conf");
        std::fs::write(&partitions, "Default=0x7fff, ipoib, mtu=2: ALL=full;\n")?;
        let opensm = cable.opensm(0, &["-P", text(&partitions)?])?;
        cable.wait_for(0, "SUBNET UP")?;
        let server = cable.spawn(1, &["ibping", "-S"])?;
        cable.wait_for(0, "Discovered new port with GUID:0x02005efe0a4d0002")?;
        cable.wait_for_manager(0, FIRST)?;
        osmtest(&cable.dir, &["c", "v", "s", "e", "a", "m"], |words| cable.say(0, words))?;
        kill(opensm)?;
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
        reports: String::new(),
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
    let reached = cable.ask(1, &["ibping", "-c", "1", "2"])?;
    ensure!(count < 4 || reached.contains("1 received"), "{reached}");
    // Hosts that are killed leave questions without answers.
    cable.check_log(0)?;
    servers.into_iter().try_for_each(kill)?;
    // opensm asks each of them three times for two seconds, four at a time, and may begin anew meanwhile.
    wait_within(TIMEOUT, "removed ports", || {
        let log = std::fs::read_to_string(cable.log(0))?;
        Ok((2..=count).all(|last| log.contains(&format!("Removed port with GUID:0x02005efe0a4d00{last:02x}"))))
    })?;
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
