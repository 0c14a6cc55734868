"""Plan of the exchange: scenarios as data, and what must come of them.

Both ends know the scenario, and both ends' memory is random data from seeds that both know. So each end can tell what
its whole memory must be afterwards: every byte that a message should have changed, and every byte that nothing should
have touched.
"""

import random
import sys
from dataclasses import dataclass, field

GRH = 40  # bytes that a UD receive has in front of the data
# In front of the slots: words for atomics.
WORDS = 64
GAP = 64  # at least so much between slots, for what is written too far

RECEIVED = ("SEND", "SEND_IMM", "SEND_INV", "WRITE_IMM")  # these use up a receive
ATOMIC = ("SWAP", "ADD")
IMMEDIATE = 0xC0FFEE42


@dataclass(frozen=True)
class Op:
    """One work request of the client."""

    kind: str
    length: int = 8
    #: How it must complete (`IBV_WC_` is left out).
    status: str = "SUCCESS"
    #: "region", "window", or "wrong".
    key: str = "region"
    #: The slot of this earlier operation is its target, too.
    slot_of: int | None = None
    #: Added to the remote address.
    shift: int = 0
    #: Compare and swap, or what is added; which word; how far from it.
    values: tuple[int, int] = (1, 0)
    word: int = 0
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scenario:
    """A connection and what happens on it. The client requests, the server responds."""

    service: str
    ops: tuple[Op, ...]
    #: The client's first PSN.
    psn: int = 0x123456
    #: All operations are posted before any completion is looked for.
    batch: bool = False
    #: How many pieces each message is gathered from, and scattered to.
    pieces: int = 1
    #: Seconds before the server posts its receives; None: it posts none.
    late: float | None = 0.0
    #: Bytes of each receive, where that is not the message's length.
    receive: int | None = None
    srq: bool = False
    window: bool = False
    #: The server sleeps on a completion channel until a solicited event.
    solicited: bool = False
    rnr_retry: int = 7
    #: Remote operations that the server's QP and its region allow.
    qp_access: tuple[str, ...] = ("REMOTE_WRITE", "REMOTE_READ", "REMOTE_ATOMIC")
    mr_access: tuple[str, ...] = ("REMOTE_WRITE", "REMOTE_READ", "REMOTE_ATOMIC")
    #: The client asks for a QP that is not there, with few and short retries.
    nobody: bool = False
    #: Path MTUs with which to run it; by default all.
    mtus: tuple[int, ...] = (256, 512, 1024, 2048, 4096)


def ops(kind, *lengths, **more):
    return tuple(Op(kind, length, **more) for length in lengths)


# Pad counts; around the smallest and largest path MTUs and their multiples.
SHORT = (0, 1, 2, 3, 4, 5, 63, 255, 256, 257, 1023, 1024, 1025, 2500, 4095, 4096, 4097, 10000)
LONG = (65536, 65537, 1 << 20)
INLINE = (0, 1, 60)
ONE_MTU = {"mtus": (1024,)}
# Datagrams know no path MTU; they must fit the interface's.
DATAGRAM = {"mtus": (4096,)}
MASK = 2**64 - 1
START = 0x1122334455667788


def mixed():
    kinds = ("SEND", "WRITE", "READ", "SEND_IMM", "WRITE_IMM")
    for index in range(30):
        yield Op(kinds[index % 5], (64, 2500, 1024, 0, 4097, 9000)[index % 6])
        if index % 7 == 0:
            yield Op("ADD", values=(index, 0))


def fenced():
    """READs whose data is written back to its place: the fence is what makes that the same data."""
    for index in range(4):
        yield Op("READ", 9000)
        yield Op("WRITE", 9000, slot_of=2 * index, flags=("FENCE",))


def refused(kind, status, **more):
    """One operation that works, one that does not, and one that is flushed."""
    return Op("READ", 64), Op(kind, status=status, **more), Op("WRITE", 64, status="WR_FLUSH_ERR")


def without(*names):
    return tuple(name for name in ("REMOTE_WRITE", "REMOTE_READ", "REMOTE_ATOMIC") if name not in names)


ACCESS, REQUEST = "REM_ACCESS_ERR", "REM_INV_REQ_ERR"

