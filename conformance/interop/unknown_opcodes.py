"""Packets of urxe that the kernel's rxe does not know: notifications of congestion, while the network marks what the kernel sends, and
offers of selective repeat. Programs go on as if there were none."""

import contextlib
import dataclasses
import itertools
import os
import subprocess

from attempts import run_again
from cases import Ports, pair
from sides import GID, SIDES, URXE

PREFIX = "unknown-opcodes"
TABLE = "unknown_opcodes"
#: More than 16 packets are in flight.
OPTIONS = ("-F", "-s", "65536", "-n", "100")
MARK = "udp dport 4791 ip ecn set ce; udp dport 4791 ip6 ecn set ce;"


@dataclasses.dataclass(frozen=True)
class Kind:
    """Packets that urxe sends to the kernel: opcode, and what has it do so."""

    name: str
    opcode: int
    #: What becomes of packets that come from the kernel.
    rules: str = ""
    environment: dict = dataclasses.field(default_factory=dict)


CNP = Kind("cnp", 0x81, rules=MARK)
OFFER = Kind("selective-offer", 0xC0, environment={"URXE_SELECTIVE_REPEAT": "1"})
#: Kind, program, client and server: who receives data sends CNPs, and who requests anything sends offers.
PROGRAMS = (
    (CNP, "ib_write_bw", "rxe", "urxe"),
    (CNP, "ib_send_bw", "rxe", "urxe"),
    (CNP, "ib_read_bw", "urxe", "rxe"),
    (OFFER, "ib_write_bw", "urxe", "rxe"),
    (OFFER, "ib_send_bw", "urxe", "rxe"),
    (OFFER, "ib_read_bw", "urxe", "rxe"),
)
CASES = {
    f"{PREFIX}/{kind.name}/{client}>{server}/{family}/{program}": (kind, program, client, server, family)
    for (kind, program, client, server), family in itertools.product(PROGRAMS, GID)
}


@contextlib.contextmanager
def network(rules):
    """Packets that arrive here meet these rules meanwhile."""
    table = f"table inet {TABLE} {{\nchain input {{\ntype filter hook input priority 0;\n{rules}\n}}\n}}\n"
    subprocess.run(["nft", "-f", "-"], input=table, text=True, check=True)
    try:
        yield
    finally:
        subprocess.run(["nft", "delete", "table", "inet", TABLE], check=True)


def sent(capture, opcode):
    """Packets of an opcode that urxe has sent, by its own capture."""
    chosen = f"infiniband.bth.opcode == {opcode} && (ip.src == {URXE.addresses['ipv4']} || ipv6.src == {URXE.addresses['ipv6']})"
    words = ["tshark", "-r", capture, "-Y", chosen, "-T", "fields", "-e", "frame.number"]
    return len(subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, text=True).stdout.split())


def run(selected, limit):
    """Yields (name, reason)."""
    ports = Ports(21000)
    for name, (kind, program, client, server, family) in CASES.items():
        if not selected(name):
            continue
        client, server = SIDES[client], SIDES[server]
        case = pair(name, [program, *OPTIONS], server, client, family, ports, r"(?m)^ *\d+ +\d+ +\d")
        capture = os.environ["URXE_MACHINE"] + "/unknown-opcodes.pcapng"
        variables = kind.environment | {"URXE_PCAP": capture, "URXE_PCAP_SNAPLEN": "128"}
        os.environ.update(variables)
        try:
            with network(kind.rules):
                reason, _ = run_again(name, case, server, client, limit)
        finally:
            for variable in variables:
                del os.environ[variable]
        if not reason and not sent(capture, kind.opcode):
            reason = f"no packet of opcode {kind.opcode:#x} was sent: this shows nothing"
        yield name, reason
