//! Attacks by another user of the machine, from the same network namespace. What they do not disturb is what SECURITY.md
//! promises; what a port is left with is shown in `net/tests/ports/other_users.rs`.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use urxe_tests::{Host, PingPong, Process, TIMEOUT, World, artifacts, wait_for_device, wait_for_listener, wait_until};

/// Starts a Python program as a user who is nobody else here, and waits until it says that it is at it.
fn attack(host: &Host, program: &str) -> Result<Process> {
    let words = ["--reuid=65533", "--regid=65533", "--clear-groups", "/usr/bin/python3", "-uc", program];
    let attacker = host.spawn("setpriv", &words)?;
    wait_until("the attack has begun", || {
        ensure!(attacker.stderr_so_far().is_empty(), "the attacker failed: {}", attacker.stderr_so_far());
        Ok(attacker.stdout_so_far().contains("go"))
    })?;
    Ok(attacker)
}

/// Four connections at once, the first process of which owns the port, while a program is run by another user.
fn four_connections_during(way: &str, program: &str) -> Result<()> {
    let world = World::new()?;
    let host = world.host();
    host.set_env("URXE_LOOPBACK", way);
    let options = PingPong { iters: 2000, validate: true, ..PingPong::default() };
    let mut attacker = None;
    let first = options.start_with(host, host, || attacker = Some(attack(host, program)))?;
    let mut attacker = attacker.context("nobody attacks")??;
    let mut pairs = vec![first];
    for _ in 1..4 {
        pairs.push(options.start(host, host)?);
    }
    for pair in pairs {
        pair.finish()?;
    }
    ensure!(attacker.is_running()?, "the attack ended: {}", attacker.stderr_so_far());
    attacker.signal(libc::SIGKILL)?;
    attacker.finish(TIMEOUT)?;
    Ok(())
}

/// Two connections leave last wills, end, and come again.
//= spec/hosts.md#net-030
//= type=test
//# The owner of the port MUST hear, keep and entrust with wills only connections of its own user.
#[test]
#[ignore = "needs root: in a user namespace of one user there are no others"]
fn last_wills_of_another_user_end_no_connection() -> Result<()> {
    four_connections_during(
        "shm",
        "import socket, time
mapped = b'\\0' * 10 + b'\\xff' * 2
def wills(connection, first):
    for name in range(first, first + 4096):
        peer = mapped + bytes([10, name >> 16 & 255, name >> 8 & 255, name & 255])
        connection.send(name.to_bytes(4, 'little') + mapped + bytes([127, 0, 0, 1]) + peer + bytes(256))
rounds = 0
while True:
    both = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
    for at, connection in enumerate(both):
        try:
            connection.connect('\\0urxe/1/owner/127.0.0.1')
            wills(connection, (2 * rounds + at) * 4096)
        # Sent away.
        except OSError: time.sleep(0.001)
    for connection in both: connection.close()
    rounds += 1
    if rounds == 2: print('go')",
    )
}

/// More mailboxes than the owner keeps connections to, and datagrams for each.
//= spec/hosts.md#net-032
//= type=test
//# A mailbox that nobody reads MUST NOT make the owner of the port wait.
#[test]
#[ignore = "needs root: in a user namespace of one user there are no others"]
fn mailboxes_that_another_user_does_not_read_stop_nobody() -> Result<()> {
    four_connections_during(
        "udp",
        "import socket, time
mailboxes, blocks = [], []
for block in range(1, 0xffff):
    if len(blocks) == 80: break
    mailbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try: mailbox.bind('\\0urxe/1/qpn/%04x' % block)
    except OSError: continue
    mailboxes.append(mailbox)
    blocks.append(block)
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
rounds = 0
while True:
    for block in blocks:
        out.sendto(bytes([4, 0, 255, 255, 0]) + block.to_bytes(2, 'big') + bytes(25), ('127.0.0.1', 4791))
    rounds += 1
    if rounds == 20: print('go')
    time.sleep(0.04)",
    )
}

