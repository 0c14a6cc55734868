//! The port of `--link-layer infiniband`: verbs, sysfs and the programs that read it say one thing.

use anyhow::{Context as _, Result, ensure};
use urxe_tests::{Host, Subnet, TIMEOUT, wait_for_listener};

/// The value behind `name:` in a program's output.
fn value<'a>(output: &'a str, name: &str) -> Result<&'a str> {
    let line = output.lines().find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(':'));
    Ok(line.with_context(|| format!("no {name} in {output}"))?.trim())
}

/// The lines that a manual shows, of 10.77.0.1 and 10.77.0.2.
#[test]
fn ibstat_as_a_manual_shows_it() -> Result<()> {
    let subnet = Subnet::linked()?;
    for (host, lid, guid) in
        [(subnet.server(), "1", "0x02005efe0a4d0001"), (subnet.client(), "2", "0x02005efe0a4d0002")]
    {
        let said = subnet.run(host, &["ibstat"])?.stdout;
        for (name, wanted) in [
            ("State", "Active"),
            ("Physical state", "LinkUp"),
            ("Rate", "40"),
            ("Base lid", lid),
            ("LMC", "0"),
            ("Node GUID", guid),
            ("System image GUID", guid),
            ("Port GUID", guid),
            ("Link layer", "InfiniBand"),
        ] {
            ensure!(value(&said, name)? == wanted, "{name}: {said}");
        }
        ensure!(said.starts_with("CA 'urxe0'\n") && value(&said, "SM lid")? != "0", "{said}");
        let devices = subnet.run(host, &["ibv_devices"])?.stdout;
        let (_, digits) = guid.split_at(2);
        ensure!(devices.lines().any(|line| line.split_whitespace().eq(["urxe0", digits])), "{devices}");
    }
    Ok(())
}

fn sysfs(subnet: &Subnet, host: &Host, file: &str) -> Result<String> {
    let path = format!("/sys/class/infiniband/urxe0/ports/1/{file}");
    Ok(subnet.run(host, &["cat", &path])?.stdout.trim().to_owned())
}

#[test]
fn verbs_and_sysfs_agree() -> Result<()> {
    for subnet in Subnet::each()? {
        let host = subnet.server();
        let verbs = subnet.run(host, &["ibv_devinfo", "-v"])?.stdout;
        for (name, wanted) in [
            ("link_layer", "InfiniBand"),
            ("state", "PORT_ACTIVE (4)"),
            ("phys_state", "LINK_UP (5)"),
            ("port_lid", "1"),
            ("port_lmc", "0x00"),
            ("max_mtu", "4096 (5)"),
            ("active_width", "4X (2)"),
            ("active_speed", "10.0 Gbps (4)"),
        ] {
            ensure!(value(&verbs, name)? == wanted, "{name}: {verbs}");
        }
        let status = subnet.run(host, &["ibstatus"])?.stdout;
        ensure!(value(&status, "link_layer")? == "InfiniBand" && value(&status, "rate")? == "40 Gb/sec (4X QDR)");
        ensure!(sysfs(&subnet, host, "link_layer")? == "InfiniBand" && sysfs(&subnet, host, "lid")? == "0x1");
        // The subnet manager's LID, in two spellings.
        let sm_lid: u16 = value(&verbs, "sm_lid")?.parse()?;
        ensure!(sm_lid != 0 && sysfs(&subnet, host, "sm_lid")? == format!("{sm_lid:#x}"), "{verbs}");
        // One GID, of the subnet prefix and the GUID.
        let guid = value(&verbs, "node_guid")?;
        let gid = format!("fe80:0000:0000:0000:{guid}");
        ensure!(value(&status, "default gid")? == gid && sysfs(&subnet, host, "gids/0")? == gid, "{status}");
        ensure!(sysfs(&subnet, host, "gid_attrs/types/0")? == "IB/RoCE v1");
        ensure!(sysfs(&subnet, host, "gids/1")? == "0000:0000:0000:0000:0000:0000:0000:0000");
        // P_Keys: the default partition first, of a table as long as verbs say.
        let length: usize = value(&verbs, "max_pkeys")?.parse()?;
        let list = "cd /sys/class/infiniband/urxe0/ports/1/pkeys && cat $(ls | sort -n)";
        let pkeys = subnet.run(host, &["sh", "-c", list])?.stdout;
        let pkeys: Vec<&str> = pkeys.lines().collect();
        ensure!(length > 1 && pkeys.len() == length && pkeys[0] == "0xffff", "{pkeys:?}");
        ensure!(pkeys[1..].iter().all(|pkey| *pkey == "0x0000"), "{pkeys:?}");
    }
    Ok(())
}

