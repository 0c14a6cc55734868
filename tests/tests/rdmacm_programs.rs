//! Unmodified programs over librdmacm: the rest of rdmacm-utils, perftest `-R`, qperf, libfabric, and TCP programs over
//! rsockets. `rdmacm` has the first ones, `rdmacm_ends` how connections end.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use urxe_tests::{Finished, Host, Process, TIMEOUT, World, wait_until};

/// Waits until something on the host listens for connections, or the server has ended.
fn wait_for_service(host: &Host, server: &mut Process) -> Result<()> {
    wait_until("the server listens", || {
        let listens = host.run("cat", &["/proc/net/unix"])?.stdout.contains("@urxe/1/service/");
        Ok(listens || !server.is_running()?)
    })
}

/// Runs a server and a client to the success of both.
fn run(server: &Host, server_line: &[&str], client: &Host, client_line: &[&str]) -> Result<Finished> {
    let (server_program, server_args) = server_line.split_first().context("no server")?;
    let (client_program, client_args) = client_line.split_first().context("no client")?;
    let mut serving = server.spawn(server_program, server_args)?;
    wait_for_service(server, &mut serving)?;
    let connected = client.spawn(client_program, client_args)?.finish(TIMEOUT)?;
    let served = serving.finish(TIMEOUT)?;
    ensure!(connected.status.success() && served.status.success(), "{connected}\n{served}");
    Ok(connected)
}

#[test]
fn mckey_sends_to_a_group() -> Result<()> {
    let (world, other) = World::linked()?;
    let args = ["-m", "239.7.7.7", "-C", "10"];
    let receiver = world.host().spawn("mckey", &[&args[..], &["-b", "10.77.0.1"]].concat())?;
    wait_until("the receiver has joined", || {
        let groups = world.host().run("ip", &["maddress", "show", "dev", "veth0"])?.stdout;
        Ok(groups.contains("239.7.7.7"))
    })?;
    other.run("mckey", &[&args[..], &["-b", "10.77.0.2", "-s"]].concat())?;
    receiver.finish(TIMEOUT)?.success()?;
    Ok(())
}

#[test]
fn rdma_xclient_and_xserver() -> Result<()> {
    let (world, other) = World::linked()?;
    for service in ["r", "x"] {
        let client = ["rdma_xclient", "-s", "10.77.0.1", "-c", service];
        run(world.host(), &["rdma_xserver", "-c", service], &other, &client)?;
    }
    Ok(())
}

#[test]
fn rstream_in_each_way() -> Result<()> {
    let world = World::new()?;
    let host = world.host();
    for option in ["b", "n", "a"] {
        // Few and small: on a machine with more to do than processors, a program that spins waits for its turn.
        let args = ["-T", option, "-S", "4096", "-I", "20", "-C", "5"];
        let mut server = host.spawn("rstream", &args)?;
        wait_for_service(host, &mut server)?;
        let client = host.spawn("rstream", &[&args[..], &["-s", "127.0.0.1"]].concat())?.finish(TIMEOUT)?;
        let served = server.finish(TIMEOUT)?;
        // With poll, the client takes the server's end for an error if it comes with the last data (`do_poll` of
        // rdma-core's examples/common.h), and ends with that.
        let early_end = option == "a" && client.status.code() == Some(i32::from(libc::POLLHUP));
        ensure!(client.status.success() || early_end, "{client}\n{served}");
        ensure!(served.status.success() && served.stdout.contains("custom"), "{client}\n{served}");
    }
    Ok(())
}

#[test]
fn riostream_writes_into_mapped_memory() -> Result<()> {
    let world = World::new()?;
    let host = world.host();
    for option in ["b", "n", "a"] {
        let args = ["-T", option, "-S", "4096", "-I", "5", "-C", "5"];
        for attempt in 0.. {
            let mut server = host.spawn("riostream", &args)?;
            wait_for_service(host, &mut server)?;
            let client = host.spawn("riostream", &[&["-s", "127.0.0.1"], &args[..]].concat())?.finish(TIMEOUT)?;
            // It says how much may be mapped after it has begun to listen (`server_connect` of rdma-core's riostream.c): who
            // connects in between may map nothing, and leaves it waiting.
            if attempt < 3 && client.stderr.contains("riomap: Cannot allocate memory") {
                continue;
            }
            ensure!(client.status.success(), "{client}");
            server.finish(TIMEOUT)?.success()?;
            break;
        }
    }
    Ok(())
}

