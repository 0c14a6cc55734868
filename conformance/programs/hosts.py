"""Hosts of a private network, and programs that run on them below `urxe run`.

A host is a network namespace with one interface or more. All of them hang on one bridge, or two of them on a veth each.
"""

import os
import pathlib
import re
import shlex
import signal
import subprocess
import tempfile
import time

#: The folder with urxe and liburxe.so.
BIN = pathlib.Path(os.environ.get("URXE_BIN_DIR", "target/release")).resolve()
#: Variables of the caller that would reach what the programs do.
FOREIGN = ("URXE_", "UCX_", "FI_", "MPI", "I_MPI_", "IBV_", "RDMAV_", "LD_PRELOAD", "SYSFS_PATH", "NCCL_", "MC_")
POLL = 0.02


class Failed(Exception):
    """A case failed; the message says why, and `explained` what urxe has told its programs."""

    def __init__(self, reason, explained=""):
        super().__init__(reason)
        self.explained = explained


class Skipped(Exception):
    """A case cannot run here; the message says why."""


def check(condition, reason):
    if not condition:
        raise Failed(reason)


def environment(more=None):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    return clean | {name: str(value) for name, value in (more or {}).items()}


def wait_for(condition, limit, what):
    """Until `condition` gives something true, which is returned."""
    deadline = time.monotonic() + limit
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise Failed(f"{what}: not within {limit} s")
        time.sleep(POLL)
    return found


class Running:
    """A program that was started, in a process group of its own."""

    def __init__(self, words, env, cwd):
        # Appended to: reading it here moves no offset of the program's.
        self.output = tempfile.NamedTemporaryFile("a+", errors="replace")
        # What is behind the words that enter a host and start urxe.
        last = max((at for at, word in enumerate(words) if word == "--"), default=-1)
        self.name = pathlib.Path(str(words[last + 1])).name
        self.process = subprocess.Popen(
            [str(word) for word in words], stdin=subprocess.DEVNULL, stdout=self.output, stderr=subprocess.STDOUT, env=env,
            cwd=cwd, start_new_session=True,
        )

    def text(self):
        return pathlib.Path(self.output.name).read_text(errors="replace")

    def last_lines(self, count=4):
        lines = [line.strip() for line in self.text().splitlines() if re.search(r"\w", line)]
        return f"{self.name}: " + " / ".join(lines[-count:])

    def running(self):
        return self.process.poll() is None

    def says(self, pattern, limit):
        """Waits until the output has what `pattern` finds; the match."""

        def look():
            found = re.search(pattern, self.text(), re.M)
            if not found and not self.running():
                # What it wrote last.
                found = re.search(pattern, self.text(), re.M)
                check(found, f"ended with {self.process.returncode} before it said {pattern!r}; {self.last_lines()}")
            return found

        try:
            return wait_for(look, limit, f"{self.name} says {pattern!r}")
        except Failed as failed:
            raise Failed(f"{failed}; {self.last_lines()}") from None

    def explanation(self):
        """The last explanation of urxe."""
        told = re.findall(r"^urxe: .*(?:\n .*)*", self.text(), re.M)
        return f"{self.name}: {told[-1]}" if told else ""

    def explained(self, code, *words):
        """Checks that urxe has explained this code, in these words."""
        told = self.says(rf"urxe: .*{code}.*(\n .*)*", 10)[0]
        for word in words:
            check(word in told, f"{code} is explained without {word!r}: {told}")

    def end(self, limit):
        """Its exit status."""
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            raise Failed(f"no end of {self.last_lines()}") from None

    def success(self, limit):
        """Its output, after status 0."""
        status = self.end(limit)
        if status != 0:
            raise Failed(f"status {status} of {self.last_lines()}", self.explanation())
        return self.text()

    def kill(self, number=signal.SIGKILL):
        """Signals the program and all its descendants, whatever sessions they are in."""
        for pid in family(self.process.pid):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass
        if number == signal.SIGKILL:
            self.process.wait()


def family(ancestor):
    """A process and its descendants."""
    children = {}
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = stat.read_text().rsplit(")", 1)[1].split()[1]
        except OSError:
            continue
        children.setdefault(int(parent), []).append(int(stat.parent.name))
    found = [ancestor]
    for pid in found:
        found += children.get(pid, [])
    return found


