"""One end of connex-rs.

    connex_peer.py target ADDRESS              prints its URL and its memory's address, and waits
    connex_peer.py client ADDRESS URL BUFFER COUNT      writes, reads, signals and compares COUNT times; 0: without end
"""

import ctypes
import hashlib
import random
import sys
import time

import connex_rs

PORT = 51001
SIZE = 4 << 20


def main():
    role, address = sys.argv[1:3]
    stage = 0 if role == "target" else 1
    engine = connex_rs.Engine("urxe", stage=stage, shard=0, replica=0, listen_ip=address, port=PORT)
    memory = ctypes.create_string_buffer(2 * SIZE)
    start = ctypes.addressof(memory)
    engine.register_memory(start, 2 * SIZE)
    if role == "target":
        print("target", engine.local_url, start, flush=True)
        while True:
            if message := engine.recv_msg(timeout_ms=1000):
                # Of the data that came before it: connex sends it behind what it has written.
                print("signal", message[-1].decode(), hashlib.sha1(memory[:SIZE]).hexdigest(), flush=True)
                engine.send_msg(message[0], b"taken")
    url, there, count = sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
    done = 0
    while not count or done < count:
        data = random.Random(done).randbytes(SIZE)
        ctypes.memmove(start, data, SIZE)
        try:
            engine.put_signal(url, start, there, SIZE, f"step-{done}".encode()).wait()
            # Until the target has looked at it.
            while not engine.recv_msg(timeout_ms=100):
                if (event := engine.wait_event(timeout_ms=0)) and event["type"] == "failed":
                    raise ConnectionError(event)
            results = [engine.transfer_sync_write(url, start, there + SIZE, SIZE),
                       engine.transfer_sync_read(url, start + SIZE, there + SIZE, SIZE)]
        except ConnectionError as error:
            results = [str(error)]
        except TimeoutError as error:
            # connex gives up waiting before the queue pair has used its tries up.
            results = [str(error)]
        if any(results):
            # The first event may be another one, of the peer that has joined.
            while "failed" not in str(results) and (event := engine.wait_event(timeout_ms=20_000)):
                results.append(event)
            print("event", results, flush=True)
            sys.exit(f"failed {results}")
        if memory[SIZE:2 * SIZE] != data:
            sys.exit("what was read back differs")
        done += 1
        print("done", done, hashlib.sha1(data).hexdigest(), flush=True)
    time.sleep(1)
    print("compared", done, engine.stats(), flush=True)
    engine.close()


main()
