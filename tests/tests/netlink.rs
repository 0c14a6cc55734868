//! `NETLINK_RDMA` below `urxe run`: libibverbs and `rdma` of iproute2 ask there, and are told what is so.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use urxe_tests::{Launcher, wait_until};

/// Output of a program, as JSON.
fn json(text: &str) -> Result<Vec<Value>> {
    serde_json::from_str(text.trim()).with_context(|| format!("not a list: {text:?}"))
}

#[test]
fn rdma_shows_devices_and_their_ports() -> Result<()> {
    let launcher = Launcher::new()?;
    let said = launcher.sh("rdma -j dev; rdma -j link; cat /sys/class/infiniband/urxe0/node_guid; rdma -j sys")?.stdout;
    let mut lines = said.lines();
    let mut line = || lines.next().context("too few lines");
    let (devices, links, guid, system) = (json(line()?)?, json(line()?)?, line()?, line()?);
    ensure!(devices.len() == 1 && links.len() == 1, "{said}");
    let device = &devices[0];
    ensure!(device["ifname"] == "urxe0" && device["ifindex"] == 0 && device["node_type"] == "ca", "{device}");
    ensure!(device["node_guid"] == guid && device["sys_image_guid"] == guid, "{device} {guid}");
    ensure!(device["fw"] == env!("CARGO_PKG_VERSION"), "{device}");
    let link = &links[0];
    ensure!(link["ifname"] == "urxe0" && link["port"] == 1 && link["netdev"] == "lo", "{link}");
    ensure!(link["state"] == "ACTIVE" && link["physical_state"] == "LINK_UP", "{link}");
    ensure!(system.contains("exclusive"), "{system}");
    // As the interface is now, and not when the program was started.
    let script =
        "ip link add name veth7 type veth peer name veth8 && ip addr add 10.7.0.1/24 dev veth7 && ip link set veth7 up";
    launcher.host().run("sh", &["-ec", script])?;
    wait_until("the kernel has noticed that there is no carrier", || {
        Ok(launcher.host().run("ip", &["-o", "link", "show", "veth7"])?.stdout.contains("NO-CARRIER"))
    })?;
    let down = launcher.try_run(&["--netdev", "lo,veth7"], &["rdma", "-j", "link"])?.success()?;
    let down = json(&down.stdout)?;
    let states: Vec<_> = down.iter().map(|link| (&link["ifname"], &link["netdev"], &link["state"])).collect();
    ensure!(
        states.len() == 2 && states[1].0 == "urxe1" && states[1].1 == "veth7" && states[1].2 == "DOWN",
        "{states:?}"
    );
    launcher.host().run("ip", &["link", "set", "veth8", "up"])?;
    launcher.host().wait_for_links(&["veth7"])?;
    let up = launcher.try_run(&["--netdev", "lo,veth7"], &["rdma", "link", "show", "urxe1/1"])?.success()?;
    ensure!(up.stdout.contains("state ACTIVE") && up.stdout.contains("netdev veth7"), "{up}");
    Ok(())
}

