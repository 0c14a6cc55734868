"""Whether the kernel's rxe has come to a stand, which is no fault of its peer's.

Seen with Linux 6.1 on a busy machine: the ACK timer of its queue pair expires while it sends a message; it goes back, and
while it sends again the ACK of the whole message arrives. From then on the PSN that it would send next is one that has
been sent and acknowledged already, its timer is off, and it sends nothing more. Its peer has nothing to say either, so both
programs wait for ever (urxe's capture ends with both directions acknowledged).
"""

import json
import os
import subprocess
import time

from sides import GUEST

PSNS = 1 << 24
#: Long after its ACK timer (67 ms) would have expired again.
PATIENCE = 3  # seconds


class KernelStandsStill(Exception):
    pass


def look(server, client):
    """Raises `KernelStandsStill` if a queue pair between the two does."""
    if {server.name, client.name} != {"urxe", "rxe"}:
        return
    before = behind()
    if before:
        time.sleep(PATIENCE)
        after = behind()
        for pair in before.keys() & after.keys():
            if before[pair] == after[pair]:
                would_send, came = before[pair]
                raise KernelStandsStill(f"the kernel stands still: it would send PSN {would_send}, and {came - 1} has come")


def behind():
    """By numbers of queue pairs: what the kernel would send next and what urxe expects next, where the former has come
    already."""
    urxe = os.path.join(os.environ["URXE_BIN_DIR"], "urxe")
    ours = output([urxe, "status", "--json"])
    theirs = output([GUEST, "rdma", "--json", "resource", "show", "qp"])
    found = {}
    for qp in (qp for program in ours for qp in program["qps"] if qp["peer"]):
        for other in theirs:
            if other.get("lqpn") == qp["peer"]["qpn"] and other.get("rqpn") == qp["qpn"] and other.get("state") == "RTS":
                would_send, expected = other["sq-psn"], qp["rq_psn"]
                if 0 < (expected - would_send) % PSNS < PSNS // 2:
                    found[qp["qpn"], other["lqpn"]] = (would_send, expected)
    return found


def output(words):
    return json.loads(subprocess.run(words, stdout=subprocess.PIPE, check=True, timeout=30).stdout)
