//! rdma_cm on ports of InfiniBand: groups and services by subnet administration, the built-in one and opensm's.

use anyhow::{Result, ensure};
use urxe_tests::opensm::{Cable, FIRST, kill, text, with_cable};
use urxe_tests::{Host, Process, Subnet, TIMEOUT, World, wait_until};

/// Compiles a C program against librdmacm; returns its path, in a world's folder.
fn compile(world: &World, name: &str, source: &str, more: &[&str]) -> Result<String> {
    let file = world.dir().join(name).with_extension("c");
    std::fs::write(&file, source)?;
    let program = file.with_extension("");
    let (file, program) = (text(&file)?, text(&program)?);
    let words = [&["-O1", "-Wall", "-Werror", "-o", program, file][..], more, &["-lrdmacm", "-libverbs", "-libumad"]];
    world.host().run("gcc", &words.concat())?.success()?;
    Ok(program.to_owned())
}

fn groups_program(world: &World) -> Result<String> {
    compile(world, "rdmacm_groups", include_str!("../programs/rdmacm_groups.c"), &[])
}

/// Waits until the process has printed this so many times.
fn wait_for(process: &mut Process, wanted: &str, count: usize) -> Result<()> {
    wait_until(&format!("{count}: {wanted}"), || {
        let said = process.stdout_so_far();
        ensure!(process.is_running()?, "{said}{}", process.stderr_so_far());
        Ok(said.matches(wanted).count() >= count)
    })
}

/// GIDs of the ports in a group, by the administration that the host asks.
fn members(host: &Host, subnet: &Subnet, group: &str) -> Result<Vec<String>> {
    Ok(ports_of(&subnet.run(host, &["saquery", "MCMR"])?.stdout, group))
}

fn ports_of(records: &str, group: &str) -> Vec<String> {
    let value = |line: &str| line.trim_start_matches(|letter| letter != '.').trim_start_matches('.').to_owned();
    let lines: Vec<&str> = records.lines().map(str::trim).collect();
    let of_group = lines.windows(2).filter(|pair| pair[0].starts_with("MGID.") && value(pair[0]) == group);
    of_group.map(|pair| value(pair[1])).collect()
}

const GROUP: &str = "ff12:4001:ffff::f07:707";
const PORT: &str = "fe80::200:5efe:a4d:1";

/// A port is in a group for as long as some process of the host is, however that one ends.
#[test]
fn groups_end_with_the_last_process() -> Result<()> {
    let subnet = Subnet::linked()?;
    let program = groups_program(subnet.world())?;
    let (host, other) = (subnet.server(), subnet.client());
    // It owns the address, and outlives the others.
    let owner = subnet.spawn(host, &["ibping", "-S"])?;
    let join = || {
        let mut process = subnet.spawn(host, &[&program, "10.77.0.1", "239.7.7.7"])?;
        wait_for(&mut process, &format!("joined {GROUP} 0x1234567\n"), 1)?;
        Ok::<_, anyhow::Error>(process)
    };
    let (first, second) = (join()?, join()?);
    let wait_for_ports = |wanted: &[&str]| {
        for host in [host, other] {
            wait_until(&format!("{wanted:?}"), || Ok(members(host, &subnet, GROUP)? == wanted))?;
        }
        Ok::<_, anyhow::Error>(())
    };
    wait_for_ports(&[PORT])?;
    kill(first)?;
    let third = join()?;
    kill(second)?;
    wait_for_ports(&[PORT])?;
    kill(third)?;
    wait_for_ports(&[])?;
    kill(owner)
}

/// The process that owns the address is killed: its successor keeps the groups that others are in, and leaves the others.
#[test]
fn groups_outlive_the_owner_of_the_address() -> Result<()> {
    let subnet = Subnet::linked()?;
    let program = groups_program(subnet.world())?;
    let (host, other) = (subnet.server(), subnet.client());
    let join = |group: &str| {
        let mut process = subnet.spawn(host, &[&program, "10.77.0.1", group])?;
        wait_for(&mut process, "joined ", 1)?;
        Ok::<_, anyhow::Error>(process)
    };
    const LOST: &str = "ff12:4001:ffff::f08:808";
    let owner = join("239.8.8.8")?;
    let rest = join("239.7.7.7")?;
    for group in [GROUP, LOST] {
        wait_until(group, || Ok(members(other, &subnet, group)? == [PORT]))?;
    }
    kill(owner)?;
    // Hosts may have missed the port meanwhile.
    wait_until("nobody in the group of the killed process", || {
        Ok(members(other, &subnet, LOST)?.is_empty() && members(other, &subnet, GROUP)? == [PORT])
    })?;
    kill(rest)?;
    wait_until("nobody in the other group", || Ok(members(other, &subnet, GROUP)?.is_empty()))
}

