"""`urxe run` in the guest, where the kernel has rxe0: programs see urxe's devices and only these, and they work."""

import dataclasses
import os
import pathlib
import time

from sides import RXE, Program

PREFIX = "kernel-coexistence"
NOBODY = "setpriv --reuid=65534 --regid=65534 --clear-groups --bounding-set=-all --inh-caps=-all --"
PINGPONG = """
    ibv_rc_pingpong -d urxe0 -g 1 -n 100 & server=$!
    until ibv_rc_pingpong -d urxe0 -g 1 -n 100 127.0.0.1; do sleep 0.2; done
    wait $server"""
# A server that has ended answers nobody: the clients stop, and its own words are the last.
RPING = """
    rping -s -a 127.0.0.1 -C 10 & server=$!
    until rping -c -a 127.0.0.1 -C 10 -v; do
        kill -0 $server || { wait $server; echo "the server ended: $?"; exit 1; }
        sleep 0.2
    done
    wait $server"""

# A dma-buf of an exporter's, of which this kind of machine has none.
DMABUF = f"""
    modprobe vgem; until ls /dev/dri/card* >/dev/null 2>&1; do sleep 0.2; done
    cc -o /tmp/dmabuf {pathlib.Path(__file__).resolve().parent}/dmabuf.c -libverbs; /tmp/dmabuf urxe0 1"""


@dataclasses.dataclass(frozen=True)
class Case:
    """A shell's commands, in the guest, and what they must and must not say."""

    name: str
    script: str
    says: tuple
    never: tuple = ()
    run: str = "urxe run --"


CASES = (
    Case("without", "ibv_devices", ("rxe0",), ("urxe0",), run=""),
    Case("ibv_devices", "ibv_devices", ("urxe0",), (" rxe0",)),
    Case("ibv_devinfo", "ibv_devinfo", ("hca_id:\turxe0", "PORT_ACTIVE"), ("hca_id:\trxe0",)),
    Case("paths", "cat /sys/class/infiniband/*/node_desc; echo /dev/infiniband/*",
         ("urxe\n/dev/infiniband/issm0 /dev/infiniband/rdma_cm /dev/infiniband/umad0 /dev/infiniband/uverbs0\n",)),
    Case("ibstat", "ibstat", ("CA 'urxe0'", "State: Active", "Link layer: Ethernet"), ("CA 'rxe0'",)),
    Case("pingpong", PINGPONG, ("100 iters in",)),
    Case("pingpong-as-nobody", PINGPONG, ("100 iters in",), run=f"{NOBODY} urxe run --"),
    Case("rping", RPING, ("ping data: rdma-ping-9",)),
    Case("dma-buf", DMABUF, ("written, read, refused: Permission denied", "ibv_reg_dmabuf_mr failed with EACCES"), run="urxe run --explain 1 --"),
    # Another end of the cable would send to the kernel: better to be told.
    Case("on-the-cable", "ibv_rc_pingpong -d urxe0 -g 1 || true", ("10.77.0.2:4791", "rxe"), run="urxe run --netdev eth0 --"),
    Case("doctor-on-the-cable", "! urxe doctor --netdev eth0",
         ("problem  UDP 10.77.0.2:4791 is held by the kernel", "rdma link delete"), run=""),
    Case("doctor", "urxe doctor", ("fine     urxe0 is on lo",), ("problem",), run=""),
    Case("afterwards", "ibv_devinfo", ("hca_id:\trxe0", "PORT_ACTIVE"), run=""),
)


def run(selected, limit):
    """Yields (name, reason)."""
    urxe = os.environ["URXE_BIN_DIR"] + "/urxe"
    for case in CASES:
        name = f"{PREFIX}/{case.name}"
        if not selected(name):
            continue
        words = f"{case.run} sh -ec".replace("urxe run", f"{urxe} run").split()
        script = case.script.replace("urxe doctor", f"{urxe} doctor")
        with Program(RXE, [*words, script]) as program:
            status = program.end(time.monotonic() + limit)
            said = program.text()
            missing = [text for text in case.says if text not in said]
            wrong = [text for text in case.never if text in said]
            right = status == 0 and not missing and not wrong
            yield name, "" if right else f"status {status}, not said {missing}, said {wrong}; {program.last_words()}"