/// Succeeds if the summary has as many objects of each kind as the lists behind it.
const CONSISTENT: &str = "import json, sys
summary, *lists = [json.loads(line) for line in sys.stdin]
kinds = [\"qp\", \"cq\", \"mr\", \"pd\", \"ctx\", \"srq\", \"cm_id\"]
sys.exit([summary[0][kind] for kind in kinds] != [len(list) for list in lists] or not lists[0] or not lists[-1])";

/// Two programs, each object of which is told with its process.
#[test]
fn rdma_resource_shows_the_objects_of_each_process() -> Result<()> {
    let launcher = Launcher::new()?;
    let (port, cm_port) = (launcher.host().next_port(), launcher.host().next_port());
    let said = launcher.sh(&format!(
        "ibv_srq_pingpong -d urxe0 -g 1 -p {port} >/dev/null & server=$!
        rping -s -a 127.0.0.1 -p {cm_port} >/dev/null & listener=$!
        until ss -Hltn sport = {port} | grep -q .; do sleep 0.02; done
        until rdma resource show cm_id | grep -q LISTEN; do sleep 0.02; done
        echo $server $listener
        # A process that is slow to answer is left out: until all are in.
        for attempt in $(seq 50); do
            all=$(rdma -j resource; for kind in qp cq mr pd ctx srq cm_id; do rdma -j resource show $kind; done)
            echo \"$all\" | python3 -c '{CONSISTENT}' && break
            sleep 0.1
        done
        echo \"$all\"
        for attempt in $(seq 50); do
            qpn=$(rdma resource show qp | sed -n '1s/.*lqpn \\([0-9]*\\) .*/\\1/p')
            one=$(rdma -j resource show qp lqpn ${{qpn:-0}}) || one=
            case \"$one\" in *lqpn*) break;; esac
            sleep 0.1
        done
        echo \"$one\"
        kill $server $listener; wait $server $listener || true
        rdma -j resource"
    ))?;
    let mut lines = said.stdout.lines();
    let mut line = || lines.next().with_context(|| format!("too few lines: {said}"));
    let pids: Vec<u64> = line()?.split(' ').map(str::parse).collect::<Result<_, _>>()?;
    let (server, listener) = (pids[0], pids[1]);
    let mut lists = BTreeMap::new();
    let summary = json(line()?)?;
    for kind in ["qp", "cq", "mr", "pd", "ctx", "srq", "cm_id"] {
        let list = json(line()?)?;
        ensure!(summary[0][kind] == list.len(), "{kind}: {} {list:?}", summary[0]);
        lists.insert(kind, list);
    }
    let (one, after) = (json(line()?)?, json(line()?)?);
    // Sixteen queue pairs that wait for a client (srq_pingpong.c).
    let qps = &lists["qp"];
    ensure!(qps.len() == 16, "{qps:?}");
    for qp in qps {
        ensure!(qp["pid"] == server && qp["comm"] == "ibv_srq_pingpon", "{qp}");
        ensure!(qp["type"] == "RC" && qp["state"] == "INIT" && qp["port"] == 1, "{qp}");
        ensure!(qp["pdn"] == lists["mr"][0]["pdn"], "{qp}");
    }
    ensure!(one.len() == 1 && one[0]["lqpn"] == qps[0]["lqpn"], "{one:?}");
    let cq = &lists["cq"][0];
    ensure!(cq["pid"] == server && cq["users"] == 32 && cq["cqe"] == 516, "a user for each queue: {cq}");
    let (mr, srq, id) = (&lists["mr"][0], &lists["srq"][0], &lists["cm_id"][0]);
    ensure!(mr["mrlen"] == 4096 && mr["pid"] == server, "{mr}");
    ensure!(srq["type"] == "BASIC" && srq["pid"] == server && srq["lqpn"] != Value::Null, "{srq}");
    ensure!(id["state"] == "LISTEN" && id["ps"] == "TCP" && id["pid"] == listener, "{id}");
    ensure!(id["src-addr"] == format!("127.0.0.1:{cm_port}"), "{id}");
    // With the programs their objects are gone.
    ensure!(["qp", "cq", "mr", "pd", "ctx", "srq", "cm_id"].iter().all(|kind| after[0][kind] == 0), "{after:?}");
    Ok(())
}

/// The counters of `rdma statistic` are those of `hw_counters`.
#[test]
fn rdma_statistic_counts() -> Result<()> {
    let launcher = Launcher::new()?;
    let port = launcher.host().next_port();
    let said = launcher.sh(&format!(
        "ibv_rc_pingpong -d urxe0 -g 1 -p {port} -n 50 >/dev/null & server=$!
        until ss -Hltn sport = {port} | grep -q .; do sleep 0.02; done
        ibv_rc_pingpong -d urxe0 -g 1 -p {port} -n 50 127.0.0.1 >/dev/null
        wait $server
        rdma -j statistic show link urxe0/1
        cd /sys/class/infiniband/urxe0/ports/1/hw_counters && grep . *"
    ))?;
    let (statistic, files) = said.stdout.split_once('\n').context("too few lines")?;
    let mut statistic = json(statistic)?;
    let counters = statistic.first_mut().and_then(Value::as_object_mut).context("no object")?;
    ensure!(counters.remove("ifname") == Some("urxe0".into()) && counters.remove("port") == Some(1.into()), "{said}");
    ensure!(counters["sent_pkts"].as_u64() >= Some(200) && counters.len() == files.lines().count(), "{said}");
    for file in files.lines() {
        let (name, value) = file.split_once(':').context("no counter")?;
        ensure!(counters[name] == value.parse::<u64>()?, "{name}: {value}, {}", counters[name]);
    }
    Ok(())
}

/// libibverbs asks whether forked children get copies: netlink's answer is yes (`IBV_FORK_UNNEEDED`), for nothing is
/// pinned. Without one it would be `IBV_FORK_DISABLED`.
#[test]
fn libibverbs_asks_netlink() -> Result<()> {
    let said = Launcher::new()?.python(
        "import ctypes
verbs = ctypes.CDLL('libibverbs.so.1')
count = ctypes.c_int()
verbs.ibv_get_device_list.restype = ctypes.c_void_p
verbs.ibv_get_device_list(ctypes.byref(count))
print(count.value, verbs.ibv_is_fork_initialized())",
    )?;
    ensure!(said.stdout == "1 2\n", "{said}");
    Ok(())
}

/// Asks for all devices: the request, and what comes back.
const ASK: &str = "
import errno, os, select, socket, struct
GET, CHARDEV, DUMP, ERROR, DONE = 5 << 10 | 1, 5 << 10 | 15, 0x301, 2, 3
def request(kind, flags, number, more=b''):
    return struct.pack('=LHHLL', 16 + len(more), kind, flags, number, 0) + more
def header(datagram):
    length, kind, flags, number, port = struct.unpack('=LHHLL', datagram[:16])
    assert length <= len(datagram), datagram
    return kind, number, port
def new():
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 20)
s = new()
";

