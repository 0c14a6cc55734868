//! Sizes of queues, and what happens at their ends.

use anyhow::{Context as _, Result, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::in_world;
use urxe_tests::verbs::context::event_name;
use urxe_tests::verbs::qp::{CAP, Init};
use urxe_tests::verbs::{Context, Cq, Op, Options, PATIENCE, Pair, Pd, PostError, Qp, RecvWr, SendWr, Status};

fn small() -> Options {
    Options { cap: v::ibv_qp_cap { max_send_wr: 4, max_recv_wr: 4, ..CAP }, ..Options::default() }
}

fn refused(result: Result<(), PostError>, errno: i32, bad: usize) -> Result<()> {
    let error = result.err().context("it was not refused")?;
    ensure!(error.errno.0 == errno && error.bad == Some(bad), "{error:?}");
    Ok(())
}

/// ibv_post_send(3): ENOMEM "Send Queue is full or not enough resources"; `*bad_wr` is the first not posted.
#[test]
fn a_full_send_queue() {
    in_world(|| {
        let Pair { near, far } = &Pair::new(&small())?;
        let room = near.qp.cap().max_send_wr as usize;
        let mr = far.region(4096)?;
        // Nothing is received, so nothing completes.
        let list: Vec<_> = (0..=room as u64).map(|id| SendWr::new(Op::Send, &[]).id(id)).collect();
        refused(near.qp.post_sends(&list), libc::ENOMEM, room)?;
        refused(near.qp.post_send(&list[0]), libc::ENOMEM, 0)?;
        let recvs: Vec<_> = (0..room as u64).map(|id| RecvWr::new(id, &[mr.sge(0, 8)])).collect();
        far.qp.post_recvs(&recvs)?;
        for (id, wc) in (0..).zip(near.send_cq.take(room)?) {
            ensure!(wc.status == Status::SUCCESS && wc.wr_id == id, "{wc:?}");
        }
        far.qp.post_recv(&RecvWr::new(0, &[]))?;
        near.complete(&list[0]).context("it is empty again")?;
        Ok(())
    });
}

#[test]
fn a_full_receive_queue() {
    in_world(|| {
        let Pair { near, far } = &Pair::new(&small())?;
        let room = far.qp.cap().max_recv_wr as usize;
        let list: Vec<_> = (0..=room as u64).map(|id| RecvWr::new(id, &[])).collect();
        refused(far.qp.post_recvs(&list), libc::ENOMEM, room)?;
        ensure!(near.complete(&SendWr::new(Op::Send, &[]))?.status == Status::SUCCESS);
        ensure!(far.recv_cq.next()?.wr_id == 0);
        far.qp.post_recv(&list[0]).context("there is room again")?;
        Ok(())
    });
}

/// Unsignaled requests free their places when a later one completes.
#[test]
fn a_send_queue_goes_round() {
    in_world(|| {
        let Pair { near, far } = &Pair::new(&small())?;
        let (local, remote) = (near.region(4096)?, far.region(4096)?);
        for round in 0..500_u64 {
            local.pages().write(0, &round.to_ne_bytes());
            let wr = SendWr::new(Op::Write(remote.at(0)), &[local.sge(0, 8)]).id(round);
            let unsignaled = wr.clone().unsignaled();
            near.qp.post_sends(&[unsignaled.clone(), unsignaled.clone(), unsignaled, wr])?;
            let wc = near.send_cq.next()?;
            ensure!(wc.status == Status::SUCCESS && wc.wr_id == round, "{wc:?}");
            ensure!(remote.pages().read_u64(0) == round);
        }
        Ok(())
    });
}

/// ibv_post_send(3), ibv_post_recv(3): EINVAL "Invalid value provided in wr". What came before it is posted.
//= spec/requester.md#req-020
//= type=test
//# A work request with more elements or inline data than the queue pair was made for MUST be refused when posted.
#[test]
fn too_many_elements() {
    in_world(|| {
        let Pair { near, far } = &Pair::new(&Options::default())?;
        let mr = near.region(4096)?;
        let sges = vec![mr.sge(0, 1); near.qp.cap().max_send_sge as usize + 1];
        let good = SendWr::new(Op::Send, &[mr.sge(0, 1)]);
        refused(near.qp.post_sends(&[good, SendWr::new(Op::Send, &sges)]), libc::EINVAL, 1)?;
        let sges = vec![mr.sge(0, 1); far.qp.cap().max_recv_sge as usize + 1];
        refused(far.qp.post_recvs(&[RecvWr::new(1, &[]), RecvWr::new(2, &sges)]), libc::EINVAL, 1)?;
        // The good receive takes the good SEND, and is too small for it.
        ensure!(far.recv_cq.next()?.wr_id == 1);
        Ok(())
    });
}

//= spec/requester.md#req-020
//= type=test
//# A work request with more elements or inline data than the queue pair was made for MUST be refused when posted.
#[test]
fn too_much_inline_data() {
    in_world(|| {
        let Pair { near, far } = &Pair::new(&Options::default())?;
        let (local, remote) = (near.region(4096)?, far.region(4096)?);
        let most = near.qp.cap().max_inline_data as usize;
        let write = |len: usize| {
            let sges = [local.sge(0, len / 2), local.sge(1000, len - len / 2)];
            SendWr::new(Op::Write(remote.at(0)), &sges).with(v::IBV_SEND_INLINE)
        };
        ensure!(near.complete(&write(most))?.status == Status::SUCCESS);
        refused(near.qp.post_send(&write(most + 1)), libc::EINVAL, 0)
    });
}

/// Operations that RC does not have, and numbers that are none (ibv_post_send(3): EINVAL).
#[test]
fn unknown_operations() {
    in_world(|| {
        let Pair { near, .. } = &Pair::new(&Options::default())?;
        // SAFETY: a plain C struct of numbers and null pointers.
        let mut wr: v::ibv_send_wr = unsafe { std::mem::zeroed() };
        for opcode in [v::IBV_WR_TSO, v::IBV_WR_DRIVER1, 77, u32::MAX] {
            wr.opcode = opcode;
            let mut bad = std::ptr::null_mut();
            // SAFETY: one request without elements.
            let returned = unsafe {
                let post = (*near.context.raw()).ops.post_send.context("no post_send")?;
                post(near.qp.raw(), &raw mut wr, &raw mut bad)
            };
            ensure!(returned == libc::EINVAL && bad == &raw mut wr, "opcode {opcode}: {returned}");
        }
        Ok(())
    });
}

/// Lists that are empty, or cannot be, and flags that do not go together.
#[test]
fn malformed_requests() {
    in_world(|| {
        let Pair { near, .. } = &Pair::new(&Options::default())?;
        near.qp.post_sends(&[])?;
        near.qp.post_recvs(&[])?;
        let mr = near.region(4096)?;
        let read_inline = SendWr::new(Op::Read(mr.at(0)), &[mr.sge(0, 8)]).with(v::IBV_SEND_INLINE);
        refused(near.qp.post_send(&read_inline), libc::EINVAL, 0)?;
        // SAFETY: a plain C struct of numbers and null pointers.
        let mut wr: v::ibv_recv_wr = unsafe { std::mem::zeroed() };
        for num_sge in [-1, i32::MIN] {
            wr.num_sge = num_sge;
            let mut bad = std::ptr::null_mut();
            // SAFETY: one request, whose list is not looked at.
            let returned = unsafe {
                let post = (*near.context.raw()).ops.post_recv.context("no post_recv")?;
                post(near.qp.raw(), &raw mut wr, &raw mut bad)
            };
            ensure!(returned == libc::EINVAL && bad == &raw mut wr, "{num_sge} elements: {returned}");
        }
        ensure!(near.send_cq.poll(0)?.is_empty());
        Ok(())
    });
}

/// A CQ that overruns is in error, and so are its QPs (IBA 10.2.4.3, 11.6.3.2; ibv_get_async_event(3)).
//= spec/completions.md#cq-002
//= type=test
//# An overrun MUST be told once as IBV_EVENT_CQ_ERR, and no completion be taken after it.
#[test]
fn a_completion_queue_overruns() {
    in_world(|| {
        let Pair { near, far } = &Pair::new(&Options { cqe: 4, ..Options::default() })?;
        let room = usize::try_from(near.send_cq.capacity())?;
        ensure!((4..64).contains(&room), "a CQ of 4 holds {room}");
        let (local, remote) = (near.region(4096)?, far.region(4096)?);
        let wr = SendWr::new(Op::Write(remote.at(0)), &[local.sge(0, 8)]);
        near.qp.post_sends(&vec![wr; room + 1])?;
        let mut expected =
            vec![(v::IBV_EVENT_CQ_ERR, near.send_cq.address()), (v::IBV_EVENT_QP_FATAL, near.qp.address())];
        while !expected.is_empty() {
            let names = || expected.iter().map(|(kind, _)| event_name(*kind)).collect::<Vec<_>>();
            let event = near.context.async_event(PATIENCE)?.with_context(|| format!("missing: {:?}", names()))?;
            let found = expected.iter().position(|&(kind, at)| kind == event.kind() && at == event.element());
            expected.remove(found.with_context(|| format!("unexpected: {}", event.name()))?);
        }
        ensure!(near.qp.state()? == v::IBV_QPS_ERR);
        ensure!(far.qp.state()? == v::IBV_QPS_RTS);
        Ok(())
    });
}

/// ibv_create_cq(3), ibv_resize_cq(3).
#[test]
fn sizes_of_completion_queues() {
    in_world(|| {
        let context = Context::open()?;
        let most = context.query_device()?.max_cqe;
        for cqe in [0, -1, i32::MIN, most.saturating_add(1)] {
            let error = Cq::new(&context, cqe, None).err().with_context(|| format!("a CQ of {cqe}"))?;
            ensure!(error.0 == libc::EINVAL, "a CQ of {cqe}: {error}");
        }
        for cqe in [1, 2, 100, most] {
            let cq = Cq::new(&context, cqe, None)?;
            ensure!(cq.capacity() >= cqe, "a CQ of {cqe} has {}", cq.capacity());
        }
        Ok(())
    });
}

//= spec/completions.md#cq-005
//= type=test
//# Resizing MUST lose no completion, and be refused where one would have no place.
#[test]
fn resized_completion_queues_keep_their_completions() {
    in_world(|| {
        let Pair { near, far } = &Pair::new(&Options { cqe: 8, ..Options::default() })?;
        let (local, remote) = (near.region(4096)?, far.region(4096)?);
        let write = |id| SendWr::new(Op::Write(remote.at(0)), &[local.sge(0, 8)]).id(id);
        let message = |id| SendWr::new(Op::Send, &[]).id(id);
        near.qp.post_recv(&RecvWr::new(0, &[]))?;
        far.qp.post_recv(&RecvWr::new(0, &[]))?;
        near.qp.post_sends(&(0..7).map(write).chain([message(7)]).collect::<Vec<_>>())?;
        // The far end's answer comes behind its acknowledgements.
        far.recv_cq.next()?;
        far.complete(&message(0))?;
        near.recv_cq.next()?;
        let error = near.send_cq.resize(7).err().context("shrunk to less than it holds")?;
        ensure!(error.0 == libc::EINVAL, "{error}");
        near.send_cq.resize(64)?;
        ensure!(near.send_cq.capacity() >= 64);
        near.qp.post_sends(&(8..30).map(write).collect::<Vec<_>>())?;
        for (id, wc) in (0..).zip(near.send_cq.take(30)?) {
            ensure!(wc.status == Status::SUCCESS && wc.wr_id == id, "{wc:?}");
        }
        near.send_cq.resize(1)?;
        Ok(())
    });
}

/// ibv_create_qp(3): "The function will update the qp_init_attr->cap with the actual QP values of the QP; the values
/// will be greater than or equal to the values requested"; more than the device has is EINVAL.
#[test]
fn sizes_of_queue_pairs() {
    in_world(|| {
        let context = Context::open()?;
        let device = context.query_device()?;
        let (pd, cq) = (Pd::new(&context)?, Cq::new(&context, 16, None)?);
        let make = |cap| Qp::new(&pd, &cq, &cq, &Init { cap, ..Init::default() });
        let (wr, sge) = (u32::try_from(device.max_qp_wr)?, u32::try_from(device.max_sge)?);
        let least =
            v::ibv_qp_cap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let too_large = [
            ("send WRs", v::ibv_qp_cap { max_send_wr: wr + 1, ..least }),
            ("receive WRs", v::ibv_qp_cap { max_recv_wr: wr + 1, ..least }),
            ("send SGEs", v::ibv_qp_cap { max_send_sge: sge + 1, ..least }),
            ("receive SGEs", v::ibv_qp_cap { max_recv_sge: sge + 1, ..least }),
            ("inline data", v::ibv_qp_cap { max_inline_data: 1 << 20, ..least }),
            (
                "everything",
                v::ibv_qp_cap {
                    max_send_wr: u32::MAX,
                    max_recv_wr: u32::MAX,
                    max_send_sge: u32::MAX,
                    max_recv_sge: u32::MAX,
                    max_inline_data: u32::MAX,
                },
            ),
        ];
        for (name, cap) in too_large {
            let error = make(cap).err().with_context(|| format!("{name}: not refused"))?;
            ensure!(error.0 == libc::EINVAL, "{name}: {error}");
        }
        let most = v::ibv_qp_cap { max_send_wr: wr, max_recv_wr: wr, max_send_sge: sge, max_recv_sge: sge, ..least };
        let nothing = v::ibv_qp_cap { max_send_wr: 0, max_recv_wr: 0, ..least };
        for asked in [least, CAP, most, nothing] {
            let qp = make(asked)?;
            let (got, queried) = (qp.cap(), qp.query()?.1.cap);
            let fields = |cap: &v::ibv_qp_cap| {
                [cap.max_send_wr, cap.max_recv_wr, cap.max_send_sge, cap.max_recv_sge, cap.max_inline_data]
            };
            let enough = fields(&got).iter().zip(fields(&asked)).all(|(got, asked)| *got >= asked);
            ensure!(enough, "asked for {:?}, got {:?}", fields(&asked), fields(&got));
            ensure!(fields(&queried) == fields(&got), "got {:?}, queried {:?}", fields(&got), fields(&queried));
        }
        Ok(())
    });
}
