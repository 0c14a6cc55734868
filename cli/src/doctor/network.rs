//! A device's interface: address, port 4791, firewall, buffers, MTU.

use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use urxe_net::{Interface, Port, PortError};
use urxe_options::{Choices, Device};
use urxe_wire::Lid;

use super::Finding;

/// Bytes of headers around the payload of a packet: IPv6, UDP, BTH, RETH, ICRC, as the kernel's rxe counts them.
const HEADERS: u32 = 40 + 8 + 12 + 16 + 4;
/// The smallest path MTU of RoCE.
const SMALLEST: u32 = 256;

/// Default receive buffer of Linux (net.core.rmem_default): with less, bursts are lost.
const BUFFER: usize = 200 * 1024;

/// How long a datagram may take through the loopback.
const TIMEOUT: Duration = Duration::from_millis(500);

/// A port that is to have a LID, and has none.
fn lid(interface: &Interface, choices: &Choices) -> Option<Finding> {
    (choices.lids && interface.lid() == Lid::NONE).then(|| {
        let what = match interface.first_ipv4() {
            Some((_, address)) => {
                format!("{address} on {} stands for no LID: peers reach it by GID only", interface.name())
            }
            None => format!("{} has no IPv4 address, so its port has no LID", interface.name()),
        };
        Finding::warning(what, "use an address below x.y.191.0, or above x.y.192.0 in a network of 18 bits or more")
    })
}

pub(super) fn check(device: &Device, interface: &Interface, choices: &Choices) -> Vec<Finding> {
    let name = interface.name();
    if let Err(error) = interface.check_usable() {
        return vec![Finding::error(&error.into())];
    }
    let mut findings = mtu(interface, choices);
    findings.extend(lid(interface, choices));
    match Port::open(interface.clone()) {
        Ok((port, mut receiver)) => {
            if port.receive_buffer() < BUFFER {
                findings.push(Finding::warning(
                    format!("receive buffers hold {} bytes only: long messages will be slow", port.receive_buffer()),
                    "as root: sysctl -w net.core.rmem_max=4194304 net.core.rmem_default=1048576",
                ));
            }
            for address in interface.addresses() {
                findings.extend(firewall(&port, &mut receiver, *address));
            }
            findings.extend(sharing(&receiver));
        }
        Err(PortError::PortTaken { address }) => findings.push(taken(address)),
        Err(error) => findings.push(Finding::error(&error.into())),
    }
    if !findings.iter().any(|finding| finding.verdict == super::Verdict::Problem) {
        let addresses: Vec<String> = interface.addresses().iter().map(|address| address.ip().to_string()).collect();
        let what = format!("{} is on {name}: {}, path MTU {}", device.name, addresses.join(", "), interface.path_mtu());
        findings.push(Finding::fine(what));
    }
    findings
}

/// Names other users of the port, and the consequence (SECURITY.md).
fn sharing(receiver: &urxe_net::Receiver) -> Vec<Finding> {
    let owned = |(address, user): (SocketAddr, u32)| {
        Finding::warning(
            format!(
                "a process of user {user} owns UDP {address}: it sees packets for yours, and may keep or change them"
            ),
            "if that user is not to be trusted, use a network namespace of your own (`ip netns`, a container)",
        )
    };
    let mut findings: Vec<Finding> = receiver.other_users().map(owned).collect();
    if findings.is_empty() {
        findings.push(Finding::fine(
            "other users of this network namespace can take packets of your connections: users who do not trust each other \
             need a network namespace each",
        ));
    }
    findings
}

fn mtu(interface: &Interface, choices: &Choices) -> Vec<Finding> {
    let (name, mtu) = (interface.name(), interface.mtu());
    if mtu < SMALLEST + HEADERS {
        return vec![Finding::problem(
            format!("the MTU of {name} is {mtu}: the smallest RoCE packets do not fit"),
            format!("as root: ip link set {name} mtu 1500"),
        )];
    }
    let mut findings = Vec::new();
    if let Some(wanted) = choices.mtu.filter(|wanted| *wanted > interface.path_mtu()) {
        findings.push(Finding::warning(
            format!("--mtu {wanted} does not fit through {name}, whose MTU is {mtu}: {} it is", interface.path_mtu()),
            format!("as root: ip link set {name} mtu {}", u32::from(wanted) + HEADERS),
        ));
    } else if interface.path_mtu() < 1024 && choices.mtu.is_none() {
        findings.push(Finding::warning(
            format!("the MTU of {name} is {mtu}, so packets carry {} bytes only", interface.path_mtu()),
            format!("as root: ip link set {name} mtu 1500, or more if the network allows it"),
        ));
    }
    findings
}

