"""Mooncake's transfer engine: peers that find each other by its handshake, on one rail and on several."""

import pathlib
import re
import sys

from hosts import Network, check, wait_for

TITLE = "Mooncake's transfer engine"
ORIGIN = "PyPI"
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


def rail_down(rails):
    """One of the rails goes down under load, and comes up again: transfers go on."""

    def case(store):
        with Network(rails=rails) as net:
            client = Pair(store, net, rails).client(0)
            client.says("^done 2", 60)
            net.hosts[1].ip("link", "set", "eth1", "down")

            def count():
                return int(re.findall(r"^done (\d+)", client.text(), re.M)[-1])

            for change in ("up", None):
                before = count()
                wait_for(lambda b=before: count() > b + 2 or not client.running(), 180, "transfers go on")
                check(client.running(), f"the client has ended: {client.last_lines()}")
                if change:
                    net.hosts[1].ip("link", "set", "eth1", change)
    return case


CASES = {"one-rail": transfers(1), "four-rails": transfers(4), "kill-target": kill_target, "rail-down": rail_down(2),
         "one-of-eight-down": rail_down(8)}
