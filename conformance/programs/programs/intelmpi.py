"""Intel MPI as it is on PyPI, over its own copy of libfabric: verbs;ofi_rxm."""

import os

import mpi

TITLE = "Intel MPI, verbs;ofi_rxm"
ORIGIN = "PyPI"
COMPARED = "each operation, on each rank"
VERSION = "2021.19.0"


def prepare(store):
    mpi.data(store, f"impi-rt=={VERSION}")
    mpi.python(store)


def version(store):
    return VERSION


def make(store):
    data = mpi.data(store, f"impi-rt=={VERSION}")
    fabric = data / "opt/mpi/libfabric/lib"
    variables = mpi.python(store) | {
        "I_MPI_ROOT": data, "I_MPI_DEBUG": 5, "I_MPI_FABRICS": "ofi", "FI_PROVIDER": "verbs;ofi_rxm",
        "FI_PROVIDER_PATH": fabric / "prov", "LD_LIBRARY_PATH": f"{data}/lib:{fabric}", "PATH": f"{data}/bin:{os.environ['PATH']}"}
    return mpi.Mpi(variables, mpi.hydra(data / "bin/mpiexec.hydra"), r"libfabric provider: verbs;ofi_rxm")


CASES = mpi.lazily(make)
