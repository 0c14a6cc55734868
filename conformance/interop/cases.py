"""Stock programs, a server and a client, as cases for any two sides."""

import itertools
import re
from dataclasses import dataclass

from sides import GID

MTUS = (256, 512, 1024, 2048, 4096)


@dataclass(frozen=True)
class Case:
    """Passes when both programs end with status 0 and the client's output shows what it should."""

    name: str
    server: list
    client: list
    #: How one knows that the server is ready: ("tcp" or "cm-tcp"..., port), or a word that it writes.
    ready: tuple | str
    #: Must be found in the client's output, and in the server's.
    shows: str = ""
    served: str = ""


class Ports:
    """A port of its own for every case, so that none meets what another left behind."""

    def __init__(self, first=20000):
        self.ports = itertools.count(first)

    def take(self):
        return next(self.ports)


def cases(server, client, family, ports):
    """All cases of stock programs, server and client on these sides."""
    yield from pingpongs(server, client, family, ports)
    yield from perftests(server, client, family, ports)
    yield from connections(server, client, family, ports)


def pair(name, words, server, client, family, ports, shows):
    """A program of ibverbs-utils or perftest. The ends find each other over TCP and IPv4: the GIDs say which IP version
    carries the packets."""
    port = ports.take()
    gid_option = "-x" if words[0].startswith("ib_") else "-g"

    def of(side):
        return [*words, "-d", side.device, gid_option, str(GID[family]), "-p", str(port)]

    return Case(name, of(server), [*of(client), server.addresses["ipv4"]], ("tcp", port), shows)


def pingpongs(*sides):
    iterations, shows = ["-n", "100"], r"100 iters in"
    for mtu in MTUS:
        for service in ("rc", "uc"):
            words = [f"ibv_{service}_pingpong", "-c", *iterations, "-m", str(mtu), "-s", "9000"]
            yield pair(f"{service}_pingpong/mtu-{mtu}", words, *sides, shows)
    yield pair("rc_pingpong/events", ["ibv_rc_pingpong", "-c", "-e", *iterations], *sides, shows)
    words = ["ibv_rc_pingpong", "-c", *iterations, "-s", "1048576", "-m", "4096"]
    yield pair("rc_pingpong/1-MiB", words, *sides, shows)
    for size in (1, 1024, 4096):
        yield pair(f"ud_pingpong/{size}", ["ibv_ud_pingpong", "-c", *iterations, "-s", str(size)], *sides, shows)
    yield pair("ud_pingpong/events", ["ibv_ud_pingpong", "-c", "-e", *iterations], *sides, shows)
    # It counts the iterations of its 16 queue pairs together.
    yield pair("srq_pingpong", ["ibv_srq_pingpong", "-c", *iterations], *sides, r"\d+ iters in")
    words = ["ibv_srq_pingpong", "-c", "-e", *iterations, "-q", "3"]
    yield pair("srq_pingpong/events", words, *sides, r"\d+ iters in")


# Program and options of perftest; what is not said is as the program chooses.
PERFTEST = {
    "rc": ("send", "write", "read", "atomic"),
    "uc": ("send", "write"),
    "ud": ("send",),
}


def perftests(*sides):
    def perftest(name, program, *options):
        # A row of its table of results.
        return pair(f"{program}/{name}", [program, "-F", *options], *sides, r"(?m)^ *\d+ +\d+ +\d")

    for service, verbs in PERFTEST.items():
        for verb in verbs:
            size = [] if verb == "atomic" else ["-s", "1000"]
            yield perftest(service, f"ib_{verb}_lat", "-c", service.upper(), *size, "-n", "200")
            # UD and UC lose what a receiver is too slow for, and the programs wait for every message.
            if service == "rc" or verb == "write":
                size = [] if verb == "atomic" else ["-s", "65536" if service == "rc" else "1000"]
                yield perftest(service, f"ib_{verb}_bw", "-c", service.upper(), *size, "-n", "100")
    for mtu in MTUS:
        for verb in ("send", "write", "read"):
            yield perftest(f"mtu-{mtu}", f"ib_{verb}_bw", "-m", str(mtu), "-s", "100000", "-n", "20")
    for verb in ("send", "write", "read"):
        yield perftest("all-sizes", f"ib_{verb}_bw", "-a", "-n", "5")
        yield perftest("qps-both-ways", f"ib_{verb}_bw", "-q", "4", "-b", "-s", "20000", "-n", "50")
    yield perftest("compare-swap", "ib_atomic_bw", "-A", "CMP_AND_SWAP", "-n", "100")
    yield perftest("events", "ib_send_lat", "-e", "-n", "100")
    yield perftest("inline", "ib_write_lat", "-I", "64", "-s", "64", "-n", "100")
    yield perftest("srq", "ib_send_bw", "--use-srq", "-q", "2", "-s", "20000", "-n", "50")


