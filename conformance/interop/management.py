"""Management datagrams (umad): stock diagnostics on the kernel's rxe, and messages between urxe and the kernel.

What the kernel cannot is expected with the words that it is refused with; docs/internals/umad.md has it as a table.
"""

import dataclasses
import os
import pathlib
import subprocess
import time

from sides import RXE, SIDES, URXE, Program

PREFIX = "management"
SOURCE = pathlib.Path(__file__).resolve().parents[2] / "tests/programs/umad.c"
GID = {"ipv4": "::ffff:{}", "ipv6": "{}"}
# For a datagram, and for five segments, whatever the emulated processor makes of its time.
PATIENCE = ("20000", "7")
ANSWER = "status 0 mad status 0 length {} same\n"
TIMED_OUT = "status 110 "


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """A shell's commands in the guest, and what they say."""

    name: str
    script: str
    says: tuple


# A RoCE port of the kernel has QP1, and neither QP0 nor a subnet manager; libibmad asks for these, or sets no GRH.
DIAGNOSES = (
    Diagnosis("files", "cat /sys/class/infiniband_mad/umad0/ibdev; ls /dev/infiniband", ("rxe0", "umad0", "issm0")),
    Diagnosis("ibstat", "ibstat", ("CA 'rxe0'", "State: Active", "SM lid: 0", "Link layer: Ethernet")),
    Diagnosis("ibping-lid", "ibping -c 1 1 || true", ("send failed; Invalid argument",)),
    Diagnosis("ibping-guid", "ibping -c 1 -G 0x1 || true", ("can't resolve destination port 0x1",)),
    Diagnosis("perfquery", "perfquery || true", ("client_register for mgmt 1 failed",)),
    Diagnosis("sminfo", "sminfo || true", ("client_register for mgmt 1 failed",)),
)


@dataclasses.dataclass(frozen=True)
class Exchange:
    """A message and its answer, and what the client says of it."""

    client: str
    server: str
    family: str
    length: int
    says: str

    @property
    def name(self):
        return f"{self.client}>{self.server}/{self.family}/{self.length}"


EXCHANGES = (
    Exchange("urxe", "rxe", "ipv6", 100, ANSWER.format(256)),
    Exchange("urxe", "rxe", "ipv6", 1000, ANSWER.format(1040)),
    Exchange("urxe", "rxe", "ipv4", 100, ANSWER.format(256)),
    Exchange("rxe", "urxe", "ipv6", 100, ANSWER.format(256)),
    Exchange("rxe", "urxe", "ipv6", 1000, ANSWER.format(1040)),
    # The kernel takes no answer over IPv4, of itself neither (`rcv_has_same_gid` of its mad.c).
    Exchange("rxe", "urxe", "ipv4", 100, TIMED_OUT),
    Exchange("rxe", "rxe", "ipv6", 100, ANSWER.format(256)),
    Exchange("rxe", "rxe", "ipv4", 100, TIMED_OUT),
)
NAMES = tuple(f"{PREFIX}/{case.name}" for case in (*DIAGNOSES, *EXCHANGES))


def judge(program, says, deadline):
    """Why it is not as expected."""
    status = program.end(deadline)
    missing = [text for text in says if text not in program.text()]
    return f"status {status}, not said {missing}; {program.last_words()}" if status != 0 or missing else ""


def exchange(case, program, limit):
    """Why the message did not go as expected."""

    def words(side, *more):
        below = (os.environ["URXE_BIN_DIR"] + "/urxe", "run", "--") if side is URXE else ()
        return [*below, program, *more]

    deadline = time.monotonic() + limit
    server, client = SIDES[case.server], SIDES[case.client]
    with Program(server, words(server, "serve", "1")) as serving:
        if not serving.says("serving\n", deadline):
            return f"the server does not come up; {serving.last_words()}"
        gid = GID[case.family].format(server.addresses[case.family])
        # Nothing comes of waiting for an answer that does not come.
        patience = ("500", "1") if case.says == TIMED_OUT else PATIENCE
        with Program(client, words(client, "ask", gid, str(case.length), *patience)) as asking:
            return judge(asking, (case.says,), deadline)


def run(selected, limit):
    """Yields (name, reason)."""
    if not any(map(selected, NAMES)):
        return
    with Program(RXE, ["modprobe", "ib_umad"]) as loading:
        why = judge(loading, (), time.monotonic() + limit)
    for case in DIAGNOSES:
        if selected(f"{PREFIX}/{case.name}"):
            with Program(RXE, ["sh", "-ec", case.script]) as program:
                yield f"{PREFIX}/{case.name}", why or judge(program, case.says, time.monotonic() + limit)
    # The guest sees this machine's files.
    program = os.environ["URXE_MACHINE"] + "/umad"
    subprocess.run(["gcc", "-O1", "-o", program, SOURCE, "-libumad"], check=True)
    for case in EXCHANGES:
        if selected(f"{PREFIX}/{case.name}"):
            yield f"{PREFIX}/{case.name}", why or exchange(case, program, limit)
