"""A newer UCX, from wheels of PyPI. `make ucx` runs Debian's at length.

The wheel of UCX itself has no transports of InfiniBand; that of MPICH brings UCX 1.20.1 with them, and no ucx_perftest.
"""

import re

import mpi
from hosts import Network, check, wait_for

TITLE = "UCX"
ORIGIN = "PyPI"
COMPARED = "none: ucx_perftest measures; MPICH and NIXL compare what UCX moves"
VERSION = "1.20.1"
WHEEL = f"libucx-cu12=={VERSION}"
MPICH = "mpich==5.0.2"
PORT = 13337
#: Test, size, and the kind of lane that UCX's log must name.
TESTS = (
    ("tag_lat", 8), ("tag_bw", 1 << 20), ("ucp_am_bw", 65536), ("stream_bw", 65536), ("ucp_put_bw", 1 << 20), ("ucp_get", 65536),
    ("ucp_fadd", 8),
)


def prepare(store):
    store.wheels(WHEEL)
    mpi.data(store, MPICH)


def version(store):
    return VERSION


class Pair:
    def __init__(self, store, net, transport, devices="urxe0:1", address=None):
        libraries = mpi.data(store, MPICH) / "lib/mpich"
        self.address = address or net.hosts[0].address
        self.net, self.program = net, store.wheels(WHEEL) / "libucx/bin/ucx_perftest"
        self.env = {"LD_LIBRARY_PATH": libraries, "UCX_TLS": transport, "UCX_NET_DEVICES": devices, "UCX_LOG_LEVEL": "info",
                    "URXE_EXPLAIN": 1, "UCX_MODULE_DIR": libraries / "ucx"}

    def start(self, test, size, count, *words):
        server, client = self.net.hosts
        self.server = server.start(self.program, "-f", "-p", PORT, env=self.env)
        wait_for(lambda: server.listens(PORT), 60, "the server listens")
        self.client = client.start(self.program, "-f", "-p", PORT, self.address, "-t", test, "-s", size, "-n", count, *words,
                                   env=self.env)


def measure(transport, test, size):
    def case(store):
        with Network() as net:
            pair = Pair(store, net, f"{transport[:-4]},self")
            pair.start(test, size, 300, "-w", 30)
            text = pair.client.success(120)
            pair.server.success(60)
            check(re.search(rf"\({transport}/urxe0:1", text), f"not over {transport}, by UCX's log")
            check(re.search(r"^ +\d+ +\d+\.\d+", text, re.M), f"no results: {text[-300:]}")
    return case


def kill_server(store):
    """The client ends with an error; the next pair runs."""
    with Network() as net:
        pair = Pair(store, net, "rc_v,self")
        pair.start("ucp_get", 65536, 100_000_000, "-e")
        net.hosts[1].busy()
        pair.server.kill()
        check(pair.client.end(180) != 0, "the client ended well")
        pair.client.explained("RETRY_EXC_ERR", "process ended")
        pair.start("tag_lat", 8, 100)
        pair.client.success(60)


def rail_down(rails):
    """The rail in use goes down under load: the client ends with an error. It comes up again, and the next pair uses it.

    The client's messages wait for READs of the server, which fails after its tries; UCX tells the client by its keepalive, a minute later.
    """

    def case(store):
        with Network(rails=rails) as net:
            # What the ends say to each other by TCP takes another rail.
            devices = ",".join(f"urxe{rail}:1" for rail in range(rails))
            pair = Pair(store, net, "rc_v,self", devices, net.hosts[0].addresses[1])
            pair.start("tag_bw", 65536, 100_000_000, "-e")
            net.hosts[1].busy()
            net.hosts[1].ip("link", "set", "eth0", "down")
            check(pair.client.end(180) != 0, "the client ended well")
            check("port error" in pair.client.text(), "no event of the port, by UCX's log")
            pair.server.kill()
            net.hosts[1].ip("link", "set", "eth0", "up")
            pair.start("tag_lat", 8, 100)
            check("(rc_verbs/urxe0:1" in pair.client.success(60), "the rail is not used again, by UCX's log")
    return case


CASES = {
    **{f"{transport}/{test}/{size}": measure(transport, test, size)
       for transport in ("rc_verbs", "ud_verbs") for test, size in TESTS},
    "kill-server": kill_server, "rail-down": rail_down(2), "one-of-eight-down": rail_down(8),
}