SCENARIOS = {
    "rc-send": Scenario("RC", ops("SEND", *SHORT)),
    "rc-send-long": Scenario("RC", ops("SEND", *LONG)),
    "rc-send-imm": Scenario("RC", ops("SEND_IMM", *SHORT)),
    "rc-write": Scenario("RC", ops("WRITE", *SHORT)),
    "rc-write-long": Scenario("RC", ops("WRITE", *LONG)),
    "rc-write-imm": Scenario("RC", ops("WRITE_IMM", *SHORT, 1 << 20)),
    "rc-read": Scenario("RC", ops("READ", *SHORT)),
    "rc-read-long": Scenario("RC", ops("READ", *LONG)),
    "rc-read-back": Scenario("RC", tuple(Op(kind, 9000, slot_of=0) for kind in ("WRITE", "READ"))),
    "rc-atomic": Scenario(
        "RC",
        (
            Op("ADD", values=(5, 0)),
            Op("SWAP", values=(START + 5, 0x0102030405060708)),
            Op("SWAP", values=(1, 2)),
            Op("ADD", values=(MASK, 0)),
            Op("ADD", values=(1, 0), word=1),
            Op("SWAP", values=(START, MASK), word=7),
        ),
    ),
    "rc-atomic-batch": Scenario("RC", tuple(Op("ADD", values=(3, 0), word=i % 3) for i in range(48)), batch=True),
    "rc-mixed-batch": Scenario("RC", tuple(mixed()), batch=True),
    "rc-long-batch": Scenario(
        "RC", (*ops("WRITE", 1 << 20), *ops("READ", 1 << 20), *ops("SEND", 1 << 20)) * 2, batch=True
    ),
    "rc-fence": Scenario("RC", tuple(fenced()), batch=True),
    "rc-pieces": Scenario("RC", (*ops("SEND", 9, 5000), *ops("WRITE", 9, 5000), *ops("READ", 9, 5000)), pieces=3),
    "rc-inline": Scenario("RC", tuple(Op(kind, n, flags=("INLINE",)) for kind in ("SEND", "WRITE") for n in INLINE)),
    "rc-solicited": Scenario("RC", (Op("SEND", 16, flags=("SOLICITED",)),), solicited=True),
    "rc-solicited-long": Scenario("RC", (Op("SEND_IMM", 9000, flags=("SOLICITED",)),), solicited=True),
    "rc-srq": Scenario("RC", (*ops("SEND", *SHORT), *ops("WRITE_IMM", 5, 5000)), srq=True),
    "rc-psn-wrap": Scenario(
        "RC",
        (*ops("SEND", 64, 9000, 64), *ops("WRITE", 9000), *ops("READ", 9000, 9000), Op("ADD"), *ops("SEND_IMM", 9000)),
        psn=0xFFFFFC,
    ),
    "rc-psn-wrap-batch": Scenario("RC", tuple(mixed()), psn=0xFFFFF0, batch=True),
    "rc-psn-wrap-read": Scenario("RC", ops("READ", 65536, 1 << 20, 64), psn=0xFFFFFE),
    "rc-window": Scenario(
        "RC", tuple(Op(kind, n, key="window") for kind in ("WRITE", "READ") for n in (1, 9000)), window=True
    ),
    "rc-window-send-inv": Scenario(
        "RC",
        (
            Op("WRITE", 64, key="window"),
            Op("SEND_INV", 16),
            Op("WRITE", 64, key="window", status=ACCESS),
        ),
        window=True,
    ),
    "rc-window-send-inv-long": Scenario("RC", (Op("WRITE", 64, key="window"), Op("SEND_INV", 9000)), window=True),
    "rc-rnr": Scenario("RC", ops("SEND", 64, 5000, 64), late=0.3),
    "rc-rnr-batch": Scenario(
        "RC", (*ops("SEND", 64, 5000), *ops("WRITE_IMM", 5000), *ops("READ", 64)), late=0.3, batch=True
    ),
    "rc-rnr-exceeded": Scenario("RC", ops("SEND", 64, status="RNR_RETRY_EXC_ERR"), late=None, rnr_retry=1, **ONE_MTU),
    "rc-nobody": Scenario("RC", ops("SEND", 64, status="RETRY_EXC_ERR"), nobody=True, **ONE_MTU),
    "rc-nak-key-write": Scenario("RC", refused("WRITE", ACCESS, key="wrong"), **ONE_MTU),
    "rc-nak-key-read": Scenario("RC", refused("READ", ACCESS, key="wrong"), **ONE_MTU),
    "rc-nak-key-atomic": Scenario("RC", refused("ADD", ACCESS, key="wrong"), **ONE_MTU),
    "rc-nak-bounds-write": Scenario("RC", refused("WRITE", ACCESS, shift=1 << 24), **ONE_MTU),
    "rc-nak-bounds-read": Scenario("RC", refused("READ", ACCESS, shift=-(1 << 24)), **ONE_MTU),
    "rc-nak-wrap-around": Scenario("RC", refused("WRITE", ACCESS, shift=1 << 63), **ONE_MTU),
    "rc-nak-misaligned": Scenario("RC", refused("ADD", REQUEST, shift=4), **ONE_MTU),
    "rc-nak-qp-write": Scenario(
        "RC", (Op("READ", 64), Op("WRITE", 64, status=REQUEST)), qp_access=without("REMOTE_WRITE"), **ONE_MTU
    ),
    "rc-nak-qp-read": Scenario(
        "RC", (Op("WRITE", 64), Op("READ", 64, status=REQUEST)), qp_access=without("REMOTE_READ"), **ONE_MTU
    ),
    "rc-nak-qp-atomic": Scenario(
        "RC", (Op("WRITE", 64), Op("ADD", status=REQUEST)), qp_access=without("REMOTE_ATOMIC"), **ONE_MTU
    ),
    "rc-nak-mr-write": Scenario(
        "RC", (Op("READ", 64), Op("WRITE", 64, status=ACCESS)), mr_access=without("REMOTE_WRITE"), **ONE_MTU
    ),
    "rc-nak-mr-read": Scenario(
        "RC", (Op("WRITE", 64), Op("READ", 64, status=ACCESS)), mr_access=without("REMOTE_READ"), **ONE_MTU
    ),
    "rc-nak-mr-atomic": Scenario(
        "RC", (Op("WRITE", 64), Op("ADD", status=ACCESS)), mr_access=without("REMOTE_ATOMIC"), **ONE_MTU
    ),
    "rc-nak-too-long": Scenario("RC", ops("SEND", 200, status=REQUEST), receive=100, **ONE_MTU),
    "rc-nak-too-long-middle": Scenario("RC", ops("SEND", 9000, status=REQUEST), receive=5000, **ONE_MTU),
    "uc-send": Scenario("UC", ops("SEND", *SHORT, 65536)),
    "uc-send-imm": Scenario("UC", ops("SEND_IMM", *SHORT)),
    "uc-write": Scenario("UC", (*ops("WRITE", *SHORT, 65536), *ops("WRITE_IMM", 1))),
    "uc-write-imm": Scenario("UC", ops("WRITE_IMM", *SHORT)),
    "uc-psn-wrap": Scenario("UC", ops("SEND", 9000, 64, 9000, 64, 9000), psn=0xFFFFFC),
    "ud-send": Scenario("UD", ops("SEND", 0, 1, 2, 3, 4, 64, 255, 1024, 4095, 4096), **DATAGRAM),
    "ud-send-imm": Scenario("UD", ops("SEND_IMM", 0, 1, 5, 4096), **DATAGRAM),
    "ud-srq": Scenario("UD", ops("SEND", 0, 64, 4096), srq=True, **DATAGRAM),
}


