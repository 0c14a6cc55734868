"""QEMU's migration over RDMA, of a guest that writes to its memory all the time. The memories of both ends are compared, and after
postcopy, when the guest has gone on, all that it has written."""

import json
import pathlib
import re
import socket
import struct
import subprocess
import time

from hosts import Failed, Network, Skipped, check, wait_for
from store import package_version

TITLE = "QEMU, migration by rdma"
ORIGIN = "Debian"
COMPARED = "the guest's memory"
PORT, MEMORY, COUNT = 4444, 128 << 20, 0x180000
#: The pages that guest.S writes.
PAGES = range(0x1000000, 0x5000000, 4096)


def prepare(store):
    package_version("qemu-system-x86")
    if not re.search("rdma", subprocess.run(["qemu-system-x86_64", "-help"], capture_output=True, text=True).stdout):
        raise Skipped("this QEMU was built without RDMA")
    guest = pathlib.Path(__file__).resolve().parent.parent / "guest.S"

    def assemble(new):
        subprocess.run(["as", "--32", "-o", new / "guest.o", guest], check=True)
        subprocess.run(["ld", "-m", "elf_i386", "-Ttext", "0x100000", "-o", new / "guest", new / "guest.o"], check=True)

    store.once("qemu-guest", assemble)


def version(store):
    return package_version("qemu-system-x86")


class Machine:
    """A QEMU, and its monitor."""

    def __init__(self, store, net, host, name, incoming=False):
        self.net, self.path = net, pathlib.Path(net.scratch.name) / name
        words = ["qemu-system-x86_64", "-accel", "tcg", "-m", MEMORY >> 20, "-nodefaults", "-display", "none",
                 "-kernel", store.folder / "qemu-guest/guest", "-qmp", f"unix:{self.path},server=on,wait=off"]
        if incoming:
            words += ["-S", "-incoming", "defer"]
        self.program = host.start(*words, env={"URXE_EXPLAIN": 1})
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(120)
        wait_for(self.listens, 60, "the monitor's socket")
        self.lines = self.socket.makefile("rw")
        self.lines.readline()
        self.ask("qmp_capabilities")

    def listens(self):
        """Connects with the monitor. QEMU binds its socket before it listens there."""
        return self.socket.connect_ex(str(self.path)) == 0

    def ask(self, command, **arguments):
        try:
            self.lines.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
            self.lines.flush()
            while line := self.lines.readline():
                answer = json.loads(line)
                if "error" in answer:
                    raise Failed(f"{command}: {answer['error']['desc']}")
                if "return" in answer:
                    return answer["return"]
        except ConnectionError as error:
            raise Failed(f"{command}: {error}; {self.program.last_lines()}") from None
        raise Failed(f"{command}: no answer; {self.program.last_lines()}")

    def status(self):
        return self.ask("query-status")["status"]

    def migration(self):
        return self.ask("query-migrate").get("status")

    def memory(self, start=0, size=MEMORY):
        path = f"{self.path}.memory"
        self.ask("pmemsave", val=start, size=size, filename=path)
        return pathlib.Path(path).read_bytes()

    def count(self):
        return int.from_bytes(self.memory(COUNT, 4), "little")

    def runs(self):
        """Waits until the guest has written to all of its pages again."""
        before = self.count()
        wait_for(lambda: self.count() not in (before, before + 1), 60, "the guest writes")


def capable(machines, *names):
    for machine in machines:
        machine.ask("migrate-set-capabilities", capabilities=[{"capability": name, "state": True} for name in names])


def begin(source, target, address):
    uri = f"rdma:{address}:{PORT}"
    target.ask("migrate-incoming", uri=uri)
    source.ask("migrate", uri=uri)


def compare(source, target):
    for machine in (source, target):
        wait_for(lambda m=machine: m.migration() == "completed" or m.migration() is None, 120, "the migration ends")
    # Both stand still.
    ours, theirs = source.memory(), target.memory()
    different = [at for at in range(0, MEMORY, 4096) if ours[at:at + 4096] != theirs[at:at + 4096]]
    check(not different, f"{len(different)} pages differ, the first at {different[:1]}")


def migrate(*names):
    def case(store):
        with Network() as net:
            source = Machine(store, net, net.hosts[0], "source")
            target = Machine(store, net, net.hosts[1], "target", incoming=True)
            capable((source, target), *names)
            source.runs()
            begin(source, target, net.hosts[1].address)

            def ended():
                state = source.migration()
                check(state != "failed", f"the migration failed; {source.program.last_lines()}; {target.program.last_lines()}")
                return state == "completed"

            # The guest writes faster than TCG and two processors migrate: it is stopped after some rounds of copying.
            source.ask("migrate-set-parameters", **{"downtime-limit": 2000})
            deadline = time.monotonic() + 20
            wait_for(lambda: ended() or time.monotonic() > deadline or (source.ask("query-migrate").get("ram") or {}).get(
                "dirty-sync-count", 0) > 2, 120, "rounds of copying")
            if not ended():
                source.ask("stop")
            wait_for(ended, 120, "the migration ends")
            wait_for(lambda: target.status() in ("paused", "inmigrate", "prelaunch", "running"), 60, "the target is there")
            compare(source, target)
            target.ask("cont")
            target.runs()
    return case


