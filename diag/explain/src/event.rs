//! Asynchronous events (`enum ibv_event_type`; IBA 11.6.3, `ibv_get_async_event(3)`).

use crate::{Entry, Table, row};

/// The asynchronous events.
pub const TABLE: Table = Table { kind: "asynchronous event", word: "event", prefix: "IBV_EVENT_", entries: ENTRIES };

const ENTRIES: &[Entry] = &[
    row(
        0,
        "IBV_EVENT_CQ_ERR",
        "a completion queue has lost a completion and is of no use any more",
        "more completions than its size before they were polled",
        "make it as large as all queues that complete there together, or poll more often",
    ),
    row(
        1,
        "IBV_EVENT_QP_FATAL",
        "the queue pair failed and is in ERR",
        "its completion queue overran, or its own buffers are not usable",
        "look at its completions; go through RESET to use it again",
    ),
    row(
        2,
        "IBV_EVENT_QP_REQ_ERR",
        "a peer's request was invalid; the queue pair is in ERR",
        "an operation that qp_access_flags do not allow, a misaligned atomic, too many READs at once",
        "set qp_access_flags and max_dest_rd_atomic to what the peer does",
    ),
    row(
        3,
        "IBV_EVENT_QP_ACCESS_ERR",
        "a peer's request was refused by the memory it names; the queue pair is in ERR",
        "wrong or deregistered rkey, another PD, missing IBV_ACCESS_REMOTE_*, out of bounds",
        "tell the peer the right addr, length and rkey; register with the access that it needs",
    ),
    row(
        4,
        "IBV_EVENT_COMM_EST",
        "a first packet came while the queue pair was in RTR",
        "the peer is in RTS already",
        "nothing; or move the queue pair to RTS now",
    ),
    row(5, "IBV_EVENT_SQ_DRAINED", "in SQD, nothing is outstanding any more", "a modify to SQD", "nothing"),
    row(
        6,
        "IBV_EVENT_PATH_MIG",
        "packets of the queue pair take its alternate path now",
        "no answer after the last retry, the interface is down, the peer did it first, or a modify to IBV_MIG_MIGRATED",
        "give an alternate path and IBV_MIG_REARM, to be armed again",
    ),
    row(
        7,
        "IBV_EVENT_PATH_MIG_ERR",
        "the peer takes a path that this queue pair does not have",
        "the ends were given alternate paths that do not belong together",
        "give each end the addresses of the other's alternate path, in reverse",
    ),
    row(
        8,
        "IBV_EVENT_DEVICE_FATAL",
        "the device failed",
        "an error of the device itself, or its removal",
        "close everything and open the device anew",
    ),
    row(9, "IBV_EVENT_PORT_ACTIVE", "the port is up", "the interface came up", "nothing"),
    row(10, "IBV_EVENT_PORT_ERR", "the port is down", "the interface went down", "bring the interface up"),
    row(11, "IBV_EVENT_LID_CHANGE", "the LID changed", "a subnet manager; not on RoCE", "exchange addresses anew"),
    row(
        12,
        "IBV_EVENT_PKEY_CHANGE",
        "the P_Key table changed",
        "a subnet manager; not on RoCE",
        "read the table again",
    ),
    row(13, "IBV_EVENT_SM_CHANGE", "another subnet manager", "not on RoCE", "nothing"),
    row(
        14,
        "IBV_EVENT_SRQ_ERR",
        "a shared receive queue failed",
        "an error of the device itself",
        "make a new one, and new queue pairs",
    ),
    row(
        15,
        "IBV_EVENT_SRQ_LIMIT_REACHED",
        "a shared receive queue holds fewer receives than its limit",
        "messages came and no receives were posted",
        "post receives, then arm the limit again (ibv_modify_srq)",
    ),
    row(
        16,
        "IBV_EVENT_QP_LAST_WQE_REACHED",
        "a queue pair in ERR takes nothing from its SRQ any more",
        "it went to ERR",
        "it may be destroyed or reset without losing receives of the SRQ",
    ),
    row(17, "IBV_EVENT_CLIENT_REREGISTER", "the subnet manager forgot registrations", "not on RoCE", "register again"),
    row(
        18,
        "IBV_EVENT_GID_CHANGE",
        "the GID table changed",
        "an address of the interface was added or removed",
        "read the table again; address vectors with a stale GID must be made anew",
    ),
    row(19, "IBV_EVENT_WQ_FATAL", "a work queue failed", "an error of the device itself", "make a new one"),
];
