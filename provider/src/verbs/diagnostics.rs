//! Why verbs are refused, for people: see [`urxe_diag::explain`].

use std::net::IpAddr;

use urxe_engine::ModifyError;
use urxe_engine::attr::AttrMask;
use urxe_engine::{Access, PostError, QpState, QpType, QueuePair};
use urxe_wire::{Gid, Lid};

use crate::kernel::Errno;
use urxe_diag::explain::with_reason;
use urxe_diag::fmt::{self, Range, Rights};
use urxe_diag::{Peer, Sender};
use urxe_runtime::host::DeviceHost;
use urxe_runtime::memory::maps::NotUsable;

/// Returns the attributes of a queue pair that explanations need.
pub(crate) fn peer(engine: &QueuePair<DeviceHost>, address: Option<IpAddr>) -> Peer {
    let attr = engine.attr();
    Peer {
        qp_type: engine.config().qp_type,
        state: engine.state(),
        qpn: attr.dest_qpn,
        address,
        timeout: engine.last_ack_timeout(),
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        path_mtu: attr.path_mtu.bytes(),
        rq_psn: attr.rq_psn,
        sq_psn: attr.sq_psn,
        q_key: attr.q_key,
    }
}

/// Returns the attributes of a queue pair that strict mode needs.
pub(crate) fn sender(engine: &QueuePair<DeviceHost>) -> Sender {
    let (config, attr) = (engine.config(), engine.attr());
    Sender { qpn: config.qpn, max_rd_atomic: attr.max_rd_atomic, sq_sig_all: config.sq_sig_all, state: engine.state() }
}

/// `ibv_modify_qp(3)`.
pub(crate) fn modify(qp_type: QpType, from: QpState, to: QpState, error: ModifyError) -> Errno {
    modify_of(|| format!("{qp_type:?}"), from, to, error)
}

/// `ibv_modify_qp(3)` of a raw packet queue pair.
pub(crate) fn modify_raw(from: QpState, to: QpState, error: ModifyError) -> Errno {
    modify_of(|| "RawPacket".to_owned(), from, to, error)
}

fn modify_of(qp_type: impl FnOnce() -> String, from: QpState, to: QpState, error: ModifyError) -> Errno {
    with_reason(Errno(libc::EINVAL), || {
        let way = format!("{} {}->{}", qp_type(), fmt::state(from), fmt::state(to));
        match error {
            ModifyError::NoTransition { .. } => (
                format!("{way}: there is no such transition"),
                "go RESET->INIT->RTR->RTS; from any state to RESET or ERR".to_owned(),
            ),
            ModifyError::Missing(mask) => {
                (format!("{way}: missing {mask}"), format!("set {} and add the flags to attr_mask", fields(mask)))
            }
            ModifyError::Unexpected(mask) => {
                (format!("{way}: {mask} cannot be given here"), "leave the flags out of attr_mask".to_owned())
            }
            ModifyError::CurrentState(state) => (
                format!("the queue pair is in {}, not in cur_qp_state", fmt::state(state)),
                "leave IBV_QP_CUR_STATE out of attr_mask".to_owned(),
            ),
            ModifyError::Value(mask) => {
                (format!("{way}: the value of {mask} is out of range"), format!("{} {}", fields(mask), range(mask)))
            }
        }
    })
}

