"""Mooncake's transfer engine: peers that find each other by its handshake, on one rail and on several."""

import json
import pathlib
import re
import subprocess
import sys

from hosts import Network, check, wait_for

TITLE = "Mooncake's transfer engine"
ORIGIN = "PyPI"
COMPARED = "what was written, read back in batches"
VERSION = "0.3.13.post1"
PEER = pathlib.Path(__file__).resolve().parent.parent / "peers/mooncake_peer.py"
WHEEL = f"mooncake-transfer-engine-non-cuda=={VERSION}"


def prepare(store):
    store.wheels(WHEEL)


def version(store):
    return VERSION


class Pair:
    def __init__(self, store, net, rails=1):
        self.net = net
        self.devices = ",".join(f"urxe{rail}" for rail in range(rails))
        # Index 1 is the IPv4 address.
        self.env = {"PYTHONPATH": store.wheels(WHEEL), "MC_GID_INDEX": 1, "URXE_EXPLAIN": 1, "MC_LOG_LEVEL": "INFO"}
        self.serve()

    def serve(self):
        host = self.net.hosts[0]
        self.target = host.start(sys.executable, PEER, "target", host.address, self.devices, env=self.env)
        self.name, self.buffer = self.target.says(r"^target (\S+) (\d+)", 60).groups()

    def client(self, count):
        host = self.net.hosts[1]
        words = [sys.executable, PEER, "client", host.address, self.devices, self.name, self.buffer, count]
        return host.start(*words, env=self.env)


def transfers(rails):
    def case(store):
        with Network(rails=rails) as net:
            text = Pair(store, net, rails).client(5).success(180)
            check("compared 5" in text, text[-300:])
    return case


def kill_target(store):
    """Transfers fail; they reach a new target."""
    with Network() as net:
        pair = Pair(store, net)
        client = pair.client(0)
        client.says("^done 2", 60)
        pair.target.kill()
        client.says("^failed", 120)
        client.explained("RETRY_EXC_ERR", "process ended")
        client.kill()
        pair.serve()
        check("compared 2" in pair.client(2).success(120), "the new target")


def sent(host, link):
    """Packets that an interface has sent."""
    found = subprocess.check_output([*host.inside, "ip", "-s", "-j", "link", "show", link])
    return json.loads(found)[0]["stats64"]["tx"]["packets"]


def rail_down(rails, side):
    """One of the rails goes down under load, at the client or at the target, and comes up again. Transfers go on meanwhile, and the rail
    has its part of them again (Mooncake's issues 2960 and 3596 are about what fails then)."""

    def case(store):
        with Network(rails=rails) as net:
            client = Pair(store, net, rails).client(0)
            client.says("^done 2", 60)

            def go_on():
                before = int(re.findall(r"^done (\d+)", client.text(), re.M)[-1])
                wait_for(lambda: int(re.findall(r"^done (\d+)", client.text(), re.M)[-1]) > before + 2 or not client.running(), 180,
                         "transfers go on")
                check(client.running(), f"the client has ended: {client.last_lines()}")

            net.hosts[side].ip("link", "set", "eth1", "down")
            go_on()
            net.hosts[side].ip("link", "set", "eth1", "up")
            go_on()
            # More than neighbours and handshakes need: Mooncake leaves a rail alone for a while.
            before = sent(net.hosts[1], "eth1")
            wait_for(lambda: sent(net.hosts[1], "eth1") > before + 1000 or not client.running(), 180, "the rail is used again")
            go_on()
    return case


#: Eight cards behind four switches of two sockets.
CARDS = [(numa, bus, f"mlx5_{card}") for card, (numa, bus) in enumerate(
    (numa, switch + behind) for numa, switches in enumerate(((0x07, 0x45), (0x88, 0xb7))) for switch in switches for behind in (5, 13))]


def topology(store):
    """Mooncake's own dump has the cards that the topology file puts at a processor's node first, and the others behind them. The machine
    has one node, which is the file's first."""
    with Network(1, rails=len(CARDS)) as net:
        lines = ['<system version="1">']
        for numa in (0, 1):
            lines.append(f'<cpu numaid="{numa}">')
            lines += [f'<pci busid="0000:{bus:02x}:00.0" class="0x020000"/>' for node, bus, _ in CARDS if node == numa]
            lines.append("</cpu>")
        file = pathlib.Path(net.folder) / "topology.xml"
        file.write_text("\n".join([*lines, "</system>"]))
        names = ",".join(name for _, _, name in CARDS)
        text = net.hosts[0].run(sys.executable, "-m", "mooncake.transfer_engine_topology_dump", "--backend", "te",
                                env={"PYTHONPATH": store.wheels(WHEEL)},
                                options=("--device-name", names, "--personality", "pci", "--topology", file))
        found = json.loads(text[text.index("{"):])
        wanted = [[name for numa, _, name in CARDS if (numa == 0) is near] for near in (True, False)]
        check(found["cpu:0"] == wanted, f"{found} is not {wanted}")


CASES = {"one-rail": transfers(1), "four-rails": transfers(4), "kill-target": kill_target, "rail-down": rail_down(2, 1),
         "one-of-eight-down": rail_down(8, 1), "one-of-eight-of-target-down": rail_down(8, 0), "topology": topology}
