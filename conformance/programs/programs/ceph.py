"""Ceph with its messenger over RDMA: a monitor, a manager and an OSD on hosts of their own, and a client; objects are compared."""

import os
import pathlib
import re
import uuid

from hosts import Network, check, wait_for
from store import package_version

TITLE = "Ceph, ms_type async+rdma"
ORIGIN = "Debian"
COMPARED = "objects, by the client"
POOL, OBJECT = "objects", 8 << 20
#: Row 1 of the GID table is RoCE v2 over IPv4.
CONFIGURATION = """\
[global]
fsid = {fsid}
mon_host = [v2:{monitor}:3300,v1:{monitor}:6789]
public_network = 10.80.0.0/24
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
ms_type = async+rdma
ms_async_rdma_device_name = urxe0
ms_async_rdma_gid_idx = 1
ms_async_rdma_buffer_size = 65536
ms_async_rdma_receive_buffers = 1024
ms_async_rdma_send_buffers = 512
ms_async_rdma_receive_queue_len = 512
ms_async_op_threads = 1
admin_socket = {folder}/$name.asok
run_dir = {folder}
crash_dir = {folder}
log_to_stderr = true
err_to_stderr = true
log_file =
mon_cluster_log_file =
mon_data = {folder}/mon
mgr_data = {folder}/mgr
osd_data = {folder}/osd
mon_allow_pool_size_one = true
mon_data_avail_warn = 1
mon_data_avail_crit = 1
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 8
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
osd_memory_target = 939524096
bluestore_block_size = 8589934592
bluestore_block_create = true
mgr_initial_modules =
"""


def prepare(store):
    for package in ("ceph-mon", "ceph-mgr", "ceph-osd", "ceph-common"):
        package_version(package)


def version(store):
    return package_version("ceph-osd")


class Cluster:
    def __init__(self, net):
        self.net, self.folder = net, pathlib.Path(net.scratch.name) / "ceph"
        self.monitor_host, self.manager_host, self.osd_host, self.client_host = net.hosts
        for name in ("mon", "mgr", "osd"):
            (self.folder / name).mkdir(parents=True)
        self.configuration, fsid, osd = self.folder / "ceph.conf", uuid.uuid4(), uuid.uuid4()
        self.configuration.write_text(CONFIGURATION.format(fsid=fsid, monitor=self.monitor_host.address, folder=self.folder))
        address = self.monitor_host.address
        for words in (["monmaptool", "--create", "--fsid", fsid, "--addv", "a", f"[v2:{address}:3300,v1:{address}:6789]",
                       self.folder / "monmap"],
                      ["ceph-mon", "-c", self.configuration, "--mkfs", "-i", "a", "--monmap", self.folder / "monmap"]):
            self.monitor_host.run(*words, urxe=False)
        self.monitor = self.daemon(self.monitor_host, "ceph-mon", "a")
        wait_for(lambda: self.monitor_host.listens(3300) or not self.monitor.running(), 60, "the monitor listens")
        self.manager = self.daemon(self.manager_host, "ceph-mgr", "x")
        self.ceph("osd", "new", osd, "0")
        self.osd_host.run("ceph-osd", "-c", self.configuration, "-i", "0", "--mkfs", "--osd-uuid", osd)
        self.start_osd()
        self.ceph("osd", "pool", "create", POOL, "8", "8")
        self.ceph("osd", "pool", "application", "enable", POOL, "test")

    def daemon(self, host, program, name):
        return host.start(program, "-c", self.configuration, "-i", name, "-f", env={"URXE_EXPLAIN": 1})

    def start_osd(self):
        self.osd = self.daemon(self.osd_host, "ceph-osd", "0")
        self.wait_osd(1)

    def wait_osd(self, count):
        def look():
            for program in (self.monitor, self.manager):
                check(program.running(), f"has ended: {program.last_lines()}")
            return re.search(rf"\b{count} up", self.ceph("osd", "stat"))

        wait_for(look, 120, f"{count} OSDs are up")

    def ceph(self, *words):
        return self.client_host.run("ceph", "-c", self.configuration, "--connect-timeout", 60, *words, limit=90)

    def start(self, *words):
        """Starts rados on the client's host."""
        return self.client_host.start("rados", "-c", self.configuration, "-p", POOL, *words, env={"URXE_EXPLAIN": 1})

    def rados(self, *words, limit=120):
        return self.start(*words).success(limit)

    def put(self, name):
        """Writes an object of random bytes, which are returned."""
        file = self.folder / f"{name}.put"
        file.write_bytes(os.urandom(OBJECT))
        self.rados("put", name, file)
        return file.read_bytes()

    def compare(self, name, data):
        file = self.folder / f"{name}.get"
        self.rados("get", name, file)
        check(file.read_bytes() == data, f"{name} has come back changed")


def objects(store):
    """Objects written and read back; all daemons and the client speak over urxe."""
    with Network(4) as net:
        cluster = Cluster(net)
        objects = {name: cluster.put(name) for name in ("one", "other")}
        for name, data in objects.items():
            cluster.compare(name, data)
        check(set(cluster.rados("ls").split()) >= set(objects), "objects are missing from the list")
        for host in net.hosts[:3]:
            check(re.search(r"RC +RTS", host.status()), f"no queue pair of {host.name} is in RTS")


def bench(store):
    """Ceph's own benchmark; its reader compares what its writer has written."""
    with Network(4) as net:
        cluster = Cluster(net)
        text = cluster.rados("bench", 5, "write", "-b", 1 << 20, "-t", 8, "--no-cleanup")
        check(re.search(r"Total writes made: +[1-9]", text), text[-300:])
        text = cluster.rados("bench", 5, "seq", "-t", 8)
        check(re.search(r"Total reads made: +[1-9]", text), text[-300:])


def killed_osd(store):
    """An OSD dies while it is written to and comes back: the client goes on, and nothing that was acknowledged is lost."""
    with Network(4) as net:
        cluster = Cluster(net)
        data = cluster.put("before")
        writer = cluster.start("bench", 20, "write", "-b", 65536, "-t", 4, "--no-cleanup")
        net.hosts[3].busy()
        cluster.osd.kill()
        cluster.ceph("osd", "down", "0")
        cluster.wait_osd(0)
        cluster.start_osd()
        check(re.search(r"Total writes made: +[1-9]", writer.success(180)), writer.last_lines())
        cluster.compare("before", data)
        cluster.compare("after", cluster.put("after"))


CASES = {"objects": objects, "bench": bench, "killed-osd": killed_osd}
