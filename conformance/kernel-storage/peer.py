"""urxe's side of the cable to the guest, and the guest."""

import hashlib
import os
import pathlib
import random
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "programs")]

from hosts import Failed, Running, Skipped, check, wait_for  # noqa: E402
from store import Store  # noqa: E402

HOST, GUEST = "10.77.0.1", "10.77.0.2"
#: Seconds for a program that moves data: the guest's processor is emulated, and the machine may be busy.
LIMIT = 300
LOSSES = {"URXE_FAULTS": "drop=1%,seed=7"}
MIB = 1 << 20


class Peer:
    """The two sides, for the cases of one group."""

    def __init__(self, folder, cache=None):
        """`folder`: of the programs and modules that were built; `cache`: of what was downloaded."""
        self.folder, self.store = folder, Store(cache or folder / "cache")
        self.scratch = tempfile.TemporaryDirectory(prefix="kernel-storage-")
        self.started = []
        # rxe stays in the guest; the device of this side is on the cable.
        os.environ |= {"URXE_NETDEV": "tap0"}

    def path(self, name):
        return pathlib.Path(self.scratch.name) / name

    def start(self, program, *words, env=None):
        """Starts a program of this suite, or of this machine, over urxe."""
        built = self.folder / "bin" / str(program)
        clean = {name: str(value) for name, value in (os.environ | {"URXE_EXPLAIN": 1} | (env or {})).items()}
        running = Running([built if built.exists() else program, *words], clean, self.scratch.name)
        self.started.append(running)
        return running

    def run(self, program, *words, env=None, limit=LIMIT):
        running = self.start(program, *words, env=env)
        try:
            return running.success(limit)
        finally:
            running.kill()

    def start_in_guest(self, *words):
        return Running([HERE.parent / "kernel-rxe/guest", *words], dict(os.environ), "/")

    def guest(self, *words, limit=LIMIT):
        """Runs a command, or a file of guest/, in the guest; its output."""
        script = HERE / "guest" / str(words[0])
        running = self.start_in_guest(script if script.exists() else words[0], *words[1:])
        try:
            return running.success(limit)
        finally:
            running.kill()

    def shell(self, line, limit=LIMIT):
        return self.guest("sh", "-ec", line, limit=limit)

    def listens_in_guest(self, port):
        wait_for(lambda: f":{port} " in self.guest("rdma", "resource", "show", "cm_id"), 60, f"the guest listens at port {port}")

    def data(self, length, seed=1):
        """A file of random bytes, and their digest."""
        path = self.path(f"data-{length}-{seed}")
        content = random.Random(seed).randbytes(length)
        path.write_bytes(content)
        return path, hashlib.sha256(content).hexdigest()

    def guest_digest(self, path, length):
        return self.shell(f"head -c {length} {path} | sha256sum", limit=LIMIT).split()[0]

    def modules(self):
        """The folder of the kernel modules with SMB Direct."""
        path = self.folder / "modules"
        if not (path / "version").exists():
            raise Skipped("ksmbd.ko and cifs.ko could not be built")
        return path

    def close(self):
        """Ends whatever a case or the group has left running."""
        for running in self.started:
            if running.running():
                running.kill()
        self.scratch.cleanup()


def digest(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


def same(left, right, what):
    check(left == right, f"{what}: other data than was written")


__all__ = ["Failed", "Skipped", "GUEST", "HOST", "LIMIT", "LOSSES", "MIB", "Peer", "check", "digest", "same", "wait_for"]
