"""NCCL's InfiniBand transport as its wheel has it, without a GPU: what each channel of a communicator calls, on one rail and on two."""

import pathlib
import re
import sys
import xml.etree.ElementTree

from hosts import Network, check, wait_for

TITLE = "NCCL's net_ib, without a GPU"
ORIGIN = "PyPI"
COMPARED = "each message, by the receiver"
VERSION = "2.32.3"
PEER = pathlib.Path(__file__).resolve().parent.parent / "peers/nccl_peer.py"
TOPOLOGY_PEER = PEER.with_name("nccl_topology.py")
WHEEL = f"nvidia-nccl-cu12=={VERSION}"
#: Two cards behind one switch, and the same of the second socket.
TOPOLOGY = """<system version="1">
  <cpu numaid="0"><pci busid="0000:07:00.0" class="0x060400">
    <pci busid="0000:0c:00.0" class="0x020000"/><pci busid="0000:12:00.0" class="0x020000" link_width="8"/>
  </pci></cpu>
  <cpu numaid="1"><pci busid="0000:88:00.0" class="0x060400">
    <pci busid="0000:8d:00.0" class="0x020000"/><pci busid="0000:94:00.0" class="0x020000"/>
  </pci></cpu>
</system>
"""


def prepare(store):
    store.wheels(WHEEL)


def version(store):
    return VERSION


class Pair:
    """A receiver and a sender; `env` is for both."""

    def __init__(self, store, net, count, merged=1, env=None, options=()):
        library = pathlib.Path(store.wheels(WHEEL)) / "nvidia/nccl/lib/libnccl.so.2"
        # Index 1 is the IPv4 address.
        variables = {"NCCL_LIBRARY": library, "NCCL_IB_GID_INDEX": 1, "NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "eth0",
                     "URXE_EXPLAIN": 1} | (env or {})
        self.receiver, self.sender = (
            host.start(sys.executable, PEER, role, net.folder, count, merged, env=variables, options=options)
            for host, role in zip(net.hosts, ("receiver", "sender")))

    def compared(self, limit=120):
        self.sender.success(limit)
        return self.receiver.success(limit)


def transfers(rails, **env):
    """Twelve rounds: every size, receives of one message and of four."""

    def case(store):
        with Network(rails=rails) as net:
            text = Pair(store, net, 12, rails, env).compared()
            check("compared 24" in text, text[-300:])
            if rails > 1:
                check(re.search(rf"^merged urxe0\+urxe1 \d+ {rails}$", text, re.M), text[-1000:])
    return case


def flush(store):
    """A receive of any bytes is flushed by a READ of the receiver's own, as for a GPU, unless that is switched off."""
    for off, flushed in ((0, 10), (1, 0)):
        with Network() as net:
            text = Pair(store, net, 12, env={"NCCL_GDR_FLUSH_DISABLE": off}).compared()
            # Host memory and dma-bufs.
            check(re.search(r"^device urxe0 \S+ \d+ 8 5$", text, re.M), text[:500])
            check(f"compared 24 flushed {flushed}" in text, text[-300:])


def properties(store):
    """Devices are told apart by their paths, which are those of the topology file."""
    with Network(rails=4) as net:
        file = pathlib.Path(net.folder) / "topology.xml"
        file.write_text(TOPOLOGY)
        pair = Pair(store, net, 6, options=("--personality", "pci", "--topology", file))
        text = pair.compared()
        paths = re.findall(r"^device urxe(\d) (\S+)", text, re.M)
        wanted = ["7572:06:01.0/7572:07:00.0/7572:0b:00.0/7572:0c:00.0", "7572:06:01.0/7572:07:00.0/7572:0b:01.0/7572:12:00.0",
                  "7572:87:01.0/7572:88:00.0/7572:8c:00.0/7572:8d:00.0", "7572:87:01.0/7572:88:00.0/7572:8c:01.0/7572:94:00.0"]
        found = {path.split("/", 4)[4] for _, path in paths}
        check(len(paths) == 4 and found == set(wanted), f"{paths}")


#: A machine for training: two sockets of two switches, behind each two GPUs and two cards.
GPU = 'class="0x030200" vendor="0x10de" device="0x20b2"'
CARD = 'class="0x020000"'
LINK = 'link_speed="16.0 GT/s PCIe" link_width='


def training_machine():
    lines, gpus = ['<system version="1">'], []
    for numa, switches in enumerate(((0x07, 0x45), (0x88, 0xb7))):
        lines.append(f'<cpu numaid="{numa}" affinity="{("0000ffff", "ffff0000")[numa]}" arch="x86_64">')
        for switch in switches:
            lines.append(f'<pci busid="0000:{switch:02x}:00.0" class="0x060400" {LINK}"16">')
            for behind, kind, width in ((5, CARD, 16), (8, GPU, 16), (11, GPU, 16), (13, CARD, 8)):
                lines.append(f'<pci busid="0000:{switch + behind:02x}:00.0" {kind} {LINK}"{width}"/>')
                if kind is GPU:
                    gpus.append(f"7572:{switch + behind:02x}:00.0")
            lines.append("</pci>")
        lines.append("</cpu>")
    return "\n".join([*lines, "</system>"]), gpus


