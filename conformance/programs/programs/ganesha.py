"""nfs-ganesha over ntirpc with RDMA, built from Debian's sources, and nfs-client of `make kernel-storage`: NFSv4 by chunks."""

import hashlib
import os
import pathlib
import random
import subprocess

from hosts import Network, Skipped, check, wait_for

TITLE = "nfs-ganesha and ntirpc, NFS over RDMA"
ORIGIN = "Debian's sources, or NTIRPC_SOURCE and GANESHA_SOURCE"
COMPARED = "files put and got"
NTIRPC, GANESHA = "6.3", "6.5"
NTIRPC_SHA256 = "4caf7de4a6bd2de85b3f538a7f137852dcdcdea0b841e44fb3f73293cd7bf5b4"
GANESHA_SHA256 = "ece6cf138dd8602f33294eee75233051229867ea7fd1b3f7d6545e989303bfd9"
RDMA = pathlib.Path(__file__).resolve().parent.parent.parent / "kernel-storage/rdma"
PORT = 20049
MIB = 1 << 20
OFF = ("GSS", "LTTNG", "MONITORING", "DBUS", "9P", "NLM", "RQUOTA", "NFSACL3", "MAN_PAGE", "GUI_ADMIN_TOOLS", "ADMIN_TOOLS", "FSAL_CEPH",
       "FSAL_RGW", "FSAL_GLUSTER", "FSAL_GPFS", "FSAL_XFS", "FSAL_LUSTRE", "FSAL_LIZARDFS", "FSAL_KVSFS", "FSAL_SAUNAFS", "FSAL_PROXY_V3",
       "FSAL_PROXY_V4", "FSAL_NULL", "RADOS_RECOV")
# A token RDMA of Transports is unknown to 6.5, and not asked for.
CONFIGURATION = """
NFS_CORE_PARAM {{
    Protocols = 4, NFSRDMA; NFS_Port = 2049; NFS_RDMA_Port = {port}; Enable_UDP = false; allow_set_io_flusher_fail = true;
    Plugins_Dir = {built}/ganesha/FSAL/FSAL_VFS/vfs;
}}
NFSV4 {{ Graceless = true; RecoveryBackend = fs; RecoveryRoot = {folder}/recovery; Delegations = false; }}
EXPORT {{
    Export_Id = 0; Path = {folder}/export; Pseudo = /; Access_Type = RW; Squash = None; SecType = sys; Protocols = 4;
    FSAL {{ Name = VFS; }}
}}
"""


def prepare(store):
    ntirpc = store.source(f"ntirpc-{NTIRPC}-source", "NTIRPC_SOURCE", f"n/ntirpc/ntirpc_{NTIRPC}.orig.tar.gz", NTIRPC_SHA256)
    ganesha = store.source(f"ganesha-{GANESHA}-source", "GANESHA_SOURCE", f"n/nfs-ganesha/nfs-ganesha_{GANESHA}.orig.tar.gz",
                           GANESHA_SHA256)

    def build(new):
        # CMake writes the folder of the installation into what it builds.
        into = store.folder / NAME
        steps = [
            ["cmake", "-S", ntirpc, "-B", new / "ntirpc", "-DCMAKE_BUILD_TYPE=Release", "-DUSE_RPC_RDMA=ON", "-DUSE_GSS=OFF",
             f"-DCMAKE_INSTALL_PREFIX={new}", "-DCMAKE_C_FLAGS=-Wno-error"],
            ["make", "-C", new / "ntirpc", "install"],
            ["cmake", "-S", ganesha / "src", "-B", new / "ganesha", "-DCMAKE_BUILD_TYPE=Release", "-DUSE_SYSTEM_NTIRPC=ON",
             "-DUSE_NFS_RDMA=ON", "-DUSE_FSAL_VFS=ON", "-DUSE_FSAL_MEM=OFF", *(f"-DUSE_{name}=OFF" for name in OFF), "-DENABLE_VFS_POSIX_ACL=OFF",
             "-DRADOS_URLS=OFF", f"-DCMAKE_PREFIX_PATH={new}", f"-DCMAKE_INSTALL_PREFIX={into}", "-DCMAKE_C_FLAGS=-Wno-error",
             "-DCMAKE_C_STANDARD_LIBRARIES=-lacl"],
            ["make", "-C", new / "ganesha"],
        ]
        environment = os.environ | {"PKG_CONFIG_PATH": f"{new}/lib/pkgconfig", "MAKEFLAGS": f"-j{os.cpu_count()}"}
        for words in steps:
            done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  env=environment)
            if done.returncode != 0:
                raise Skipped(f"does not build: {' / '.join(done.stdout.splitlines()[-6:])}")

    store.once(NAME, build)
    client(store)


