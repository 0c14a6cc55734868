"""The guest's ib_iser, by open-iscsi, and tgt over urxe."""

import os
import subprocess

from peer import HOST, LIMIT, LOSSES, MIB, Failed, check, digest, same, wait_for

TITLE = "iSER, the kernel's ib_iser to tgt over urxe"
TARGET, INITIATOR, PORT = "iqn.2026-01.test:tgt", "iqn.2026-01.test:guest", 3260
PORTAL = f"{HOST}:{PORT}"
ALL = 64 * MIB


def begin(peer):
    # tgtadm finds tgtd by a socket below /run.
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
    peer.guest("iser", "start", INITIATOR)


class Target:
    """tgtd with a file, and the guest's disk on it."""

    def __init__(self, peer, env=None):
        self.peer, self.env, self.file = peer, env, peer.path("disk")

    def admin(self, *words):
        return subprocess.run(["tgtadm", "--lld", "iser", "--mode", *map(str, words)], check=True, capture_output=True, text=True).stdout

    def start(self):
        self.program = self.peer.start("tgtd", "-f", "-d", 1, "--iser", "pool_sz_mb=64", env=self.env)
        wait_for(lambda: os.path.exists("/run/tgtd/socket.0") and
                 subprocess.run(["tgtadm", "--mode", "sys", "--op", "show"], capture_output=True).returncode == 0, 60, "tgtd answers")
        self.admin("target", "--op", "new", "--tid", 1, "-T", TARGET)
        self.admin("logicalunit", "--op", "new", "--tid", 1, "--lun", 1, "-b", self.file)
        self.admin("target", "--op", "bind", "--tid", 1, "-I", "ALL")
        # Over iSER tgt refuses initiators that it does not know the names of.
        self.admin("target", "--op", "bind", "--tid", 1, "-Q", INITIATOR)

    def __enter__(self):
        self.file.write_bytes(bytes(ALL))
        self.start()
        try:
            self.disk = self.peer.guest("iser", "login", PORTAL, TARGET).split()[-1]
        except Failed:
            self.close()
            raise
        return self

    def __exit__(self, kind, *_):
        try:
            self.peer.guest("iser", "logout", PORTAL, TARGET, limit=LIMIT if kind is None else 30)
        except Failed:
            if kind is None:
                raise
        finally:
            self.close()

    def close(self):
        # tgtd ends by nothing else.
        self.program.kill()
        for path in ("/run/tgtd/socket.0", "/run/tgtd/socket.0.lock"):
            if os.path.exists(path):
                os.unlink(path)

    def random(self, length):
        """Digest of random data in the guest's /run/data."""
        return self.peer.shell(f"head -c {length} /dev/urandom >/run/data; sha256sum /run/data").split()[0]

    def start_digest(self, length):
        self.peer.path("start").write_bytes(self.file.read_bytes()[:length])
        return digest(self.peer.path("start"))


def login(peer):
    with Target(peer) as target:
        check("iser" in peer.guest("iscsiadm", "-m", "session"), "the session's transport is another")
        check(int(peer.shell(f"blockdev --getsize64 {target.disk}")) == ALL, "the disk has another size")


def write(peer, length=ALL, env=None):
    with Target(peer, env) as target:
        wanted = target.random(length)
        peer.shell(f"dd if=/run/data of={target.disk} bs=1M oflag=direct conv=fsync 2>&1; rm /run/data")
        same(target.start_digest(length), wanted, "tgt's file")


def read(peer, length=ALL, env=None):
    with Target(peer, env) as target:
        data, wanted = peer.data(length, 3)
        with target.file.open("r+b") as disk:
            disk.write(data.read_bytes())
        found = peer.shell(f"dd if={target.disk} bs=1M iflag=direct count={length // MIB} 2>/dev/null | sha256sum").split()[0]
        same(found, wanted, "what was read")


def losses(peer):
    """One packet in a hundred is lost on urxe's side."""
    write(peer, 8 * MIB, LOSSES)
    read(peer, 8 * MIB, LOSSES)


def kill_target(peer):
    """The guest writes; tgtd is killed, and a new one takes its place: the kernel logs in anew, and all is written."""
    with Target(peer) as target:
        wanted = target.random(ALL)
        writing = peer.start_in_guest("dd", "if=/run/data", f"of={target.disk}", "bs=1M", "oflag=direct", "conv=fsync")
        wait_for(lambda: any(target.file.read_bytes()[4 * MIB:5 * MIB]), 120, "the guest writes")
        target.program.kill()
        target.start()
        writing.success(600)
        peer.shell("rm /run/data")
        same(target.start_digest(ALL), wanted, "tgt's file")


CASES = {case.__name__.replace("_", "-"): case for case in (login, write, read, losses, kill_target)}