/// SENDs from 127.0.0.1 to `qpn` there, each from another of so many ports. Their ICRCs are those of datagrams with DF and
/// identification 0, as sockets send that probe the path MTU.
const BURST: &str = "import struct, time, zlib
for _ in range(ports):
    out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    out.setsockopt(socket.IPPROTO_IP, 10, 2)
    out.bind(('127.0.0.1', 0))
    host = socket.inet_aton('127.0.0.1')
    packet = struct.pack('>BBHIB3s', 4, 0, 0xffff, qpn, 0, b'') + bytes(48)
    ip = struct.pack('>BBHHHBBH', 0x45, 255, 20 + 8 + len(packet) + 4, 0, 0x4000, 255, 17, 0xffff) + host + host
    udp = struct.pack('>HHHH', out.getsockname()[1], 4791, 8 + len(packet) + 4, 0xffff)
    icrc = zlib.crc32(b'\\xff' * 8 + ip + udp + packet[:4] + b'\\xff' + packet[5:])
    out.sendto(packet + struct.pack('<I', icrc), ('127.0.0.1', 4791))
    time.sleep(0.001)
print('go')
time.sleep(1000)";

/// Datagrams with right ICRCs for a queue pair that does not expect them, from many ports.
//= spec/hosts.md#net-033
//= type=test
//# A flow socket MUST be opened only for a sender whose packet a queue pair has accepted, and closed when it is idle.
#[test]
#[ignore = "needs root: in a user namespace of one user there are no others"]
fn a_burst_from_many_ports_takes_no_descriptors() -> Result<()> {
    const PORTS: u64 = 300;
    let world = World::new()?;
    let host = world.host();
    let wait = |port: u16| {
        let server = host.spawn("ibv_rc_pingpong", &["-d", "urxe0", "-g", "1", "-e", "-p", &port.to_string()])?;
        wait_for_listener(host, server, port)
    };
    let (_owner, follower) = (wait(host.next_port())?, wait(host.next_port())?);
    let device = |what, is_so: &dyn Fn(&Value) -> bool| wait_for_device(host, follower.pid(), what, is_so);
    let answering = || device("the follower answers", &|_| true);
    let qpn = answering()?["qps"][0]["qpn"].as_u64().context("no queue pair")?.to_string();
    let mut attacker = attack(host, &format!("import socket\nqpn, ports = {qpn}, {PORTS}\n{BURST}"))?;
    let have_arrived = |device: &Value| device["counters"]["rx_datagrams"].as_u64() >= Some(PORTS);
    device("all that was sent has arrived", &have_arrived)?;
    let device = answering()?;
    let counters = &device["counters"];
    // They were packets, and dropped by the queue pair: it is in INIT.
    ensure!(counters["icrc_err"] == 0 && counters["malformed"] == 0 && counters["flows_opened"] == 0, "{device}");
    ensure!(attacker.is_running()?);
    attacker.signal(libc::SIGKILL)?;
    attacker.finish(TIMEOUT)?;
    Ok(())
}

/// Listens as a device of process `pid` does, and tells of `lists`. Each answer is read by somebody, or not: who does not
/// believe it hangs up.
const DEVICE: &str = "import os, socket
def listen():
    listener = socket.socket(socket.AF_UNIX)
    listener.bind('\\0urxe/1/status/%d/1' % os.getpid())
    listener.listen(64)
    return listener
def tell(listener, lists):
    report = '{\"pid\":%d,\"program\":\"x\",\"device\":\"urxe0\",\"netdev\":\"lo\",\"counters\":{},\"qps\":[],'
    report = (report % os.getpid() + '\"resources\":{' + lists + '}}').encode()
    print('go', flush=True)
    while True:
        stream, _ = listener.accept()
        try: stream.sendall(report)
        except OSError: pass
        stream.close()
";