NAME = f"ganesha-{GANESHA}-built"


def version(store):
    return f"{GANESHA}, {NTIRPC}"


def client(store):
    return store.compiled(RDMA / "nfs-client.c", RDMA / "connection.c", "-std=gnu11", "-lrdmacm", "-libverbs", "-lpthread")


class Server:
    """ganesha with a folder, on the first host."""

    def __init__(self, store, net):
        self.store, self.net, self.folder = store, net, pathlib.Path(net.folder) / "ganesha"
        self.export = self.folder / "export"
        for path in (self.export, self.folder / "recovery"):
            path.mkdir(parents=True)
        self.configuration = self.folder / "ganesha.conf"
        self.configuration.write_text(CONFIGURATION.format(port=PORT, folder=self.folder, built=store.folder / NAME))
        self.start()

    def start(self):
        built = self.store.folder / NAME
        host = self.net.hosts[0]
        env = {"LD_LIBRARY_PATH": f"{built}/lib:{built}/ganesha/MainNFSD", "URXE_EXPLAIN": 1}
        self.program = host.start(built / "ganesha/ganesha.nfsd", "-F", "-L", "/dev/stdout", "-f", self.configuration,
                                  "-p", self.folder / "pid", env=env)
        self.program.says("NFS SERVER INITIALIZED", 60)
        wait_for(lambda: host.listens_by_cm(PORT), 30, "ganesha listens")

    def client(self, *words):
        return self.net.hosts[1].start(client(self.store), self.net.hosts[0].address, PORT, *words, env={"URXE_EXPLAIN": 1})


def put(server, length=32 * MIB, seed=1, name="put"):
    """Chunks that ganesha READs."""
    data = random.Random(seed).randbytes(length)
    path = server.folder / f"data-{name}"
    path.write_bytes(data)
    target = server.export / name
    target.touch()
    server.client("put", path, name).success(180)
    check(hashlib.sha256(target.read_bytes()).digest() == hashlib.sha256(data).digest(), "the server's file has other data")


def transfers(store):
    """A call without arguments; 32 MiB put and got, compared."""
    with Network() as net:
        server = Server(store, net)
        check("NFSv4 answers" in server.client("null").success(60), "no answer")
        put(server)
        copy = server.folder / "copy"
        server.client("get", "put", copy, 32 * MIB).success(180)
        check(copy.read_bytes() == (server.export / "put").read_bytes(), "what was got differs")


def kill_server(store):
    """The client's call fails; a new server serves a new client."""
    with Network() as net:
        server = Server(store, net)
        (server.folder / "large").write_bytes(bytes(256 * MIB))
        (server.export / "large").touch()
        busy = server.client("put", server.folder / "large", "large")
        wait_for(lambda: (server.export / "large").stat().st_size > MIB, 60, "the client writes")
        server.program.kill()
        check(busy.end(120) != 0, "the client ended well")
        server.start()
        put(server, 4 * MIB, 2)


def kill_client(store):
    """The server serves the next."""
    with Network() as net:
        server = Server(store, net)
        (server.folder / "large").write_bytes(bytes(256 * MIB))
        (server.export / "large").touch()
        busy = server.client("put", server.folder / "large", "large")
        wait_for(lambda: (server.export / "large").stat().st_size > MIB, 60, "the client writes")
        busy.kill()
        put(server, 4 * MIB, 3)


CASES = {"transfers": transfers, "kill-server": kill_server, "kill-client": kill_client}
