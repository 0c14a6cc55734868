"""Work of the ranks of an MPI program: each operation with data that tells who sent it, compared at the other end.

    mpirun -n RANKS python3 exchange.py OPERATION SIZE

Prints `done OPERATION` on rank 0 when everything came as it was sent.
"""

import sys
from array import array

from mpi4py import MPI

ROUNDS = 50


def pattern(rank, round, size):
    return bytes((rank * 31 + round * 7 + at) & 0xFF for at in range(min(size, 256))) * (size // min(size, 256))


def expect(got, wanted, what):
    if bytes(got) != bytes(wanted):
        raise SystemExit(f"rank {MPI.COMM_WORLD.rank}: wrong data in {what}")


def ping_pong(comm, size):
    if comm.rank > 1:
        return
    peer, buffer = 1 - comm.rank, bytearray(size)
    for round in range(ROUNDS):
        if comm.rank == 0:
            comm.Send(pattern(0, round, size), peer)
            comm.Recv(buffer, peer)
        else:
            comm.Recv(buffer, peer)
            comm.Send(pattern(1, round, size), peer)
        expect(buffer, pattern(peer, round, size), f"round {round}")


def both_ways(comm, size):
    """Everybody to everybody, all at once, received in another order."""
    for round in range(5):
        others = [rank for rank in range(comm.size) if rank != comm.rank]
        buffers = {rank: bytearray(size) for rank in others}
        receives = [comm.Irecv(buffers[rank], rank, tag=round) for rank in reversed(others)]
        data = pattern(comm.rank, round, size)
        sends = [comm.Isend(data, rank, tag=round) for rank in others]
        MPI.Request.Waitall(receives + sends)
        for rank in others:
            expect(buffers[rank], pattern(rank, round, size), f"round {round} from {rank}")


def broadcast(comm, size):
    for root in range(comm.size):
        buffer = bytearray(pattern(root, 1, size)) if comm.rank == root else bytearray(size)
        comm.Bcast(buffer, root)
        expect(buffer, pattern(root, 1, size), f"broadcast of {root}")


def allreduce(comm, size):
    count = size // 8
    for round in range(10):
        mine = array("q", (comm.rank + at + round for at in range(count)))
        total = array("q", bytes(8 * count))
        comm.Allreduce(mine, total)
        ranks = comm.size * (comm.size - 1) // 2
        expect(total, array("q", (ranks + comm.size * (at + round) for at in range(count))), f"round {round}")


def alltoall(comm, size):
    sent = b"".join(pattern(comm.rank * 16 + rank, 0, size) for rank in range(comm.size))
    got = bytearray(size * comm.size)
    comm.Alltoall([sent, size, MPI.BYTE], [got, size, MPI.BYTE])
    expect(got, b"".join(pattern(rank * 16 + comm.rank, 0, size) for rank in range(comm.size)), "alltoall")


def one_sided(comm, size):
    """MPI-3 RMA: a PUT, a GET and accumulated counts, between fences."""
    window = MPI.Win.Allocate(size + 8, comm=comm)
    peer = (comm.rank + 1) % comm.size
    before = (comm.rank - 1) % comm.size
    one, got = array("q", [1]), bytearray(size)
    # It must last until the fence.
    put = pattern(comm.rank, 3, size)
    window.tomemory()[:] = bytes(size + 8)
    window.Fence()
    window.Put([put, size, MPI.BYTE], peer)
    for rank in range(comm.size):
        window.Accumulate([one, 1, MPI.INT64_T], rank, target=(size, 1, MPI.INT64_T))
    window.Fence()
    window.Get([got, size, MPI.BYTE], peer)
    window.Fence()
    expect(got, pattern(comm.rank, 3, size), "what was put")
    expect(window.tomemory()[:size], pattern(before, 3, size), "what was put here")
    expect(window.tomemory()[size:], array("q", [comm.size]), "the count")
    window.Free()


def main():
    operation, size = sys.argv[1], int(sys.argv[2])
    comm = MPI.COMM_WORLD
    globals()[operation](comm, size)
    comm.Barrier()
    if comm.rank == 0:
        print("done", operation, flush=True)


if __name__ == "__main__":
    main()
