//! Unmodified programs that know LIDs only, over `--link-layer infiniband`: processes of one host, and two hosts.

use anyhow::{Context as _, Result, ensure};
use urxe_tests::{Subnet, TIMEOUT, World, artifacts, ping_pong, wait_for_listener, wait_until};

/// The ping-pongs of libibverbs, without a GID index: between LIDs.
#[test]
fn ping_pongs_without_options() -> Result<()> {
    for subnet in Subnet::each()? {
        for program in
            ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong", "ibv_xsrq_pingpong"]
        {
            let said = ping_pong(program, || subnet.try_exchange("-p", &[program, "-n", "100"]))?.stdout;
            // One of them has no 0x.
            let has = |lid: &str| said.contains(&format!("LID 0x{lid}")) || said.contains(&format!("LID {lid}"));
            ensure!(has("0001") && !has("0000"), "{program}: {said}");
        }
    }
    Ok(())
}

/// A command of manuals: the server's port is the default one.
#[test]
fn rc_ping_pong_as_a_manual_shows_it() -> Result<()> {
    let subnet = Subnet::linked()?;
    let server = subnet.spawn(subnet.server(), &["ibv_rc_pingpong"])?;
    wait_until("it listens", || Ok(subnet.server().run("ss", &["-ltn"])?.stdout.contains(":18515 ")))?;
    let said = subnet.run(subnet.client(), &["ibv_rc_pingpong", "10.77.0.1"])?.stdout;
    server.finish(TIMEOUT)?.success()?;
    ensure!(said.contains("1000 iters in"), "{said}");
    let lid = |name: &str| said.lines().find(|line| line.contains(name)).context("no such line").map(str::to_owned);
    ensure!(lid("local address")?.contains("LID 0x0002") && lid("remote address")?.contains("LID 0x0001"), "{said}");
    Ok(())
}

/// Programs of libibverbs need nothing but an installed library, and no `urxe run`.
#[test]
fn programs_of_an_installed_library() -> Result<()> {
    let world = World::bare()?;
    let host = world.host();
    host.set_env("URXE_LINK_LAYER", "infiniband");
    host.run(artifacts::urxe()?, &["install"])?.success()?;
    let env = host.run(artifacts::urxe()?, &["env"])?.stdout;
    for export in env.lines() {
        let (name, value) = export.trim_start_matches("export ").split_once('=').context("no variable")?;
        host.set_env(name, value);
    }
    let guid = "02005efe7f000001";
    let devices = host.run("ibv_devices", &[])?.stdout;
    ensure!(devices.lines().any(|line| line.split_whitespace().eq(["urxe0", guid])), "{devices}");
    let verbs = host.run("ibv_devinfo", &[])?.stdout;
    for wanted in ["link_layer:\t\tInfiniBand", "port_lid:\t\t1\n", "PORT_ACTIVE"] {
        ensure!(verbs.contains(wanted), "{verbs}");
    }
    for program in ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong", "ibv_xsrq_pingpong"] {
        let exchange = || {
            let port = host.next_port().to_string();
            let words = ["-n", "100", "-p", &port];
            let server = wait_for_listener(host, host.spawn(program, &words)?, port.parse()?)?;
            let client = host.try_run(program, &[&words[..], &["127.0.0.1"]].concat())?;
            Ok((server.finish(TIMEOUT)?, client))
        };
        let said = ping_pong(program, exchange)?.stdout;
        ensure!(said.contains("LID 0x0001") || said.contains("LID 0001"), "{program}: {said}");
    }
    Ok(())
}

#[test]
fn perftest_by_lid() -> Result<()> {
    for subnet in Subnet::each()? {
        for words in [
            // An ACK timeout of a second, where there is one: a peer may have no processor for a while.
            &["ib_send_bw", "-n", "200", "-u", "18"][..],
            &["ib_send_lat", "-n", "100", "-c", "UD"],
            &["ib_send_lat", "-n", "100", "-c", "UC"],
            &["ib_send_lat", "-n", "100", "-c", "XRC", "-u", "18"],
            &["ib_write_bw", "-n", "200", "-q", "4", "-u", "18"],
            &["ib_write_lat", "-n", "100", "-u", "18"],
            &["ib_read_bw", "-n", "200", "-u", "18"],
            &["ib_atomic_lat", "-n", "100", "-u", "18"],
        ] {
            let said = subnet.exchange("-p", &[words, &["-F"]].concat())?.stdout;
            ensure!(
                said.contains("Link type       : IB") && said.contains("remote address: LID 0x01"),
                "{words:?}: {said}"
            );
        }
    }
    Ok(())
}

/// A server that listens for connections of rdma_cm, and its client, to the success of both.
fn connect(subnet: &Subnet, server: &[&str], client: &[&str]) -> Result<()> {
    let host = subnet.server();
    let mut serving = subnet.spawn(host, server)?;
    wait_until("the server listens", || {
        let listens = host.run("cat", &["/proc/net/unix"])?.stdout.contains("@urxe/1/service/");
        Ok(listens || !serving.is_running()?)
    })?;
    let connected = subnet.try_run(subnet.client(), client)?;
    let served = serving.finish(TIMEOUT)?;
    ensure!(connected.status.success() && served.status.success(), "{connected}\n{served}");
    Ok(())
}

