//! Multicast groups of ports of InfiniBand: who has joined them, as subnet administration knows it.

use anyhow::{Context, Result, ensure};
use urxe_tests::opensm::{FIRST, kill, text, with_cable, with_cable_of};
use urxe_tests::{Process, TIMEOUT, wait_until};

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
        let groups = cable.ask(0, &["saquery", "-g"])?;
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
        let count = |interface: &Process, wanted: &str| interface.stdout_so_far().matches(wanted).count();
        let wait_for = |interfaces: &mut [Process; 2], more_than: [usize; 2], wanted: &str| {
            for (interface, before) in interfaces.iter_mut().zip(more_than) {
                wait_until(&format!("more than {before}: {wanted}"), || {
                    ensure!(interface.is_running()?, "{}", interface.stderr_so_far());
                    Ok(count(interface, wanted) > before)
                })?;
            }
            // Requests for the neighbour's address may have been lost on the way.
            wait_until("the neighbour answers", || {
                let ping = cable.hosts[0].try_run("ping", &["-c", "1", "-W", "1", "192.0.2.2"])?;
                Ok(ping.status.success())
            })
        };
        wait_for(&mut interfaces, [0; 2], BUILT_IN)?;
        let opensm = cable.opensm(0, &["-P", text(&partitions)?])?;
        cable.wait_for(0, "SUBNET UP")?;
        wait_for(&mut interfaces, [0; 2], OF_OPENSM)?;
        let groups = cable.ask(1, &["saquery", "-g"])?;
        for group in ["ff12:401b:ffff::ffff:ffff", "ff12:401b:ffff::1"] {
            ensure!(groups.contains(&format!("MGID....................{group}\n")), "{groups}");
        }
        let link = cable.hosts[1].run("ip", &["-o", "link", "show", "ib0"])?.stdout;
        ensure!(link.contains("mtu 508 "), "{link}");
        // They may have joined that more than once.
        let joined = interfaces.each_ref().map(|interface| count(interface, BUILT_IN));
        kill(opensm)?;
        wait_for(&mut interfaces, joined, BUILT_IN)?;
        interfaces.into_iter().try_for_each(kill)
    })
}

/// The kernel takes IPv6 away from an interface whose MTU falls below 1280, as opensm's broadcast group has it; with a larger one the
/// interface has its addresses again.
#[test]
fn ipoib_has_its_ipv6_addresses_again_with_a_larger_mtu() -> Result<()> {
    with_cable_of(4200, |cable| {
        let partitions = cable.dir.join("partitions.conf");
        std::fs::write(&partitions, "Default=0x7fff, ipoib, mtu=2: ALL=full;\n")?;
        let interfaces = [1, 2].map(|last| {
            let words = ["ipoib", "up", "ib0", &format!("192.0.2.{last}/24"), &format!("2001:db8::{last}/64")];
            cable.hosts[last - 1].spawn(&cable.urxe, &words)
        });
        let interfaces = interfaces.into_iter().collect::<Result<Vec<_>>>()?;
        let wait_for = |mtu: &str, addresses: &[&str]| {
            for (host, last) in [(0, 1), (1, 2)] {
                wait_until(mtu, || {
                    let run = |words: &[&str]| Ok::<_, anyhow::Error>(cable.hosts[host].try_run("ip", words)?.stdout);
                    let said = run(&["-6", "-o", "address", "show", "dev", "ib0"])?;
                    let has = |address: &&str| said.contains(&format!("{address}{last}/64"));
                    let is_right = said.lines().count() == addresses.len() && addresses.iter().all(has);
                    Ok(is_right && run(&["-o", "link", "show", "ib0"])?.contains(mtu))
                })?;
            }
            Ok::<_, anyhow::Error>(())
        };
        let ping = || {
            wait_until("the neighbour answers", || {
                let words = ["-c", "1", "-W", "1", "2001:db8::2"];
                Ok(cable.hosts[0].try_run("ping", &words)?.status.success())
            })
        };
        const BOTH: [&str; 2] = ["2001:db8::", "fe80::200:5efe:a4d:"];
        wait_for("mtu 4092 ", &BOTH)?;
        ping()?;
        let opensm = cable.opensm(0, &["-P", text(&partitions)?])?;
        wait_for("mtu 508 ", &[]).with_context(|| {
            let told = [0, 1].map(|host| (interfaces[host].stdout_so_far(), interfaces[host].stderr_so_far()));
            let managers = [0, 1].map(|host| cable.say(host, &["sminfo"]));
            let log = std::fs::read_to_string(cable.log(0));
            format!("interfaces: {told:#?}\nmanagers: {managers:?}\nopensm: {}", log.unwrap_or_default())
        })?;
        // It is told when the MTU is set.
        wait_until("it is told why", || Ok(interfaces[0].stderr_so_far().contains("ib0: no IPv6 at an MTU of 508")))?;
        kill(opensm)?;
        wait_for("mtu 4092 ", &BOTH)?;
        ping()?;
        interfaces.into_iter().try_for_each(kill)
    })
}
