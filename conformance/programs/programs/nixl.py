"""NIXL's agents over UCX: the wheel as it is, with its own copies of UCX and libibverbs."""

import pathlib
import sys

from hosts import Network, check

TITLE = "NIXL, backend UCX"
ORIGIN = "PyPI"
COMPARED = "what was written, read back"
VERSION = "1.5.1"
PEER = pathlib.Path(__file__).resolve().parent.parent / "peers/nixl_peer.py"
WHEELS = (f"nixl-cu12=={VERSION}", "numpy==2.4.6")


def prepare(store):
    store.wheels(*WHEELS)


def version(store):
    return VERSION


class Pair:
    def __init__(self, store, net):
        self.net, self.folder = net, net.scratch.name
        self.env = {"PYTHONPATH": store.wheels(*WHEELS), "UCX_TLS": "rc_v,self", "UCX_NET_DEVICES": "urxe0:1", "URXE_EXPLAIN": 1}
        self.target = net.hosts[0].start(sys.executable, PEER, "target", self.folder, env=self.env)
        self.target.says("^target", 60)

    def client(self, count):
        return self.net.hosts[1].start(sys.executable, PEER, "client", self.folder, count, env=self.env)


def transfers(store):
    with Network() as net:
        check("compared 5" in Pair(store, net).client(5).success(120), "not all was compared")


def kill_target(store):
    with Network() as net:
        pair = Pair(store, net)
        client = pair.client(0)
        client.says("^done 2", 60)
        pair.target.kill()
        check(client.end(120) != 0, "the client ended well")
        client.explained("RETRY_EXC_ERR", "process ended")
        check("compared 2" in Pair(store, net).client(2).success(120), "the new target")


CASES = {"transfers": transfers, "kill-target": kill_target}
