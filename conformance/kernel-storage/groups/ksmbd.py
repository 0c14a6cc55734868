"""smb-direct-client of this suite over urxe, ksmbd with SMB Direct in the guest."""

import re

from peer import GUEST, LOSSES, MIB, check, digest, same

TITLE = "SMB Direct, urxe to ksmbd"
PORT, SHARE = 445, "share"
FOLDER = "/srv/share"
ALL = 64 * MIB


def begin(peer):
    peer.guest("ksmbd", "start", peer.modules(), SHARE)


def client(peer, *words, env=None):
    return peer.run("smb-direct-client", GUEST, PORT, SHARE, *words, env=env)


def session(peer):
    """Negotiation, a guest's session, the share and its root, whose names ksmbd of 6.1 does not tell: cifs over TCP sees none either."""
    text = client(peer, "list")
    check(re.search(r"^ +0 \.$", text, re.M) and "SMB 3.2, transfers of 1048576 bytes, fragments of 1364 bytes" in text, f"list: {text}")


def put(peer):
    """64 MiB, compared with the server's file."""
    data, wanted = peer.data(ALL)
    client(peer, "put", data, "put")
    same(peer.guest_digest(f"{FOLDER}/put", ALL), wanted, "the server's file")
    peer.shell(f"rm {FOLDER}/put")


def get(peer):
    """64 MiB that the guest made."""
    peer.shell(f"head -c {ALL} /dev/urandom >{FOLDER}/got")
    client(peer, "get", "got", peer.path("copy"))
    same(digest(peer.path("copy")), peer.guest_digest(f"{FOLDER}/got", ALL), "what was read")
    peer.shell(f"rm {FOLDER}/got")


def both_ways(peer, length, seed, *options, env=None):
    """Output of the client about its reading."""
    data, wanted = peer.data(length, seed)
    client(peer, *options, "put", data, "both", env=env)
    same(peer.guest_digest(f"{FOLDER}/both", length), wanted, "the server's file")
    text = client(peer, *options, "get", "both", peer.path("copy"), env=env)
    same(digest(peer.path("copy")), wanted, "what was read")
    return text


def sizes(peer):
    """READs and WRITEs of one byte up to 1 MiB."""
    for seed, (size, length) in enumerate(((1, 5), (4095, 10000), (65537, MIB + 1), (MIB, 4 * MIB + 3)), 2):
        both_ways(peer, length, seed, "--size", size)


def invalidate(peer):
    """Windows, whose keys the responses invalidate."""
    both_ways(peer, 8 * MIB, 7, "--channel", "invalidate")


def fragments(peer):
    """Data in the messages, each in many fragments; more of them than there are credits at a time."""
    text = both_ways(peer, 4 * MIB, 8, "--channel", "none")
    found = re.search(r"up to (\d+) fragments", text)
    check(found and int(found[1]) >= 48, f"no response of 64 KiB in fragments of 1364 bytes: {text[-200:]}")


def losses(peer):
    """One packet in a hundred is lost."""
    both_ways(peer, 8 * MIB, 9, env=LOSSES)


def losses_invalidate(peer):
    both_ways(peer, 4 * MIB, 10, "--channel", "invalidate", env=LOSSES)


def losses_fragments(peer):
    both_ways(peer, MIB, 11, "--channel", "none", env=LOSSES)


def kill_client(peer):
    """The server ends the connection, and serves the next."""
    busy = peer.start("smb-direct-client", GUEST, PORT, SHARE, "busy", "busy")
    busy.says("^round 0$", 180)
    busy.kill()
    peer.shell("until [ $(rdma resource show cm_id | grep -c 'ksmbd.*CONNECT\\|CONNECT.*ksmbd') = 0 ]; do sleep 0.2; done", limit=120)
    both_ways(peer, 4 * MIB, 12)


def end_server(peer):
    """The server shuts down: the client learns of it. Once it is back, it serves."""
    busy = peer.start("smb-direct-client", GUEST, PORT, SHARE, "busy", "busy")
    try:
        busy.says("^round 0$", 180)
        peer.guest("ksmbd", "stop", peer.modules())
        check(busy.end(120) == 1, f"status {busy.process.returncode}; {busy.last_lines()}")
        check("the peer disconnected" in busy.text() or "Flushed" in busy.text(), busy.last_lines())
    finally:
        busy.kill()
    peer.guest("ksmbd", "again", peer.modules())
    both_ways(peer, 4 * MIB, 13)


CASES = {case.__name__.replace("_", "-"): case for case in (
    session, put, get, sizes, invalidate, fragments, losses, losses_invalidate, losses_fragments, kill_client, end_server)}
