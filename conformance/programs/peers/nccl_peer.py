"""A process that drives the InfiniBand transport inside libnccl.so, without a GPU: the functions that NCCL calls for each of its channels.

    nccl_peer.py receiver|sender FOLDER COUNT MERGED [NAME=VALUE]...

The two exchange the connection's handle by a file in FOLDER, as NCCL's bootstrap would. COUNT rounds of messages are compared; 0 goes on
until the process is killed. MERGED devices become one (`makeVDevice`).

The transport is a table of functions (nccl_net.h, ncclNet_v12_t) that the library does not export: it is the one in its relocated data
that begins with a pointer to the name "IB".
"""

import ctypes
import os
import pathlib
import re
import sys
import time

P, INT, SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
HANDLE = 128
HOST = 1
#: Functions behind the name, in their order, and their arguments.
FUNCTIONS = {
    "init": [P, ctypes.c_uint64, P, P, P], "devices": [P], "getProperties": [INT, P], "listen": [P, INT, P, P],
    "connect": [P, INT, P, P, P], "accept": [P, P, P], "regMr": [P, P, SIZE, INT, P],
    "regMrDmaBuf": [P, P, SIZE, INT, ctypes.c_uint64, INT, P], "deregMr": [P, P], "isend": [P, P, SIZE, INT, P, P, P],
    "irecv": [P, INT, P, P, P, P, P, P], "iflush": [P, INT, P, P, P, P], "test": [P, P, P], "closeSend": [P], "closeRecv": [P],
    "closeListen": [P], "getDeviceMr": [P, P, P], "irecvConsumed": [P, INT, P], "makeVDevice": [P, P], "finalize": [P],
    "setNetAttr": [P, P],
}
#: May be missing in the table.
OPTIONAL = {"getDeviceMr", "irecvConsumed", "regMrDmaBuf", "setNetAttr"}
SIZES = [0, 1, 4096, 65536, 1 << 20, (4 << 20) + 3]
#: Messages that one receive takes, with a tag each.
GROUP = 4
ROOM = 8 << 20


class VDevice(ctypes.Structure):
    _fields_ = [("ndevs", INT), ("devs", INT * 8)]


class Properties(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p), ("pciPath", ctypes.c_char_p), ("guid", ctypes.c_uint64), ("ptrSupport", INT), ("regIsGlobal", INT),
        ("forceFlush", INT), ("speed", INT), ("port", INT), ("latency", ctypes.c_float), ("maxComms", INT), ("maxRecvs", INT),
        ("netDeviceType", INT), ("netDeviceVersion", INT), ("vProps", VDevice), ("maxP2pBytes", SIZE), ("maxCollBytes", SIZE),
        ("room", ctypes.c_char * 256),
    ]


def segments(name):
    """Mappings of a library: begin, end, rights."""
    for line in pathlib.Path("/proc/self/maps").read_text().splitlines():
        if line.rstrip().endswith(name):
            begin, end, rights = re.match(r"(\w+)-(\w+) (\S+)", line).groups()
            yield int(begin, 16), int(end, 16), rights


