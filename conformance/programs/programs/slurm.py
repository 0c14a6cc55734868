"""Slurm with four nodes: srun of an MPI job over all of them, and a node that dies."""

import os
import pathlib
import re
import sys

import mpi
from hosts import BIN, Network, check, wait_for
from programs import mpich
from store import package_version

TITLE = "Slurm, srun of MPICH"
ORIGIN = "Debian"
COMPARED = "allreduce, on each rank"
NODES, RANKS = 4, 2


def prepare(store):
    for package in ("slurm-wlm", "munge"):
        package_version(package)
    mpich.prepare(store)


def version(store):
    return package_version("slurm-wlm")


CONFIGURATION = """\
ClusterName=test
SlurmctldHost=switch
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
MpiDefault=pmi2
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdParameters=config_overrides
SlurmdTimeout=5
SlurmctldTimeout=60
InactiveLimit=0
KillWait=2
MessageTimeout=30
ReturnToService=2
SchedulerType=sched/builtin
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
NodeName=node[0-{last}] CPUs={ranks} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Cluster:
    def __init__(self, store, net):
        self.net, folder = net, pathlib.Path(net.scratch.name)
        (folder / "key").write_bytes(os.urandom(128))
        (folder / "key").chmod(0o400)
        os.chmod(folder, 0o755)
        (folder / "state").mkdir()
        configuration = folder / "slurm.conf"
        configuration.write_text(CONFIGURATION.format(folder=folder, last=NODES - 1, ranks=RANKS))
        self.env = {"SLURM_CONF": configuration}
        self.job_env = self.env | mpich.make(store).variables
        socket = folder / "munge.socket"
        words = [f"--{name}={folder / name}" for name in ("pid-file", "log-file", "seed-file")]
        words += ["--foreground", "--force", f"--socket={socket}", f"--key-file={folder / 'key'}"]
        net.switch.start("munged", *words, urxe=False)
        wait_for(socket.exists, 30, "munged")
        self.controller = net.switch.start("slurmctld", "-D", "-f", configuration, urxe=False)
        self.nodes = [host.start("slurmd", "-D", "-f", configuration, urxe=False) for host in net.hosts]
        self.wait_idle(NODES)

    def sinfo(self):
        return self.net.switch.run("sinfo", "--noheader", "--Node", "--format=%N %t", urxe=False, env=self.env)

    def wait_idle(self, count):
        def look():
            for program in (self.controller, *self.nodes[:count]):
                check(program.running(), f"has ended: {program.last_lines()}")
            return len(re.findall(" idle$", self.sinfo(), re.M)) >= count

        wait_for(look, 120, f"{count} nodes are idle")

    def srun(self, nodes, *program):
        """As a user would start it: each task is below `urxe run`."""
        words = ["srun", "-N", nodes, f"--ntasks-per-node={RANKS}", "--mpi=pmi2", BIN / "urxe", "run", "--netdev", "eth0", "--"]
        return self.net.switch.start(*words, sys.executable, *program, urxe=False, env=self.job_env)


def allreduce(store):
    """Four nodes with two ranks each; what they get is compared."""
    with Network(NODES) as net:
        text = Cluster(store, net).srun(NODES, mpi.EXCHANGE, "allreduce", 65536).success(180)
        check("done allreduce" in text and re.search(mpi.UCX_USED, text), text[-300:])


def killed_node(store):
    """The job fails, and the next one runs on the nodes that are left."""
    with Network(NODES) as net:
        cluster = Cluster(store, net)
        job = cluster.srun(NODES, "-c", mpi.FOR_EVER, mpi.EXCHANGE.parent)
        net.hosts[1].busy()
        # The daemon of the last node and its tasks.
        for name in ("slurmd", "slurmstepd", "python3"):
            for pid in net.hosts[-1].processes_of(name):
                os.kill(pid, 9)
        check(job.end(180) != 0, f"the job ended well: {job.last_lines()}")
        cluster.wait_idle(NODES - 1)
        text = cluster.srun(NODES - 1, mpi.EXCHANGE, "allreduce", 65536).success(180)
        check("done allreduce" in text, f"the next job: {text[-300:]}")


CASES = {"allreduce": allreduce, "killed-node": killed_node}
