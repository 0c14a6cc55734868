"""Common parts of the MPI libraries: hosts that hydra or PRRTE starts ranks on, and a program whose data is compared."""

import os
import pathlib
import re
import sys

from hosts import Network, check, wait_for

EXCHANGE = pathlib.Path(__file__).resolve().parent.parent / "openmpi/exchange.py"
MPI4PY = "mpi4py==4.1.2"
#: Operation, hosts, ranks of each, size: eager and rendezvous.
OPERATIONS = (
    ("ping_pong", 2, 1, 8),
    ("ping_pong", 2, 1, 1 << 20),
    ("both_ways", 2, 2, 65536),
    ("broadcast", 3, 1, 65536),
    ("allreduce", 4, 2, 65536),
    ("alltoall", 2, 2, 65536),
    ("one_sided", 2, 1, 65536),
)
#: A job without an end, in which each rank talks to all others.
FOR_EVER = """import sys; sys.path.insert(0, sys.argv[1]); import exchange
while True: exchange.allreduce(exchange.MPI.COMM_WORLD, 65536)"""
LIMIT = 180


class Mpi:
    """An MPI library: `variables` of the ranks, and `launch(shell, hosts, ranks)`, the words in front of the program."""

    def __init__(self, variables, launch, used):
        """`used`: what the output has when ranks have talked over urxe."""
        self.variables, self.launch, self.used = variables, launch, used

    def start(self, net, ranks, *program):
        """From a host that is none of the nodes: ranks are started on all of them by a remote shell."""
        names = [host.name for host in net.hosts]
        words = self.launch(net.remote_shell(("--explain", "1")), names, ranks)
        return net.switch.start(*words, sys.executable, *program, urxe=False, env=self.variables)

    def operation(self, verb, hosts, ranks, size):
        with Network(hosts) as net:
            text = self.start(net, ranks, EXCHANGE, verb, size).success(LIMIT)
            check(f"done {verb}" in text, f"ended too early: {text[-300:]}")
            check(re.search(self.used, text), f"not over urxe: {self.used!r} is not in the output")
            check(not re.search(r"\b(tcp|posix|sysv)/\w", text), "UCX has used another transport")

    def killed_rank(self):
        """A rank dies in the middle: the job ends with a failure, and the next job on these hosts runs."""
        with Network(2) as net:
            job = self.start(net, 1, "-c", FOR_EVER, EXCHANGE.parent)
            net.hosts[1].busy()
            os.kill(net.hosts[1].processes_of("python3")[0], 9)
            check(job.end(60) != 0, f"the job ended well: {job.last_lines()}")
            text = self.start(net, 1, EXCHANGE, "ping_pong", 8).success(LIMIT)
            check("done ping_pong" in text, f"the next job: {text[-300:]}")

    def cases(self, prefix=""):
        named = {f"{prefix}{verb}/{hosts}x{ranks}/{size}":
                 lambda store, o=(verb, hosts, ranks, size): self.operation(*o) for verb, hosts, ranks, size in OPERATIONS}
        return named | {f"{prefix}killed-rank": lambda store: self.killed_rank()}


def lazily(make, prefix=""):
    """Cases of the Mpi that `make(store)` gives."""
    return {name: lambda store, n=name: make(store).cases(prefix)[n](store) for name in Mpi({}, None, "").cases(prefix)}


def hydra(program, *options):
    def launch(shell, hosts, ranks):
        return [program, "-launcher", "ssh", "-launcher-exec", shell, "-hosts", ",".join(hosts), "-ppn", ranks,
                "-n", ranks * len(hosts), *options]
    return launch


def prrte(program, variables, options=()):
    def launch(shell, hosts, ranks):
        words = [program, "--prtemca", "plm_ssh_agent", shell, "--host", ",".join(f"{host}:{ranks}" for host in hosts),
                 "-n", ranks * len(hosts), "--bind-to", "none", *options]
        if os.geteuid() == 0:
            words.insert(1, "--allow-run-as-root")
        for name in variables:
            words += ["-x", name]
        return words
    return launch


def over_ucx(transport="rc_v"):
    return {"UCX_TLS": f"{transport},self", "UCX_NET_DEVICES": "urxe0:1", "UCX_LOG_LEVEL": "info"}


UCX_USED = r"cfg.*\(.*rc_verbs/urxe0:1"


def data(store, requirement):
    """The folder lib/ and bin/ of a wheel are in."""
    return next(store.wheels(requirement).glob("*.data/data"))


def python(store):
    return {"PYTHONPATH": store.wheels(MPI4PY)}
