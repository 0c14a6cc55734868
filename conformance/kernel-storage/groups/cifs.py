"""The guest's `mount -t cifs -o vers=3.1.1,rdma`, smb-direct-front of this suite over urxe before Samba's smbd."""

import os
import re
import signal
import subprocess
import time

from peer import HOST, LIMIT, LOSSES, MIB, Failed, check, digest, same, wait_for
from smbd import FRONT, SHARE, Server

TITLE = "SMB Direct, the kernel's cifs to smbd behind urxe"
ALL = 64 * MIB
MOUNTED = "/mnt/share"
#: How often a case begins anew where the guest's queue pair has stopped.
ATTEMPTS = 4
#: Seconds in which a queue pair that has not stopped sends something.
SILENCE = 5


class Stopped(Failed):
    """The guest's queue pair has stopped, which is a defect of its kernel's."""


def begin(peer):
    peer.guest("cifs", "load", peer.modules())
    peer.server = Server(peer)


class Mounted:
    """The share mounted in the guest."""

    def __init__(self, peer):
        self.peer = peer

    def __enter__(self):
        self.peer.guest("cifs", "mount", HOST, SHARE)
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.peer.guest("cifs", "unmount")
        else:
            # The mount may hang: what waits in it is left behind.
            try:
                self.peer.shell(f"umount -f -l {MOUNTED} || :", limit=30)
            except Failed:
                pass


def packets_of_guest(peer):
    return peer.shell("cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts")


def stopped(peer):
    """Whether rxe has carried out a REG_MR twice, as docs/reference/known-bugs-elsewhere.md tells, and sends nothing more."""
    if "not free" not in peer.shell("dmesg"):
        return False
    before = packets_of_guest(peer)
    time.sleep(SILENCE)
    return packets_of_guest(peer) == before


def in_guest(peer, line):
    """Output of a command in the guest."""
    running = peer.start_in_guest("sh", "-ec", line)
    deadline = time.monotonic() + LIMIT
    try:
        while running.running() and time.monotonic() < deadline:
            if stopped(peer):
                raise Stopped(f"the guest's queue pair has stopped; {peer.shell('rdma resource show qp')}")
            time.sleep(0.2)
        return running.success(1)
    finally:
        running.kill()


def moved(peer):
    """Bytes that the last connection read and wrote by the RDMA channel, once it has ended."""
    peer.server.front.says("^end of a connection", 60)
    found = re.findall(r"(\d+) bytes read and (\d+) written by the RDMA channel", peer.server.front.text())
    return [int(number) for number in found[-1]]


def mount(peer):
    """Small files, a directory, names: all inside of messages."""
    peer.server.restart_front()
    (peer.server.folder / "hello").write_text("hello from smbd\n")
    with Mounted(peer):
        check("RDMA transport established" in peer.shell("dmesg"), "the kernel's log has no 'RDMA transport established'")
        check("hello from smbd" in peer.shell(f"cat {MOUNTED}/hello"), "the file has other data")
        peer.shell(f"cd {MOUNTED}; mkdir many; for i in $(seq 100); do echo $i >many/$i; done; mv hello moved; rm moved")
        check(sorted(os.listdir(peer.server.folder / "many"), key=int) == [str(i) for i in range(1, 101)], "smbd's folder has other names")
        check(all((peer.server.folder / f"many/{i}").read_text() == f"{i}\n" for i in range(1, 101)), "files have other data")
        peer.shell(f"rm -r {MOUNTED}/many")
    check(list(peer.server.folder.iterdir()) == [], "what the guest removed is there")


def list_share(peer):
    """smb-direct-client lists the share through the front: 400 names, in many fragments."""
    peer.server.restart_front()
    for number in range(400):
        (peer.server.folder / f"a-file-whose-name-is-long-{number}").write_bytes(bytes(number))
    text = peer.run("smb-direct-client", HOST, FRONT, SHARE, "list")
    found = {(name, int(size)) for size, name in re.findall(r"^ +(\d+) (a-file.*)$", text, re.M)}
    for path in peer.server.folder.iterdir():
        path.unlink()
    check(found == {(f"a-file-whose-name-is-long-{number}", number) for number in range(400)}, f"{len(found)} names: {text[:200]}")


