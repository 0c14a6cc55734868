//! Completion statuses (`enum ibv_wc_status`; IBA 11.6.2, `ibv_poll_cq(3)`).

use crate::{Entry, Table, row};

/// The completion statuses.
pub const TABLE: Table = Table { kind: "completion status", word: "wc", prefix: "IBV_WC_", entries: ENTRIES };

/// Text of each status, by number, as programs print it (`ibv_wc_status_str(3)`).
const TEXTS: [&str; 24] = [
    "success",
    "local length error",
    "local QP operation error",
    "local EE context operation error",
    "local protection error",
    "Work Request Flushed Error",
    "memory management operation error",
    "bad response error",
    "local access error",
    "remote invalid request error",
    "remote access error",
    "remote operation error",
    "transport retry counter exceeded",
    "RNR retry counter exceeded",
    "local RDD violation error",
    "remote invalid RD request",
    "aborted error",
    "invalid EE context number",
    "invalid EE context state",
    "fatal error",
    "response timeout error",
    "general error",
    "TM error",
    "TM software rendezvous",
];

/// The text that `ibv_wc_status_str(3)` has for a status.
#[must_use]
pub fn text(number: u32) -> Option<&'static str> {
    TEXTS.get(usize::try_from(number).ok()?).copied()
}

const ENTRIES: &[Entry] = &[
    row(0, "IBV_WC_SUCCESS", "the work request was carried out", "nothing is wrong", "nothing"),
    row(
        1,
        "IBV_WC_LOC_LEN_ERR",
        "the message does not fit",
        "a receive buffer shorter than the message that came (on UD, 40 bytes of GRH come first), or a send longer than \
         the transport takes",
        "post receives as long as the longest message of the peer",
    ),
    row(
        2,
        "IBV_WC_LOC_QP_OP_ERR",
        "the queue pair cannot carry the request out",
        "a READ or atomic on a queue pair whose max_rd_atomic is 0, or an invalid key in LOCAL_INV",
        "set max_rd_atomic on the way to RTS, and max_dest_rd_atomic of the peer on its way to RTR",
    ),
    row(
        3,
        "IBV_WC_LOC_EEC_OP_ERR",
        "RD only: the end-to-end context cannot carry the request out",
        "no device has RD",
        "do not use RD",
    ),
    row(
        4,
        "IBV_WC_LOC_PROT_ERR",
        "an L_Key does not give the access to the local buffer",
        "an lkey of another or a deregistered MR, an MR of another PD, a buffer that reaches beyond its MR, no \
         IBV_ACCESS_LOCAL_WRITE where data comes in, or memory unmapped since it was registered",
        "compare the sge (addr, length, lkey) with the MR; keep memory mapped and registered until the completion",
    ),
    row(
        5,
        "IBV_WC_WR_FLUSH_ERR",
        "the request was not carried out because the queue pair is in ERR",
        "an earlier request failed, or the application moved the queue pair to ERR; disconnecting does",
        "look at the first completion with another status; to use the queue pair again, go through RESET",
    ),
    row(
        6,
        "IBV_WC_MW_BIND_ERR",
        "the memory window cannot be bound",
        "an MR without IBV_ACCESS_MW_BIND or of another PD, a range beyond the MR, a type 2 window that is bound already",
        "register the MR with IBV_ACCESS_MW_BIND; invalidate a type 2 window before binding it anew",
    ),
    row(
        7,
        "IBV_WC_BAD_RESP_ERR",
        "the peer's answer makes no sense",
        "a response of another length or kind than was asked for: the peer's transport is at fault",
        "capture the exchange (URXE_PCAP) and look at the response",
    ),
    row(
        8,
        "IBV_WC_LOC_ACCESS_ERR",
        "the peer's WRITE with immediate was refused here",
        "its R_Key does not give it the memory that it wrote to",
        "check what address, length and rkey the peer was told",
    ),
    row(
        9,
        "IBV_WC_REM_INV_REQ_ERR",
        "the peer refused the request as invalid",
        "a message longer than the peer's receive buffer, an operation that the peer's qp_access_flags do not allow, a \
         misaligned atomic, or more READs and atomics at once than its max_dest_rd_atomic",
        "compare with the peer's receive sizes, qp_access_flags and max_dest_rd_atomic; its own completion or \
         asynchronous event says which",
    ),
    row(
        10,
        "IBV_WC_REM_ACCESS_ERR",
        "the peer refused the R_Key",
        "an rkey that is wrong or deregistered, of another PD than the peer's queue pair, without IBV_ACCESS_REMOTE_READ, \
         _WRITE or _ATOMIC, or a range that reaches beyond the MR",
        "check addr, length and rkey against the MR of the peer, and the access it was registered with",
    ),
    row(
        11,
        "IBV_WC_REM_OP_ERR",
        "the peer could not carry the request out",
        "its receive request names memory that it may not use, or memory that is gone",
        "look at the peer's completions: its receive failed, mostly with IBV_WC_LOC_PROT_ERR",
    ),
    row(
        12,
        "IBV_WC_RETRY_EXC_ERR",
        "the peer did not acknowledge, however often it was asked",
        "the peer's queue pair is not in RTR or RTS, is gone or in ERR; dest_qp_num, dgid or PSNs are wrong; packets are \
         lost (firewall, MTU); timeout and retry_cnt are too small for the distance",
        "check state, number and GID of the peer's queue pair, and that UDP port 4791 passes both ways",
    ),
    row(
        13,
        "IBV_WC_RNR_RETRY_EXC_ERR",
        "the peer had no receive posted, however often it was asked",
        "messages come faster than the peer posts receives, and rnr_retry is not 7",
        "post receives before the peer sends, or set rnr_retry to 7 (for ever) and min_rnr_timer to what posting takes",
    ),
    row(14, "IBV_WC_LOC_RDD_VIOL_ERR", "RD only: another domain", "no device has RD", "do not use RD"),
    row(15, "IBV_WC_REM_INV_RD_REQ_ERR", "RD only: invalid request", "no device has RD", "do not use RD"),
    row(
        16,
        "IBV_WC_REM_ABORT_ERR",
        "the peer gave the operation up",
        "an error of the peer's device",
        "look at the peer's asynchronous events",
    ),
    row(17, "IBV_WC_INV_EECN_ERR", "RD only: no such context", "no device has RD", "do not use RD"),
    row(18, "IBV_WC_INV_EEC_STATE_ERR", "RD only: the context's state", "no device has RD", "do not use RD"),
    row(
        19,
        "IBV_WC_FATAL_ERR",
        "the device failed",
        "an error of the device itself",
        "close everything and open the device anew",
    ),
    row(
        20,
        "IBV_WC_RESP_TIMEOUT_ERR",
        "the peer answered too late",
        "the peer is overloaded or gone",
        "ask again, or give the peer more time",
    ),
    row(
        21,
        "IBV_WC_GENERAL_ERR",
        "another error",
        "an error that has no status of its own; vendor_err may say more",
        "look at vendor_err and at the device's documentation",
    ),
    row(22, "IBV_WC_TM_ERR", "tag matching failed", "a tag-matching SRQ was misused", "see ibv_post_srq_ops(3)"),
    row(
        23,
        "IBV_WC_TM_RNDV_INCOMPLETE",
        "a rendezvous is not complete",
        "the message is longer than the buffer of the tag",
        "fetch the rest as the application's protocol says",
    ),
];
