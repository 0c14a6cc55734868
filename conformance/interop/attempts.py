"""Runs of a case of stock programs: once, and again for what was the fault of neither side."""

import sys
import time

import cases as programs
import stall
import starved
from sides import Program


def run_case(case, server_side, client_side, limit, shown):
    """Why the case did not pass; nothing if it did. Raises `KernelStandsStill` if it never ends by that. The client's output is appended
    to `shown`."""
    deadline = time.monotonic() + limit
    with Program(server_side, case.server) as server:
        if isinstance(case.ready, str):
            ready = server.says(case.ready, deadline)
        else:
            ready = server.listens(*case.ready, deadline)
        if not ready:
            return f"the server does not listen; {server.last_words()}"
        with Program(client_side, case.client) as client:
            if client.end(deadline) is None:
                stall.look(server_side, client_side)
            server.end(min(deadline, time.monotonic() + 10))
            shown.append(client.text())
            return programs.judge(case, server, client)


def run_and_look(case, server, client, limit, shown):
    """As `run_case`, and whether to run it again for what was none of the two's fault."""
    try:
        with starved.Watch() as watch:
            reason = run_case(case, server, client, limit, shown)
    except stall.KernelStandsStill as why:
        return str(why), str(why)
    return reason, watch.why() if reason else ""


def run_again(name, case, server, client, limit, shown=None):
    """Why the case did not pass, and what it was run again for. The client's output of each run is appended to `shown`."""
    shown = [] if shown is None else shown
    reason, why = run_and_look(case, server, client, limit, shown)
    again = ""
    while why and again.count("once more") < starved.TRIES:
        again = f"{again}once more, for {why}; "
        print(f"{name}: {reason}; once more, for {why}", file=sys.stderr, flush=True)
        reason, why = run_and_look(case, server, client, limit, shown)
    return reason, again
