"""Hosts for cases: network namespaces with a /sys of their own, and cables between them."""

import json
import subprocess
import sys

LIMIT = 60


class Failure(Exception):
    """Why a case fails."""


class Host:
    """A network namespace with a /sys of its own."""

    def __init__(self):
        script = "mount -t sysfs sysfs /sys && ip link set lo up && echo ready && exec sleep infinity"
        self.holder = subprocess.Popen(
            ["unshare", "--net", "--mount", "sh", "-c", script], stdout=subprocess.PIPE, text=True
        )
        if self.holder.stdout.readline() != "ready\n":
            sys.exit("no network namespace with a /sys of its own can be made here")

    def words(self, *words):
        return ["nsenter", "-t", str(self.holder.pid), "-n", "-m", *map(str, words)]

    def run(self, *words, ok=True):
        done = subprocess.run(self.words(*words), capture_output=True, text=True, timeout=LIMIT)
        if ok and done.returncode != 0:
            raise Failure(f"{' '.join(map(str, words))}: {done.stdout} {done.stderr}")
        return done

    def mac(self, netdev):
        return json.loads(self.run("ip", "-j", "link", "show", netdev).stdout)[0]["address"]

    def end(self):
        self.holder.kill()
        self.holder.wait()


def cable(near, near_name, far, far_name, mtu):
    """A veth pair, whose ends are down."""
    subprocess.run(
        ["ip", "link", "add", near_name, "mtu", str(mtu), "netns", str(near.holder.pid), "type", "veth", "peer"]
        + ["name", far_name, "mtu", str(mtu), "netns", str(far.holder.pid)],
        check=True,
    )
