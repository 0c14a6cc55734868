"""PyPI's bindings `ibverbs` (rdma4py), which load the machine's libibverbs: every operation between two hosts."""

import pathlib
import sys

from hosts import Network, check

TITLE = "ibverbs (rdma4py), bindings for Python"
ORIGIN = "PyPI"
COMPARED = "each operation, by both ends"
VERSION = "2026.10.22"
PEER = pathlib.Path(__file__).resolve().parent.parent / "peers/ibverbs_peer.py"
PORT = 7300


def prepare(store):
    wheel(store)


def version(store):
    return VERSION


def wheel(store):
    return store.wheels(f"ibverbs=={VERSION}")


def serve(store, net):
    env = {"PYTHONPATH": wheel(store), "URXE_EXPLAIN": 1}
    server = net.hosts[0].start(sys.executable, PEER, "server", PORT, env=env)
    server.says("^listening$", 60)
    return server, lambda count: net.hosts[1].start(sys.executable, PEER, "client", net.hosts[0].address, PORT, count, env=env)


def operations(store):
    """RC with an SRQ, UC and UD; events, inline data, immediates, atomic operations. A second client finds a new connection."""
    with Network() as net:
        _, client = serve(store, net)
        check("compared 20" in client(20).success(120), "not all was compared")


def kill_server(store):
    """The client's next request fails; a new server serves a new client."""
    with Network() as net:
        server, client = serve(store, net)
        busy = client(0)
        busy.says("^done 5$", 60)
        server.kill()
        check(busy.end(120) != 0, f"the client ended well: {busy.last_lines()}")
        check("failed: status 12" in busy.text(), busy.last_lines())
        busy.explained("RETRY_EXC_ERR", "process ended")
        _, client = serve(store, net)
        check("compared 2" in client(2).success(120), "the new server")


CASES = {"operations": operations, "kill-server": kill_server}
