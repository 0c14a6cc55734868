"""librpma: a client that writes to a server's memory, flushes, reads back, and sends; both compare."""

import pathlib

from hosts import Network, check, wait_for
from store import package_version

TITLE = "librpma"
ORIGIN = "Debian"
COMPARED = "writes, reads and sends, by both ends"
PEER = pathlib.Path(__file__).resolve().parent.parent / "peers/rpma_peer.c"
PORT = 7204


def prepare(store):
    package_version("librpma-dev")
    program(store)


def version(store):
    return package_version("librpma-dev")


def program(store):
    return store.compiled(PEER, "-std=c11", "-D_DEFAULT_SOURCE", "-lrpma", "-libverbs")


def start(store, net, rounds):
    peer, address = program(store), net.hosts[0].address
    server = net.hosts[0].start(peer, "server", address, PORT, env={"URXE_EXPLAIN": 1})
    wait_for(lambda: net.hosts[0].listens_by_cm(PORT), 60, "the server listens")
    return server, net.hosts[1].start(peer, "client", address, PORT, rounds, env={"URXE_EXPLAIN": 1})


def compared(store, net):
    for end in reversed(start(store, net, 20)):
        check("compared 20" in end.success(120), end.last_lines())


def transfers(store):
    """Writes, atomic writes, flushes of both types, reads, sends."""
    with Network() as net:
        compared(store, net)


def kill_server(store):
    """The client ends with an error; a new server serves a new client."""
    with Network() as net:
        server, client = start(store, net, 0)
        client.says("^done 8$", 60)
        net.hosts[1].busy()
        server.kill()
        check(client.end(120) != 0, "the client ended well")
        client.explained("RETRY_EXC_ERR", "process ended")
        compared(store, net)


CASES = {"transfers": transfers, "kill-server": kill_server}
