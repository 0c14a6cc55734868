"""One end of Mooncake's transfer engine.

    mooncake_peer.py target ADDRESS DEVICES           prints its name and its buffer's address, and waits
    mooncake_peer.py client ADDRESS DEVICES NAME BUFFER COUNT      writes, reads and compares COUNT times; 0: without end
"""

import ctypes
import hashlib
import random
import sys
import time

from mooncake.engine import TransferEngine

SIZE = 16 << 20
BATCH = 16


def main():
    role, address, devices = sys.argv[1:4]
    engine = TransferEngine()
    if engine.initialize(address, "P2PHANDSHAKE", "rdma", devices):
        sys.exit("initialize failed")
    memory = ctypes.create_string_buffer(2 * SIZE)
    start = ctypes.addressof(memory)
    if engine.register_memory(start, 2 * SIZE):
        sys.exit("register_memory failed")
    if role == "target":
        print("target", f"{address}:{engine.get_rpc_port()}", start, flush=True)
        while True:
            time.sleep(1)
    peer, there, count = sys.argv[4], int(sys.argv[5]), int(sys.argv[6])
    failures, done = 0, 0
    while count == 0 or done < count:
        data = random.Random(done).randbytes(SIZE)
        ctypes.memmove(start, data, SIZE)
        ctypes.memset(start + SIZE, 0, SIZE)
        # One large WRITE; a batch of READs.
        part = SIZE // BATCH
        ours = [start + SIZE + number * part for number in range(BATCH)]
        theirs = [there + number * part for number in range(BATCH)]
        result = engine.transfer_sync_write(peer, start, there, SIZE)
        result = result or engine.batch_transfer_sync_read(peer, ours, theirs, [part] * BATCH)
        if result:
            failures += 1
            print("failed", result, failures, flush=True)
            if count:
                sys.exit("a transfer failed")
            time.sleep(0.5)
            continue
        if hashlib.sha1(memory[SIZE:2 * SIZE]).digest() != hashlib.sha1(data).digest():
            sys.exit("what was read back differs")
        done += 1
        print("done", done, "after failures", failures, flush=True)
    print("compared", done, flush=True)


main()