/// Further addresses are further GUIDs of the port.
#[test]
fn rows_of_the_gid_table_are_addresses() -> Result<()> {
    let subnet = Subnet::linked()?;
    let host = subnet.server();
    host.run("ip", &["address", "add", "10.77.0.9/24", "dev", "veth0"])?;
    ensure!(sysfs(&subnet, host, "gids/0")? == "fe80:0000:0000:0000:0200:5efe:0a4d:0001");
    ensure!(sysfs(&subnet, host, "gids/1")? == "fe80:0000:0000:0000:0200:5efe:0a4d:0009");
    let verbs = subnet.run(host, &["ibv_devinfo", "-v"])?.stdout;
    ensure!(
        verbs.contains("fe80::200:5efe:a4d:9") || verbs.contains("fe80:0000:0000:0000:0200:5efe:0a4d:0009"),
        "{verbs}"
    );
    Ok(())
}

/// Addresses above those with LIDs of their own, in a network that is all there, and one that has none.
#[test]
fn lids_of_high_addresses() -> Result<()> {
    let subnet = Subnet::on_lo()?;
    let host = subnet.server();
    host.run("ip", &["link", "add", "high0", "type", "veth", "peer", "name", "high1"])?;
    for end in ["high0", "high1"] {
        host.run("ip", &["link", "set", end, "up"])?;
    }
    host.set_env("URXE_NETDEV", "high0");
    for (address, lid) in [("192.168.200.5/24", "2053"), ("10.77.200.5/16", "0")] {
        host.run("ip", &["address", "flush", "dev", "high0"])?;
        host.run("ip", &["address", "add", address, "dev", "high0"])?;
        let said = subnet.run(host, &["ibv_devinfo"])?.stdout;
        ensure!(value(&said, "port_lid")? == lid, "{address}: {said}");
    }
    Ok(())
}

/// Hosts of two /16 networks whose addresses end alike: they reach each other by GID, and are told of as one LID's.
#[test]
fn lid_conflicts_are_counted() -> Result<()> {
    let subnet = Subnet::linked()?;
    for (host, address) in [(subnet.server(), "10.77.0.1/8"), (subnet.client(), "10.78.0.1/8")] {
        host.run("ip", &["-4", "address", "flush", "dev", "veth0"])?;
        host.run("ip", &["address", "add", address, "dev", "veth0"])?;
    }
    let (host, port) = (subnet.server(), subnet.server().next_port());
    let program = format!("ibv_ud_pingpong -g 0 -n 20 -p {port}");
    let server = wait_for_listener(host, subnet.spawn(host, &["sh", "-c", &program])?, port)?;
    let counter = "/sys/class/infiniband/urxe0/ports/1/hw_counters/lid_conflicts";
    let script = format!("{program} 10.77.0.1 && cat {counter}");
    let said = subnet.run(subnet.client(), &["sh", "-c", &script])?.stdout;
    server.finish(TIMEOUT)?.success()?;
    let count: u64 = said.lines().last().context("nothing said")?.parse()?;
    ensure!(count >= 20, "{said}");
    Ok(())
}
