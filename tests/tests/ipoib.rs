//! `urxe ipoib up`: hosts ping each other over InfiniBand, beside other traffic, and tshark knows what it sees.

use anyhow::{Context as _, Result, ensure};
use urxe_tests::{Capture, Host, Process, Subnet, TIMEOUT, artifacts, wait_until};

/// An interface of a host, up.
fn up(host: &Host, address: &str) -> Result<Process> {
    up_with(host, &[address])
}

/// An interface with several addresses.
fn up_with(host: &Host, addresses: &[&str]) -> Result<Process> {
    let urxe = artifacts::urxe()?;
    let mut process = host.start({
        let mut command = host.command(urxe);
        command.args(["ipoib", "up", "ib0"]).args(addresses);
        command
    })?;
    wait_until("ib0 is up", || {
        ensure!(process.is_running()?, "{}", process.stderr_so_far());
        Ok(process.stdout_so_far().contains("hardware address"))
    })?;
    Ok(process)
}

/// Ends the interface; it is gone then.
fn down(host: &Host, process: Process) -> Result<()> {
    process.signal(libc::SIGTERM)?;
    process.finish(TIMEOUT)?.success()?;
    let links = host.run("ip", &["-o", "link"])?.stdout;
    ensure!(!links.contains("ib0"), "{links}");
    Ok(())
}

/// Waits until a host has heard where the other one is: what is sent before may be lost.
fn finds(from: &Host, to: &str) -> Result<()> {
    wait_until("the neighbour answers", || Ok(from.try_run("ping", &["-c", "1", "-W", "1", to])?.status.success()))
}

/// Packets of a [`ping`].
const PINGS: usize = 5;

/// Pings with this many bytes, all of which come back.
fn ping(from: &Host, to: &str, bytes: &str) -> Result<()> {
    for _ in 0..PINGS {
        // Of several packets, ping(8) waits for the last only as long as for the others.
        from.run("ping", &["-c", "1", "-W", "60", "-s", bytes, to])?;
    }
    Ok(())
}

#[test]
fn two_hosts_ping_each_other() -> Result<()> {
    let subnet = Subnet::linked()?;
    let (a, b) = (subnet.server(), subnet.client());
    let (first, second) = (up(a, "192.0.2.1/24")?, up(b, "192.0.2.2/24")?);
    let said = first.stdout_so_far();
    ensure!(said.contains("MTU 1020, Q_Key 0x0b1b, MLID 0xc000, hardware address 00:"), "{said}");
    finds(a, "192.0.2.2")?;
    // A datagram, and packets that the kernel cuts into several.
    for bytes in ["56", "992", "8000"] {
        ping(a, "192.0.2.2", bytes)?;
    }
    ping(b, "192.0.2.1", "56")?;

    // Beside other traffic of the two ports.
    subnet.exchange("-p", &["ib_send_bw", "-F", "-n", "200", "-u", "18"])?;
    subnet.exchange("-p", &["ibv_ud_pingpong", "-n", "100"])?;
    ping(a, "192.0.2.2", "500")?;

    // Of whom nobody has heard: no answer, as everywhere.
    let said = a.start({
        let mut command = a.command("ping");
        command.args(["-c", "1", "-W", "2", "192.0.2.77"]);
        command
    })?;
    ensure!(said.finish(TIMEOUT)?.stdout.contains("100% packet loss"));

    // Another queue pair at the same address: who knew the old one learns.
    down(b, second)?;
    let second = up(b, "192.0.2.2/24")?;
    finds(a, "192.0.2.2")?;
    ping(a, "192.0.2.2", "56")?;
    down(a, first)?;
    down(b, second)
}

/// IPv6: neighbours are discovered by addresses of the link and by others, and groups of IPv6 are joined.
#[test]
fn two_hosts_ping_each_other_by_ipv6() -> Result<()> {
    // IPv6 needs an MTU of 1280.
    let subnet = Subnet::linked_at(4200)?;
    let (a, b) = (subnet.server(), subnet.client());
    let first = up_with(a, &["192.0.2.1/24", "2001:db8::1/64"])?;
    let second = up_with(b, &["192.0.2.2/24", "2001:db8::2/64"])?;
    for (from, to) in [(a, "2001:db8::2"), (b, "2001:db8::1"), (a, "fe80::200:5efe:a4d:2%ib0")] {
        finds(from, to)?;
        for bytes in ["56", "4000", "9000"] {
            ping(from, to, bytes)?;
        }
    }
    ping(a, "192.0.2.2", "56")?;
    let both = ["fe80::200:5efe:a4d:1", "fe80::200:5efe:a4d:2"];
    // All nodes, and those that are solicited for an address.
    for (group, wanted) in [
        ("ff12:601b:ffff::1", &both[..]),
        ("ff12:601b:ffff::1:ff00:1", &both[..1]),
        ("ff12:601b:ffff::1:ff4d:2", &both[1..]),
    ] {
        wait_until(&format!("{wanted:?} in {group}"), || Ok(members(a, &subnet, group)? == wanted))?;
    }
    // A group that a program joins: an answer comes from there.
    let script = "import socket, struct
member = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
member.bind(('', 7003))
index = socket.if_nametoindex('ib0')
member.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, socket.inet_pton(socket.AF_INET6, 'ff02::7:7') + struct.pack('@I', index))
print(member.recv(100).decode())";
    let member = b.spawn("/usr/bin/python3", &["-c", script])?;
    wait_until("the port has joined the group", || Ok(members(a, &subnet, "ff12:601b:ffff::7:7")? == both[1..]))?;
    // Administration may tell of the port before that listens: it is said until it is heard.
    let script = "import socket, time