def runs():
    """All scenarios with all their path MTUs, as in rc-send/mtu-1024."""
    for name, scenario in SCENARIOS.items():
        for mtu in scenario.mtus:
            yield f"{name}/mtu-{mtu}"


@dataclass
class Layout:
    """Where things are in both ends' memory: the same offsets at both."""

    offsets: list[int] = field(default_factory=list)
    size: int = WORDS

    def __init__(self, scenario):
        self.offsets, at = [], WORDS
        for index, op in enumerate(scenario.ops):
            if op.slot_of is not None and op.slot_of < index:
                self.offsets.append(self.offsets[op.slot_of])
                continue
            # Every alignment occurs; where atomics bring their answers, words.
            at += GAP + (0 if op.kind in ATOMIC else index % 8)
            self.offsets.append(at)
            at += op.length + (GRH if scenario.service == "UD" else 0)
            at += -at % 64
        self.size = at + GAP


def memory(end, size):
    """Contents of an end's memory at first."""
    data = bytearray(random.Random(end).randbytes(size))
    if end == "server":
        data[:8] = data[56:64] = START.to_bytes(8, sys.byteorder)
    return data


class Outcome:
    """Contents that both ends' memory must have, and which bytes of it may be anything."""

    def __init__(self, scenario):
        self.layout = Layout(scenario)
        self.memory = {end: memory(end, self.layout.size) for end in ("client", "server")}
        self.any = {"client": [], "server": []}
        for op, offset in zip(scenario.ops, self.layout.offsets):
            self.apply(scenario, op, offset)

    def apply(self, scenario, op, offset):
        client, server = self.memory["client"], self.memory["server"]
        end = offset + op.length
        if op.status != "SUCCESS":
            # A receive that is too short, a READ that ends in the middle: what they hold is undefined.
            if op.kind in RECEIVED:
                self.any["server"].append((offset, end))
            if op.kind in (*ATOMIC, "READ"):
                self.any["client"].append((offset, end))
        elif op.kind in ATOMIC:
            at = 8 * op.word
            before = int.from_bytes(server[at : at + 8], sys.byteorder)
            client[offset : offset + 8] = server[at : at + 8]
            if op.kind == "ADD":
                after = (before + op.values[0]) & MASK
            else:
                after = op.values[1] if before == op.values[0] else before
            server[at : at + 8] = after.to_bytes(8, sys.byteorder)
        elif op.kind == "READ":
            client[offset:end] = server[offset:end]
        elif scenario.service == "UD":
            self.any["server"].append((offset, offset + GRH))
            server[offset + GRH : end + GRH] = client[offset:end]
        else:
            server[offset:end] = client[offset:end]

    def difference(self, end, found):
        """Where the memory of this end is not what it must be, in words; or nothing."""
        wanted, found = self.memory[end], bytearray(found)
        for start, stop in self.any[end]:
            wanted[start:stop] = found[start:stop]
        if wanted == found:
            return ""
        wrong = [index for index in range(len(wanted)) if wanted[index] != found[index]]
        slot = max((i for i, offset in enumerate(self.layout.offsets) if offset <= wrong[0]), default=None)
        where = f"operation {slot}, byte {wrong[0] - self.layout.offsets[slot]}" if slot is not None else "the words"
        return f"{end}'s memory: {len(wrong)} bytes are wrong, the first at {where}"