/// Objects that `rdma` cannot show, many that each could cost the time of all, a range of numbers that never ends, and the number
/// of a process that was another user's when it listened, and is root's now.
#[test]
#[ignore = "needs root: in a user namespace of one user there are no others"]
fn another_users_objects_do_not_spoil_the_list_of_all() -> Result<()> {
    const MANY: u32 = 30_000;
    let world = World::bare()?;
    let host = world.host();
    let hostile = format!(
        "{DEVICE}
qps = '{{\"lqpn\":4294967294,\"srqn\":1}},{{\"lqpn\":4294967295,\"srqn\":1}},' + '{{\"lqpn\":1,\"srqn\":2}},' * {MANY}
tell(listen(), '\"pd\":[{{}}],\"qp\":[' + qps + '],\"srq\":[' + '{{\"srqn\":1}},' * {MANY} + ']')"
    );
    let mut hostile = attack(host, &hostile)?;
    // Listening tells the kernel who this is. The child answers later.
    let spoof = format!(
        "{DEVICE}
import signal, ctypes
os.seteuid(65533)
listener = listen()
os.seteuid(0)
parent = os.getpid()
if os.fork() == 0:
    os.setresuid(65533, 65533, 65533)
    # PR_SET_PDEATHSIG, which a change of users would undo.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != parent: os._exit(0)
    tell(listener, '\"pd\":[{{\"pdn\":666,\"users\":1,\"ctxn\":1}}]')
listener.close()
signal.pause()"
    );
    let mut root = host.spawn("/usr/bin/python3", &["-uc", &spoof])?;
    wait_until("somebody answers in root's name", || Ok(root.stdout_so_far().contains("go")))?;
    let port = host.next_port();
    let script = format!(
        "ibv_srq_pingpong -d urxe0 -g 1 -p {port} >/dev/null & server=$!
        until ss -Hltn sport = {port} | grep -q .; do sleep 0.02; done
        echo $server
        for kind in pd qp srq; do rdma -j resource show $kind; done
        rdma resource show srq lqpn 7 >/dev/null
        kill $server"
    );
    let said = host.run(artifacts::urxe()?, &["run", "sh", "-ec", &script])?;
    let mut lines = said.stdout.lines();
    let server: u32 = lines.next().context("no number")?.parse()?;
    for kind in ["pd", "qp", "srq"] {
        let list: Vec<Value> = serde_json::from_str(lines.next().context("too few lists")?)?;
        let of = |pid: u32| list.iter().filter(|object| object["pid"] == pid).count();
        ensure!(of(server) > 0 && of(root.pid()) == 0, "{kind} of {server} and {}: {list:?}", root.pid());
        ensure!(of(hostile.pid()) == if kind == "srq" { MANY as usize } else { 0 }, "{kind}: {}", of(hostile.pid()));
    }
    for process in [&mut hostile, &mut root] {
        ensure!(process.is_running()?, "{}", process.stderr_so_far());
        process.signal(libc::SIGKILL)?;
    }
    hostile.finish(TIMEOUT)?;
    root.finish(TIMEOUT)?;
    Ok(())
}

/// The one limit that nobody can be protected from, where it is real.
#[test]
#[ignore = "needs root: in a user namespace of one user there are no others"]
fn the_doctor_says_whose_the_port_is() -> Result<()> {
    let world = World::new()?;
    let host = world.host();
    let consult = || host.run(artifacts::urxe()?, &["doctor"]);
    let remark = "need a network namespace each";
    ensure!(consult()?.stdout.contains(remark), "{}", consult()?);
    // The name and the port are what makes an owner.
    let mut other = attack(
        host,
        "import socket, time
owners = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
for owner, address in zip(owners, ['127.0.0.1', '::1%0']):
    owner.bind('\\0urxe/1/owner/' + address)
    owner.listen()
ports = [socket.socket(family, socket.SOCK_DGRAM) for family in (socket.AF_INET, socket.AF_INET6)]
for port, address in zip(ports, ['127.0.0.1', '::1']):
    port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    port.bind((address, 4791))
print('go')
time.sleep(1000)",
    )?;
    let said = consult()?;
    for address in ["127.0.0.1:4791", "[::1]:4791"] {
        ensure!(said.stdout.contains(&format!("a process of user 65533 owns UDP {address}")), "{said}");
    }
    ensure!(said.stdout.contains("a network namespace of your own") && !said.stdout.contains(remark), "{said}");
    ensure!(other.is_running()?);
    other.signal(libc::SIGKILL)?;
    other.finish(TIMEOUT)?;
    Ok(())
}
