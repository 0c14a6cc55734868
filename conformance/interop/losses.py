"""Stock programs between urxe and the kernel's rxe while the network loses packets, both ways. Each ends, and what it keeps of the goodput
without losses is told."""

import contextlib
import itertools
import os
import re
import statistics
import subprocess

from attempts import run_again
from cases import Ports, pair
from sides import SIDES

PREFIX = "losses"
TABLE = "losses"
#: Of a thousand packets, so many are lost.
PERMILLES = (10, 30)
#: A row of perftest's table: the average rate.
ROW = r"(?m)^ *65536 +\d+ +[\d.]+ +([\d.]+)"
#: A packet counter of nft.
COUNTER = re.compile(r"packets (\d+)")
#: Sixteen thousand packets: one ACK timeout decides less.
OPTIONS = ("-F", "-s", "65536", "-n", "1000")
PROGRAMS = ("ib_write_bw", "ib_send_bw", "ib_read_bw")
ROLES = (("urxe", "rxe"), ("rxe", "urxe"))
CASES = {
    f"{PREFIX}/{client}>{server}/{program}/{permille}-permille": (program, client, server, permille)
    for (client, server), program, permille in itertools.product(ROLES, PROGRAMS, PERMILLES)
}


@contextlib.contextmanager
def network(permille):
    """Packets of RoCE are lost at random where they arrive, here and in the guest. Yields a function that counts them."""
    rule = f"udp dport 4791 numgen random mod 1000 < {permille} counter drop"
    table = f"table inet {TABLE} {{ chain input {{ type filter hook input priority 0; {rule if permille else ''}; }}; }}"

    def everywhere(*words):
        commands = ([*side.prefix, "nft", *words] for side in SIDES.values())
        return [subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout for command in commands]

    everywhere(table)
    try:
        yield lambda: sum(int(packets) for shown in everywhere("list", "table", "inet", TABLE) for packets in COUNTER.findall(shown))
    finally:
        everywhere("delete", "table", "inet", TABLE)


def libraries(beside):
    """By name, the variables by which libibverbs loads each: the library under test, the same with selective repeat, which the kernel
    has not, and that of the folder `beside`."""
    found = {"": {}, "selective repeat": {"URXE_SELECTIVE_REPEAT": "1"}}
    if beside:
        urxe = os.path.join(beside, "urxe")
        prefix = os.path.join(os.environ["URXE_MACHINE"], "beside")
        subprocess.run([urxe, "install", "--prefix", prefix], stdout=subprocess.DEVNULL, check=True)
        script = 'variables=$("$0" env --prefix "$1") && eval "$variables" && env -0'
        shown = subprocess.run(["sh", "-c", script, urxe, prefix], stdout=subprocess.PIPE, check=True, text=True).stdout
        variables = dict(line.split("=", 1) for line in shown.split("\0") if "=" in line)
        found["beside"] = {name: value for name, value in variables.items() if os.environ.get(name) != value}
    return found


@contextlib.contextmanager
def environment(variables):
    """These variables are set meanwhile."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def run(selected, limit, beside=None, rounds=1):
    """Yields (name, result, reason). Runs without and with losses take turns, as those of each library do."""
    ports = Ports(22000)
    if not any(map(selected, CASES)):
        return
    chosen = libraries(beside)
    for name, (program, client, server, permille) in CASES.items():
        if selected(name):
            reasons, kept = [], {library: [] for library in chosen}
            for _, (library, variables) in itertools.product(range(rounds), chosen.items()):
                reason, share = run_pair(name, program, SIDES[client], SIDES[server], permille, variables, ports, limit)
                if reason:
                    reasons.append(f"{library or 'urxe'}: {reason}")
                elif share is not None:
                    kept[library].append(share)
            told = (f"{library} {statistics.median(shares):.2f}".strip() for library, shares in kept.items() if shares)
            yield name, "fail" if reasons else "pass", "; ".join(reasons) or f"kept of the goodput without losses: {', '.join(told)}"


def run_pair(name, program, client, server, permille, variables, ports, limit):
    """Why a run without losses and one with them did not pass, and the ratio of their rates. No ratio where perftest, whose clock is the
    emulated processor's, has measured a rate of 0."""
    rates = []
    with environment(variables):
        for losses in (0, permille):
            case = pair(name, [program, *OPTIONS], server, client, "ipv4", ports, ROW)
            shown = []
            with network(losses) as lost:
                reason, _ = run_again(name, case, server, client, limit, shown)
                if not reason and losses and not lost():
                    reason = "no packet was lost: this shows nothing"
            if reason:
                return f"{losses} permille lost: {reason}", None
            rates.append(float(re.search(ROW, shown[-1]).group(1)))
    return "", rates[1] / rates[0] if all(rates) else None