/// Members of `struct ibv_qp_attr`, by flag.
const FIELDS: [(AttrMask, &str); 19] = [
    (AttrMask::STATE, "qp_state"),
    (AttrMask::CUR_STATE, "cur_qp_state"),
    (AttrMask::ACCESS_FLAGS, "qp_access_flags"),
    (AttrMask::PKEY_INDEX, "pkey_index"),
    (AttrMask::PORT, "port_num"),
    (AttrMask::QKEY, "qkey"),
    (AttrMask::AV, "ah_attr"),
    (AttrMask::PATH_MTU, "path_mtu"),
    (AttrMask::TIMEOUT, "timeout"),
    (AttrMask::RETRY_CNT, "retry_cnt"),
    (AttrMask::RNR_RETRY, "rnr_retry"),
    (AttrMask::RQ_PSN, "rq_psn"),
    (AttrMask::MAX_QP_RD_ATOMIC, "max_rd_atomic"),
    (AttrMask::MIN_RNR_TIMER, "min_rnr_timer"),
    (AttrMask::SQ_PSN, "sq_psn"),
    (AttrMask::MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic"),
    (AttrMask::DEST_QPN, "dest_qp_num"),
    (AttrMask::ALT_PATH, "alt_ah_attr"),
    (AttrMask::PATH_MIG_STATE, "path_mig_state"),
];

fn fields(mask: AttrMask) -> String {
    let names = FIELDS.iter().filter(|(bit, _)| mask.contains(*bit)).map(|(_, name)| *name);
    let names: Vec<_> = names.collect();
    if names.is_empty() { mask.to_string() } else { names.join(", ") }
}

/// Describes the legal values of an attribute.
const fn range(mask: AttrMask) -> &'static str {
    if mask.contains(AttrMask::TIMEOUT) || mask.contains(AttrMask::MIN_RNR_TIMER) {
        "is a code from 0 to 31"
    } else if mask.contains(AttrMask::RETRY_CNT) || mask.contains(AttrMask::RNR_RETRY) {
        "is from 0 to 7"
    } else if mask.contains(AttrMask::PATH_MTU) {
        "is one of IBV_MTU_256 to IBV_MTU_4096"
    } else if mask.contains(AttrMask::PORT) || mask.contains(AttrMask::AV) {
        "names port 1, the only one"
    } else if mask.contains(AttrMask::PKEY_INDEX) {
        "is 0, the only row of the P_Key table"
    } else if mask.contains(AttrMask::ALT_PATH) {
        "has port 1, the only one, row 0 of the P_Key table, and an alt_timeout of 31 at most"
    } else if mask.contains(AttrMask::PATH_MIG_STATE) {
        "is IBV_MIG_REARM where there is an alternate path, or IBV_MIG_MIGRATED"
    } else {
        "is at most what ibv_query_device announces"
    }
}

/// Attributes that `ibv_modify_qp(3)` does not know, or does not have here.
pub(crate) fn unknown_attributes(mask: AttrMask) -> Errno {
    with_reason(Errno(libc::EOPNOTSUPP), || (format!("attr_mask has {mask}"), "leave these bits out"))
}

/// An attribute of `ibv_modify_qp(3)` out of range.
pub(crate) fn value(mask: AttrMask) -> Errno {
    with_reason(Errno(libc::EINVAL), || (format!("{} is out of range", fields(mask)), format!("it {}", range(mask))))
}

/// A value that the device does not have: `what` is at most `most`.
pub(crate) fn at_most(errno: Errno, what: &str, given: impl std::fmt::Display, most: impl std::fmt::Display) -> Errno {
    with_reason(errno, || {
        (format!("{what} is {given}, the device has at most {most}"), "ask for less: see ibv_devinfo -v")
    })
}

/// A kind of objects of which the most are there already.
pub(crate) fn used_up(what: &str, most: u32) -> Errno {
    with_reason(Errno(libc::ENOMEM), || {
        (format!("{most} are there, which is {what}"), "destroy what is not used any more")
    })
}

/// An argument that is wrong for a reason of its own.
pub(crate) fn wrong(errno: Errno, why: &'static str, remedy: &'static str) -> Errno {
    with_reason(errno, || (why, remedy))
}

/// An object that a child of fork(2) inherited.
pub(crate) fn inherited() -> Errno {
    wrong(
        Errno(libc::EIO),
        "the device was opened by the parent process, before fork()",
        "open the device anew in the child; only its opener may use it",
    )
}

