"""One end of NIXL's UCX backend, from the wheel as it is.

    nixl_peer.py target FOLDER              leaves its metadata in FOLDER and waits
    nixl_peer.py client FOLDER COUNT        writes, reads and compares COUNT times; 0: without end
"""

import hashlib
import os
import pathlib
import random
import sys
import time

import numpy
from nixl_cu12._api import nixl_agent, nixl_agent_config

SIZE = 8 << 20


def wait(agent, handle):
    while (state := agent.check_xfer_state(handle)) == "PROC":
        pass
    if state != "DONE":
        sys.exit(f"a transfer is {state}")


def main():
    role, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    agent = nixl_agent(role, nixl_agent_config(backends=["UCX"]))
    memory = numpy.zeros(2 * SIZE, dtype=numpy.uint8)
    start = memory.ctypes.data
    agent.register_memory([(start, 2 * SIZE, 0, "")], mem_type="DRAM")
    if role == "target":
        (folder / "new").write_bytes(agent.get_agent_metadata())
        (folder / "address").write_text(str(start))
        (folder / "new").rename(folder / "metadata")
        print("target", flush=True)
        while True:
            time.sleep(1)
    peer = agent.add_remote_agent((folder / "metadata").read_bytes())
    there, count, done = int((folder / "address").read_text()), int(sys.argv[3]), 0
    peer = peer.decode() if isinstance(peer, bytes) else peer
    while count == 0 or done < count:
        data = random.Random(done).randbytes(SIZE)
        memory[:SIZE] = numpy.frombuffer(data, dtype=numpy.uint8)
        memory[SIZE:] = 0
        for operation, ours in (("WRITE", start), ("READ", start + SIZE)):
            local = agent.get_xfer_descs([(ours, SIZE, 0)], mem_type="DRAM")
            remote = agent.get_xfer_descs([(there, SIZE, 0)], mem_type="DRAM")
            handle = agent.initialize_xfer(operation, local, remote, peer, b"")
            if agent.transfer(handle) == "ERR":
                sys.exit("a transfer is ERR")
            wait(agent, handle)
            agent.release_xfer_handle(handle)
        if hashlib.sha1(memory[SIZE:].tobytes()).digest() != hashlib.sha1(data).digest():
            sys.exit("what was read back differs")
        done += 1
        print("done", done, flush=True)
    print("compared", done, flush=True)


main()
# The wheel's copy of libnl and the machine's do not end together: SIGSEGV at exit, with urxe or without.
os._exit(0)