def table(library):
    """The transport's functions by their names."""
    path = library._name
    name = pathlib.Path(path).name
    mapped = list(segments(name))
    code = [(begin, end) for begin, end, rights in mapped if "x" in rights]
    # The library's file is mapped as a whole in places that are read only; what is relocated lies behind its code.
    known = [(begin, end) for begin, end, rights in mapped if "r" in rights]
    data = [(begin, end) for begin, end, rights in mapped if "r" in rights and "x" not in rights and begin >= max(end for _, end in code)]

    def within(address, places):
        return any(begin <= address < end for begin, end in places)

    for begin, end in data:
        words = (ctypes.c_uint64 * ((end - begin) // 8)).from_address(begin)
        for at in range(len(words) - len(FUNCTIONS)):
            if not within(words[at], known) or ctypes.string_at(words[at], 3) != b"IB\0":
                continue
            addresses = words[at + 1:at + 1 + len(FUNCTIONS)]
            if all(within(address, code) or (not address and key in OPTIONAL) for key, address in zip(FUNCTIONS, addresses)):
                return {
                    key: ctypes.CFUNCTYPE(INT, *arguments)(address)
                    for (key, arguments), address in zip(FUNCTIONS.items(), addresses) if address
                }
    sys.exit("no transport named IB in the library")


class Transport:
    def __init__(self):
        self.functions = table(ctypes.CDLL(os.environ["NCCL_LIBRARY"]))
        self.context = P()
        config = INT(-1)
        self.config = config
        self.call("init", ctypes.byref(self.context), 1, ctypes.byref(config), None, None)

    def call(self, name, *arguments):
        status = self.functions[name](*arguments)
        if status != 0:
            print(f"failed {name} {status}", flush=True)
            sys.exit(3)

    def devices(self):
        count = INT()
        self.call("devices", ctypes.byref(count))
        return count.value

    def properties(self, device):
        found = Properties()
        self.call("getProperties", device, ctypes.byref(found))
        return found

    def merge(self, count):
        """One device of the first `count`."""
        wanted, merged = VDevice(count, (INT * 8)(*range(count))), INT()
        self.call("makeVDevice", ctypes.byref(merged), ctypes.byref(wanted))
        return merged.value

    def again(self, name, *arguments):
        """Calls until there is a result, which is the last of the arguments' place."""
        result = P()
        device = P()
        while not result.value:
            self.call(name, *arguments, ctypes.byref(result), *([ctypes.byref(device)] if name in ("connect", "accept") else []))
        return result

    def finish(self, request, sizes=None):
        done = INT()
        while not done.value:
            self.call("test", request, ctypes.byref(done), sizes)

    def memory(self, communicator, size):
        memory = ctypes.create_string_buffer(size)
        handle = P()
        self.call("regMr", communicator, ctypes.addressof(memory), size, HOST, ctypes.byref(handle))
        return memory, handle


def pattern(seed, size):
    block = bytes((seed * 7 + index) % 251 for index in range(251))
    return (block * (size // 251 + 1))[:size]


def rounds(count):
    number = 0
    while not count or number < count:
        yield number
        number += 1
        print(f"done {number}", flush=True)
        if not count:
            time.sleep(0.02)


def receive(net, device, folder, count):
    handle = ctypes.create_string_buffer(HANDLE)
    listener = P()
    net.call("listen", net.context, device, handle, ctypes.byref(listener))
    (folder / "handle.new").write_bytes(handle.raw)
    (folder / "handle.new").rename(folder / "handle")
    communicator = net.again("accept", listener)
    memory, mhandle = net.memory(communicator, GROUP * ROOM)
    compared, flushed = 0, 0
    for number in rounds(count):
        size = SIZES[number % len(SIZES)]
        group = GROUP if number % 2 and size <= 65536 else 1
        data = (P * group)(*[ctypes.addressof(memory) + index * ROOM for index in range(group)])
        capacities, tags = (SIZE * group)(*[ROOM] * group), (INT * group)(*range(group))
        mhandles, sizes = (P * group)(*[mhandle] * group), (INT * group)()
        request = net.again("irecv", communicator, group, data, capacities, tags, mhandles, None)
        net.finish(request, sizes)
        flush = P()
        net.call("iflush", communicator, group, data, sizes, mhandles, ctypes.byref(flush))
        if flush.value:
            net.finish(flush)
            flushed += 1
        for index in range(group):
            wanted = pattern(number + index, size)
            found = ctypes.string_at(data[index], size)
            if sizes[index] != size or found != wanted:
                sys.exit(f"round {number}: {sizes[index]} bytes of {size}, and {'equal' if found == wanted else 'other'} ones")
            compared += 1
    print(f"compared {compared} flushed {flushed}", flush=True)
    net.call("deregMr", communicator, mhandle)
    net.call("closeRecv", communicator)
    net.call("closeListen", listener)


def send(net, device, folder, count):
    while not (folder / "handle").exists():
        time.sleep(0.01)
    handle = ctypes.create_string_buffer((folder / "handle").read_bytes(), HANDLE)
    communicator, unused = P(), P()
    while not communicator.value:
        net.call("connect", net.context, device, handle, ctypes.byref(communicator), ctypes.byref(unused))
    memory, mhandle = net.memory(communicator, GROUP * ROOM)
    for number in rounds(count):
        size = SIZES[number % len(SIZES)]
        group = GROUP if number % 2 and size <= 65536 else 1
        requests = []
        for index in range(group):
            at = ctypes.addressof(memory) + index * ROOM
            ctypes.memmove(at, pattern(number + index, size), size)
            requests.append(net.again("isend", communicator, at, size, index, mhandle, None))
        for request in requests:
            net.finish(request)
    net.call("deregMr", communicator, mhandle)
    net.call("closeSend", communicator)


def main():
    role, folder, count, merged = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    net = Transport()
    for device in range(net.devices()):
        found = net.properties(device)
        print(f"device {found.name.decode()} {(found.pciPath or b'').decode()} {found.speed} {found.maxRecvs} {found.ptrSupport}", flush=True)
    device = 0
    if merged > 1:
        device = net.merge(merged)
        found = net.properties(device)
        print(f"merged {found.name.decode()} {found.speed} {found.vProps.ndevs}", flush=True)
    (receive if role == "receiver" else send)(net, device, folder, count)
    net.call("finalize", net.context)


main()
