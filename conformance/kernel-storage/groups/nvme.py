"""The guest's nvme-rdma, nvme-target of this suite over urxe."""

import re

from peer import HOST, LIMIT, LOSSES, MIB, Failed, check, digest, same, wait_for

TITLE = "NVMe over RDMA, the kernel's nvme-rdma to urxe"
SUBSYSTEM, PORT = "nqn.2026-01.test:urxe", 4421
DEVICE = "/dev/nvme0n1"
ALL = 64 * MIB


def begin(peer):
    peer.guest("modprobe", "-a", "nvme-rdma")
    peer.disk = peer.path("disk")


class Target:
    """nvme-target, and the guest's device."""

    def __init__(self, peer, env=None):
        self.peer, self.env = peer, env

    def start(self):
        self.program = self.peer.start("nvme-target", PORT, SUBSYSTEM, self.peer.disk, env=self.env)
        self.program.says("^listening$", 60)

    def __enter__(self):
        self.peer.disk.write_bytes(bytes(ALL))
        self.start()
        try:
            self.peer.guest("nvme", "connect", HOST, PORT, SUBSYSTEM)
        except Failed:
            self.program.kill()
            raise
        return self

    def __exit__(self, kind, *_):
        try:
            # After a failure too: the next case has no controller of this one's.
            self.peer.guest("nvme", "disconnect", SUBSYSTEM, limit=LIMIT if kind is None else 30)
        except Failed:
            if kind is None:
                raise
        finally:
            self.program.kill()


def connect(peer):
    """Identification, and a partition table's place: what the kernel and nvme-cli say of the namespace."""
    with Target(peer):
        text = peer.shell(f"nvme id-ctrl {DEVICE}")
        check("urxe nvme-target" in text, f"nvme id-ctrl: {text[:300]}")
        check(int(peer.shell(f"blockdev --getsize64 {DEVICE}")) == ALL, "the device has another size")


def write(peer, length=ALL, env=None):
    """Random bytes of the guest's, compared with the target's file."""
    with Target(peer, env):
        wanted = peer.shell(f"head -c {length} /dev/urandom >/run/data; sha256sum /run/data").split()[0]
        peer.shell(f"dd if=/run/data of={DEVICE} bs=1M oflag=direct conv=fsync 2>&1; rm /run/data")
        peer.path("start").write_bytes(peer.disk.read_bytes()[:length])
    same(digest(peer.path("start")), wanted, "the target's file")


def read(peer, length=ALL, env=None):
    """Random bytes of the target's file, compared in the guest."""
    with Target(peer, env):
        data, wanted = peer.data(length, 3)
        with peer.disk.open("r+b") as disk:
            disk.write(data.read_bytes())
        found = peer.shell(f"dd if={DEVICE} bs=1M iflag=direct count={length // MIB} 2>/dev/null | sha256sum").split()[0]
    same(found, wanted, "what was read")


def file_system(peer):
    """ext4 on it: made, filled, unmounted, checked, and read again."""
    with Target(peer):
        peer.shell(f"mkfs.ext4 -q {DEVICE}; mkdir -p /mnt/nvme; mount {DEVICE} /mnt/nvme")
        # Folders that every machine with Python has.
        wanted = peer.shell("cd $(python3 -c 'import json; print(json.__path__[0])')/..; cp -r json email asyncio /mnt/nvme; cd /mnt/nvme;"
                            "find . -type f | sort | xargs sha256sum | sha256sum").split()[0]
        peer.shell(f"umount /mnt/nvme; fsck.ext4 -fn {DEVICE}; mount -r {DEVICE} /mnt/nvme")
        found = peer.shell("cd /mnt/nvme; find . -type f | sort | xargs sha256sum | sha256sum; cd /; umount /mnt/nvme").split()[0]
    same(found, wanted, "files")


def losses(peer):
    """One packet in a hundred is lost on urxe's side."""
    write(peer, 8 * MIB, LOSSES)
    read(peer, 8 * MIB, LOSSES)


def kill_target(peer):
    """The guest writes; the target is killed, and a new one takes its place: the kernel connects anew, and all is written."""
    # Says goodbye for the one that is killed. Nobody else would, and rxe asks a connection that is gone for ever.
    peer.path("witness").write_bytes(bytes(MIB))
    witness = peer.start("nvme-target", PORT + 1, SUBSYSTEM + ".witness", peer.path("witness"))
    witness.says("^listening$", 60)
    try:
        with Target(peer) as target:
            wanted = peer.shell(f"head -c {ALL} /dev/urandom >/run/data; sha256sum /run/data").split()[0]
            writing = peer.start_in_guest("dd", "if=/run/data", f"of={DEVICE}", "bs=1M", "oflag=direct", "conv=fsync")
            wait_for(lambda: any(peer.disk.read_bytes()[4 * MIB:5 * MIB]), 120, "the guest writes")
            target.program.kill()
            target.start()
            writing.success(300)
            peer.shell("rm /run/data")
            same(digest(peer.disk), wanted, "the target's file")
            check(re.search("queue 1:", target.program.text()), "the new target has no I/O queue")
    finally:
        witness.kill()


CASES = {case.__name__.replace("_", "-"): case for case in (connect, write, read, file_system, losses, kill_target)}
