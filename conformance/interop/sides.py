"""The two implementations, and how programs are run on each."""

import pathlib
import subprocess
import tempfile
import time
from dataclasses import dataclass

HERE = pathlib.Path(__file__).resolve().parent
GUEST = str(HERE.parent / "kernel-rxe/guest")
#: `RDMA_PS_TCP` and `RDMA_PS_UDP` of rdma/rdma_user_cm.h: the upper half of a service id.
PORT_SPACES = {"cm-tcp": 0x0106, "cm-udp": 0x0111}


@dataclass(frozen=True)
class Side:
    """A host with an RDMA device, as `kernel-rxe/boot` made it."""

    name: str
    device: str
    addresses: dict
    prefix: tuple = ()

    def start(self, words, output):
        return subprocess.Popen(
            [*self.prefix, *words], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )

    def listening(self, kind, port):
        """A shell's condition: somebody listens at this port."""
        if kind == "tcp":
            return f"grep -q ':{port:04X} 0*:0000 0A' /proc/net/tcp /proc/net/tcp6"
        if self.name == "urxe":
            # Who listens holds the name of the service.
            return f"grep -q '@urxe/1/service/{PORT_SPACES[kind] << 16 | port:016x}/' /proc/net/unix"
        # A service of datagrams is in state LISTEN as well.
        return f"rdma resource show cm_id | grep -q 'LISTEN.*:{port} '"


# Of both, GID 1 is the IPv4 address and GID 2 the IPv6 address that is not link-local.
GID = {"ipv4": 1, "ipv6": 2}
URXE = Side("urxe", "urxe0", {"ipv4": "10.77.0.1", "ipv6": "fd77::1"})
RXE = Side("rxe", "rxe0", {"ipv4": "10.77.0.2", "ipv6": "fd77::2"}, (GUEST,))
SIDES = {side.name: side for side in (URXE, RXE)}


class Program:
    """A program that runs on a side until it ends, or until it is ended."""

    def __init__(self, side, words):
        self.output = tempfile.TemporaryFile("w+", errors="replace")
        self.side, self.words = side, words
        self.process = side.start(words, self.output)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.output.close()

    def text(self):
        self.output.flush()
        self.output.seek(0)
        return self.output.read()

    def running(self):
        return self.process.poll() is None

    def end(self, deadline):
        """Its exit status; None if it does not end in time."""
        try:
            return self.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return None

    def says(self, words, deadline):
        """Waits until it has written this."""
        while words not in self.text() and self.running() and time.monotonic() < deadline:
            time.sleep(0.05)
        return words in self.text()

    def listens(self, kind, port, deadline):
        """Waits until it listens."""
        condition = self.side.listening(kind, port)
        with Program(self.side, ["sh", "-c", f"until {condition}; do sleep 0.05; done"]) as waiting:
            while waiting.running() and self.running() and time.monotonic() < deadline:
                time.sleep(0.02)
            return waiting.process.poll() == 0

    def last_words(self):
        lines = [line for line in self.text().splitlines() if line.strip(" -*") and "WARNING" not in line]
        return f"{self.side.name}: " + " / ".join(lines[-3:])
