"""valkey's server, client and benchmark over RDMA, and its own RDMA tests, built from its sources."""

import hashlib
import os
import random
import re
import shutil
import subprocess

from hosts import Network, Skipped, check, wait_for

TITLE = "valkey, rdma"
ORIGIN = "Debian's source, or VALKEY_SOURCE"
COMPARED = "values, and by its own tests; its benchmark, not"
PORT = 6379
VERSION = "9.1.2"
SHA256 = "8e8557da7426a51b4e0fb514a65ef6241dc7c85cb408243af389070abf379cec"


def prepare(store):
    source = store.source(f"valkey-{VERSION}-source", "VALKEY_SOURCE", f"v/valkey/valkey_{VERSION}.orig.tar.gz", SHA256)

    def build(new):
        tree = new / "tree"
        shutil.copytree(source, tree, symlinks=True)
        jobs = f"-j{os.cpu_count()}"
        for words in (["make", jobs, "-C", tree, "BUILD_RDMA=yes", "MALLOC=libc", "OPTIMIZATION=-O1"],
                      ["make", "-C", tree / "tests/rdma"]):
            done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if done.returncode != 0:
                raise Skipped(f"does not build: {' / '.join(done.stdout.splitlines()[-3:])}")
        for path in ("src/valkey-server", "src/valkey-cli", "src/valkey-benchmark", "tests/rdma/rdma-test"):
            shutil.copy2(tree / path, new)
        shutil.rmtree(tree)

    built(store, build)


def built(store, make=None):
    return store.once("valkey-given-built" if "VALKEY_SOURCE" in os.environ else f"valkey-{VERSION}-built", make)


def version(store):
    text = subprocess.check_output([built(store) / "valkey-server", "--version"], text=True)
    return re.search(r"v=(\S+)", text)[1]


class Pair:
    """A server on one host, and clients on the other."""

    def __init__(self, store, net):
        self.net, self.bin = net, built(store)
        self.address = net.hosts[0].address
        self.start()

    def start(self):
        self.server = self.net.hosts[0].start(
            self.bin / "valkey-server", "--port", 0, "--rdma-port", PORT, "--rdma-bind", self.address, "--protected-mode", "no",
            "--save", "", "--appendonly", "no", env={"URXE_EXPLAIN": 1})
        wait_for(lambda: self.net.hosts[0].listens_by_cm(PORT), 30, "the server listens")

    def words(self, program):
        return [self.bin / program, "--rdma", "-h", self.address, "-p", PORT]

    def cli(self, *words, **more):
        return self.net.hosts[1].run(*self.words("valkey-cli"), *words, **more)


def own_tests(store):
    with Network() as net:
        pair = Pair(store, net)
        net.hosts[1].run(pair.bin / "rdma-test", "--thread", 4, "-h", pair.address, limit=180)


def values(store):
    """Values of many lengths, set and read by connections of their own."""
    with Network() as net:
        pair = Pair(store, net)
        dice = random.Random(1)
        for length in (1, 100, 5000, 70_000, 1 << 20, 16 << 20):
            data = dice.randbytes(length).hex().encode()
            path = net.scratch.name + "/value"
            with open(path, "wb") as file:
                file.write(data)
            said = pair.net.hosts[1].run("sh", "-c", 'exec "$@" <value', "sh", *pair.words("valkey-cli"), "-x", "set", "key")
            check(said.strip() == "OK", f"set {length}: {said[:200]}")
            got = pair.cli("get", "key").strip()
            check(hashlib.sha1(got.encode()).digest() == hashlib.sha1(data).digest(), f"{length} bytes came back otherwise")


def benchmark(store):
    with Network() as net:
        pair = Pair(store, net)
        text = net.hosts[1].run(*pair.words("valkey-benchmark"), "-t", "set,get,lpush,lrange_100", "-n", 2000, "-c", 20, "-d", 3000,
                                "-P", 4, "-q", limit=180)
        check(len(re.findall(r"requests per second", text)) >= 4, f"said: {text[-300:]}")


def kill_server(store):
    """The client ends with an error; a new server serves new clients."""
    with Network() as net:
        pair = Pair(store, net)
        client = net.hosts[1].start(*pair.words("valkey-benchmark"), "-t", "set", "-n", 100_000_000, "-c", 4, "-d", 1000, "-q",
                                    env={"URXE_EXPLAIN": 1})
        net.hosts[1].busy()
        pair.server.kill()
        check(client.end(120) != 0, f"the client ended well: {client.last_lines()}")
        client.explained("RETRY_EXC_ERR", "answered before", "process ended")
        pair.start()
        check(pair.cli("set", "key", "value").strip() == "OK", "the new server does not answer")


def kill_client(store):
    """The server goes on with other clients."""
    with Network() as net:
        pair = Pair(store, net)
        client = net.hosts[1].start(*pair.words("valkey-benchmark"), "-t", "set", "-n", 100_000_000, "-c", 4, "-d", 1000, "-q")
        net.hosts[0].busy()
        client.kill()
        check(pair.cli("set", "key", "value").strip() == "OK", "the server does not answer another client")
        check(pair.cli("get", "key").strip() == "value", "the value is another")


CASES = {"own-tests": own_tests, "values": values, "benchmark": benchmark, "kill-server": kill_server, "kill-client": kill_client}