#: How postcopy of QEMU 7.2 may end on any device. The target of the return path, the second connection that postcopy makes, does not
#: wait for the first READY (`qemu_rdma_accept` leaves `control_ready_expected` at 0): from then on it has two receives in one buffer,
#: and reads the second of two READYs that come quickly as the first. It posts its first receive after the connection is
#: established, when the source's READY may be there, with an rnr_retry of 0. And when the source disconnects before the target has
#: cleaned up, the target enters a coroutine that has ended (`rdma_cm_poll_handler`, `migration_incoming_co`).
RACES = (r"Was expecting a READY \(2\) control message, but got: .*\(33554432\)",
         r"RNR_RETRY_EXC_ERR for wr_id 2000 on QP \S+ to QP \S+ at \S+ SEND of 16 bytes",
         r"process_incoming_migration_co: Assertion `mis->from_src_file' failed")
ATTEMPTS = 20


def rounds_are_whole(machine):
    """Checks all that guest.S writes: each page has its address, and the pages ahead of the guest one round less than those behind."""
    memory, rounds = machine.memory(), machine.count()
    words = [struct.unpack_from("<I", memory, page)[0] for page in PAGES]
    behind = next((at for at, word in enumerate(words) if word != rounds + 1), len(words))
    wrong = [PAGES[at] for at, word in enumerate(words) if word != rounds + (at < behind)]
    wrong += [page for page in PAGES if struct.unpack_from("<I", memory, page + 2048)[0] != page]
    check(not wrong, f"{len(wrong)} words are wrong in round {rounds}, the first in page {wrong[:1]}")


def postcopy(store):
    """The guest runs at the target before its memory is there, and goes on with all that it has written."""
    for _ in range(ATTEMPTS):
        if migrated_by_postcopy(store):
            return
    raise Failed(f"QEMU has lost its races {ATTEMPTS} times")


def migrated_by_postcopy(store):
    """False if QEMU has lost one of its races."""
    with Network() as net:
        source = Machine(store, net, net.hosts[0], "source")
        target = Machine(store, net, net.hosts[1], "target", incoming=True)
        try:
            capable((target, source), "postcopy-ram")
        except Failed as failed:
            raise Skipped(f"no userfaultfd here: {failed}") from None
        source.runs()
        count = source.count()
        begin(source, target, net.hosts[1].address)
        wait_for(lambda: source.migration() in ("active", "completed", "failed"), 60, "the migration begins")

        def has_lost():
            said = " ".join((source.program.text() + target.program.text()).split())
            return any(re.search(pattern, said) for pattern in RACES)

        try:
            source.ask("migrate-start-postcopy")
            wait_for(lambda: source.migration() in ("completed", "failed") or has_lost(), 300, "the migration ends")
            check(source.migration() == "completed", f"{source.program.last_lines()}; {target.program.last_lines()}")
            if target.status() != "running":
                target.ask("cont")
            target.runs()
            check(target.count() >= count, "the target has an older memory")
            target.ask("stop")
            rounds_are_whole(target)
        except Failed:
            # The target may end, also after all has come, or the source wait for ever.
            if has_lost():
                return False
            raise
        return True


def kill_target(store):
    """The source is told by RDMA_CM_EVENT_DISCONNECTED. The guest goes on there, and migrates to another target."""
    with Network(3) as net:
        source = Machine(store, net, net.hosts[0], "source")
        target = Machine(store, net, net.hosts[1], "target", incoming=True)
        source.runs()
        begin(source, target, net.hosts[1].address)
        wait_for(lambda: (source.ask("query-migrate").get("ram") or {}).get("transferred", 0) > 1 << 20, 60, "some memory is there")
        target.program.kill()
        wait_for(lambda: source.migration() == "failed", 120, "the source notices")
        source.program.says("cm event is 10", 10)
        source.program.explained("WR_FLUSH_ERR", "disconnecting")
        source.runs()
        other = Machine(store, net, net.hosts[2], "other", incoming=True)
        begin(source, other, net.hosts[2].address)
        source.ask("stop")
        wait_for(lambda: source.migration() in ("completed", "failed"), 120, "the second migration ends")
        compare(source, other)


CASES = {"precopy": migrate(), "pin-all": migrate("rdma-pin-all"), "postcopy": postcopy, "kill-target": kill_target}
