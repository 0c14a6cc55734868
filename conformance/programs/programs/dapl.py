"""dapl's own programs over uDAPL's provider for rdma_cm."""

import pathlib
import re
import subprocess

from hosts import Network, check, wait_for
from store import package_version

TITLE = "uDAPL, dtest and dapltest"
ORIGIN = "Debian"
COMPARED = "by dapltest and dtest -W"
PROVIDER = "ofa-v2-urxe"
DTEST_PORT = 45248


def prepare(store):
    package_version("dapl2-utils")


def version(store):
    return package_version("dapl2-utils")


def prepare_provider(net):
    """Variables by which both ends find the provider for rdma_cm."""
    configuration = pathlib.Path(net.scratch.name) / "dat.conf"
    configuration.write_text(f'{PROVIDER} u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 "eth0 0" ""\n')
    return {"DAT_OVERRIDE": configuration, "URXE_EXPLAIN": 1}


def listens(host, by_tcp):
    """Whether a program listens by rdma_cm, and by TCP too."""
    tables = pathlib.Path(f"/proc/{host.holder.pid}/net")
    lines = [line.split() for name in ("tcp", "tcp6") for line in (tables / name).read_text().splitlines()[1:]]
    return "@urxe/1/service/" in (tables / "unix").read_text() and (not by_tcp or any(line[3] == "0A" for line in lines))


def start(net, server_words, client_words, by_tcp=False):
    env = prepare_provider(net)
    server = net.hosts[0].start(*server_words, env=env)
    wait_for(lambda: listens(net.hosts[0], by_tcp) or not server.running(), 60, "the server listens")
    return server, net.hosts[1].start(*client_words, env=env)


def dtest(*options, program="dtest", said="DAPL Test Complete. PASSED"):
    def case(store):
        with Network() as net:
            # The client asks by TCP where to connect to.
            server, client = start(net, [program, "-s", "-P", PROVIDER, *options],
                                   [program, "-P", PROVIDER, "-h", net.hosts[0].address, *options], by_tcp=True)
            for end in (client, server):
                text = end.success(120)
                check(said in text, end.last_lines())
    return case


def ends(net, rounds, threads, *operations):
    """Words of dapltest's server and client."""
    return (["dapltest", "-T", "S", "-D", PROVIDER], [
        "dapltest", "-T", "T", "-s", net.hosts[0].address, "-D", PROVIDER, "-i", rounds, "-t", threads, "-w", threads, "-V", *operations])


def dapltest(*operations):
    def case(store):
        with Network() as net:
            server, client = start(net, *ends(net, 100, 2, *operations))
            text = client.success(120)
            check(re.search(r"Total (RDMA|Recv|Send)|Finished|Successfully", text), client.last_lines(8))
            check(not re.search("error|fail", text, re.I), client.last_lines(8))
    return case


def kill_server(store):
    """The client's transfers fail, and it ends; a new server serves a new client. With one thread: others would wait for the first."""
    with Network() as net:
        server, client = start(net, *ends(net, 10 ** 6, 1, "client", "RW", 65536, 4, "client", "SR", 256, 1, "server", "SR", 256, 1))
        net.hosts[1].busy()
        server.kill()
        client.end(120)
        check(re.search("error|fail", client.text(), re.I), f"the client has noticed nothing; {client.last_lines(8)}")
        dapltest("client", "SR", 4096, 1, "server", "SR", 4096, 1)(store)


CASES = {
    "dtest": dtest(), "dtest-validated": dtest("-W", "-D", "-b", 65536), "dtest-polling": dtest("-p"),
    "dtestcm": dtest("-c", 20, program="dtestcm", said="TOTAL:"),
    "dapltest-send": dapltest("client", "SR", 4096, 1, "server", "SR", 4096, 1),
    "dapltest-rdma": dapltest("client", "RR", 65536, 2, "server", "RW", 65536, 2, "client", "SR", 256, 1, "server", "SR", 256, 1),
    "kill-server": kill_server,
}