/// A device whose interface is gone, or in which something of ours has panicked.
pub(crate) fn failed() -> Errno {
    if urxe_diag::verbs::has_taken_out() {
        return wrong(Errno(libc::EIO), "URXE_FAULTS has taken the device out", "see how the program takes it");
    }
    wrong(
        Errno(libc::EIO),
        "the device has failed (IBV_EVENT_DEVICE_FATAL): its network interface is gone, or urxe has met a bug",
        "close the device; if the interface is there, report what the program printed",
    )
}

/// `ibv_import_device(3)` of a file that is no duplicate of one of this process'.
pub(crate) fn not_importable() -> Errno {
    wrong(
        Errno(libc::EOPNOTSUPP),
        "cmd_fd is no duplicate of the file of a device that is open in this process",
        "import in the process that opened the device; memory regions are addresses of one process",
    )
}

/// `ibv_post_send(3)`, `ibv_post_recv(3)`, `ibv_wr_complete(3)`.
pub(crate) fn post(errno: Errno, error: PostError) -> Errno {
    with_reason(errno, || match error {
        PostError::State(state) => (
            format!("the queue pair is in {}", fmt::state(state)),
            match state {
                QpState::Reset => "move it to INIT before posting receives, to RTS before posting sends",
                _ => "move it to RTS (ibv_modify_qp) before posting sends",
            },
        ),
        PostError::QueueFull => (
            "the queue is full: as many work requests are outstanding as max_send_wr or max_recv_wr".to_owned(),
            "poll completions first; requests without IBV_SEND_SIGNALED free their place only when a later signaled \
             one completes; or make the queue larger",
        ),
        PostError::TooManySge => (
            "num_sge is more than max_send_sge or max_recv_sge of the queue".to_owned(),
            "ask for more sges in ibv_create_qp, or use fewer",
        ),
        PostError::InlineTooLong => (
            "IBV_SEND_INLINE with more bytes than max_inline_data of the queue pair".to_owned(),
            "ask for more max_inline_data in ibv_create_qp, or send without IBV_SEND_INLINE",
        ),
        PostError::Length => (
            "the length is impossible: an atomic is 8 bytes, a FLUSH has none, a message at most 2^31".to_owned(),
            "correct the sge lengths",
        ),
        PostError::NoRecvQueue => (
            "the queue pair has no receive queue: it was made with an SRQ, or is of XRC".to_owned(),
            "post to the SRQ (ibv_post_srq_recv)",
        ),
        PostError::Operation => (
            "the operation is none of this queue pair type's, or not with these flags or this recipient".to_owned(),
            "UC has no READ, atomics or invalidate; UD only SEND, with an address handle; inline data cannot be read into",
        ),
    })
}

/// A send queue full of requests without a completion to come.
pub(crate) fn stuck(errno: Errno, most: u32) -> Errno {
    with_reason(errno, || {
        (
            format!("the send queue is full of {most} requests, all without IBV_SEND_SIGNALED: none ever completes"),
            "signal at least one request in each max_send_wr, or set sq_sig_all, and poll its completion",
        )
    })
}

/// `ibv_reg_mr(3)`: rights.
pub(crate) fn region_access(access: u32, known: u32) -> Errno {
    with_reason(Errno(libc::EINVAL), || match access & !known {
        0 => (
            format!("{} without IBV_ACCESS_LOCAL_WRITE", Rights(Access::from_bits(access))),
            "add IBV_ACCESS_LOCAL_WRITE: what peers may change must be writable here".to_owned(),
        ),
        unknown => (format!("access flags {unknown:#x} are unknown or not supported"), "leave them out".to_owned()),
    })
}

/// `ibv_reg_mr_iova(3)`.
pub(crate) fn iova(address: u64, iova: u64) -> Errno {
    with_reason(Errno(libc::EINVAL), || {
        (
            format!("iova {iova:#x} lies elsewhere in its page than addr {address:#x}"),
            "take an iova with the same offset in a page: cards translate whole pages",
        )
    })
}

