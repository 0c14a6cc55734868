"""The crate rdma-io: streams of tokio over its three transports (SEND, a ring with credits, a ring with READs)."""

import hashlib
import os
import pathlib
import shutil
import subprocess

from hosts import Network, Skipped, check, wait_for

TITLE = "rdma-io, streams over rdma_cm"
ORIGIN = "crates.io"
COMPARED = "each message that comes back"
VERSION = "0.0.2"
PEER = pathlib.Path(__file__).resolve().parent.parent / "peers/rdma_io_peer.rs"
PORT = 7500
MANIFEST = f"""[package]
name = "rdma-io-peer"
version = "0.1.0"
edition = "2021"

[dependencies]
rdma-io = "={VERSION}"
futures = "0.3"
tokio = {{ version = "1", features = ["macros", "rt-multi-thread"] }}

[workspace]
"""


def prepare(store):
    def build(new):
        (new / "src").mkdir()
        (new / "Cargo.toml").write_text(MANIFEST)
        shutil.copy2(PEER, new / "src/main.rs")
        # Not the flags and the folder of urxe's own build.
        foreign = ("RUSTFLAGS", "CARGO_TARGET_DIR", "CARGO_BUILD_TARGET")
        environment = {name: value for name, value in os.environ.items() if name not in foreign}
        done = subprocess.run(["cargo", "build", "--quiet", "--release"], cwd=new, env=environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            raise Skipped(f"does not build: {' / '.join(done.stdout.splitlines()[:6])}")
        shutil.copy2(new / "target/release/rdma-io-peer", new)
        shutil.rmtree(new / "target")

    store.once(name(), build)


def name():
    return f"rdma-io-{VERSION}-{hashlib.sha256(PEER.read_bytes()).hexdigest()[:12]}"


def version(store):
    return VERSION


def program(store):
    return store.folder / name() / "rdma-io-peer"


class Pair:
    def __init__(self, store, net, transport):
        self.program, self.net, self.transport = program(store), net, transport
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