#[test]
fn rcopy_copies_a_file() -> Result<()> {
    let (world, other) = World::linked()?;
    let content: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_ne_bytes).collect();
    let (from, to) = (world.dir().join("from"), world.dir().join("to"));
    fs::write(&from, &content)?;
    // It serves until it is ended.
    let mut server = world.host().spawn("rcopy", &[])?;
    wait_for_service(world.host(), &mut server)?;
    let target = format!("10.77.0.1:{}", to.display());
    other.run("rcopy", &[from.to_str().context("a path")?, &target])?;
    wait_until("the file is complete", || Ok(fs::read(&to).is_ok_and(|got| got == content)))
}

/// The server serves until it is ended.
fn cmtime(connections: &str) -> Result<()> {
    let (world, other) = World::linked()?;
    let mut server = world.host().spawn("cmtime", &["-c", connections])?;
    wait_for_service(world.host(), &mut server)?;
    let said = other.run("cmtime", &["-s", "10.77.0.1", "-c", connections])?;
    ensure!(said.stdout.contains("destroy"), "{said}");
    Ok(())
}

#[test]
fn cmtime_two_hundred_connections() -> Result<()> {
    cmtime("200")
}

#[test]
#[ignore = "long: make cm"]
fn cmtime_thousand_connections() -> Result<()> {
    cmtime("1000")
}

#[test]
#[ignore = "long: make cm"]
fn rping_thousand_times() -> Result<()> {
    let (world, other) = World::linked()?;
    for address in ["10.77.0.1", "fd77::1"] {
        let common = ["-a", address, "-C", "1000", "-V"];
        run(
            world.host(),
            &[&["rping", "-s"], &common[..]].concat(),
            &other,
            &[&["rping", "-c"], &common[..]].concat(),
        )?;
        // A persistent server takes one client after another, and is ended.
        let server_args = ["-s", "-P", "-a", address, "-C", "10", "-V"];
        let mut server = world.host().spawn("rping", &server_args)?;
        wait_for_service(world.host(), &mut server)?;
        for _ in 0..5 {
            other.run("rping", &["-c", "-a", address, "-C", "10", "-V"])?;
        }
        ensure!(server.is_running()?, "the persistent server has ended");
    }
    Ok(())
}

fn perftest(server: &Host, client: &Host, program: &str, more: &[&str]) -> Result<()> {
    let port = server.next_port().to_string();
    let line = [&[program, "-R", "--use_old_post_send", "-p", &port], more].concat();
    let address = server.address();
    run(server, &line, client, &[&line[..], &[&address]].concat())?;
    Ok(())
}

/// perftest makes two connections one after the other, the second at the moment at which both ends are ready for it.
#[test]
fn perftest_connects() -> Result<()> {
    let (world, other) = World::linked()?;
    for _ in 0..5 {
        perftest(world.host(), &other, "ib_write_lat", &["-n", "20"])?;
    }
    perftest(world.host(), world.host(), "ib_read_bw", &["-n", "100"])
}

#[test]
#[ignore = "long: make cm"]
fn perftest_connects_with_every_program() -> Result<()> {
    let (world, other) = World::linked()?;
    for operation in ["send", "write", "read", "atomic"] {
        for measure in ["bw", "lat"] {
            let program = format!("ib_{operation}_{measure}");
            perftest(world.host(), &other, &program, &["-n", "1000"])?;
            perftest(world.host(), world.host(), &program, &["-n", "1000"])?;
        }
    }
    for program in ["ib_send_bw", "ib_send_lat"] {
        perftest(world.host(), &other, program, &["-n", "1000", "-c", "UD"])?;
        perftest(world.host(), &other, program, &["-n", "1000", "-e"])?;
    }
    perftest(world.host(), &other, "ib_write_bw", &["-n", "1000", "-q", "4"])
}

/// A server for qperf, which takes one test after another.
fn qperf(options: &[&str], tests: &[&str]) -> Result<()> {
    let (world, other) = World::linked()?;
    qperf_between(world.host(), &other, options, tests)
}

/// The tests that qperf does not connect by rdma_cm: its ends tell each other LIDs.
fn qperf_by_lids(tests: &[&str]) -> Result<()> {
    let (world, other) = World::linked()?;
    for host in [world.host(), &other] {
        host.set_env("URXE_LID", "1");
    }
    qperf_between(world.host(), &other, &[], tests)
}