def places(text):
    """Where each PCI function of a topology is: node, functions above it, class and link."""
    found = {}

    def walk(element, numa, above):
        for child in element:
            if child.tag == "cpu":
                walk(child, child.get("numaid"), ())
            elif child.tag == "pci":
                name = re.sub("^0000:", "7572:", child.get("busid"))
                # NCCL compares the first digits of a class, and the number in front of a speed.
                speed = float(child.get("link_speed").split()[0])
                found[name] = numa, above, child.get("class")[:6], speed, int(child.get("link_width"))
                walk(child, numa, (*above, name))

    walk(xml.etree.ElementTree.fromstring(text), None, ())
    return found


def topology(store):
    """NCCL's own dump of eight cards and eight GPUs' functions has each where the file has it."""
    with Network(1, rails=8) as net:
        text, gpus = training_machine()
        file, dump = pathlib.Path(net.folder) / "topology.xml", pathlib.Path(net.folder) / "dump.xml"
        file.write_text(text)
        library = pathlib.Path(store.wheels(WHEEL)) / "nvidia/nccl/lib/libnccl.so.2"
        names = [f"mlx5_{card}" for card in range(8)]
        net.hosts[0].run(sys.executable, TOPOLOGY_PEER, dump, *gpus, *names, env={"NCCL_LIBRARY": library}, options=(
            "--device-name", ",".join(names), "--personality", "pci", "--topology", file))
        wanted, found = places(text), places(dump.read_text())
        check(len(wanted) == 20 and found == wanted,
              f"NCCL has {dict(found.items() - wanted.items())}, the file {dict(wanted.items() - found.items())}")
        cards = re.findall(r'<net name="(mlx5_\d)"', dump.read_text())
        check(sorted(cards) == names, f"cards {cards}")


def counted(program):
    return int(re.findall(r"^done (\d+)", program.text(), re.M)[-1])


def kill_either(store):
    """Either end is killed amid messages; the next pair finds nothing of it."""
    with Network() as net:
        for victim in ("receiver", "sender"):
            pair = Pair(store, net, 0)
            pair.receiver.says("^done 3", 60)
            getattr(pair, victim).kill()
            # NCCL waits for the other end's next message: its own watchdog would end it.
            for program in (pair.sender, pair.receiver):
                program.kill()
            (pathlib.Path(net.folder) / "handle").unlink()
        check("compared 24" in Pair(store, net, 12).compared(), "the next pair")


def rail_down(store):
    """One of two merged devices loses its link: without resiliency the sender is told."""
    with Network(rails=2) as net:
        pair = Pair(store, net, 0, 2, {"NCCL_IB_TIMEOUT": 14})
        pair.sender.says("^done 3", 60)
        net.hosts[0].ip("link", "set", "eth1", "down")
        wait_for(lambda: not (pair.sender.running() and pair.receiver.running()), 120, "an end is told")
        check("failed test" in pair.sender.text() + pair.receiver.text(), pair.sender.last_lines())


def port_failover(rails, merged):
    """With resiliency, the other devices carry on."""

    def case(store):
        with Network(rails=rails) as net:
            carry_on(net, Pair(store, net, 0, merged, {"NCCL_IB_TIMEOUT": 14, "NCCL_IB_RESILIENCY_PORT_FAILOVER": 1}))
    return case


def carry_on(net, pair):
    pair.sender.says("^done 3", 60)
    net.hosts[0].ip("link", "set", "eth1", "down")
    pair.sender.says(r"RETRY_EXC_ERR|NCCL (WARN|INFO).*[Ff]ailover", 120)
    before = counted(pair.receiver)
    wait_for(lambda: counted(pair.receiver) > before + 20 or not pair.receiver.running(), 120, "messages go on")
    check(pair.receiver.running() and pair.sender.running(), f"{pair.receiver.last_lines()} {pair.sender.last_lines()}")


CASES = {
    "one-rail": transfers(1), "four-queue-pairs": transfers(1, NCCL_IB_QPS_PER_CONNECTION=4, NCCL_IB_SPLIT_DATA_ON_QPS=1),
    "merged-devices": transfers(2), "flush": flush, "properties": properties, "topology": topology, "kill-either": kill_either,
    "rail-down": rail_down, "port-failover": port_failover(2, 2), "one-of-eight-down": port_failover(8, 4),
}
