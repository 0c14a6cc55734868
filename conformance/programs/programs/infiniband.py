"""Programs that know InfiniBand only, and that few machines have installed: ibdiagnet of ibutils, ibacm."""

import pathlib
import re

from hosts import Network, check, wait_for
from store import package_version

TITLE = "ibdiagnet, ibacm"
ORIGIN = "Debian"
COMPARED = "nodes, and the path, by subnet administration"
INFINIBAND = ("--link-layer", "infiniband")
#: ibacm takes its port with TCP on the loopback address: hosts of one machine have one /run.
ACM_OPTIONS = """\
log_file {log}
log_level 2
lock_file {lock}
addr_prot acm
route_prot sa
loopback_prot local
server_port 6125
server_mode loop
min_mtu 1024
provider ibacmp default
"""


def prepare(store):
    package_version("ibutils")
    package_version("ibacm")


def version(store):
    return f"{package_version('ibutils')}, {package_version('ibacm')}"


def diagnose(hosts):
    """Discovers every node, and finds no fault but that no adapter has the subnet manager: the built-in one is the switch's."""

    def case(store):
        with Network() as net:
            servers = [host.start("ibping", "-S", options=INFINIBAND) for host in net.hosts[1:hosts]]
            guids = [f"02005efe{''.join(f'{int(part):02x}' for part in host.address.split('.'))}" for host in net.hosts]

            def neighbours():
                said = net.hosts[0].run("ibhosts", options=INFINIBAND)
                return all(guid in said for guid in guids[1:hosts])

            wait_for(neighbours, 60, "the other hosts are in the subnet")
            folder = pathlib.Path(net.scratch.name) / "ibdiagnet"
            said = net.hosts[0].start("ibdiagnet", "-o", folder, options=INFINIBAND)
            said.end(120)
            text = said.text()
            check(f"{hosts + 1} nodes (1 Switches & {hosts} CA-s) discovered" in text, said.last_lines(20))
            stages = dict(re.findall(r"^ +(\w.*?) +(\d+ +\d+) *$", text, re.M))
            check(len(stages) >= 7, said.last_lines(20))
            for stage, counts in stages.items():
                wanted = ["1", "0"] if stage == "SM Info Check" else ["0", "0"]
                check(counts.split() == wanted, f"{stage}: {counts}; {said.last_lines(30)}")
            for server in servers:
                server.kill()

    return case


def resolve(store):
    """ib_acme asks ibacm of its host for a path to a name that ibacm of the other host knows, and verifies it with subnet administration."""
    with Network() as net:
        for host, name in zip(net.hosts, ("one", "two")):
            folder = pathlib.Path(net.scratch.name)
            options, names = folder / f"{name}.opts", folder / f"{name}.names"
            options.write_text(ACM_OPTIONS.format(log=folder / f"{name}.log", lock=folder / f"{name}.pid"))
            names.write_text(f"{name} urxe0 1 default\n")
            host.start("ibacm", "-P", "-O", options, "-A", names, options=INFINIBAND)
            log = folder / f"{name}.log"
            wait_for(lambda log=log: log.exists() and "join successful" in log.read_text(errors="replace"), 60, "ibacm joins its group")
        for words in (("-f", "n", "-s", "one", "-d", "two"), ("-f", "l", "-s", "1", "-d", "2")):

            def answered():
                asked = net.hosts[0].start("ib_acme", "-S", "127.0.0.1", *words, "-v", options=INFINIBAND)
                asked.end(60)
                return "SA verification: success" in asked.text() and "dlid: 2" in asked.text() and asked

            wait_for(answered, 60, f"ib_acme {' '.join(words)}")


CASES = {"ibdiagnet-alone": diagnose(1), "ibdiagnet": diagnose(2), "ibacm": resolve}
