"""nvme-host of this suite over urxe, nvmet-rdma in the guest."""

import re

from peer import GUEST, LOSSES, MIB, check, digest, same, wait_for

TITLE = "NVMe over RDMA, urxe to nvmet-rdma"
SUBSYSTEM, PORT = "nqn.2026-01.test:nvme", 4420
DISK = "/srv/nvme/disk"
ALL = 64 * MIB


def begin(peer):
    peer.guest("nvmet", "start", SUBSYSTEM, GUEST, PORT)
    peer.listens_in_guest(PORT)


def host(peer, *words, env=None):
    return peer.run("nvme-host", GUEST, PORT, SUBSYSTEM, *words, env=env)


def identify(peer):
    text = host(peer, "identify")
    found = re.search(r"namespace 1: (\d+) blocks of (\d+) bytes", text)
    check("model Linux" in text and found and int(found[1]) * int(found[2]) == ALL, f"Identify: {text}")


def write(peer):
    """64 MiB, compared with the target's file."""
    data, wanted = peer.data(ALL)
    host(peer, "write", data, ALL)
    same(peer.guest_digest(DISK, ALL), wanted, "the target's file")


def read(peer):
    """READs of data that the guest wrote into the target's file."""
    peer.shell(f"head -c {ALL} /dev/urandom >/srv/nvme/new && cp /srv/nvme/new {DISK} && rm /srv/nvme/new")
    host(peer, "read", peer.path("copy"), ALL)
    same(digest(peer.path("copy")), peer.guest_digest(DISK, ALL), "what was read")


def queue_pairs(peer):
    """Of connections, as the guest lists them."""
    return len(re.findall("type RC .*", peer.guest("rdma", "resource", "show", "qp")))


def both_ways(peer, length, seed, *options, env=None):
    data, wanted = peer.data(length, seed)
    host(peer, *options, "write", data, length, env=env)
    same(peer.guest_digest(DISK, length), wanted, "the target's file")
    host(peer, *options, "read", peer.path("copy"), length, env=env)
    same(digest(peer.path("copy")), wanted, "what was read")


def sizes(peer):
    """Commands of one block up to 1 MiB."""
    for seed, (size, length) in enumerate(((4096, 256 << 10), (65536 + 4096, 4 * MIB), (MIB, 8 * MIB)), 2):
        both_ways(peer, length, seed, "--size", size)


def invalidate(peer):
    """Keys are windows', and responses invalidate them."""
    both_ways(peer, 8 * MIB, 7, "--invalidate")


def losses(peer):
    """One packet in a hundred is lost."""
    both_ways(peer, 8 * MIB, 8, env=LOSSES)


def losses_invalidate(peer):
    both_ways(peer, 4 * MIB, 9, "--invalidate", env=LOSSES)


def kill_initiator(peer):
    """The target serves the next one."""
    busy = peer.start("nvme-host", GUEST, PORT, SUBSYSTEM, "busy")
    busy.says("^round 1$", 120)
    busy.kill()
    both_ways(peer, 4 * MIB, 10)


def kill_beside_another(peer):
    """Another program of urxe's on the host says goodbye: the target's queue pairs of the killed one go."""
    peer.path("another").write_bytes(bytes(MIB))
    another = peer.start("nvme-target", PORT + 1, "another", peer.path("another"))
    try:
        another.says("^listening$", 60)
        # A killed one's without another stay: rxe asks them for ever.
        before = queue_pairs(peer)
        busy = peer.start("nvme-host", GUEST, PORT, SUBSYSTEM, "busy")
        busy.says("^round 1$", 120)
        check(queue_pairs(peer) == before + 2, f"{queue_pairs(peer)} queue pairs after {before}")
        busy.kill()
        wait_for(lambda: queue_pairs(peer) == before, 120, "the target's queue pairs go")
    finally:
        another.kill()


def end_target(peer):
    """The subsystem leaves its port: the initiator learns of it. Once it is back, it serves."""
    busy = peer.start("nvme-host", GUEST, PORT, SUBSYSTEM, "busy")
    try:
        busy.says("^round 1$", 120)
        peer.guest("nvmet", "unlink")
        check(busy.end(120) == 1, f"status {busy.process.returncode}; {busy.last_lines()}")
        check("disconnected" in busy.text() or "WR_FLUSH_ERR" in busy.text() or "Flushed" in busy.text(), busy.last_lines())
    finally:
        busy.kill()
    peer.guest("nvmet", "link")
    peer.listens_in_guest(PORT)
    both_ways(peer, 4 * MIB, 11)


CASES = {case.__name__.replace("_", "-"): case for case in (
    identify, write, read, sizes, invalidate, losses, losses_invalidate, kill_initiator, kill_beside_another, end_target)}
