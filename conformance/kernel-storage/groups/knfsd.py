"""nfs-client of this suite over urxe, the kernel's NFS server over RDMA in the guest."""

from peer import GUEST, LOSSES, MIB, check, digest, same

TITLE = "NFS over RDMA, urxe to knfsd"
PORT = 20049
FOLDER = "/srv/nfs"
ALL = 64 * MIB


def begin(peer):
    peer.guest("knfsd", "start", PORT)
    peer.listens_in_guest(PORT)


def client(peer, *words, env=None):
    return peer.run("nfs-client", GUEST, PORT, *words, env=env)


def null(peer):
    """A call without arguments is answered."""
    check("NFSv4 answers" in client(peer, "null"), "no answer")


def put(peer, length=ALL, seed=1, env=None):
    """Chunks that the server READs."""
    data, wanted = peer.data(length, seed)
    peer.shell(f": >{FOLDER}/put; chmod 666 {FOLDER}/put")
    client(peer, "put", data, "put", env=env)
    same(peer.guest_digest(f"{FOLDER}/put", length), wanted, "the server's file")
    peer.shell(f"rm {FOLDER}/put")


def get(peer, length=ALL, env=None):
    """Chunks that the server WRITEs."""
    peer.shell(f"head -c {length} /dev/urandom >{FOLDER}/got")
    client(peer, "get", "got", peer.path("copy"), length, env=env)
    same(digest(peer.path("copy")), peer.guest_digest(f"{FOLDER}/got", length), "what was read")
    peer.shell(f"rm {FOLDER}/got")


def losses(peer):
    """One packet in a hundred is lost."""
    put(peer, 8 * MIB, 2, LOSSES)
    get(peer, 8 * MIB, LOSSES)


def kill_client(peer):
    """The server serves the next."""
    peer.path("large").write_bytes(bytes(512 * MIB))
    peer.shell(f": >{FOLDER}/large; chmod 666 {FOLDER}/large")
    busy = peer.start("nfs-client", GUEST, PORT, "put", peer.path("large"), "large")
    peer.shell(f"until [ $(stat -c %s {FOLDER}/large) -ge {MIB} ]; do sleep 0.1; done", limit=120)
    check(busy.running(), f"the client ended before it was killed; {busy.last_lines()}")
    busy.kill()
    peer.shell(f"rm {FOLDER}/large")
    put(peer, 8 * MIB, 3)


def end_server(peer):
    """The server shuts down and starts anew: the client learns of it, and the next is served."""
    peer.shell(f": >{FOLDER}/large; chmod 666 {FOLDER}/large")
    busy = peer.start("nfs-client", GUEST, PORT, "put", peer.path("large"), "large")
    try:
        peer.shell(f"until [ $(stat -c %s {FOLDER}/large) -ge {MIB} ]; do sleep 0.1; done", limit=120)
        peer.guest("knfsd", "restart", PORT)
        check(busy.end(120) == 1, f"status {busy.process.returncode}; {busy.last_lines()}")
        check("the peer disconnected" in busy.text() or "Flushed" in busy.text(), busy.last_lines())
    finally:
        busy.kill()
    put(peer, 8 * MIB, 4)


CASES = {case.__name__.replace("_", "-"): case for case in (null, put, get, losses, kill_client, end_server)}