def connections(server, client, family, ports):
    """Programs over librdmacm."""
    address = server.addresses[family]

    def case(name, port, program, server_options, client_options, shows="", served="", space="cm-tcp"):
        programs = program if isinstance(program, tuple) else (program, program)
        words = ["-p", str(port)]
        return Case(
            name,
            [programs[0], *server_options, *words],
            [programs[1], *client_options, *words],
            (space, port),
            shows,
            served,
        )

    rping = ["-a", address, "-V", "-C", "20", "-v"]
    shows = r"ping data: rdma-ping-19:"
    yield case("rping", ports.take(), "rping", ["-s", *rping], ["-c", *rping], shows)
    long = [*rping, "-S", "65535"]
    yield case("rping/65535", ports.take(), "rping", ["-s", *long], ["-c", *long], shows)
    numbers = ["-f", "ip"] if family == "ipv4" else ["-f", "ip6"]
    shows = r"return status 0"
    options = ["-b", address, *numbers, "-c", "10", "-C", "10"]
    there = [*numbers, "-s", address, "-c", "10", "-C", "10"]
    yield case("ucmatose", ports.take(), "ucmatose", options, there, shows, shows)
    # It takes no port.
    yield Case(
        "udaddy",
        ["udaddy", "-b", address, "-C", "10"],
        ["udaddy", "-s", address, "-C", "10"],
        ("cm-udp", 7174),
        shows,
        shows,
    )
    options = ["-s", address]
    yield case("rdma_client", ports.take(), ("rdma_server", "rdma_client"), options, options, r"end 0", r"end 0")
    stream = ["-S", "10000", "-C", "10", "-I", "10", "-T", "v"]
    shows = r"(?m)^custom +9.7k "
    yield case("rstream", ports.take(), "rstream", ["-b", address, *stream], ["-s", address, *stream], shows)
    for program, more in {
        "ib_send_bw": ["-s", "10000"],
        "ib_write_lat": [],
        "ib_read_bw": ["-s", "10000"],
        "ib_atomic_lat": [],
    }.items():
        if family == "ipv4":
            options = ["-R", "-F", *more, "-n", "100"]
            yield case(
                f"{program}/rdma_cm",
                ports.take(),
                program,
                ["-d", server.device, *options],
                ["-d", client.device, *options, address],
                r"(?m)^ *\d+ +\d+ +\d",
            )
    if family == "ipv4":
        group = f"239.77.0.{ports.take() % 250 + 1}"

        def member(side):
            return ["stdbuf", "-oL", "mckey", "-m", group, "-b", side.addresses[family], "-C", "10"]

        shows = r"return status 0"
        yield Case("mckey", member(server), [*member(client), "-s"], "joined dgid", shows, shows)


#: rping before rdma-core's pull request 1622 (2025): a thread asks for the next event while the other frees the channel at the end, and
#: its exit status is the process' if it is first. Over urxe it never is.
RPING_ENDS = re.compile(r"rdma_get_cm_event: Bad file descriptor\s*\Z")


def judge(case, server, client):
    """Why the case did not pass; nothing if it did. `server` and `client` have ended or are out of time."""
    for program in (client, server):
        status = program.process.poll()
        over_kernel = program.side.name == "rxe" and program.words[0] == "rping"
        if over_kernel and status == 255 and RPING_ENDS.search(program.text()):
            continue
        if status:
            return f"status {status}; {program.last_words()}"
    for program in (client, server):
        if program.running():
            return f"no end; {program.last_words()}"
    for program, wanted in ((client, case.shows), (server, case.served)):
        if not re.search(wanted, program.text()):
            return f"does not show {wanted!r}; {program.last_words()}"
    return ""
