"""libiscsi's programs and QEMU's block driver over urxe, LIO's isert in the guest."""

from peer import GUEST, LOSSES, MIB, Failed, check, digest, same, wait_for

TITLE = "iSER, libiscsi and QEMU over urxe to LIO"
TARGET, PORT = "iqn.2026-01.test:lio", 3260
DISK = "/srv/lio/disk"
URL = f"iser://{GUEST}:{PORT}/{TARGET}/0"
ALL = 64 * MIB
PART = 128 << 10


def begin(peer):
    peer.guest("isert", "start", TARGET, GUEST, PORT)
    peer.listens_in_guest(PORT)
    # The first login takes longest.
    again(lambda: peer.run("iscsi-inq", URL))


def again(attempt):
    """libiscsi gives a login up after a second, and so does what it is for; a busy guest takes longer."""

    def succeeds():
        try:
            return attempt() or "done"
        except Failed as failed:
            if "revents is not POLLIN" not in str(failed):
                raise
            return None

    return wait_for(succeeds, 180, "a login within a second")


def inquiry(peer):
    text = again(lambda: peer.run("iscsi-inq", URL))
    check("Vendor:LIO-ORG" in text, f"iscsi-inq: {text[-300:]}")
    text = again(lambda: peer.run("iscsi-readcapacity16", URL))
    check(str(ALL) in text, f"iscsi-readcapacity16: {text[-300:]}")


def qemu_io(peer, commands, env=None):
    words = [word for command in commands for word in ("-c", command)]
    return again(lambda: peer.run("qemu-io", "-f", "raw", *words, URL, env=env))


def parts(length):
    """libiscsi 1.19 ends with SIGSEGV after transfers over iSER of more than 512 KiB."""
    return range(0, length, PART)


def write(peer, length=ALL, seed=1, env=None):
    data, wanted = peer.data(length, seed)
    content = data.read_bytes()
    for at in parts(length):
        peer.path(f"part-{at}").write_bytes(content[at:at + PART])
    qemu_io(peer, [f"write -q -s part-{at} {at} {PART}" for at in parts(length)], env)
    same(peer.guest_digest(DISK, length), wanted, "the target's file")


def read(peer, length=ALL, env=None):
    peer.shell(f"head -c {length} /dev/urandom | dd of={DISK} conv=notrunc bs=1M 2>/dev/null")
    again(lambda: peer.run("qemu-img", "dd", f"bs={PART}", f"count={length // PART}", "-f", "raw", "-O", "raw", f"if={URL}",
                           f"of={peer.path('copy')}", env=env))
    same(digest(peer.path("copy")), peer.guest_digest(DISK, length), "what was read")


def losses(peer):
    """One packet in a hundred is lost."""
    write(peer, 8 * MIB, 2, LOSSES)
    read(peer, 8 * MIB, LOSSES)


def busy(peer):
    """An initiator that writes until it is ended, and has begun to."""

    def begins():
        program = peer.start("qemu-img", "bench", "-f", "raw", "-w", "--pattern=165", "-c", 100_000_000, "-s", "64k", "-d", 8, URL)
        pattern = f"[ $(od -An -tx1 -N1 -j {4 * MIB} {DISK}) = a5 ]"
        if wait_for(lambda: not program.running() or "yes" in peer.shell(f"{pattern} && echo yes || echo no"), 120, "it writes") and program.running():
            return program
        check("revents is not POLLIN" in program.text(), program.last_lines())
        return None

    return wait_for(begins, 180, "an initiator writes")


def zero(peer):
    peer.shell(f"dd if=/dev/zero of={DISK} conv=notrunc bs=1M count=64 2>/dev/null")


def kill_initiator(peer):
    """The target serves the next."""
    zero(peer)
    busy(peer).kill()
    write(peer, 8 * MIB, 3)


def end_target(peer):
    """The portal group is disabled: the initiator's connection ends. Once it is enabled, it serves."""
    zero(peer)
    program = busy(peer)
    try:
        disabling = peer.start_in_guest("sh", "-c", f"echo 0 >/sys/kernel/config/target/iscsi/{TARGET}/tpgt_1/enable")
        program.says("urxe: .*|rror.*", 120)
    finally:
        program.kill()
    disabling.success(120)
    peer.guest("isert", "enable", TARGET)
    write(peer, 8 * MIB, 4)


CASES = {case.__name__.replace("_", "-"): case for case in (inquiry, write, read, losses, kill_initiator, end_target)}
