"""The calls of NVSHMEM's transport ibrc, in its order, as a program of C: put, get, signals, atomic operations, CST."""

import pathlib

from hosts import Network, check

TITLE = "NVSHMEM's calls (ibrc)"
ORIGIN = "written after its sources"
COMPARED = "puts, gets, atomic operations, by both PEs"
VERSION = "3.4"
PEER = pathlib.Path(__file__).resolve().parent.parent / "peers/ibrc_peer.c"
PORT = 7400


def prepare(store):
    program(store)


def version(store):
    return VERSION


def program(store):
    return store.compiled(PEER, "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-libverbs", "-ldl")


def start(store, net, count, queue_pairs):
    # Row 1 is the IPv4 address.
    return [host.start(program(store), pe, 1, net.hosts[0].address, PORT, count, queue_pairs, env={"URXE_EXPLAIN": 1})
            for pe, host in enumerate(net.hosts)]


def compared(queue_pairs):
    def case(store):
        with Network() as net:
            for end in start(store, net, 20, queue_pairs):
                check("compared 20" in end.success(120), end.last_lines())
    return case


def kill_pe(store):
    """PE 0 puts and gets: its request fails. The next two run."""
    with Network() as net:
        first, second = start(store, net, 0, 4)
        first.says("^done 5$", 60)
        second.kill()
        check(first.end(120) != 0, "PE 0 ended well")
        first.explained("RETRY_EXC_ERR", "process ended")
        for end in start(store, net, 2, 1):
            check("compared 2" in end.success(120), end.last_lines())


CASES = {"one-queue-pair": compared(1), "eight-queue-pairs": compared(8), "kill-pe": kill_pe}