speaker = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
while True:
    speaker.sendto(b'everybody', ('ff02::7:7', 7003, 0, socket.if_nametoindex('ib0')))
    time.sleep(0.1)";
    let speaker = a.spawn("/usr/bin/python3", &["-c", script])?;
    let said = member.finish(TIMEOUT)?.success()?;
    drop(speaker);
    ensure!(said.stdout == "everybody\n", "{said}");
    // Another queue pair at the same addresses: who knew the old one learns.
    down(b, second)?;
    let second = up_with(b, &["192.0.2.2/24", "2001:db8::2/64"])?;
    finds(a, "2001:db8::2")?;
    ping(a, "2001:db8::2", "56")?;
    down(a, first)?;
    down(b, second)
}

/// Over an interface of 1500 bytes there is no IPv6: who asks for it is told.
#[test]
fn ipv6_needs_a_larger_mtu() -> Result<()> {
    let subnet = Subnet::linked()?;
    let host = subnet.server();
    let mut command = host.command(artifacts::urxe()?);
    command.args(["ipoib", "up", "ib0", "192.0.2.1/24", "2001:db8::1/64"]);
    let said = host.start(command)?.finish(TIMEOUT)?;
    ensure!(!said.status.success() && said.stderr.contains("IPv6 needs an MTU of 1280: this port has 1020"), "{said}");
    Ok(())
}

/// The process of the interface owns the host's address: so it answers for the port, and for subnet administration.
#[test]
fn the_host_is_in_the_subnet() -> Result<()> {
    let subnet = Subnet::linked()?;
    let (a, b) = (subnet.server(), subnet.client());
    let second = up(b, "192.0.2.2/24")?;
    // A program that has just begun may not have heard of the other host, and waits for a second.
    let shows = |host: &Host, words: &[&str], wanted: &str| {
        let mut said = String::new();
        wait_until(&format!("{words:?}"), || {
            said = subnet.try_run(host, words)?.stdout;
            Ok(said.contains(wanted))
        })
        .with_context(|| format!("no {wanted:?} in {said}"))
    };
    for (words, wanted) in [
        (&["ibhosts"][..], "0x02005efe0a4d0002"),
        (&["smpquery", "nodeinfo", "2"], "0x02005efe0a4d0002"),
        (&["smpquery", "-D", "portinfo", "0,1,2", "1"], "LinkState:.......................Active"),
        (&["perfquery", "2", "1"], "PortXmitPkts"),
        (&["saquery", "NR"], "0x02005efe0a4d0002"),
    ] {
        shows(a, words, wanted)?;
    }
    for (words, wanted) in [
        (&["sminfo"][..], "SMINFO_MASTER"),
        (&["ibstat"], "Base lid: 2\n"),
        (&["saquery", "-p", "--src-to-dst", "2:2"], "dlid....................2"),
    ] {
        shows(b, words, wanted)?;
    }
    down(b, second)
}

/// GIDs of the ports that are members of a group, by the records of `saquery MCMR`.
fn members(host: &Host, subnet: &Subnet, group: &str) -> Result<Vec<String>> {
    let said = subnet.run(host, &["saquery", "MCMR"])?.stdout;
    let value = |line: &str| line.trim_start_matches(|letter| letter != '.').trim_start_matches('.').to_owned();
    let lines: Vec<&str> = said.lines().map(str::trim).collect();
    let records = lines.windows(2).filter(|pair| pair[0].starts_with("MGID.") && value(pair[0]) == group);
    let mut ports: Vec<String> = records.map(|pair| value(pair[1])).collect();
    ports.sort();
    Ok(ports)
}

