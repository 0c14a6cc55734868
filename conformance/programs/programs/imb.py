"""Intel MPI Benchmarks of a source tree, built with their check of data, over Intel MPI of PyPI."""

import os
import pathlib
import re
import shutil
import subprocess

import mpi
from hosts import Network, Skipped, check
from programs import intelmpi

TITLE = "Intel MPI Benchmarks, data checked"
ORIGIN = "IMB_SOURCE, over PyPI's Intel MPI"
COMPARED = "each benchmark's, by its own check"
#: Without this variable its cases are skipped.
SOURCE = "IMB_SOURCE"
DEVELOPMENT = f"impi-devel=={intelmpi.VERSION}"
SUITES = ("MPI1", "NBC", "RMA", "EXT")
NAME = "imb-given-built"
# Without Ireduce_scatter, whose check expects the first rank's data on each of them, over TCP too.
NONBLOCKING = ["Ibcast", "Iallgather", "Iallgatherv", "Igather", "Igatherv", "Iscatter", "Iscatterv", "Ialltoall", "Ialltoallv", "Iallreduce",
               "Ireduce", "Ibarrier"]
#: Suite, hosts, ranks of each.
RUNS = (("MPI1", 2, 1), ("MPI1", 4, 2), ("NBC", 2, 2), ("RMA", 2, 1), ("EXT", 2, 1))


def prepare(store):
    if SOURCE not in os.environ:
        raise Skipped(f"{SOURCE}=FOLDER takes their source tree")
    intelmpi.prepare(store)
    runtime, headers = mpi.data(store, f"impi-rt=={intelmpi.VERSION}"), mpi.data(store, DEVELOPMENT) / "include"

    def build(new):
        tree = new / "tree"
        shutil.copytree(pathlib.Path(os.environ[SOURCE]) / "src_c", tree)
        for suite in SUITES:
            done = subprocess.run(
                ["make", "-C", tree, f"-j{os.cpu_count()}", f"TARGET={suite}", "CC=gcc", f"CFLAGS=-O1 -w -DCHECK -I{headers}",
                 f"LDFLAGS=-Wl,--no-as-needed -L{runtime}/lib -lmpi -Wl,-rpath-link,{runtime}/lib", f"BINARY={new}/IMB-{suite}", f"BUILDDIR={new}/{suite}"],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if done.returncode != 0:
                raise Skipped(f"does not build: {' / '.join(done.stdout.splitlines()[-6:])}")

    shutil.rmtree(store.folder / NAME, ignore_errors=True)
    store.once(NAME, build)


def version(store):
    headers = "".join(path.read_text(errors="replace") for path in (store.folder / NAME / "tree").glob("*.h"))
    found = re.search(r'VERSION\s+"([^"]+)"', headers)
    return found[1] if found else ""


def defects(text):
    """The last column of the tables whose heads end with `defects`."""
    found, checked = [], False
    for words in map(str.split, text.splitlines()):
        if "#repetitions" in words:
            checked = words[-1] == "defects"
        elif checked and len(words) > 2 and words[0].isdigit():
            found.append(words[-1])
    return found


def benchmarks(suite, hosts, ranks):
    """Every benchmark of a suite with messages up to 64 KiB: what came is compared with what was sent."""

    def case(store):
        with Network(hosts) as net:
            job = intelmpi.make(store)
            words = job.launch(net.remote_shell(("--explain", "1")), [host.name for host in net.hosts], ranks)
            text = net.switch.start(*words, store.folder / NAME / f"IMB-{suite}", "-msglog", "0:16", "-iter", 20, "-npmin", hosts * ranks,
                                    *(NONBLOCKING if suite == "NBC" else []), urxe=False, env=job.variables).success(300)
            check(re.search(job.used, text), f"not over urxe: {job.used!r} is not in the output")
            found = defects(text)
            check(len(re.findall("^# Benchmarking", text, re.M)) >= 3 and found, f"nothing was checked: {text[-500:]}")
            check(set(found) == {"0.00"}, f"defects: {sorted(set(found))[-3:]}")
    return case


CASES = {f"{suite.lower()}/{hosts}x{ranks}": benchmarks(suite, hosts, ranks) for suite, hosts, ranks in RUNS}