class Host:
    """A network namespace; `links` are its interfaces and `addresses` theirs."""

    def __init__(self, net, name):
        self.net, self.name = net, name
        self.holder = subprocess.Popen(
            ["unshare", "--net", "--uts", "sh", "-c", f"hostname {name}; ip link set lo up; echo; exec sleep infinity"],
            stdout=subprocess.PIPE,
        )
        self.holder.stdout.readline()
        namespaces = f"/proc/{self.holder.pid}/ns"
        self.inside = ["nsenter", f"--net={namespaces}/net", f"--uts={namespaces}/uts", "--"]
        self.links, self.addresses = [], []

    @property
    def address(self):
        return self.addresses[0]

    def ip(self, *words):
        subprocess.run([*self.inside, "ip", *words], check=True)

    def start(self, *words, env=None, urxe=True, options=(), cwd=None):
        """Starts a program, below `urxe run` unless told otherwise."""
        run = []
        if urxe:
            run = [BIN / "urxe", "run", "--netdev", ",".join(self.links), *options, "--"]
        program = Running([*self.inside, *run, *words], environment(env), cwd or self.net.folder)
        self.net.programs.append(program)
        return program

    def run(self, *words, limit=60, **more):
        """A program's output, after status 0."""
        return self.start(*words, **more).success(limit)

    def status(self):
        """Output of `urxe status` about the processes here."""
        return self.run(BIN / "urxe", "status", urxe=False)

    def busy(self, packets=1000):
        """Waits until urxe's processes here have sent this many packets by a queue pair in RTS."""

        def look():
            text = self.status()
            sent = [int(row) for row in re.findall(r"^ *\d+ .* (\d+) +\d+$", text, re.M)]
            return re.search(r"RC +RTS", text) and sum(sent) >= packets

        wait_for(look, 60, f"{packets} packets of {self.name}")

    def processes_of(self, name):
        """The process ids of the programs of this name here."""
        net = os.readlink(f"/proc/{self.holder.pid}/ns/net")
        found = []
        for comm in pathlib.Path("/proc").glob("[0-9]*/comm"):
            try:
                if comm.read_text().strip() == name and os.readlink(comm.parent / "ns/net") == net:
                    found.append(int(comm.parent.name))
            except OSError:
                continue
        check(found, f"no process is called {name} on {self.name}")
        return found

    def listens(self, port):
        """Whether somebody listens at this TCP port."""
        for name in ("tcp", "tcp6"):
            for line in pathlib.Path(f"/proc/{self.holder.pid}/net/{name}").read_text().splitlines()[1:]:
                columns = line.split()
                if columns[3] == "0A" and columns[1].endswith(f":{port:04X}"):
                    return True
        return False

    def listens_by_cm(self, port):
        """Whether a process of urxe's listens at this port of RDMA_PS_TCP."""
        service = f"@urxe/1/service/{0x0106 << 16 | port:016x}/"
        return service in pathlib.Path(f"/proc/{self.holder.pid}/net/unix").read_text()


class Network:
    """`count` hosts, each with `rails` interfaces. Rail N is the network 10.(80+N).0.0/24 on a bridge of its own. The switch routes
    between rails, and each host sends from the interface that has the source address, as hosts with a card for each rail do."""

    def __init__(self, count=2, rails=1, folder=None):
        self.scratch = tempfile.TemporaryDirectory()
        self.folder = folder or self.scratch.name
        self.programs, self.hosts = [], []
        self.switch = Host(self, "switch")
        try:
            self.build(count, rails)
        except BaseException:
            self.__exit__()
            raise

    def build(self, count, rails):
        for rail in range(rails):
            self.switch.ip("link", "add", f"rail{rail}", "type", "bridge")
            self.switch.ip("address", "add", f"10.{80 + rail}.0.254/24", "dev", f"rail{rail}")
            self.switch.ip("link", "set", f"rail{rail}", "up")
            self.switch.addresses.append(f"10.{80 + rail}.0.254")
        subprocess.run([*self.switch.inside, "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"], check=True)
        for number in range(count):
            host = Host(self, f"node{number}")
            self.hosts.append(host)
            for rail in range(rails):
                link, port, address = f"eth{rail}", f"p{number}r{rail}", f"10.{80 + rail}.0.{number + 1}"
                self.switch.ip("link", "add", port, "type", "veth", "peer", "name", link, "netns", str(host.holder.pid))
                self.switch.ip("link", "set", port, "master", f"rail{rail}", "up")
                host.ip("address", "add", f"{address}/24", "dev", link)
                host.ip("link", "set", link, "up")
                host.links.append(link)
                host.addresses.append(address)
                if rails > 1:
                    table, gateway = str(100 + rail), f"10.{80 + rail}.0.254"
                    host.ip("route", "add", f"10.{80 + rail}.0.0/24", "dev", link, "table", table)
                    host.ip("route", "add", "default", "via", gateway, "dev", link, "table", table)
                    host.ip("rule", "add", "from", address, "table", table)
        self.name_hosts()
        # GID tables change until duplicate address detection is over.
        for host in self.hosts:
            wait_for(lambda h=host: not subprocess.check_output(
                [*h.inside, "ip", "-6", "address", "show", "tentative"]), 30, "duplicate address detection")

    def name_hosts(self):
        """Each host's name is known on all of them. The mount namespace is of this run alone."""
        names = pathlib.Path(self.scratch.name) / "hosts"
        lines = [f"{host.address} {host.name}" for host in (self.switch, *self.hosts)]
        names.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        subprocess.run(["mount", "--bind", names, "/etc/hosts"], check=True)

    def remote_shell(self, options=()):
        """A program like ssh: `SHELL [-OPTION]... HOST COMMAND...` runs a command on a host below `urxe run`."""
        shell = pathlib.Path(self.scratch.name) / "remote-shell"
        lines = ["#!/bin/sh", 'while [ "${1#-}" != "$1" ]; do shift; done', "host=$1", "shift", "case $host in"]
        for host in self.hosts:
            run = shlex.join(map(str, [*host.inside, BIN / "urxe", "run", "--netdev", ",".join(host.links), *options, "--"]))
            lines.append(f'{host.name} | {host.address}) exec {run} sh -c "$*" ;;')
        shell.write_text("\n".join([*lines, "*) exit 255 ;;", "esac", ""]))
        shell.chmod(0o755)
        return shell

    def __enter__(self):
        return self

    def explanations(self):
        """The last explanation of urxe to each program, those that have failed before the others."""
        programs = sorted(self.programs, key=lambda program: program.process.poll() in (None, 0))
        return " / ".join(filter(None, (program.explanation() for program in programs)))

    def __exit__(self, _kind=None, error=None, _trace=None):
        if isinstance(error, Failed):
            error.explained = self.explanations()
        subprocess.run(["umount", "/etc/hosts"], check=False)
        for program in self.programs:
            program.kill()
            program.output.close()
        for host in (*self.hosts, self.switch):
            host.holder.kill()
            host.holder.wait()
        self.scratch.cleanup()
