"""MPICH of Debian over UCX."""

import mpi
from store import package_version

TITLE = "MPICH, ch4:ucx"
ORIGIN = "Debian, mpi4py from PyPI"
COMPARED = "each operation, on each rank"


def prepare(store):
    package_version("mpich")
    mpi.python(store)
    # mpi4py asks for the name that all libraries of MPICH's ABI have.
    store.once("mpich-name", lambda new: (new / "libmpi.so.12").symlink_to("/usr/lib/x86_64-linux-gnu/libmpich.so.12"))


def version(store):
    return package_version("mpich")


def make(store):
    variables = mpi.over_ucx() | mpi.python(store) | {"LD_LIBRARY_PATH": store.folder / "mpich-name"}
    return mpi.Mpi(variables, mpi.hydra("mpiexec.mpich"), mpi.UCX_USED)


CASES = mpi.lazily(make)