/// Has opensm manage the subnet of a cable, with a process that owns the second host's address.
fn with_opensm(options: &[&str], test: impl FnOnce(&Cable<'_>) -> Result<()>) -> Result<()> {
    with_cable(|cable| {
        let opensm = cable.opensm(0, options)?;
        cable.wait_for(0, "SUBNET UP")?;
        let owner = cable.spawn(1, &["ibping", "-S"])?;
        cable.wait_for(0, "Discovered new port with GUID:0x02005efe0a4d0002")?;
        cable.wait_for_manager(1, FIRST)?;
        test(cable)?;
        cable.check_log(0)?;
        kill(opensm)?;
        kill(owner)
    })
}

/// opensm hears of the first process that joins, and of the last one that leaves or is killed.
#[test]
fn opensm_hears_of_the_first_and_the_last_process() -> Result<()> {
    with_opensm(&[], |cable| {
        let program = compile_for(cable)?;
        // By itself it waits for a second, and asks once.
        let query = ["saquery", "-t", "20000", "--smkey", "1", "MCMR"];
        let ports = || Ok::<_, anyhow::Error>(ports_of(&cable.say(0, &query)?, GROUP));
        let join = || {
            let mut process = cable.spawn(1, &[&program, "10.77.0.2", "239.7.7.7"])?;
            wait_for(&mut process, "joined ", 1)?;
            Ok::<_, anyhow::Error>(process)
        };
        let (first, second) = (join()?, join()?);
        wait_until("the port is in the group", || Ok(ports()? == ["fe80::200:5efe:a4d:2"]))?;
        kill(first)?;
        let third = join()?;
        wait_until("the port is in the group still", || Ok(ports()?.len() == 1))?;
        kill(second)?;
        kill(third)?;
        wait_until("opensm has nobody in the group", || Ok(ports()?.is_empty()))
    })
}

fn compile_for(cable: &Cable<'_>) -> Result<String> {
    let file = cable.dir.join("rdmacm_groups.c");
    std::fs::write(&file, include_str!("../programs/rdmacm_groups.c"))?;
    let program = file.with_extension("");
    let words = ["-O1", "-o", text(&program)?, text(&file)?, "-lrdmacm", "-libverbs"];
    cable.hosts[0].run("gcc", &words)?.success()?;
    Ok(text(&program)?.to_owned())
}

/// A program that is in a group is told when another subnet manager has come, and joins at that one.
#[test]
fn programs_hear_that_their_memberships_have_ended() -> Result<()> {
    with_cable(|cable| {
        let program = compile_for(cable)?;
        let mut process = cable.spawn(1, &[&program, "10.77.0.2", "239.7.7.7"])?;
        wait_for(&mut process, "joined ", 1)?;
        let opensm = cable.opensm(0, &[])?;
        let ended = format!("ended {}\n", -libc::ENETRESET);
        wait_for(&mut process, &ended, 1)?;
        // By itself it waits for a second, and asks once.
        let query = ["saquery", "-t", "20000", "--smkey", "1", "MCMR"];
        let ports = || Ok::<_, anyhow::Error>(ports_of(&cable.say(0, &query)?, GROUP));
        wait_until("the program has joined at opensm", || Ok(ports()? == ["fe80::200:5efe:a4d:2"]))?;
        let count = process.stdout_so_far().matches(&ended).count();
        kill(opensm)?;
        wait_for(&mut process, &ended, count + 1)?;
        wait_until("the program has joined at the built-in administration", || {
            Ok(cable.say(0, &["sminfo"])?.contains("sm lid 48896") && ports()? == ["fe80::200:5efe:a4d:2"])
        })?;
        kill(process)
    })
}

/// MGIDs that programs name are the groups' own; who only sends is a member of that kind.
#[test]
fn groups_by_mgid() -> Result<()> {
    let subnet = Subnet::linked()?;
    let program = groups_program(subnet.world())?;
    let mgid = "ff12:a01c::7:8";
    let mut process = subnet.spawn(subnet.server(), &[&program, "10.77.0.1", mgid, "udp", "sendonly"])?;
    wait_for(&mut process, &format!("joined {mgid} 0x1234567\n"), 1)?;
    let host = subnet.client();
    // Each saquery begins anew, and may not have heard of the other host.
    wait_until(mgid, || {
        let said = subnet.run(host, &["saquery", "MCMR"])?.stdout;
        Ok(ports_of(&said, mgid) == [PORT] && said.contains("JoinState...............0x8"))
    })?;
    kill(process)
}

/// Queue pairs of `RDMA_PS_IPOIB` have the Q_Key that opensm gives the groups of IPoIB, and datagrams arrive.
#[test]
fn queue_pairs_have_the_q_key_of_ipoib() -> Result<()> {
    let subnet = Subnet::on_lo()?;
    let program = groups_program(subnet.world())?;
    let mut process = subnet.spawn(subnet.server(), &[&program, "127.0.0.1", "239.7.7.7", "ipoib"])?;
    wait_for(&mut process, "joined ff12:401b:ffff::f07:707 0xb1b\n", 1)?;
    ensure!(process.stdout_so_far().starts_with("qkey 0xb1b\n"), "{}", process.stdout_so_far());
    kill(process)?;
    with_cable(|cable| {
        let partitions = cable.dir.join("partitions.conf");
        std::fs::write(&partitions, "Default=0x7fff, ipoib, mtu=2, Q_Key=0x1234: ALL=full;\n")?;
        let opensm = cable.opensm(0, &["-P", text(&partitions)?])?;
        cable.wait_for(0, "SUBNET UP")?;
        let owner = cable.spawn(1, &["ibping", "-S"])?;
        cable.wait_for(0, "Discovered new port with GUID:0x02005efe0a4d0002")?;
        cable.wait_for_manager(1, FIRST)?;
        let program = compile_for(cable)?;
        let mut process = cable.spawn(1, &[&program, "10.77.0.2", "239.7.7.7", "ipoib"])?;
        wait_for(&mut process, "joined ff12:401b:ffff::f07:707 0x1234\n", 1)?;
        ensure!(process.stdout_so_far().starts_with("qkey 0x1234\n"), "{}", process.stdout_so_far());
        kill(process)?;
        let mckey = ["mckey", "-p", "0x0002", "-m", "239.7.7.7", "-C", "10"];
        let receiver = cable.spawn(1, &[&mckey[..], &["-b", "10.77.0.2"]].concat())?;
        wait_until("the receiver listens", || {
            Ok(cable.hosts[1].run("ip", &["maddress", "show", "dev", "veth0"])?.stdout.contains("239.7.7.7"))
        })?;
        cable.spawn(0, &[&mckey[..], &["-b", "10.77.0.1", "-s"]].concat())?.finish(TIMEOUT)?.success()?;
        receiver.finish(TIMEOUT)?.success()?;
        kill(opensm)?;
        kill(owner)
    })
}

/// `rdma_resolve_addrinfo(3)` asks subnet administration for services: the commands of its release of librdmacm.
#[test]
fn services_by_name_and_by_id() -> Result<()> {
    let subnet = Subnet::on_lo()?;
    let world = subnet.world();
    let library = world.dir().join("libib_service_commands.so");
    let source = world.dir().join("ib_service_commands.c");
    std::fs::write(&source, include_str!("../programs/ib_service_commands.c"))?;
    let (library, source, folder) = (text(&library)?, text(&source)?, text(world.dir())?);
    let words = ["-O1", "-Wall", "-Werror", "-fPIC", "-shared", "-o", library, source, "-libverbs"];
    world.host().run("gcc", &words)?.success()?;
    let rpath = format!("-Wl,-rpath,{folder}");
    let program = compile(world, "ib_service", include_str!("../programs/ib_service.c"), &[library, &rpath])?;
    let said = subnet.run(subnet.server(), &[&program, "127.0.0.1"])?.stdout;
    let wanted = "event 16 status 0 services 2: 7 seven\n\
                  event 16 status 0 services 1: 9 nine\n\
                  event 16 status 0 services 0: 0 \n";
    ensure!(said == wanted, "{said}");
    Ok(())
}
