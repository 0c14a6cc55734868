"""Passes arrays of several sizes around all ranks, and sums over them."""

from array import array

from mpi4py import MPI

world = MPI.COMM_WORLD
rank, ranks = world.rank, world.size
before, behind = (rank - 1) % ranks, (rank + 1) % ranks

for length in 1, 1000, 100_000:
    mine, theirs = array("d", [rank] * length), array("d", [-1] * length)
    world.Sendrecv(mine, behind, recvbuf=theirs, source=before)
    assert theirs == array("d", [before] * length)

assert world.allreduce(rank) == sum(range(ranks))
world.Barrier()
if rank == 0:
    print(ranks, "ranks done")