fn qperf_between(server: &Host, client: &Host, options: &[&str], tests: &[&str]) -> Result<()> {
    let _server = server.spawn("qperf", &[])?;
    wait_until("qperf listens", || {
        // 19765
        let sockets = server.run("cat", &["/proc/net/tcp", "/proc/net/tcp6"])?.stdout;
        Ok(sockets.lines().any(|line| line.contains(":4D35 ") && line.contains(" 0A ")))
    })?;
    for test in tests {
        // Its ends give each other five seconds by themselves.
        let said = client.run("qperf", &[&["-t", "1", "-to", "60"][..], options, &["10.77.0.1", test]].concat())?;
        ensure!(said.stdout.contains(" = "), "{said}");
    }
    Ok(())
}

#[test]
fn qperf_connects() -> Result<()> {
    qperf(&["-cm", "1"], &["rc_lat"])?;
    qperf_by_lids(&["uc_lat", "ud_lat"])
}

#[test]
#[ignore = "long: make cm"]
fn qperf_with_every_test() -> Result<()> {
    qperf(
        &["-cm", "1"],
        &[
            "rc_lat",
            "rc_bw",
            "rc_bi_bw",
            "rc_rdma_read_lat",
            "rc_rdma_read_bw",
            "rc_rdma_write_lat",
            "rc_rdma_write_bw",
            "rc_rdma_write_poll_lat",
            "rc_compare_swap_mr",
            "rc_fetch_add_mr",
            "ver_rc_compare_swap",
            "ver_rc_fetch_add",
        ],
    )?;
    // Of the reliable ones the one that is least in a hurry: without rdma_cm, qperf gives peers half a second in all.
    qperf_by_lids(&[
        "rc_lat",
        "uc_lat",
        "uc_bw",
        "uc_bi_bw",
        "uc_rdma_write_lat",
        "uc_rdma_write_bw",
        "uc_rdma_write_poll_lat",
        "ud_lat",
        "ud_bw",
        "ud_bi_bw",
    ])
}

/// Datagrams over rsockets, which make an address handle for themselves by the port's LID (`ds_add_qp_dest` of
/// rdma-core's rsocket.c).
#[test]
fn udpong_in_each_way() -> Result<()> {
    let (world, other) = World::linked()?;
    for host in [world.host(), &other] {
        host.set_env("URXE_LID", "1");
    }
    for address in ["10.77.0.1", "fd77::1"] {
        let _server = world.host().spawn("udpong", &["-b", address])?;
        wait_until("udpong listens", || {
            // 7174, where the two agree by UDP.
            Ok(world.host().run("cat", &["/proc/net/udp", "/proc/net/udp6"])?.stdout.contains(":1C06 "))
        })?;
        for way in [&["-T", "b"][..], &["-T", "n"], &["-T", "a"], &["-T", "b", "-T", "e"], &["-T", "a", "-T", "e"]] {
            for client in [&other, world.host()] {
                let said = client.run("udpong", &[way, &["-s", address, "-S", "1000", "-C", "20"]].concat())?;
                ensure!(said.stdout.contains("custom"), "{said}");
            }
        }
    }
    Ok(())
}

/// Programs that exchange LIDs, without being told of GIDs.
#[test]
fn ping_pong_by_lids() -> Result<()> {
    let (world, other) = World::linked()?;
    for host in [world.host(), &other] {
        host.set_env("URXE_LID", "1");
    }
    for (host, lid) in [(world.host(), "1"), (&other, "2")] {
        let said = host.run("ibv_devinfo", &[])?.stdout;
        ensure!(said.lines().any(|line| line.split_whitespace().eq(["port_lid:", lid])), "{said}");
    }
    for program in ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong"] {
        let port = world.host().next_port().to_string();
        let args = ["-p", &port, "-n", "50"];
        let server = world.host().spawn(program, &args)?;
        wait_until("it listens", || {
            let sockets = world.host().run("ss", &["-ltn"])?.stdout;
            Ok(sockets.contains(&format!(":{port} ")))
        })?;
        other.run(program, &[&args[..], &["10.77.0.1"]].concat())?;
        server.finish(TIMEOUT)?.success()?;
    }
    Ok(())
}

/// libfabric's verbs provider: connected endpoints by rdma_cm, reliable datagrams over them, and datagrams.
#[test]
fn libfabric_ping_pong() -> Result<()> {
    // On `lo`, because its server looks for the device of 127.0.0.1.
    let world = World::new()?;
    let host = world.host();
    for (provider, endpoint) in [("verbs", "msg"), ("verbs;ofi_rxm", "rdm"), ("verbs", "dgram")] {
        let args = ["-p", provider, "-e", endpoint, "-S", "1024"];
        let server = host.spawn("fi_pingpong", &args)?;
        wait_until("fi_pingpong listens", || {
            // 47592, where the two agree by TCP.
            let sockets = host.run("cat", &["/proc/net/tcp", "/proc/net/tcp6"])?.stdout;
            Ok(sockets.lines().any(|line| line.contains(":B9E8 ") && line.contains(" 0A ")))
        })?;
        let client = host.spawn("fi_pingpong", &[&args[..], &["127.0.0.1"]].concat())?.finish(TIMEOUT)?;
        let served = server.finish(TIMEOUT)?;
        ensure!(client.status.success() && served.status.success(), "{endpoint}: {client}\n{served}");
        ensure!(client.stdout.lines().any(|line| line.starts_with("1k")), "{endpoint}: {client}");
    }
    Ok(())
}

