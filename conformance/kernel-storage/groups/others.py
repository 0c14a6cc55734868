"""Storage protocols of the guest's kernel that nobody in user space speaks over RDMA: what loads, and what listens."""

from peer import Skipped, check

TITLE = "SRP, RDS and 9p"


def begin(peer):
    pass


def loads(peer, *modules):
    peer.guest("modprobe", "-a", *modules)
    names = peer.guest("lsmod")
    for module in modules:
        check(f"\n{module.replace('-', '_')} " in names, f"{module} is not loaded")


def srp_target(peer):
    """Listens by rdma_cm."""
    peer.shell("grep -q configfs /proc/mounts || mount -t configfs none /sys/kernel/config")
    loads(peer, "target_core_mod", "ib_srpt")
    peer.shell("mkdir -p /sys/kernel/config/target/srpt; echo 5555 >/sys/kernel/config/target/srpt/discovery_auth/rdma_cm_port")
    peer.listens_in_guest(5555)
    raise Skipped("ib_srpt listens by rdma_cm")


def srp_initiator(peer):
    loads(peer, "ib_srp")
    check("rxe0" in peer.shell("ls /sys/class/infiniband_srp"), "ib_srp has no rxe0")
    raise Skipped("ib_srp loads, and has rxe0")


def rds(peer):
    loads(peer, "rds", "rds_rdma")
    raise Skipped("rds_rdma loads")


def nine_p(peer):
    loads(peer, "9pnet_rdma")
    raise Skipped("9pnet_rdma loads")


CASES = {"srp-target": srp_target, "srp-initiator": srp_initiator, "rds": rds, "9p": nine_p}