#[test]
fn rdma_cm_resolves_addresses() -> Result<()> {
    for subnet in Subnet::each()? {
        let address = subnet.address();
        connect(&subnet, &["rping", "-s", "-C", "10", "-a", &address], &["rping", "-c", "-C", "10", "-a", &address])?;
        connect(&subnet, &["ucmatose", "-b", &address], &["ucmatose", "-s", &address])?;
        connect(&subnet, &["udaddy", "-b", &address], &["udaddy", "-s", &address])?;
    }
    Ok(())
}

/// Addresses of the family AF_IB: GIDs, in both port spaces.
#[test]
fn rdma_cm_connects_by_gid() -> Result<()> {
    let subnet = Subnet::linked()?;
    let gid = "fe80::200:5efe:a4d:1";
    for space in ["tcp", "ib"] {
        let common = ["ucmatose", "-f", "gid", "-P", space];
        connect(&subnet, &[&common[..], &["-b", gid]].concat(), &[&common[..], &["-s", gid]].concat())?;
    }
    Ok(())
}

/// The port of the receiver is a member of the group that rdma_cm makes of the address, as subnet administration tells it.
#[test]
fn mckey_sends_to_a_group() -> Result<()> {
    let subnet = Subnet::linked()?;
    // `-p 0x0002` is RDMA_PS_IPOIB: groups of IPoIB.
    for (space, signature) in [(&[][..], "4001"), (&["-p", "0x0002"], "401b")] {
        let args = [&["mckey", "-m", "239.7.7.7", "-C", "10"], space].concat();
        let receiver = subnet.spawn(subnet.server(), &[&args[..], &["-b", "10.77.0.1"]].concat())?;
        wait_until("the receiver has joined", || {
            Ok(subnet.server().run("ip", &["maddress", "show", "dev", "veth0"])?.stdout.contains("239.7.7.7"))
        })?;
        let record = format!("MGID....................ff12:{signature}:ffff::f07:707");
        for host in [subnet.server(), subnet.client()] {
            wait_until(&record, || Ok(subnet.run(host, &["saquery", "MCMR"])?.stdout.contains(&record)))?;
        }
        subnet.run(subnet.client(), &[&args[..], &["-b", "10.77.0.2", "-s"]].concat())?;
        receiver.finish(TIMEOUT)?.success()?;
    }
    Ok(())
}

/// The tests that qperf connects by telling LIDs, which are all without `-cm 1`. It takes a path MTU of 2048 for granted.
#[test]
fn qperf_without_rdma_cm() -> Result<()> {
    let subnet = Subnet::linked_at(4200)?;
    let server = subnet.server();
    let _serving = subnet.spawn(server, &["qperf"])?;
    wait_until("qperf listens", || Ok(server.run("ss", &["-ltn"])?.stdout.contains(":19765 ")))?;
    for test in ["rc_lat", "rc_bw", "uc_lat", "ud_lat"] {
        // Its ends give each other five seconds by themselves.
        let said = subnet.run(subnet.client(), &["qperf", "-t", "1", "-to", "60", "10.77.0.1", test])?.stdout;
        ensure!(said.contains(" = "), "{test}: {said}");
    }
    Ok(())
}

/// UCX takes the port for one of InfiniBand: addresses with LIDs, no GID index.
#[test]
fn ucx_between_lids() -> Result<()> {
    let subnet = Subnet::linked()?;
    for tls in ["rc", "ud"] {
        let (host, port) = (subnet.server(), subnet.server().next_port());
        let transports = format!("UCX_TLS={tls}");
        let port_text = port.to_string();
        let words = [
            "env",
            &transports,
            "UCX_NET_DEVICES=urxe0:1",
            "ucx_perftest",
            "-t",
            "tag_lat",
            "-n",
            "200",
            "-p",
            &port_text,
        ];
        let server = wait_for_listener(host, subnet.spawn(host, &words)?, port)?;
        let client = subnet.try_run(subnet.client(), &[&words[..], &["10.77.0.1"]].concat())?;
        let server = server.finish(TIMEOUT)?;
        ensure!(client.status.success() && server.status.success(), "{tls}: {client}\n{server}");
    }
    Ok(())
}

/// Open MPI through UCX: four ranks pass a message round.
#[test]
fn open_mpi_over_ib_ports() -> Result<()> {
    let subnet = Subnet::on_lo()?;
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rdmacm_loopback/ring.py");
    let ucx = ["env", "UCX_TLS=rc,self", "UCX_NET_DEVICES=urxe0:1"];
    let launch = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "4", "--mca", "pml", "ucx"];
    let words = [&ucx[..], &launch, &["/usr/bin/python3", program]].concat();
    let said = subnet.run(subnet.server(), &words)?;
    ensure!(said.stdout.contains("4 ranks done"), "{said}");
    Ok(())
}
