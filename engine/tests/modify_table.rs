//! The table of QP state transitions as text, against a committed snapshot and against what the kernel's table
//! says of the cases that programs meet.

use std::fmt::Write as _;
use std::path::Path;

use urxe_engine::QpState::{self, Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
use urxe_engine::QpType::{self, Rc, Uc, Ud, XrcRecv, XrcSend};
use urxe_engine::attr::AttrMask as M;
use urxe_engine::qp::transition;

const TYPES: [QpType; 5] = [Rc, Uc, Ud, XrcSend, XrcRecv];

#[test]
fn table_as_text() {
    let mut text = String::from(
        "# Every QP state transition, by type: attributes required, attributes optional. Made by\n\
         # engine/tests/modify_table.rs; UPDATE_SNAPSHOTS=1 writes it anew. RESET and ERR need no attributes\n\
         # and are left out.\n",
    );
    for qp_type in TYPES {
        for from in QpState::ALL {
            for to in QpState::ALL.into_iter().filter(|to| !matches!(to, Reset | Err)) {
                if let Some(row) = transition(qp_type, from, to) {
                    let name = |state: QpState| format!("{state:?}").to_uppercase();
                    writeln!(text, "{qp_type:?} {} -> {}", name(from), name(to)).unwrap();
                    for (what, set) in [("required", row.required), ("optional", row.optional)] {
                        if !set.is_empty() {
                            writeln!(text, "    {what} {}", set.to_string().replace("IBV_QP_", "")).unwrap();
                        }
                    }
                }
            }
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots/modify_table.txt");
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(&path).unwrap(), "see {}", path.display());
}

/// But for RESET to ERR, which the kernel refuses.
#[test]
fn reset_and_err_can_always_be_reached() {
    for qp_type in TYPES {
        for from in QpState::ALL {
            for to in [Reset, Err] {
                let free = transition(qp_type, from, to).map(|row| row.required.is_empty() && row.optional.is_empty());
                let expected = if (from, to) == (Reset, Err) { None } else { Some(true) };
                assert_eq!(free, expected, "{qp_type:?} {from:?} {to:?}");
            }
        }
    }
}

/// The transitions of `qp_state_table` in `drivers/infiniband/core/verbs.c`, besides those to RESET and ERR.
//= spec/states.md#qps-001
//= type=test
//# A queue pair MUST change its state only along the table's transitions.
#[test]
fn transitions_are_those_of_the_kernel() {
    let mut there = Vec::new();
    for from in QpState::ALL {
        for to in QpState::ALL.into_iter().filter(|to| !matches!(to, Reset | Err)) {
            let types: Vec<_> = TYPES.into_iter().filter(|&qp_type| transition(qp_type, from, to).is_some()).collect();
            if !types.is_empty() {
                there.push((from, to, types));
            }
        }
    }
    let all = TYPES.to_vec();
    assert_eq!(
        there,
        [
            (Reset, Init, all.clone()),
            (Init, Init, all.clone()),
            (Init, Rtr, all.clone()),
            (Rtr, Rts, all.clone()),
            (Rts, Rts, all.clone()),
            (Rts, Sqd, all.clone()),
            (Sqd, Rts, all.clone()),
            (Sqd, Sqd, all),
            (Sqe, Rts, vec![Uc, Ud]),
        ]
    );
}

/// `enum ibv_qp_attr_mask` of `<infiniband/verbs.h>`.
#[test]
fn bits_are_those_of_libibverbs() {
    let bits = [
        (M::STATE, 0),
        (M::CUR_STATE, 1),
        (M::EN_SQD_ASYNC_NOTIFY, 2),
        (M::ACCESS_FLAGS, 3),
        (M::PKEY_INDEX, 4),
        (M::PORT, 5),
        (M::QKEY, 6),
        (M::AV, 7),
        (M::PATH_MTU, 8),
        (M::TIMEOUT, 9),
        (M::RETRY_CNT, 10),
        (M::RNR_RETRY, 11),
        (M::RQ_PSN, 12),
        (M::MAX_QP_RD_ATOMIC, 13),
        (M::ALT_PATH, 14),
        (M::MIN_RNR_TIMER, 15),
        (M::SQ_PSN, 16),
        (M::MAX_DEST_RD_ATOMIC, 17),
        (M::PATH_MIG_STATE, 18),
        (M::CAP, 19),
        (M::DEST_QPN, 20),
        (M::RATE_LIMIT, 25),
    ];
    for (mask, bit) in bits {
        assert_eq!(mask.bits(), 1 << bit, "{mask}");
    }
}