#[test]
fn a_socket_like_the_kernels() -> Result<()> {
    let said = Launcher::new()?.python(&format!(
        "{ASK}
s.bind((0, 0))
own, groups = s.getsockname()
assert own and not groups
s.send(request(GET, DUMP, 7))
assert select.select([s], [], [], 0)[0] == [s], 'what is asked is answered at once'
first, sender = s.recvfrom(4096)
assert header(first) == (GET, 7, own) and b'urxe0\\0' in first, first
assert sender == (0, 0), 'the kernel'
last, _, _, sender = s.recvmsg(4096)
assert header(last) == (DONE, 7, own) and sender == (0, 0), (last, sender)
assert select.select([s], [], [], 0)[0] == []
# An unknown command; what is no message; something for another program.
s.sendmsg([request(5 << 10 | 1023, 1, 8)[:10], request(5 << 10 | 1023, 1, 8)[10:]])
kind, number, _ = header(reply := s.recv(4096))
assert (kind, number, struct.unpack('=l', reply[16:20])[0]) == (ERROR, 8, -errno.EINVAL), reply
s.send(b'short')
assert select.select([s], [], [], 0)[0] == []
try:
    s.sendto(request(GET, DUMP, 9), (own + 1, 0))
    raise SystemExit('sent')
except ConnectionRefusedError:
    pass
try:
    s.setsockopt(270, 1, 4)
    raise SystemExit('a member')
except OSError as error:
    assert error.errno == errno.EOPNOTSUPP, error
# Who has not called bind(2) is given a port; a child has the socket as well.
unbound = new()
unbound.send(request(GET, DUMP, 1))
if os.fork() == 0:
    unbound.send(request(GET, DUMP, 2))
    os._exit(0)
assert os.wait()[1] == 0
assert [header(unbound.recv(4096))[1] for _ in range(4)] == [1, 1, 2, 2]
print('ok')"
    ))?;
    ensure!(said.stdout == "ok\n" && said.stderr.is_empty(), "{said}");
    Ok(())
}

/// More answers than there is room for wait for their reader, in order.
#[test]
fn answers_that_find_no_room() -> Result<()> {
    let said = Launcher::new()?.python(&format!(
        "{ASK}
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
for number in range(200):
    s.send(request(GET, DUMP, number))
seen = []
while len(seen) < 400:
    assert select.select([s], [], [], 10)[0] == [s], len(seen)
    seen.append(header(s.recv(4096))[1])
assert seen == [number for number in range(200) for _ in range(2)], seen
# The same number, for another socket, and for another file.
for number in range(200):
    s.send(request(GET, DUMP, number))
fd = s.fileno()
s.close()
s = new()
assert s.fileno() == fd
s.send(request(GET, DUMP, 1000))
assert header(s.recv(4096))[1] == 1000
s.close()
one, other = socket.socketpair()
assert fd in (one.fileno(), other.fileno())
one.sendmsg([b'through']), other.send(b'and back')
assert (other.recvfrom(100)[0], one.recvmsg(100)[0]) == (b'through', b'and back')
print('ok')"
    ))?;
    ensure!(said.stdout == "ok\n" && said.stderr.is_empty(), "{said}");
    Ok(())
}

/// Strangers can put nothing into the socket, not even before it is asked.
#[test]
fn strangers_cannot_answer() -> Result<()> {
    let said = Launcher::new()?.python(&format!(
        "{ASK}
stranger = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 2)
s.bind((0, 0))
own, _ = s.getsockname()
try:
    stranger.sendto(request(DONE, 2, 1), (own, 0))
    raise SystemExit('sent')
except ConnectionRefusedError:
    pass
assert select.select([s], [], [], 0)[0] == []
print('ok')"
    ))?;
    ensure!(said.stdout == "ok\n" && said.stderr.is_empty(), "{said}");
    Ok(())
}
