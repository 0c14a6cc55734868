"""The crate rdma-io: streams of tokio over its three transports (SEND, a ring with credits, a ring with READs)."""

import pathlib

from hosts import Network, check, wait_for
from peer_crate import PeerCrate

TITLE = "rdma-io, streams over rdma_cm"
ORIGIN = "crates.io"
COMPARED = "each message that comes back"
VERSION = "0.0.2"
PEER = pathlib.Path(__file__).resolve().parent.parent / "peers/rdma_io_peer.rs"
PORT = 7500
CRATE = PeerCrate(f"rdma-io-{VERSION}", PEER, f"""rdma-io = "={VERSION}"
futures = "0.3"
tokio = {{ version = "1", features = ["macros", "rt-multi-thread"] }}""")


def prepare(store):
    CRATE.prepare(store)


def version(store):
    return VERSION


class Pair:
    def __init__(self, store, net, transport):
        self.program, self.net, self.transport = CRATE.program(store), net, transport
        self.address = f"{net.hosts[0].address}:{PORT}"
        self.serve()

    def serve(self):
        self.server = self.net.hosts[0].start(self.program, "server", self.transport, self.address, env={"URXE_EXPLAIN": 1})
        wait_for(lambda: self.net.hosts[0].listens_by_cm(PORT), 60, "the server listens")

    def client(self, count):
        return self.net.hosts[1].start(self.program, "client", self.transport, self.address, count, env={"URXE_EXPLAIN": 1})


def echo(transport):
    """Messages come back as they were sent, up to a MiB by SENDs; a second client finds a new connection."""

    def case(store):
        with Network() as net:
            pair = Pair(store, net, transport)
            for _ in range(2):
                check("compared 20" in pair.client(20).success(120), "not all was compared")
    return case


def kill_server(store):
    """The client's stream fails; a new server serves a new client."""
    with Network() as net:
        pair = Pair(store, net, "send-recv")
        client = pair.client(0)
        client.says("^done 5$", 60)
        pair.server.kill()
        check(client.end(120) != 0, f"the client ended well: {client.last_lines()}")
        pair.serve()
        check("compared 5" in pair.client(5).success(120), "the new server")


CASES = {transport: echo(transport) for transport in ("send-recv", "credit-ring", "read-ring")} | {"kill-server": kill_server}
