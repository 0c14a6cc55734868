"""The newest MPICH as it is on PyPI, over its own copies of UCX and libfabric."""

import os

import mpi

TITLE = "MPICH, ch4:ucx and ch4:ofi"
ORIGIN = "PyPI"
COMPARED = "each operation, on each rank"
VERSION = "5.0.2"


def prepare(store):
    mpi.data(store, f"mpich=={VERSION}")
    mpi.python(store)


def version(store):
    return VERSION


def variables(store):
    data = mpi.data(store, f"mpich=={VERSION}")
    return data, mpi.python(store) | {"LD_LIBRARY_PATH": data / "lib", "PATH": f"{data}/bin:{os.environ['PATH']}"}


def over_ucx(store):
    data, common = variables(store)
    return mpi.Mpi(common | mpi.over_ucx() | {"MPIR_CVAR_CH4_NETMOD": "ucx"}, mpi.hydra(data / "bin/mpiexec"), mpi.UCX_USED)


def over_ofi(store):
    data, common = variables(store)
    more = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "verbs;ofi_rxm", "MPIR_CVAR_DEBUG_SUMMARY": 1}
    return mpi.Mpi(common | more, mpi.hydra(data / "bin/mpiexec"), r"libfabric provider: verbs;ofi_rxm")


CASES = mpi.lazily(over_ucx, "ucx/") | mpi.lazily(over_ofi, "ofi/")