/// `ibv_reg_mr(3)`: memory.
pub(crate) fn region_memory(address: u64, length: u64, error: NotUsable) -> Errno {
    with_reason(Errno(libc::EFAULT), || {
        let range = Range(address, length);
        match error {
            NotUsable::Unmapped => (
                format!("the memory at {range} is not mapped, or not all of it"),
                "allocate it first; check the length",
            ),
            NotUsable::ReadOnly => (
                format!("the memory at {range} is read-only, and the access flags ask for writing"),
                "map it writable, or register it without rights to write",
            ),
        }
    })
}

/// A LID that no port can have.
pub(crate) fn no_lid(dlid: Lid) -> Errno {
    with_reason(Errno(libc::EINVAL), || {
        (
            format!("ah_attr.dlid {dlid} stands for no address"),
            "ports with IPv4 addresses that end in 0.1 to 190.255 have LIDs; both ends need URXE_LINK_LAYER=infiniband or \
             URXE_LID=1"
                .to_owned(),
        )
    })
}

/// `struct ibv_ah_attr` that leads nowhere.
pub(crate) fn no_gid_row(errno: Errno, index: u32) -> Errno {
    with_reason(errno, || {
        (
            format!("sgid_index {index} is an empty row of the GID table"),
            "take a row that is there: 1 is the interface's first IPv4 address (ibv_devinfo -v lists them)",
        )
    })
}

/// A row of the GID table whose packets would be of RoCE v1.
pub(crate) fn roce_v1(index: u32) -> Errno {
    with_reason(Errno(libc::EOPNOTSUPP), || {
        (
            format!(
                "sgid_index {index} is a row of RoCE v1, and packets are of RoCE v2 (URXE_GID_LAYOUT=mlx5 shows both)"
            ),
            format!("take row {}, the same GID with RoCE v2", index + 1),
        )
    })
}

/// An address vector on an interface that is down.
pub(crate) fn link_is_down(netdev: &str) -> Errno {
    with_reason(Errno(libc::ENETUNREACH), || {
        (
            format!("network interface '{netdev}' is down, and the port with it"),
            format!("bring it up (ip link set {netdev} up), and wait for IBV_EVENT_PORT_ACTIVE"),
        )
    })
}

/// Tells why there is no queue pair number: ENOMEM.
pub(crate) fn no_qpn(error: &urxe_net::PortError) -> Errno {
    with_reason(Errno(libc::ENOMEM), || match error {
        urxe_net::PortError::TooManyFiles { .. } => (
            "no file descriptor is left for another block of 256 queue pair numbers".to_owned(),
            "raise the limit: ulimit -n",
        ),
        urxe_net::PortError::QpnsExhausted => {
            ("no queue pair number is left for this process".to_owned(), "destroy queue pairs, or use fewer")
        }
        other => (other.to_string(), "see docs/reference/limits.md"),
    })
}

/// GIDs between which there is no way.
pub(crate) fn no_route(error: &urxe_net::RouteError, (index, local): (u32, Gid), remote: Gid) -> Errno {
    let named = |gid: Gid| format!("{} ({})", gid.ip(), if gid.ip().is_ipv4() { "IPv4" } else { "IPv6" });
    with_reason(Errno(libc::EINVAL), || {
        (
            match error {
                urxe_net::RouteError::FamilyMismatch => {
                    format!(
                        "sgid_index {index} is {}, dgid is {}: no packet goes from one to the other",
                        named(local),
                        named(remote)
                    )
                }
                _ => format!("no way from the GID at sgid_index {index} to dgid: {error}"),
            },
            "take for sgid_index a GID of the same kind (IPv4 or IPv6) as dgid, and for dgid the one that the peer has \
             at its own sgid_index",
        )
    })
}
