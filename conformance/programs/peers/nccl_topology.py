"""Writes the topology that NCCL finds in sysfs, by the functions of libnccl.so that a communicator calls for it and NCCL_TOPO_DUMP_FILE.

    nccl_topology.py OUT BUSID... DEVICE...

A communicator needs a GPU; these functions (src/graph/xml.cc) take what they ask for from sysfs, and find no driver of NVIDIA's. The library
has their names, but does not export them: `nm` tells where they are. BUSIDs are of other functions, such as GPUs.
"""

import ctypes
import os
import pathlib
import subprocess
import sys
import tempfile

P, S = ctypes.c_void_p, ctypes.c_char_p
FUNCTIONS = {
    "load": ("_Z22ncclTopoGetXmlFromFilePKcP7ncclXmli", [S, P, ctypes.c_int]),
    "pci": ("_Z18ncclTopoGetPciNodeP7ncclXmlPKcPP11ncclXmlNode", [P, S, P]),
    "sysfs": ("_Z21ncclTopoGetXmlFromSysP11ncclXmlNodeP7ncclXml", [P, P]),
    "net": ("_Z15ncclTopoFillNetP7ncclXmlPKcS2_S2_PP11ncclXmlNodeS4_", [P, S, S, S, P, P]),
    "dump": ("_Z21ncclTopoDumpXmlToFilePKcP7ncclXml", [S, P]),
}
NODES = 1024
#: Of a node, more than it has.
ROOM = 1 << 16


def functions(path):
    library = ctypes.CDLL(path)
    names = {}
    for line in subprocess.check_output(["nm", path], text=True).splitlines():
        words = line.split()
        if len(words) == 3:
            names[words[2]] = int(words[0], 16)
    base = ctypes.cast(library.ncclGetVersion, P).value - names["ncclGetVersion"]
    return {key: ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(base + names[name]) for key, (name, arguments) in FUNCTIONS.items()}


def main():
    out, words = sys.argv[1], sys.argv[2:]
    call = functions(os.environ["NCCL_LIBRARY"])
    # How many nodes there are, and may be.
    tree = ctypes.create_string_buffer(NODES * ROOM)
    ctypes.cast(tree, ctypes.POINTER(ctypes.c_int))[1] = NODES

    def check(status, what):
        if status != 0:
            sys.exit(f"{what}: status {status}")

    with tempfile.NamedTemporaryFile("w", suffix=".xml") as empty:
        empty.write('<system version="1">\n</system>\n')
        empty.flush()
        check(call["load"](empty.name.encode(), tree, 1), "an empty topology")
    node = P()
    for word in words:
        if ":" in word:
            check(call["pci"](tree, word.encode(), ctypes.byref(node)), word)
            check(call["sysfs"](node, tree), word)
        else:
            path = str(pathlib.Path("/sys/class/infiniband", word, "device").resolve())
            check(call["net"](tree, b"net", path.encode(), word.encode(), ctypes.byref(node), None), word)
    check(call["dump"](out.encode(), tree), out)


main()
