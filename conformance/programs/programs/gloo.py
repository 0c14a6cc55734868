"""gloo's collective operations over its transport for ibverbs, four ranks on hosts of their own."""

import pathlib
import tempfile

from hosts import Network, check
from store import package_version

TITLE = "gloo, transport ibverbs"
ORIGIN = "Debian"
COMPARED = "results of each operation, on each rank"
PEER = pathlib.Path(__file__).resolve().parent.parent / "peers/gloo_peer.cc"


def prepare(store):
    package_version("libgloo-dev")
    program(store)


def version(store):
    return package_version("libgloo-dev")


def program(store):
    return store.compiled(PEER, "-std=c++17", "-lgloo", "-libverbs")


def ranks(store, net, rounds):
    """Starts a rank on each host."""
    folder = tempfile.mkdtemp(dir=net.scratch.name)
    return [host.start(program(store), rank, len(net.hosts), folder, rounds, env={"URXE_EXPLAIN": 1})
            for rank, host in enumerate(net.hosts)]


def compared(store, net, rounds):
    for rank in ranks(store, net, rounds):
        check(f"compared {15 * rounds}" in rank.success(120), rank.last_lines())


def operations(store):
    """Allreduce by three algorithms, broadcast and allgather, of three lengths; a barrier behind each."""
    with Network(4) as net:
        compared(store, net, 3)


def killed_rank(store):
    """A rank dies while it receives a broadcast: the job fails, and the next one runs."""
    with Network(4) as net:
        job = ranks(store, net, 0)
        job[0].says("^done 2", 60)
        net.hosts[0].busy()
        job[-1].kill()
        check(job[0].end(120) != 0, f"the root ended well: {job[0].last_lines()}")
        job[0].explained("RETRY_EXC_ERR", "process ended")
        for rank in job[1:-1]:
            check(rank.end(120) != 0, f"a rank ended well: {rank.last_lines()}")
        compared(store, net, 1)


CASES = {"operations": operations, "killed-rank": killed_rank}
