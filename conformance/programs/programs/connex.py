"""connex-rs, which moves pipeline steps of LLM servers, over the UCX of MPICH's wheel."""

import pathlib
import re
import sys

import mpi
from hosts import Network, check

TITLE = "connex-rs, over UCX"
ORIGIN = "PyPI"
COMPARED = "writes, reads, and what signals announce"
VERSION = "0.1.2"
MPICH = "mpich==5.0.2"
PEER = pathlib.Path(__file__).resolve().parent.parent / "peers/connex_peer.py"


def prepare(store):
    wheel(store)
    mpi.data(store, MPICH)


def version(store):
    return VERSION


def wheel(store):
    return store.wheels(f"connex-rs=={VERSION}")


class Pair:
    def __init__(self, store, net):
        self.net = net
        libraries = mpi.data(store, MPICH) / "lib/mpich"
        self.env = {"PYTHONPATH": wheel(store), "LD_LIBRARY_PATH": libraries, "UCX_MODULE_DIR": libraries / "ucx", "UCX_TLS": "rc_v,tcp",
                    "UCX_NET_DEVICES": "urxe0:1,eth0", "UCX_LOG_LEVEL": "info", "URXE_EXPLAIN": 1}
        self.serve()

    def serve(self):
        host = self.net.hosts[0]
        self.target = host.start(sys.executable, PEER, "target", host.address, env=self.env)
        self.url, self.buffer = self.target.says(r"^target (\S+) (\d+)", 60).groups()

    def client(self, count):
        host = self.net.hosts[1]
        return host.start(sys.executable, PEER, "client", host.address, self.url, self.buffer, count, env=self.env)


def transfers(store):
    """One-sided writes and reads, and messages behind them: what they announce is there."""
    with Network() as net:
        pair = Pair(store, net)
        client = pair.client(5)
        text = client.success(120)
        check("compared 5" in text, text[-300:])
        check(re.search(r"rc_verbs/urxe0:1", text), "not over urxe, by UCX's log")
        sent = re.findall(r"^done \d+ (\w+)", text, re.M)
        pair.target.says(r"^signal step-4 ", 30)
        found = re.findall(r"^signal step-\d (\w+)", pair.target.text(), re.M)
        check(found == sent, f"{found} came, {sent} was sent")


def kill_target(store):
    """The client is told of the failure; a target of the same name takes its place."""
    with Network() as net:
        pair = Pair(store, net)
        client = pair.client(0)
        client.says("^done 2 ", 60)
        pair.target.kill()
        check(client.end(120) != 0, "the client ended well")
        check(re.search("^event .*failed", client.text(), re.M), client.last_lines())
        pair.serve()
        check("compared 2" in pair.client(2).success(120), "the new target")


CASES = {"transfers": transfers, "kill-target": kill_target}
