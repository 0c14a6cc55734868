//! AETH syndromes other than acknowledgements (IBA 9.7.5.2, tables "AETH syndrome" and "NAK codes").

use crate::{Entry, Table};

/// The syndromes: the byte as it is in the AETH; of RNR NAKs, the one with timer code 0.
pub const TABLE: Table = Table { kind: "NAK syndrome", word: "nak", prefix: "NAK_", entries: ENTRIES };

const ENTRIES: &[Entry] = &[
    Entry {
        number: 0x20,
        name: "RNR_NAK",
        meaning: "receiver not ready: no receive is posted; the low five bits say how long to wait",
        cause: "a SEND or WRITE with immediate came before the responder had posted a receive",
        remedy: "post receives earlier, or more of them; the requester waits and asks again rnr_retry times",
    },
    Entry {
        number: 0x60,
        name: "NAK_PSN_SEQUENCE_ERROR",
        meaning: "a packet before this one is missing; the NAK names it",
        cause: "a packet was lost, or overtaken by later ones",
        remedy: "nothing if seldom: the requester sends again; if often, look for loss (full buffers, URXE_FAULTS)",
    },
    Entry {
        number: 0x61,
        name: "NAK_INVALID_REQUEST",
        meaning: "the request is not legal at this queue pair",
        cause: "the message is longer than the receive, the operation is not in qp_access_flags, an atomic is misaligned, \
                or more READs and atomics than max_dest_rd_atomic came at once",
        remedy: "see IBV_WC_REM_INV_REQ_ERR",
    },
    Entry {
        number: 0x62,
        name: "NAK_REMOTE_ACCESS_ERROR",
        meaning: "the R_Key does not give this access to this memory",
        cause: "wrong or deregistered rkey, another PD, missing IBV_ACCESS_REMOTE_*, or out of bounds",
        remedy: "see IBV_WC_REM_ACCESS_ERR",
    },
    Entry {
        number: 0x63,
        name: "NAK_REMOTE_OPERATIONAL_ERROR",
        meaning: "the responder could not carry the request out",
        cause: "its own receive buffer is not usable, or the memory is gone",
        remedy: "see IBV_WC_REM_OP_ERR",
    },
    Entry {
        number: 0x64,
        name: "NAK_INVALID_RD_REQUEST",
        meaning: "RD only",
        cause: "no device has RD",
        remedy: "do not use RD",
    },
];
