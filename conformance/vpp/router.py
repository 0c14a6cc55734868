"""VPP between two hosts, as conformance/vpp/run starts it."""

import contextlib
import os
import re
import signal
import subprocess
import time

from netns import LIMIT, Failure, Host, cable

# Hardware addresses are VPP's own, made up at each start.
ADDRESS = {"v0": "10.77.1.11", "w0": "10.77.2.11"}
PEER = {"v1": "10.77.1.2", "w1": "10.77.2.2"}


def check(condition, reason):
    if not condition:
        raise Failure(reason)


class Network:
    """VPP's host between two others: v1 - v0 VPP w0 - w1."""

    def __init__(self, mtu):
        self.vpp, self.left, self.right = Host(), Host(), Host()
        for name, host in (("v", self.left), ("w", self.right)):
            near, far = f"{name}0", f"{name}1"
            cable(self.vpp, near, host, far, mtu)
            for owner, netdev in ((self.vpp, near), (host, far)):
                # The kernel's own frames are not to be counted, and VPP takes frames as they are on a cable.
                if owner is self.vpp:
                    owner.run("sh", "-c", f"echo 1 >/proc/sys/net/ipv6/conf/{netdev}/disable_ipv6", ok=False)
                owner.run("ethtool", "-K", netdev, *"tx off rx off tso off gso off gro off".split(), ok=False)
                owner.run("ip", "link", "set", netdev, "up")
            number = 1 if name == "v" else 2
            host.run("ip", "address", "add", f"10.77.{number}.2/24", "dev", far)
            host.run("ip", "address", "add", f"fd77:{number}::2/64", "dev", far, "nodad")
            host.run("ip", "route", "add", "10.77.0.0/16", "via", f"10.77.{number}.11")
            # The device has addresses that nobody uses.
            self.vpp.run("ip", "address", "add", f"10.78.{number}.1/24", "dev", near)

    def end(self):
        for host in (self.vpp, self.left, self.right):
            host.end()


class Vpp:
    """A running VPP."""

    def __init__(self, options, network, folder, workers=0, data_size=2048, sleep=200, raw="packet"):
        self.build, self.folder, self.network, self.names = options.vpp, folder, network, {}
        plugins = next(self.build.glob("lib/*/vpp_plugins"))
        self.socket = folder / "cli.sock"
        cpu = f"cpu {{ workers {workers} }}" if workers else ""
        # Between two turns of the main thread: the processors are few.
        sleep = f"poll-sleep-usec {sleep}" if sleep else ""
        conf = folder / "vpp.conf"
        conf.write_text(
            f"""unix {{ nodaemon nosyslog nobanner cli-listen {self.socket} runtime-dir {folder} {sleep} }}
api-segment {{ prefix urxe{os.getpid()} }}
statseg {{ socket-name {folder}/stats.sock size 16m page-size 4k }}
memory {{ main-heap-size 512M main-heap-page-size 4k }}
buffers {{ buffers-per-numa 65536 page-size 4k default data-size {data_size} }}
{cpu}
plugins {{
  path {plugins}
  plugin default {{ disable }}
  plugin rdma_plugin.so {{ enable }}
  plugin ping_plugin.so {{ enable }}
  plugin af_packet_plugin.so {{ enable }}
}}
"""
        )
        self.words = [options.bin / "urxe", "run", "--netdev", "v0,w0", "--personality", "mlx5"]
        self.words += ["--raw", raw, "--", self.build / "bin/vpp", "-c", conf]
        self.start()

    def start(self):
        self.log = (self.folder / "log").open("w+")
        self.process = subprocess.Popen(
            self.network.vpp.words(*self.words), stdout=self.log, stderr=self.log, start_new_session=True
        )
        deadline = time.monotonic() + LIMIT
        while not self.socket.exists() or self.cli("show version", ok=False).returncode != 0:
            check(self.process.poll() is None and time.monotonic() < deadline, f"VPP did not start: {self.said()}")
            time.sleep(0.1)

    def said(self):
        return " / ".join((self.folder / "log").read_text().splitlines()[-5:])

    def cli(self, command, ok=True):
        words = [self.build / "bin/vppctl", "-s", self.socket, *command.split()]
        done = subprocess.run(self.network.vpp.words(*words), capture_output=True, text=True, timeout=LIMIT)
        if ok:
            check(self.process.poll() is None, f"VPP ended at `{command}`: {self.said()}")
            wrong = re.search(r"failed|error|unknown|not found|cannot", done.stdout, re.I)
            check(done.returncode == 0 and not (wrong and not command.startswith("show")), f"{command}: {done.stdout}")
        return done

    def interface(self, netdev, options="mode ibv", name=None):
        name = self.names[netdev] = name or f"rdma-{netdev}"
        self.cli(f"create interface rdma host-if {netdev} name {name} {options}")
        self.address(name, netdev)
        return name

    def host_interface(self, netdev):
        """By VPP's own driver of packet sockets."""
        self.cli(f"create host-interface name {netdev} cksum-gso-disable")
        self.names[netdev] = f"host-{netdev}"
        self.address(f"host-{netdev}", netdev)

    def address(self, name, netdev):
        number = 1 if netdev == "v0" else 2
        self.cli(f"set interface ip address {name} {ADDRESS[netdev]}/24")
        self.cli(f"set interface ip address {name} fd77:{number}::11/64")
        self.cli(f"set interface state {name} up")

    def counters(self, name):
        found = dict.fromkeys(("rx packets", "rx bytes", "tx packets", "tx bytes", "drops"), 0)
        for line in self.cli(f"show interface {name}").stdout.splitlines():
            match = re.search(r"(rx packets|rx bytes|tx packets|tx bytes|drops)\s+(\d+)", line)
            if match:
                found[match[1]] = int(match[2])
        return found

    def end(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.log.close()
