"""tgt's iSER target, and initiators on another host: libiscsi's programs and QEMU's block driver."""

import hashlib
import pathlib
import random
import re
import subprocess

from hosts import Network, check, wait_for
from store import package_version

TITLE = "tgt, libiscsi and QEMU by iSER"
ORIGIN = "Debian"
COMPARED = "images, by cmp, and patterns"
PORT, NAME, SIZE = 3260, "iqn.2026.test:iser", 64 << 20
#: Initiators: what libiscsi's programs are told to be, and what QEMU is.
INITIATOR, QEMU = "iqn.2026.test:initiator", "iqn.2008-11.org.linux-kvm"

#: iscsi-perf of libiscsi 1.19 ends with SIGSEGV at its first task over iSER.
BUSY = ["qemu-img", "bench", "-f", "raw", "-w", "-c", 100_000_000, "-s", "64k", "-d", 8]


def prepare(store):
    for package in ("tgt", "libiscsi-bin", "qemu-utils", "qemu-block-extra"):
        package_version(package)


def version(store):
    return f"{package_version('tgt')}, {package_version('libiscsi-bin')}, {package_version('qemu-utils')}"


class Target:
    """tgtd with one LUN, a file."""

    def __init__(self, net):
        self.net, self.host = net, net.hosts[0]
        self.disk = pathlib.Path(net.scratch.name) / "disk"
        self.disk.write_bytes(bytes(SIZE))
        self.url = f"iser://{self.host.address}:{PORT}/{NAME}"
        # tgtadm finds tgtd by a socket below /run, which is this run's own.
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
        self.start()

    def start(self):
        self.program = self.host.start("tgtd", "-f", "-d", 1, "--iser", "pool_sz_mb=64", env={"URXE_EXPLAIN": 1})
        wait_for(lambda: self.host.listens_by_cm(PORT), 60, "tgtd listens")
        self.admin("--mode", "target", "--op", "new", "--tid", 1, "-T", NAME)
        self.admin("--mode", "logicalunit", "--op", "new", "--tid", 1, "--lun", 1, "-b", self.disk)
        self.admin("--mode", "target", "--op", "bind", "--tid", 1, "-I", "ALL")
        # Over iSER tgt refuses initiators that it does not know the names of.
        for name in (INITIATOR, QEMU):
            self.admin("--mode", "target", "--op", "bind", "--tid", 1, "-Q", name)

    def admin(self, *words):
        return self.host.run("tgtadm", "--lld", "iser", *words, urxe=False)

    def image(self, length=SIZE):
        """A file of random data."""
        path = pathlib.Path(self.net.scratch.name) / "image"
        path.write_bytes(random.Random(length).randbytes(length))
        return path

    def run(self, *words, **more):
        return self.net.hosts[1].run(*words, **({"limit": 180} | more))

    def close(self):
        self.program.kill()
        subprocess.run(["umount", "/run"], check=True)


def case(function):
    def run(store):
        with Network() as net:
            target = Target(net)
            try:
                function(target)
            finally:
                target.close()
    return run


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def libiscsi(target):
    text = target.run("iscsi-inq", "-i", INITIATOR, f"{target.url}/1")
    check("VIRTUAL-DISK" in text, f"iscsi-inq: {text[-200:]}")
    text = target.run("iscsi-readcapacity16", "-i", INITIATOR, f"{target.url}/1")
    check(str(SIZE) in text, f"iscsi-readcapacity16: {text[-300:]}")


def qemu_writes(target):
    image = target.image()
    target.run("qemu-img", "dd", "bs=128k", "-f", "raw", "-O", "raw", f"if={image}", f"of={target.url}/1")
    check(digest(target.disk) == digest(image), "the disk has other data than was written")


def qemu_reads(target):
    image = target.image()
    target.disk.write_bytes(image.read_bytes())
    copy = image.with_name("copy")
    target.run("qemu-img", "dd", "bs=128k", "-f", "raw", "-O", "raw", f"if={target.url}/1", f"of={copy}")
    check(digest(copy) == digest(image), "what was read differs from the disk")


def qemu_io(target):
    """Patterns at odd places, read and compared by qemu-io itself."""
    words = []
    for number, (at, length) in enumerate(((0, 512), (4096, 65536), (1 << 20, 131072), (SIZE - 512, 512)), 1):
        words += ["-c", f"write -P {number} {at} {length}", "-c", f"read -P {number} {at} {length}"]
    text = target.run("qemu-io", "-f", "raw", *words, f"{target.url}/1")
    check("verification failed" not in text and len(re.findall("^(wrote|read) ", text, re.M)) == 8, text[-300:])


def losses(target):
    """One packet in a hundred is lost."""
    image = target.image(8 << 20)
    env = {"URXE_FAULTS": "drop=1%,seed=7"}
    target.run("qemu-img", "dd", "bs=128k", "-f", "raw", "-O", "raw", f"if={image}", f"of={target.url}/1", env=env)
    check(target.disk.read_bytes()[:8 << 20] == image.read_bytes(), "the disk has other data than was written")


def kill_target(target):
    """The initiator fails; a new target serves it."""
    client = target.net.hosts[1].start(*BUSY, f"{target.url}/1", env={"URXE_EXPLAIN": 1})
    target.net.hosts[1].busy()
    target.program.kill()
    client.explained("RETRY_EXC_ERR", "process ended")
    client.kill()
    target.start()
    qemu_io(target)


def kill_initiator(target):
    """The target serves others."""
    client = target.net.hosts[1].start(*BUSY, f"{target.url}/1")
    target.net.hosts[0].busy()
    client.kill()
    qemu_io(target)


CASES = {name.replace("_", "-"): case(function) for name, function in (
    ("libiscsi", libiscsi), ("qemu_writes", qemu_writes), ("qemu_reads", qemu_reads), ("qemu_io", qemu_io), ("losses", losses),
    ("kill_target", kill_target), ("kill_initiator", kill_initiator))}