def write(peer, length=ALL, env=None):
    """A file of the guest's, compared on the server's side."""
    peer.server.restart_front(env)
    wanted = peer.shell(f"head -c {length} /dev/urandom >/run/data; sha256sum /run/data").split()[0]
    with Mounted(peer):
        in_guest(peer, f"dd if=/run/data of={MOUNTED}/written bs=1M conv=fsync 2>&1")
    peer.shell("rm /run/data")
    same(digest(peer.server.folder / "written"), wanted, "smbd's file")
    check(moved(peer)[1] >= length, f"by the RDMA channel were read and written {moved(peer)} bytes")


def read(peer, length=ALL, env=None):
    """A file of the server's, compared in the guest."""
    peer.server.restart_front(env)
    data, wanted = peer.data(length, 3)
    data.rename(peer.server.folder / "read")
    with Mounted(peer):
        found = in_guest(peer, f"head -c {length} {MOUNTED}/read | sha256sum").split()[0]
        same(found, wanted, "what was read")
    check(moved(peer)[0] >= length, f"by the RDMA channel were read and written {moved(peer)} bytes")


def sizes(peer):
    """Uncached reads and writes from one byte to some MiB, at odd places."""
    peer.server.restart_front()
    data, _ = peer.data(4 * MIB + 5, 4)
    data.rename(peer.server.folder / "from")
    with Mounted(peer):
        for size in (1, 4095, 4097, 65537, 3 * MIB + 1):
            peer.shell(f"dd if={MOUNTED}/from of={MOUNTED}/to-{size} bs={size} count=1 skip=1 seek=1 conv=fsync 2>/dev/null")
            wanted = (peer.server.folder / "from").read_bytes()[size:2 * size]
            check((peer.server.folder / f"to-{size}").read_bytes()[size:] == wanted, f"{size} bytes: other data")


def losses(peer):
    """One packet in a hundred is lost on urxe's side. Where the guest's queue pair has stopped, the case begins anew, with another
    connection."""
    for attempt in range(1, ATTEMPTS + 1):
        peer.shell("dmesg -C")
        try:
            write(peer, 8 * MIB, LOSSES)
            read(peer, 8 * MIB, LOSSES)
            return
        except Stopped as error:
            print(f"attempt {attempt}: {error}", flush=True)
            if attempt == ATTEMPTS:
                raise


def copy_beside(peer, disturb):
    """The guest writes 64 MiB, and something happens to the server meanwhile: in the end they are there."""
    peer.server.restart_front()
    wanted = peer.shell(f"head -c {ALL} /dev/urandom >/run/data; sha256sum /run/data").split()[0]
    with Mounted(peer):
        copying = peer.start_in_guest("dd", "if=/run/data", f"of={MOUNTED}/beside", "bs=1M", "conv=fsync")
        beside = peer.server.folder / "beside"
        wait_for(lambda: beside.exists() and beside.stat().st_size >= 4 * MIB, 120, "the guest writes")
        disturb()
        copying.success(300)
        same(digest(beside), wanted, "smbd's file")
    peer.shell("rm /run/data")


def kill_front(peer):
    """The client connects anew, to a new front."""
    copy_beside(peer, peer.server.restart_front)


def kill_server(peer):
    """smbd's process of the connection is killed: the front disconnects, and the client connects anew."""

    def kill():
        children = subprocess.run(["pgrep", "-P", str(peer.server.smbd.process.pid)], capture_output=True, text=True).stdout.split()
        for child in children:
            sockets = subprocess.run(["ls", "-l", f"/proc/{child}/cwd"], capture_output=True, text=True).stdout
            if str(peer.server.folder) in sockets:
                os.kill(int(child), signal.SIGKILL)
                return
        check(False, "no process of smbd's serves the share")

    copy_beside(peer, kill)


CASES = {"list": list_share} | {case.__name__.replace("_", "-"): case for case in (mount, write, read, sizes, losses, kill_front, kill_server)}
