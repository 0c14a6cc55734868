"""tcpdump over libpcap's rdmasniff, which Debian's libpcap leaves out: libpcap is built from Debian's source, with it."""

import os
import re
import signal
import subprocess

from hosts import Network, Skipped, check, wait_for
from store import package_version

TITLE = "tcpdump, libpcap's rdmasniff"
ORIGIN = "Debian, libpcap from its source"
COMPARED = "packets of both directions are seen"
#: Of ibv_rc_pingpong.
PORT = 18515
VERSION = "1.10.3"
SHA256 = "2a8885c403516cf7b0933ed4b14d6caa30e02052489ebd414dc75ac52e7559e6"


def build(store):
    """The folder of a libpcap.so.0.8 that has rdmasniff."""
    tree = store.source(f"libpcap-{VERSION}", "LIBPCAP_SOURCE", f"libp/libpcap/libpcap_{VERSION}.orig.tar.gz", SHA256)

    def make(new):
        for words in ([tree / "configure", "--quiet", "--enable-rdma", "--without-libnl", "--disable-dbus", "--disable-usb",
                       "--disable-bluetooth"], ["make", "--silent", "-j", "2", "libpcap.so"]):
            done = subprocess.run([str(word) for word in words], cwd=new, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True)
            if done.returncode != 0:
                raise Skipped(f"does not build: {' / '.join(done.stdout.splitlines()[-3:])}")
        # As Debian calls it.
        (new / "libpcap.so.0.8").symlink_to(f"libpcap.so.{VERSION}")

    return store.once(f"libpcap-{VERSION}-rdma", make)


def prepare(store):
    package_version("tcpdump")
    build(store)


def version(store):
    return f"{package_version('tcpdump')}, {VERSION}"


def sniff(client_words, server_words, least):
    """tcpdump beside one end of two processes that exchange packets."""

    def case(store):
        with Network() as net:
            near, far = net.hosts
            env = {"LD_LIBRARY_PATH": build(store), "URXE_LOOPBACK": "udp"}
            sniffer = near.start("tcpdump", "-i", "urxe0", "-Z", "root", "-n", "-l", "udp", "port", 4791, env=env)
            sniffer.says(r"listening on urxe0, link-type EN10MB", 60)
            server = far.start(*server_words)
            wait_for(lambda: far.listens(PORT), 60, "ibv_rc_pingpong listens")
            near.run(*client_words(far))
            server.success(60)
            roads = [rf"^\S+ IP {one.address}\.\d+ > {other.address}\.4791: UDP, length (\d+)$"
                     for one, other in ((near, far), (far, near))]
            for road in roads:
                sniffer.says(road, 60)
            for pid in near.processes_of("tcpdump"):
                os.kill(pid, signal.SIGINT)
            text = sniffer.success(60)
            for road in roads:
                lengths = [int(length) for length in re.findall(road, text, re.M)]
                check(len(lengths) >= least and max(lengths) <= 1472, f"{len(lengths)} of {road}: {sniffer.last_lines()}")

    return case


CASES = {
    "pingpong": sniff(lambda far: ["ibv_rc_pingpong", "-d", "urxe0", "-g", 1, "-n", 100, far.address],
                      ["ibv_rc_pingpong", "-d", "urxe0", "-g", 1, "-n", 100], 100),
}