/// uDAPL over rdma_cm: a hundred connections at once. It takes ten milliseconds to end each (`dapls_ib_disconnect` of dapl's
/// openib_cma/cm.c sleeps), whatever the device does.
#[test]
fn dapl_connects() -> Result<()> {
    let (world, other) = World::linked()?;
    let registry = world.dir().join("dat.conf");
    fs::write(&registry, "urxe-cma u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 \"veth0 0\" \"\"\n")?;
    for host in [world.host(), &other] {
        host.set_env("DAT_OVERRIDE", registry.to_str().context("a path")?);
        // Its server listens at 45248, which its endpoints may be given else: they are bound to port 0 before.
        host.run("sh", &["-c", "echo 50000 60999 > /proc/sys/net/ipv4/ip_local_port_range"])?;
    }
    let common = ["-P", "urxe-cma", "-c", "100"];
    let mut server = world.host().spawn("dtestcm", &[&common[..], &["-s"]].concat())?;
    // Where the two tell each other by TCP how to go on.
    wait_until("the server listens", || Ok(world.host().is_listening(15828)? || !server.is_running()?))?;
    let client = other.spawn("dtestcm", &[&common[..], &["-h", "10.77.0.1"]].concat())?.finish(TIMEOUT)?;
    ensure!(client.status.success(), "{client}");
    let served = server.finish(TIMEOUT)?;
    ensure!(served.status.success(), "{client}\n{served}");
    ensure!(client.stdout.contains("ALL 100 CONNECTED on Client"), "{client}");
    Ok(())
}

/// Where Debian keeps librspreload.
const RSOCKET_FOLDERS: &str = "LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu/rsocket:/usr/lib/aarch64-linux-gnu/rsocket";

/// A program for TCP, unmodified: librspreload makes its sockets connections of ours. It takes sockets as plain as iperf's:
/// those made with `SOCK_CLOEXEC` stay the kernel's (`rsocket` of rdma-core's rsocket.c).
#[test]
fn tcp_over_rsockets() -> Result<()> {
    let world = World::new()?;
    let host = world.host();
    let common = ["env", RSOCKET_FOLDERS, "LD_PRELOAD=librspreload.so.1", "iperf", "-p", "7100"];
    let server = [&common[..], &["-s", "-P", "1", "-B", "127.0.0.1"]].concat();
    // Listening in the port space TCP of rdma_cm is what it waits for.
    let said = run(host, &server, host, &[&common[..], &["-c", "127.0.0.1", "-n", "5M"]].concat())?;
    ensure!(said.stdout.contains("5.00 MBytes"), "{said}");
    Ok(())
}

/// iperf3 waits by select(2), which librspreload answers wrongly, on any device. With one that is right, it runs.
///
/// It takes ten seconds more than the transfer: who waits for a connection in `rpoll` may find it only when
/// `wake_up_interval` is over (5 s), for rsockets' own thread takes the event that would have said so.
#[test]
#[ignore = "long: make cm"]
fn iperf3_over_rsockets() -> Result<()> {
    let world = World::new()?;
    let host = world.host();
    let select = world.dir().join("select.so");
    let select = select.to_str().context("a path")?;
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rsockets/select.c");
    host.run("cc", &["-shared", "-fPIC", "-O2", "-Wall", "-o", select, source])?;
    let preloaded = format!("LD_PRELOAD={select}:librspreload.so.1");
    let common = ["env", RSOCKET_FOLDERS, &preloaded, "iperf3", "-p", "7100"];
    for way in [&["-n", "50M"][..], &["-n", "50M", "-R"], &["-t", "2"]] {
        let server = [&common[..], &["-s", "-1", "-B", "127.0.0.1"]].concat();
        let said = run(host, &server, host, &[&common[..], &["-c", "127.0.0.1"], way].concat())?;
        ensure!(said.stdout.contains("iperf Done."), "{said}");
    }
    Ok(())
}
