//! Errors of verbs and of rdma_cm (the `ibv_*(3)` and `rdma_*(3)` manual pages), by errno.

use crate::{Entry, Table, row};

/// The numbers of Linux on most processors (`errno(3)`).
pub const TABLE: Table = Table { kind: "errno", word: "errno", prefix: "E", entries: ENTRIES };

const ENTRIES: &[Entry] = &[
    row(
        1,
        "EPERM",
        "not permitted",
        "an object of another protection domain, or a right that the process lacks",
        "use objects of one PD together",
    ),
    row(
        2,
        "ENOENT",
        "there is none",
        "ibv_start_poll and ibv_next_poll: no completion, no error; elsewhere no such key",
        "poll again later",
    ),
    row(
        5,
        "EIO",
        "the device is of no use here",
        "a device inherited over fork(), a completion queue that overran, or a bug of the provider",
        "open the device anew in the child; make completion queues larger",
    ),
    row(
        6,
        "ENXIO",
        "the device is gone",
        "connection management: an id whose device was removed (RDMA_CM_EVENT_DEVICE_REMOVAL)",
        "destroy the id, and make another",
    ),
    row(
        9,
        "EBADF",
        "no such descriptor",
        "ibv_reg_dmabuf_mr: the descriptor is closed or never was one (UCX asks with -1 whether the device knows dma-bufs); \
         ibv_open_xrcd: the file is not open",
        "pass the descriptor of an open dma-buf or file",
    ),
    row(11, "EAGAIN", "not now", "a resource is in use or short for a moment", "try again; look at ulimit -a"),
    row(
        12,
        "ENOMEM",
        "no room",
        "ibv_post_send, ibv_post_recv: the queue is full; ibv_create_*, ibv_reg_mr: the device has no more of them, or \
         (on cards) RLIMIT_MEMLOCK is too small",
        "poll completions before posting more, signal some sends, make queues larger; free what is not used",
    ),
    row(13, "EACCES", "not permitted", "a right that the process lacks", "check the rights of the device files"),
    row(
        14,
        "EFAULT",
        "memory that is not there",
        "ibv_reg_mr: an address that is not mapped, or is read-only where a right to write is asked for; ibv_post_send: \
         inline data that is not there",
        "register memory that is mapped, writable unless only IBV_ACCESS_REMOTE_READ is asked for",
    ),
    row(
        16,
        "EBUSY",
        "something uses it",
        "ibv_destroy_*, ibv_dealloc_*, ibv_dereg_mr: other objects were made from it and live",
        "destroy in the order queue pairs, SRQs, CQs, MWs, MRs, AHs, PDs, channels, device",
    ),
    row(
        19,
        "ENODEV",
        "no such device",
        "the interface behind the device is gone, or URXE_NETDEV names none; rdma_bind_addr, rdma_resolve_addr: no device \
         has the address",
        "check URXE_NETDEV and `ip link`; put a device on the interface that has the address (--netdev)",
    ),
    row(
        22,
        "EINVAL",
        "an argument is wrong",
        "ibv_modify_qp: a missing, needless or impossible attribute, or no such transition; ibv_post_*: wrong state, \
         too many sges, too much inline data; ibv_create_*: more than the device has (ibv_query_device)",
        "run with URXE_EXPLAIN=1, which says which argument",
    ),
    row(
        38,
        "ENOSYS",
        "the operation does not exist",
        "the provider or the kernel interface has no such operation",
        "check what ibv_query_device_ex announces",
    ),
    row(
        61,
        "ENODATA",
        "no such entry",
        "an empty row of the GID table",
        "see ibv_devinfo -v for the rows that there are",
    ),
    row(
        95,
        "EOPNOTSUPP",
        "not supported",
        "an operation, queue pair type or flag that this device does not have",
        "check what ibv_query_device_ex announces, and docs/reference/features.md",
    ),
    row(
        97,
        "EAFNOSUPPORT",
        "no such family of addresses",
        "connection management: neither AF_INET nor AF_INET6; AF_IB does not exist on RoCE",
        "use an IP address",
    ),
    row(
        98,
        "EADDRINUSE",
        "the port is taken",
        "rdma_bind_addr, rdma_listen: another id, perhaps of another process, has the port",
        "end the other program, or choose another port; port 0 is any that is free",
    ),
    row(
        99,
        "EADDRNOTAVAIL",
        "the port or address cannot be had",
        "rdma_bind_addr: the port is taken at one of the addresses that the wildcard stands for, or none is free",
        "end the other program, choose another port, or bind to one address",
    ),
    row(
        101,
        "ENETUNREACH",
        "no way there",
        "rdma_resolve_addr: no route leads to the address; to RTR, ibv_create_ah: the device's interface is down",
        "check the address and `ip route get ADDRESS`; `ip link set IF up`, and wait for IBV_EVENT_PORT_ACTIVE",
    ),
    row(
        107,
        "ENOTCONN",
        "not connected",
        "connection management: the connection has ended, or was never made",
        "connect first",
    ),
    row(
        110,
        "ETIMEDOUT",
        "no answer",
        "connection management: the other side did not answer",
        "check that it listens, and that UDP port 4791 passes both ways",
    ),
    row(
        111,
        "ECONNREFUSED",
        "refused",
        "connection management: nobody listens there",
        "start the listening side first",
    ),
];
