"""The crate async-rdma: messages, WRITEs, READs and atomic operations of tokio's tasks; connections are made by text over TCP."""

import pathlib

from hosts import Network, check, wait_for
from peer_crate import PeerCrate

TITLE = "async-rdma"
ORIGIN = "crates.io"
COMPARED = "messages, writes, reads and a swap, by both ends"
VERSION = "0.5.0"
PEER = pathlib.Path(__file__).resolve().parent.parent / "peers/async_rdma_peer.rs"
PORT = 7600
#: async-rdma asks for hex-simd 0.5, and that for a crate whose versions 0.5 have all been yanked.
LOCK = """version = 3

[[package]]
name = "simd-abstraction"
version = "0.5.1"
source = "registry+https://github.com/rust-lang/crates.io-index"
checksum = "3acaf60982756ce96a00bc9c5b351f14ca2d23e7dc13c10df0a0d9cc036094e3"
"""
CRATE = PeerCrate(f"async-rdma-{VERSION}", PEER, f"""async-rdma = "={VERSION}"
tokio = {{ version = "1", features = ["macros", "rt-multi-thread"] }}""", LOCK)


def prepare(store):
    CRATE.prepare(store)


def version(store):
    return VERSION


class Pair:
    def __init__(self, store, net):
        self.program, self.net = CRATE.program(store), net
        self.address = f"{net.hosts[0].address}:{PORT}"
        self.serve()

    def serve(self):
        self.server = self.net.hosts[0].start(self.program, "server", self.address, env={"URXE_EXPLAIN": 1})
        wait_for(lambda: self.net.hosts[0].listens(PORT), 60, "the server listens")

    def client(self, count):
        return self.net.hosts[1].start(self.program, "client", self.address, count, env={"URXE_EXPLAIN": 1})


def operations(store):
    with Network() as net:
        pair = Pair(store, net)
        check("compared 10" in pair.client(10).success(120), "not all was compared")
        check("served" in pair.server.success(60), "the server")


def kill_server(store):
    """The client's operation fails; a new server serves a new client."""
    with Network() as net:
        pair = Pair(store, net)
        client = pair.client(0)
        client.says("^done 5$", 60)
        pair.server.kill()
        check(client.end(120) != 0, f"the client ended well: {client.last_lines()}")
        pair.serve()
        check("compared 5" in pair.client(5).success(120), "the new server")


CASES = {"operations": operations, "kill-server": kill_server}