/// Ports are members of the broadcast group and of those that the kernel has joined, as subnet administration tells them, for
/// as long as the interface is there.
#[test]
fn subnet_administration_knows_the_groups() -> Result<()> {
    const BROADCAST: &str = "ff12:401b:ffff::ffff:ffff";
    const ALL_HOSTS: &str = "ff12:401b:ffff::1";
    let subnet = Subnet::linked()?;
    let (a, b) = (subnet.server(), subnet.client());
    let (first, second) = (up(a, "192.0.2.1/24")?, up(b, "192.0.2.2/24")?);
    let both = ["fe80::200:5efe:a4d:1", "fe80::200:5efe:a4d:2"];
    let wait_for = |host: &Host, group: &str, wanted: &[&str]| {
        wait_until(&format!("{wanted:?} in {group}"), || Ok(members(host, &subnet, group)? == wanted))
    };
    for host in [a, b] {
        for group in [BROADCAST, ALL_HOSTS] {
            wait_for(host, group, &both)?;
        }
    }
    down(b, second)?;
    for group in [BROADCAST, ALL_HOSTS] {
        wait_for(a, group, &both[..1])?;
    }
    down(a, first)
}

/// TCP, and groups that programs join.
#[test]
fn streams_and_groups() -> Result<()> {
    let subnet = Subnet::linked()?;
    let (a, b) = (subnet.server(), subnet.client());
    let (first, second) = (up(a, "192.0.2.1/24")?, up(b, "192.0.2.2/24")?);
    let server = a.spawn(
        "/usr/bin/python3",
        &[
            "-c",
            "import socket
listener = socket.create_server(('192.0.2.1', 7001))
stream, _ = listener.accept()
count = 0
while chunk := stream.recv(65536):
    count += len(chunk)
stream.sendall(str(count).encode())",
        ],
    )?;
    wait_until("it listens", || Ok(a.run("ss", &["-ltn"])?.stdout.contains(":7001 ")))?;
    let said = b.run(
        "/usr/bin/python3",
        &[
            "-c",
            "import socket
stream = socket.create_connection(('192.0.2.1', 7001))
stream.sendall(bytes(1000000))
stream.shutdown(socket.SHUT_WR)
print(stream.recv(100).decode())",
        ],
    )?;
    ensure!(said.stdout == "1000000\n", "{said}");
    server.finish(TIMEOUT)?.success()?;

    let member = a.spawn("/usr/bin/python3", &["-c", "import socket
member = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
member.bind(('', 7002))
member.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton('239.1.2.3') + socket.inet_aton('192.0.2.1'))
print(member.recv(100).decode())"])?;
    // The port joins what the kernel has joined.
    wait_until("the port has joined the group", || {
        Ok(a.run("ip", &["maddress", "show", "dev", "veth0"])?.stdout.contains("239.1.2.3"))
    })?;
    b.run(
        "/usr/bin/python3",
        &[
            "-c",
            "import socket
speaker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
speaker.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton('192.0.2.2'))
speaker.sendto(b'everybody', ('239.1.2.3', 7002))",
        ],
    )?
    .success()?;
    let said = member.finish(TIMEOUT)?.success()?;
    ensure!(said.stdout == "everybody\n", "{said}");
    down(a, first)?;
    down(b, second)
}

/// Wireshark's dissector takes the datagrams for IPoIB: ARP with hardware addresses of 20 bytes, and IP inside.
#[test]
fn tshark_sees_ipoib() -> Result<()> {
    let subnet = Subnet::linked()?;
    let (a, b) = (subnet.server(), subnet.client());
    let capture = Capture::start(a, "veth0", &subnet.world().dir().join("ipoib.pcapng"))?;
    let (first, second) = (up(a, "192.0.2.1/24")?, up(b, "192.0.2.2/24")?);
    finds(a, "192.0.2.2")?;
    ping(a, "192.0.2.2", "56")?;
    let fields = ["frame.protocols", "arp.hw.type", "arp.hw.size", "arp.dst.proto_ipv4", "icmp.type", "_ws.malformed"];
    let packets = capture.finish(&fields)?;
    let arp = packets.iter().find(|row| row[0].ends_with("infiniband:ethertype:arp")).context("no ARP")?;
    ensure!(arp[1] == "32" && arp[2] == "20", "{arp:?}");
    ensure!(packets.iter().any(|row| row[3] == "192.0.2.2"), "{packets:?}");
    let pings: Vec<_> = packets.iter().filter(|row| row[0].contains("infiniband:ethertype:ip:icmp")).collect();
    let count = |kind: &str| pings.iter().filter(|row| row[4] == kind).count();
    // Those of before are there as well, and may have had no answer.
    ensure!(count("8") > PINGS && count("0") > PINGS, "{packets:?}");
    ensure!(packets.iter().all(|row| row[5].is_empty()), "{packets:?}");
    down(a, first)?;
    down(b, second)
}