/// Sends a datagram to the port that was opened. It is too short to be RoCE, and is counted as such when it arrives.
fn firewall(port: &Port, receiver: &mut urxe_net::Receiver, address: SocketAddr) -> Option<Finding> {
    // Where another process owns the address, the datagram would be that one's, and would be counted there.
    if owned_by_another(address) {
        return None;
    }
    let arrived = |port: &Port| port.counters().drop_short.load(Ordering::Relaxed);
    let before = arrived(port);
    let socket = UdpSocket::bind(SocketAddr::new(address.ip(), 0)).ok()?;
    if let Err(error) = socket.send_to(&[0], address) {
        return (error.kind() == ErrorKind::PermissionDenied).then(|| {
            Finding::problem(
                format!("a firewall refuses to send to UDP {address}"),
                "allow UDP port 4791 in its output chain (`nft list ruleset`, `iptables -S OUTPUT`)",
            )
        });
    }
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let is_over = Instant::now() >= deadline;
        // Every look is at all sockets, the last one too: on a busy machine there are few.
        receiver.woken();
        receiver.receive(port, 1, &mut |_| false);
        if arrived(port) > before {
            return None;
        }
        if is_over {
            break;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Some(Finding::problem(
        format!("datagrams to UDP {address} do not arrive: a firewall drops them"),
        "allow UDP port 4791 in its input chain (`nft list ruleset`, `iptables -S INPUT`)",
    ))
}

/// Whether another urxe process holds the port of this address: we are not its owner then.
fn owned_by_another(address: SocketAddr) -> bool {
    let own = std::process::id().to_string();
    let sockets = udp_sockets(address);
    !sockets.is_empty() && !sockets.iter().any(|inode| holder(inode).is_some_and(|(pid, _)| pid == own))
}

/// Names the holder of the port.
fn taken(address: SocketAddr) -> Finding {
    let holders = udp_sockets(address);
    let who = holders.iter().find_map(|inode| holder(inode));
    let (who, remedy) = match who {
        Some((pid, program)) => (format!("{program} (process {pid})"), format!("end it: kill {pid}")),
        None => (
            "the kernel (its rxe driver), or a program of another user".to_owned(),
            "`ss -ulpn 'sport = :4791'` as root shows it; rxe goes with `rdma link delete`".to_owned(),
        ),
    };
    Finding::problem(
        format!("UDP {address} is held by {who}"),
        format!("{remedy}; or choose another interface with --netdev"),
    )
}

/// Inodes of the sockets at the port of an address, or of all addresses.
fn udp_sockets(address: SocketAddr) -> Vec<String> {
    // Columns of proc_net(5): local address as 32-bit words in host byte order, and a port; the tenth is the inode.
    let text = |octets: &[u8]| {
        let word = |bytes: &[u8]| <[u8; 4]>::try_from(bytes).map(u32::from_ne_bytes).unwrap_or_default();
        octets.chunks(4).map(|bytes| format!("{:08X}", word(bytes))).collect::<String>()
    };
    let (file, own) = match address.ip() {
        IpAddr::V4(ip) => ("/proc/net/udp", text(&ip.octets())),
        IpAddr::V6(ip) => ("/proc/net/udp6", text(&ip.octets())),
    };
    let port = format!("{:04X}", address.port());
    let is_ours = |local: &str| {
        local.split_once(':').is_some_and(|(address, bound)| {
            bound == port && (address == own || address.bytes().all(|byte| byte == b'0'))
        })
    };
    let table = fs::read_to_string(file).unwrap_or_default();
    let rows = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.filter(|row| row.get(1).is_some_and(|local| is_ours(local)))
        .filter_map(|row| row.get(9).map(|inode| (*inode).to_owned()))
        .collect()
}

/// The process that has the socket open, and its name.
fn holder(inode: &str) -> Option<(String, String)> {
    let wanted = format!("socket:[{inode}]");
    fs::read_dir("/proc").ok()?.flatten().find_map(|process| {
        let pid =
            process.file_name().into_string().ok().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))?;
        let fds = fs::read_dir(process.path().join("fd")).ok()?;
        let has =
            fds.flatten().any(|fd| fs::read_link(fd.path()).is_ok_and(|link| link.as_os_str() == wanted.as_str()));
        let program = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
        has.then(|| (pid, program.trim().to_owned()))
    })
}
