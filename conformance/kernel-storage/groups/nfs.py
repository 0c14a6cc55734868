"""The guest's NFS client over RDMA, and nfs-ganesha over urxe, as `make programs` builds it."""

import pathlib

from peer import HOST, LOSSES, MIB, Skipped, check, digest, same, wait_for
from programs import ganesha

TITLE = "NFS over RDMA, the kernel's client to nfs-ganesha over urxe"
ALL = 64 * MIB
MOUNTED = "/mnt/nfs"


def prepare(store):
    ganesha.prepare(store)


def begin(peer):
    peer.ganesha = Server(peer)
    peer.shell(f"modprobe -a rpcrdma nfsv4; mkdir -p {MOUNTED}")


class Server:
    def __init__(self, peer):
        self.peer, self.built, self.folder = peer, peer.store.folder / ganesha.NAME, peer.path("ganesha")
        if not self.built.exists():
            raise Skipped("nfs-ganesha could not be built")
        self.export = self.folder / "export"
        for path in (self.export, self.folder / "recovery"):
            path.mkdir(parents=True)
        self.configuration = self.folder / "ganesha.conf"
        self.configuration.write_text(ganesha.CONFIGURATION.format(port=ganesha.PORT, folder=self.folder, built=self.built))
        self.start()
        # Says goodbye for a server that is killed: rxe would ask a connection that is gone for ever.
        self.witness = peer.start("ibv_asyncwatch", "-d", "urxe0")

    def start(self, env=None):
        libraries = {"LD_LIBRARY_PATH": f"{self.built}/lib:{self.built}/ganesha/MainNFSD"}
        self.program = self.peer.start(self.built / "ganesha/ganesha.nfsd", "-F", "-L", "/dev/stdout", "-f", self.configuration,
                                       "-p", self.folder / "pid", env=libraries | (env or {}))
        self.program.says("NFS SERVER INITIALIZED", 120)

    def restart(self, env=None):
        self.program.kill()
        self.start(env)


class Mounted:
    def __init__(self, peer):
        self.peer = peer

    def __enter__(self):
        options = f"vers=4.0,rdma,port={ganesha.PORT},hard,sec=sys"
        self.peer.shell(f"mount -t nfs4 -o {options} {HOST}:/ {MOUNTED} || {{ dmesg | tail -n 12; exit 1; }}")

    def __exit__(self, kind, *_):
        self.peer.shell(f"umount {MOUNTED}" if kind is None else f"umount -f -l {MOUNTED} || :", limit=60)


def mount(peer):
    """Small files, a directory, names."""
    (peer.ganesha.export / "hello").write_text("hello from ganesha\n")
    with Mounted(peer):
        check("proto=rdma" in peer.shell(f"grep {MOUNTED} /proc/mounts"), "the mount is not by RDMA")
        check("hello from ganesha" in peer.shell(f"cat {MOUNTED}/hello"), "the file has other data")
        peer.shell(f"cd {MOUNTED}; mkdir many; for i in $(seq 100); do echo $i >many/$i; done; mv hello moved; rm moved; sync many")
        many = peer.ganesha.export / "many"
        found = {path.name: path.read_text() for path in many.iterdir()}
        check(found == {f"{i}": f"{i}\n" for i in range(1, 101)}, "files have other names or data")
        check(len(peer.shell(f"ls {MOUNTED}/many").split()) == 100, "the guest sees other names")
        peer.shell(f"rm -r {MOUNTED}/many")
    check(list(peer.ganesha.export.iterdir()) == [], "what the guest removed is there")


def write(peer, length=ALL, env=None):
    """A file of the guest's, compared on the server's side."""
    peer.ganesha.restart(env)
    wanted = peer.shell(f"head -c {length} /dev/urandom >/run/data; sha256sum /run/data").split()[0]
    with Mounted(peer):
        peer.shell(f"dd if=/run/data of={MOUNTED}/written bs=1M conv=fsync 2>&1; rm /run/data")
    same(digest(peer.ganesha.export / "written"), wanted, "ganesha's file")


def read(peer, length=ALL, env=None):
    """A file of the server's, compared in the guest."""
    peer.ganesha.restart(env)
    data, wanted = peer.data(length, 3)
    (peer.ganesha.export / "read").write_bytes(pathlib.Path(data).read_bytes())
    with Mounted(peer):
        same(peer.guest_digest(f"{MOUNTED}/read", length), wanted, "what was read")


def losses(peer):
    """One packet in a hundred is lost on urxe's side."""
    write(peer, 8 * MIB, LOSSES)
    read(peer, 8 * MIB, LOSSES)


def kill_server(peer):
    """The guest writes; ganesha is killed, and a new one takes its place: the client connects anew, and all is written."""
    peer.ganesha.restart()
    wanted = peer.shell(f"head -c {ALL} /dev/urandom >/run/data; sha256sum /run/data").split()[0]
    with Mounted(peer):
        copying = peer.start_in_guest("dd", "if=/run/data", f"of={MOUNTED}/beside", "bs=1M", "conv=fsync")
        beside = peer.ganesha.export / "beside"
        wait_for(lambda: beside.exists() and beside.stat().st_size >= 4 * MIB, 120, "the guest writes")
        peer.ganesha.restart()
        copying.success(600)
        same(digest(beside), wanted, "ganesha's file")
    peer.shell("rm /run/data")


CASES = {case.__name__.replace("_", "-"): case for case in (mount, write, read, losses, kill_server)}
