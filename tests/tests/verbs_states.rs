//! States of RC queue pairs: transitions, their attributes, and what may be posted in which state.

use anyhow::{Context as _, Result, bail, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::verbs::datagram::Ah;
use urxe_tests::verbs::memory::ALL_ACCESS;
use urxe_tests::verbs::pair::{rtr, rts};
use urxe_tests::verbs::qp::Init;
use urxe_tests::verbs::{Change, Context, Cq, End, Errno, Op, Options, Pair, Pd, Qp, RecvWr, SendWr, Status};
use urxe_tests::{GID_IPV4, in_world};

const STATES: [(&str, v::ibv_qp_state); 7] = [
    ("RESET", v::IBV_QPS_RESET),
    ("INIT", v::IBV_QPS_INIT),
    ("RTR", v::IBV_QPS_RTR),
    ("RTS", v::IBV_QPS_RTS),
    ("SQD", v::IBV_QPS_SQD),
    ("SQE", v::IBV_QPS_SQE),
    ("ERR", v::IBV_QPS_ERR),
];

/// Attributes that a transition must have, and may have.
type Row = (v::ibv_qp_attr_mask, v::ibv_qp_attr_mask);

/// IBA 11.2.5.2 for RC; the kernel's `qp_state_table` (drivers/infiniband/core/verbs.c) has the same rows. SQE is for
/// UC and UD only.
fn row(from: v::ibv_qp_state, to: v::ibv_qp_state) -> Option<Row> {
    use v::{IBV_QP_ACCESS_FLAGS as ACCESS, IBV_QP_AV as AV, IBV_QP_CUR_STATE as CUR_STATE};
    use v::{IBV_QP_ALT_PATH as ALT_PATH, IBV_QP_PATH_MIG_STATE as MIG_STATE};
    use v::{IBV_QP_DEST_QPN as DEST_QPN, IBV_QP_EN_SQD_ASYNC_NOTIFY as SQD_NOTIFY, IBV_QP_PORT as PORT};
    use v::{IBV_QP_MAX_DEST_RD_ATOMIC as MAX_DEST_RD_ATOMIC, IBV_QP_MAX_QP_RD_ATOMIC as MAX_QP_RD_ATOMIC};
    use v::{IBV_QP_MIN_RNR_TIMER as MIN_RNR_TIMER, IBV_QP_PATH_MTU as PATH_MTU, IBV_QP_PKEY_INDEX as PKEY_INDEX};
    use v::{IBV_QP_RETRY_CNT as RETRY_CNT, IBV_QP_RNR_RETRY as RNR_RETRY, IBV_QP_RQ_PSN as RQ_PSN};
    use v::{IBV_QP_SQ_PSN as SQ_PSN, IBV_QP_TIMEOUT as TIMEOUT};
    match (from, to) {
        (v::IBV_QPS_RESET, v::IBV_QPS_ERR) => None,
        (_, v::IBV_QPS_RESET | v::IBV_QPS_ERR) => Some((0, 0)),
        (v::IBV_QPS_RESET, v::IBV_QPS_INIT) => Some((PKEY_INDEX | PORT | ACCESS, 0)),
        (v::IBV_QPS_INIT, v::IBV_QPS_INIT) => Some((0, PKEY_INDEX | PORT | ACCESS)),
        (v::IBV_QPS_INIT, v::IBV_QPS_RTR) => {
            let required = AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER;
            Some((required, ACCESS | PKEY_INDEX | ALT_PATH))
        }
        (v::IBV_QPS_RTR, v::IBV_QPS_RTS) => {
            let required = TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC;
            Some((required, CUR_STATE | ACCESS | MIN_RNR_TIMER | ALT_PATH | MIG_STATE))
        }
        (v::IBV_QPS_RTS | v::IBV_QPS_SQD, v::IBV_QPS_RTS) => {
            Some((0, CUR_STATE | ACCESS | MIN_RNR_TIMER | ALT_PATH | MIG_STATE))
        }
        (v::IBV_QPS_RTS, v::IBV_QPS_SQD) => Some((0, SQD_NOTIFY)),
        (v::IBV_QPS_SQD, v::IBV_QPS_SQD) => {
            let retries = TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER;
            Some((0, PORT | AV | ACCESS | PKEY_INDEX | ALT_PATH | MIG_STATE | retries))
        }
        _ => None,
    }
}

/// All attributes with values that are right.
fn all(end: &End, from: v::ibv_qp_state, to: v::ibv_qp_state) -> Result<Change> {
    let options = Options::default();
    let mut change = rtr(end.qp.number(), end.gid(&options)?, &options);
    let later = rts(&options).attr;
    change.attr.qp_state = to;
    change.attr.cur_qp_state = from;
    change.attr.sq_psn = later.sq_psn;
    change.attr.timeout = later.timeout;
    change.attr.retry_cnt = later.retry_cnt;
    change.attr.rnr_retry = later.rnr_retry;
    change.attr.max_rd_atomic = later.max_rd_atomic;
    change.attr.port_num = 1;
    change.attr.alt_ah_attr = change.attr.ah_attr;
    change.attr.alt_port_num = 1;
    change.attr.path_mig_state = v::IBV_MIG_MIGRATED;
    change.attr.qp_access_flags = ALL_ACCESS;
    change.attr.cap = end.qp.cap();
    Ok(change)
}

/// A new queue pair, connected to itself, in `state`; `None` for SQE, where RC never is.
fn end_in(context: &std::sync::Arc<Context>, state: v::ibv_qp_state) -> Result<Option<End>> {
    let end = End::new(context, &Options::default())?;
    let path: &[_] = match state {
        v::IBV_QPS_RESET => &[],
        v::IBV_QPS_INIT => &[v::IBV_QPS_INIT],
        v::IBV_QPS_RTR => &[v::IBV_QPS_INIT, v::IBV_QPS_RTR],
        v::IBV_QPS_RTS => &[v::IBV_QPS_INIT, v::IBV_QPS_RTR, v::IBV_QPS_RTS],
        v::IBV_QPS_SQD => &[v::IBV_QPS_INIT, v::IBV_QPS_RTR, v::IBV_QPS_RTS, v::IBV_QPS_SQD],
        v::IBV_QPS_ERR => &[v::IBV_QPS_INIT, v::IBV_QPS_ERR],
        _ => return Ok(None),
    };
    let mut from = v::IBV_QPS_RESET;
    for &to in path {
        let (required, _) = row(from, to).context("a path through the table")?;
        let change = Change { mask: required | v::IBV_QP_STATE, ..all(&end, from, to)? };
        end.qp.modify(&change).with_context(|| format!("state {to}"))?;
        ensure!(end.qp.state()? == to, "in state {}, not {to}", end.qp.state()?);
        from = to;
    }
    Ok(Some(end))
}

fn bits(mask: u32) -> impl Iterator<Item = u32> {
    (0..32).map(|bit| 1 << bit).filter(move |bit| mask & bit != 0)
}

/// Attributes that `ibv_modify_qp` knows.
const ATTRIBUTES: v::ibv_qp_attr_mask = 0x001f_ffff & !v::IBV_QP_STATE;

/// One transition: without each required attribute, with each attribute too many, and right.
fn transition(context: &std::sync::Arc<Context>, from: v::ibv_qp_state, to: v::ibv_qp_state) -> Result<()> {
    let Some(end) = end_in(context, from)? else { return Ok(()) };
    let change = all(&end, from, to)?;
    let refused = |mask: u32, what: &str| {
        let result = end.qp.modify(&Change { mask: mask | v::IBV_QP_STATE, ..change });
        ensure!(result == Err(Errno(libc::EINVAL)), "{what}: {result:?}");
        ensure!(end.qp.state()? == from, "{what}: refused, but in state {}", end.qp.state()?);
        Ok(())
    };
    let Some((required, optional)) = row(from, to) else {
        refused(0, "impossible, without attributes")?;
        return refused(ATTRIBUTES, "impossible, with all attributes");
    };
    for bit in bits(required) {
        refused(required & !bit, &format!("without {bit:#x}"))?;
    }
    for bit in bits(ATTRIBUTES & !(required | optional)) {
        refused(required | bit, &format!("with {bit:#x} too many"))?;
    }
    for allowed in std::iter::once(0).chain(bits(optional)).chain([optional]) {
        let end = end_in(context, from)?.context("it has been there before")?;
        let change = Change { mask: required | allowed | v::IBV_QP_STATE, ..all(&end, from, to)? };
        let result = end.qp.modify(&change);
        ensure!(result == Ok(()), "with optional {allowed:#x}: {result:?}");
        ensure!(end.qp.state()? == to, "in state {}", end.qp.state()?);
    }
    Ok(())
}

//= spec/states.md#qps-001
//= type=test
//# A queue pair MUST change its state only along the table's transitions.
#[test]
fn every_transition() {
    in_world(|| {
        let context = Context::open()?;
        let mut failures = Vec::new();
        for (from_name, from) in STATES {
            for (to_name, to) in STATES {
                if let Err(error) = transition(&context, from, to) {
                    failures.push(format!("{from_name} → {to_name}: {error:#}"));
                }
            }
        }
        if failures.is_empty() { Ok(()) } else { bail!("{}", failures.join("\n")) }
    });
}

/// Attributes without a state are for the state it is in (ibv_modify_qp(3)); nothing at all changes nothing.
//= spec/states.md#qps-002
//= type=test
//# A modify without a required attribute, or with one that does not belong there, MUST be refused with EINVAL and
//# change nothing.
#[test]
fn attributes_without_a_state() {
    in_world(|| {
        let end = end_in(&Context::open()?, v::IBV_QPS_RTS)?.context("RTS")?;
        let change = |mask| Change { mask, ..all(&end, v::IBV_QPS_RTS, v::IBV_QPS_RTS).expect("attributes") };
        end.qp.modify(&change(v::IBV_QP_MIN_RNR_TIMER | v::IBV_QP_ACCESS_FLAGS))?;
        ensure!(end.qp.modify(&change(v::IBV_QP_SQ_PSN)) == Err(Errno(libc::EINVAL)));
        end.qp.modify(&change(0))?;
        ensure!(end.qp.state()? == v::IBV_QPS_RTS);
        Ok(())
    });
}

/// Values out of range (ibv_modify_qp(3): EINVAL).
//= spec/states.md#qps-003
//= type=test
//# An attribute whose value is out of range MUST be refused with EINVAL.
#[test]
fn values_out_of_range() {
    type Set = fn(&mut v::ibv_qp_attr);
    const CASES: [(&str, v::ibv_qp_state, v::ibv_qp_state, Set); 17] = [
        ("port 0", v::IBV_QPS_RESET, v::IBV_QPS_INIT, |a| a.port_num = 0),
        ("port 2", v::IBV_QPS_RESET, v::IBV_QPS_INIT, |a| a.port_num = 2),
        ("P_Key index", v::IBV_QPS_RESET, v::IBV_QPS_INIT, |a| a.pkey_index = 1),
        ("MTU 0", v::IBV_QPS_INIT, v::IBV_QPS_RTR, |a| a.path_mtu = 0),
        ("MTU 6", v::IBV_QPS_INIT, v::IBV_QPS_RTR, |a| a.path_mtu = 6),
        ("RNR timer", v::IBV_QPS_INIT, v::IBV_QPS_RTR, |a| a.min_rnr_timer = 32),
        ("responder resources", v::IBV_QPS_INIT, v::IBV_QPS_RTR, |a| a.max_dest_rd_atomic = 255),
        ("no GRH", v::IBV_QPS_INIT, v::IBV_QPS_RTR, |a| a.ah_attr.is_global = 0),
        ("no DGID", v::IBV_QPS_INIT, v::IBV_QPS_RTR, |a| a.ah_attr.grh.dgid.raw = [0; 16]),
        ("DGID of the other family", v::IBV_QPS_INIT, v::IBV_QPS_RTR, |a| {
            a.ah_attr.grh.dgid.raw = std::net::Ipv6Addr::LOCALHOST.octets();
        }),
        ("AV's port", v::IBV_QPS_INIT, v::IBV_QPS_RTR, |a| a.ah_attr.port_num = 2),
        ("ACK timeout", v::IBV_QPS_RTR, v::IBV_QPS_RTS, |a| a.timeout = 32),
        ("retry count", v::IBV_QPS_RTR, v::IBV_QPS_RTS, |a| a.retry_cnt = 8),
        ("RNR retry count", v::IBV_QPS_RTR, v::IBV_QPS_RTS, |a| a.rnr_retry = 8),
        ("READs at once", v::IBV_QPS_RTR, v::IBV_QPS_RTS, |a| a.max_rd_atomic = 255),
        ("state 7", v::IBV_QPS_RTR, v::IBV_QPS_RTS, |a| a.qp_state = 7),
        ("state", v::IBV_QPS_RTR, v::IBV_QPS_RTS, |a| a.qp_state = u32::MAX),
    ];
    in_world(|| {
        let context = Context::open()?;
        for (name, from, to, set) in CASES {
            let end = end_in(&context, from)?.context("a reachable state")?;
            let (required, _) = row(from, to).context("a transition")?;
            let right = Change { mask: required | v::IBV_QP_STATE, ..all(&end, from, to)? };
            let mut wrong = right;
            set(&mut wrong.attr);
            let result = end.qp.modify(&wrong);
            ensure!(result == Err(Errno(libc::EINVAL)), "{name}: {result:?}");
            end.qp.modify(&right).with_context(|| format!("{name}, put right"))?;
        }
        Ok(())
    });
}

/// An empty row of the GID table (the kernel's `rdma_get_gid_attr`).
#[test]
fn empty_rows_of_the_gid_table() {
    in_world(|| {
        let context = Context::open()?;
        let end = end_in(&context, v::IBV_QPS_INIT)?.context("INIT")?;
        let options = Options::default();
        let gid = end.gid(&options)?;
        for index in [20, 255] {
            let mut wrong = rtr(end.qp.number(), gid, &options);
            wrong.attr.ah_attr.grh.sgid_index = index;
            let result = end.qp.modify(&wrong);
            ensure!(result == Err(Errno(libc::ENODATA)), "{index}: {result:?}");
            let address = v::ibv_ah_attr { ..wrong.attr.ah_attr };
            let result = Ah::new(&end.pd, address).err();
            ensure!(result == Some(Errno(libc::ENODATA)), "an address handle, {index}: {result:?}");
        }
        end.qp.modify(&rtr(end.qp.number(), gid, &options))?;
        Ok(())
    });
}

/// Bits of attr_mask that nobody knows, or that this device does not have, come before anything else that is wrong.
//= spec/states.md#qps-011
//= type=test
//# A modify with an attribute that the device does not know MUST be refused with EOPNOTSUPP and change nothing.
#[test]
fn attributes_that_the_device_does_not_know() {
    in_world(|| {
        let end = end_in(&Context::open()?, v::IBV_QPS_INIT)?.context("INIT")?;
        let options = Options::default();
        let right = rtr(end.qp.number(), end.gid(&options)?, &options);
        for bit in 21..31 {
            for change in [right, Change::to(v::IBV_QPS_RTS), Change::to(99)] {
                let result = end.qp.modify(&Change { mask: change.mask | 1 << bit, ..change });
                ensure!(result == Err(Errno(libc::EOPNOTSUPP)), "bit {bit}: {result:?}");
            }
        }
        ensure!(end.qp.state()? == v::IBV_QPS_INIT);
        end.qp.modify(&right)?;
        Ok(())
    });
}

/// ibv_modify_qp(3): an alternate path has a port and a P_Key index of its own, a state is one of three, and `ibv_query_qp` gives
/// them back.
#[test]
fn alternate_path() {
    in_world(|| {
        let end = end_in(&Context::open()?, v::IBV_QPS_INIT)?.context("INIT")?;
        let options = Options::default();
        let right = rtr(end.qp.number(), end.gid(&options)?, &options).with(v::IBV_QP_ALT_PATH, |attr| {
            attr.alt_ah_attr = attr.ah_attr;
            attr.alt_ah_attr.grh.flow_label = 0x1234;
            (attr.alt_port_num, attr.alt_timeout) = (1, 17);
        });
        for (what, change) in [
            ("port", right.with(0, |attr| attr.alt_port_num = 2)),
            ("port of the address vector", right.with(0, |attr| attr.alt_ah_attr.port_num = 2)),
            ("P_Key index", right.with(0, |attr| attr.alt_pkey_index = 1)),
            ("timeout", right.with(0, |attr| attr.alt_timeout = 32)),
            ("GID index", right.with(0, |attr| attr.alt_ah_attr.grh.sgid_index = 99)),
        ] {
            let result = end.qp.modify(&change);
            ensure!(result.is_err() && end.qp.state()? == v::IBV_QPS_INIT, "{what}: {result:?}");
        }
        end.qp.modify(&right)?;
        end.qp.modify(&rts(&options))?;
        let state =
            |state| Change::to(v::IBV_QPS_RTS).with(v::IBV_QP_PATH_MIG_STATE, |attr| attr.path_mig_state = state);
        for wrong in [v::IBV_MIG_ARMED, 3] {
            let result = end.qp.modify(&state(wrong));
            ensure!(result == Err(Errno(libc::EINVAL)), "state {wrong}: {result:?}");
        }
        end.qp.modify(&state(v::IBV_MIG_REARM))?;
        let (attr, _) = end.qp.query()?;
        ensure!(attr.path_mig_state == v::IBV_MIG_REARM && attr.alt_port_num == 1 && attr.alt_timeout == 17);
        ensure!(attr.alt_ah_attr.grh.flow_label == 0x1234 && attr.ah_attr.grh.flow_label == 0);
        let without = end_in(&end.context, v::IBV_QPS_RTS)?.context("RTS")?;
        let result = without.qp.modify(&state(v::IBV_MIG_REARM));
        ensure!(result == Err(Errno(libc::EINVAL)), "without an alternate path: {result:?}");
        let (attr, _) = without.qp.query()?;
        ensure!(attr.path_mig_state == v::IBV_MIG_MIGRATED && attr.alt_port_num == 0);
        Ok(())
    });
}

/// `cur_qp_state` is where the caller believes the QP to be (ibv_modify_qp(3): "Assume this is the current QP state").
#[test]
fn wrong_current_state() {
    in_world(|| {
        let end = end_in(&Context::open()?, v::IBV_QPS_RTS)?.context("RTS")?;
        let believe =
            |state| Change::to(v::IBV_QPS_RTS).with(v::IBV_QP_CUR_STATE, move |attr| attr.cur_qp_state = state);
        for state in [v::IBV_QPS_RESET, v::IBV_QPS_INIT, v::IBV_QPS_SQE, v::IBV_QPS_ERR, 7] {
            let result = end.qp.modify(&believe(state));
            ensure!(result == Err(Errno(libc::EINVAL)), "state {state}: {result:?}");
        }
        end.qp.modify(&believe(v::IBV_QPS_RTS))?;
        Ok(())
    });
}

/// IBA 10.3.1: which work requests each state takes. ibv_post_send(3), ibv_post_recv(3): EINVAL and `*bad_wr`.
//= spec/states.md#qps-007
//= type=test
//# Send requests MUST be refused with EINVAL in RESET, INIT and RTR; receive requests in RESET.
#[test]
fn posting_in_every_state() {
    #[derive(Clone, Copy, PartialEq)]
    enum Post {
        Refused,
        Queued,
        Flushed,
    }
    use Post::{Flushed, Queued, Refused};
    const CASES: [(&str, v::ibv_qp_state, Post, Post); 5] = [
        ("RESET", v::IBV_QPS_RESET, Refused, Refused),
        ("INIT", v::IBV_QPS_INIT, Refused, Queued),
        ("RTR", v::IBV_QPS_RTR, Refused, Queued),
        ("SQD", v::IBV_QPS_SQD, Queued, Queued),
        ("ERR", v::IBV_QPS_ERR, Flushed, Flushed),
    ];
    fn check(what: &str, cq: &Cq, result: Result<(), urxe_tests::verbs::PostError>, expected: Post) -> Result<()> {
        match expected {
            Refused => {
                let error = result.err().with_context(|| format!("{what}: not refused"))?;
                ensure!(error.errno.0 == libc::EINVAL && error.bad == Some(0), "{what}: {error:?}");
            }
            Queued => ensure!(result.is_ok() && cq.poll(1)?.is_empty(), "{what}: {result:?}"),
            Flushed => {
                ensure!(result.is_ok(), "{what}: {result:?}");
                for id in 0..2 {
                    let wc = cq.next().with_context(|| what.to_owned())?;
                    ensure!(wc.status == Status::WR_FLUSH_ERR && wc.wr_id == id, "{what}: {wc:?}");
                }
            }
        }
        Ok(())
    }
    in_world(|| {
        let context = Context::open()?;
        for (name, state, send, recv) in CASES {
            let end = end_in(&context, state)?.context("a reachable state")?;
            let sends = [0, 1].map(|id| SendWr::new(Op::Send, &[]).unsignaled().id(id));
            check(&format!("send in {name}"), &end.send_cq, end.qp.post_sends(&sends), send)?;
            let recvs = [0, 1].map(|id| RecvWr::new(id, &[]));
            check(&format!("receive in {name}"), &end.recv_cq, end.qp.post_recvs(&recvs), recv)?;
        }
        Ok(())
    });
}

/// Going to ERR flushes what is queued, in order (IBA 10.3.1.7); going to RESET forgets it, and its completions
/// (IBA 10.3.1.1, 10.2.4.4).
//= spec/requester.md#req-009
//= type=test
//# After a request has failed, those behind it MUST be flushed in order and MUST NOT be executed.
#[test]
fn flushing_and_forgetting() {
    in_world(|| {
        let Pair { near, far } = &Pair::new(&Options::default())?;
        let queue = || -> Result<()> {
            near.qp.post_sends(&[0, 1, 2].map(|id| SendWr::new(Op::Send, &[]).unsignaled().id(id)))?;
            near.qp.post_recvs(&[0, 1, 2].map(|id| RecvWr::new(id, &[])))?;
            Ok(())
        };
        queue()?;
        near.qp.modify(&Change::to(v::IBV_QPS_ERR))?;
        for cq in [&near.send_cq, &near.recv_cq] {
            for (id, wc) in (0..).zip(cq.take(3)?) {
                ensure!(wc.wr_id == id && wc.status == Status::WR_FLUSH_ERR, "{wc:?}");
            }
        }
        // Flushed ones too are forgotten when they have not been polled.
        queue()?;
        for end in [near, far] {
            end.qp.modify(&Change::to(v::IBV_QPS_RESET))?;
            ensure!(end.send_cq.poll(1)?.is_empty() && end.recv_cq.poll(1)?.is_empty(), "completions of a reset QP");
        }
        // And it is as good as new.
        let options = Options::default();
        near.connect(far.qp.number(), far.gid(&options)?, &options)?;
        far.connect(near.qp.number(), near.gid(&options)?, &options)?;
        far.qp.post_recv(&RecvWr::new(0, &[]))?;
        ensure!(near.complete(&SendWr::new(Op::Send, &[]))?.status == Status::SUCCESS);
        Ok(())
    });
}

/// ibv_query_qp(3) gives back what ibv_modify_qp and ibv_create_qp were given.
#[test]
fn query_returns_attributes_that_were_set() {
    in_world(|| {
        let (context, options) = (Context::open()?, Options::default());
        let pd = Pd::new(&context)?;
        let (send_cq, recv_cq) = (Cq::new(&context, 64, None)?, Cq::new(&context, 64, None)?);
        let init = Init { sq_sig_all: true, ..Init::default() };
        let qp = Qp::new(&pd, &send_cq, &recv_cq, &init)?;
        let (attr, told) = qp.query()?;
        ensure!(attr.qp_state == v::IBV_QPS_RESET);
        ensure!(told.send_cq == send_cq.raw() && told.recv_cq == recv_cq.raw() && told.srq.is_null());
        ensure!(told.qp_type == v::IBV_QPT_RC && told.sq_sig_all == 1);

        let access = v::IBV_ACCESS_REMOTE_WRITE | v::IBV_ACCESS_REMOTE_READ;
        qp.modify(&Change::init(access))?;
        let attr = qp.query()?.0;
        ensure!(attr.qp_state == v::IBV_QPS_INIT && attr.cur_qp_state == v::IBV_QPS_INIT);
        ensure!(attr.qp_access_flags == access && attr.port_num == 1 && attr.pkey_index == 0);

        let gid = context.query_gid(1, i32::try_from(GID_IPV4)?)?;
        let mut change = rtr(0x12_3456, gid, &options);
        change.attr.path_mtu = v::IBV_MTU_2048;
        change.attr.rq_psn = 0x65_4321;
        change.attr.max_dest_rd_atomic = 3;
        change.attr.min_rnr_timer = 17;
        change.attr.ah_attr.sl = 5;
        change.attr.ah_attr.grh.traffic_class = 0x68;
        change.attr.ah_attr.grh.flow_label = 0xabcde;
        change.attr.ah_attr.grh.hop_limit = 33;
        qp.modify(&change)?;
        let attr = qp.query()?.0;
        ensure!(attr.qp_state == v::IBV_QPS_RTR && attr.path_mtu == v::IBV_MTU_2048);
        ensure!(attr.dest_qp_num == 0x12_3456 && attr.rq_psn == 0x65_4321);
        ensure!(attr.max_dest_rd_atomic == 3 && attr.min_rnr_timer == 17);
        let (asked, told) = (&change.attr.ah_attr, &attr.ah_attr);
        // SAFETY: sixteen bytes, whatever they are.
        ensure!(unsafe { told.grh.dgid.raw } == gid && told.is_global == 1);
        ensure!(told.sl == asked.sl && told.port_num == 1, "SL {}, port {}", told.sl, told.port_num);
        ensure!(told.grh.sgid_index == asked.grh.sgid_index && told.grh.hop_limit == 33);
        ensure!(told.grh.traffic_class == 0x68 && told.grh.flow_label == 0xabcde);

        qp.modify(&rts(&options).with(0, |attr| {
            attr.sq_psn = 0x11_2233;
            attr.timeout = 19;
            attr.retry_cnt = 6;
            attr.rnr_retry = 5;
            attr.max_rd_atomic = 2;
        }))?;
        let attr = qp.query()?.0;
        ensure!(attr.qp_state == v::IBV_QPS_RTS && attr.sq_psn == 0x11_2233 && attr.timeout == 19);
        ensure!(attr.retry_cnt == 6 && attr.rnr_retry == 5 && attr.max_rd_atomic == 2);
        ensure!(attr.dest_qp_num == 0x12_3456 && attr.qp_access_flags == access, "forgotten on the way");
        Ok(())
    });
}
