//! A network that loses packets: everything arrives all the same, once and in order.

use anyhow::{Context as _, Result, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::verbs::loss::{lose, lost};
use urxe_tests::verbs::memory::pattern;
use urxe_tests::verbs::{Op, Options, Pair, RecvWr, SendWr, Status};
use urxe_tests::{GID_IPV4, GID_IPV6, in_world_over_udp};

/// Impatient, so that lost acknowledgements do not cost much time; so many tries that none runs out.
fn options(gid: u32) -> Options {
    Options { gid, timeout: 8, retry_cnt: 7, cqe: 4096, ..Options::default() }
}

/// Exactly-once delivery, in order, of messages of one packet and of several.
fn messages(gid: u32) -> Result<()> {
    const COUNT: usize = 1500;
    const ROOM: usize = 3000;
    let Pair { near, far } = &Pair::new(&options(gid))?;
    let slots = 32;
    let (local, remote) = (near.region(slots * ROOM)?, far.region(slots * ROOM)?);
    lose(20)?;
    let len = |index: usize| 8 + (index * 37) % (ROOM - 8);
    let message = |index: usize| [&(index as u64).to_ne_bytes()[..], &pattern(index as u64, len(index) - 8)].concat();
    let recv = |index: usize| RecvWr::new(index as u64, &[remote.sge(index % slots * ROOM, ROOM)]);
    for index in 0..slots {
        far.qp.post_recv(&recv(index))?;
    }
    let send = |index: usize| -> Result<()> {
        let at = index % slots * ROOM;
        local.pages().write(at, &message(index));
        let op = if index.is_multiple_of(2) { Op::Send } else { Op::SendImm(u32::try_from(index)?) };
        Ok(near.qp.post_send(&SendWr::new(op, &[local.sge(at, len(index))]).id(index as u64))?)
    };
    for index in 0..slots {
        send(index)?;
    }
    for index in 0..COUNT {
        let wc = far.recv_cq.next().with_context(|| format!("message {index}"))?;
        ensure!(wc.status == Status::SUCCESS && wc.wr_id == index as u64, "message {index}: {wc:?}");
        ensure!(wc.byte_len as usize == len(index), "message {index}: {} bytes", wc.byte_len);
        ensure!(
            remote.pages().read(index % slots * ROOM, len(index)) == message(index),
            "message {index}: wrong bytes"
        );
        far.qp.post_recv(&recv(index + slots))?;
        let wc = near.send_cq.next().with_context(|| format!("completion {index}"))?;
        ensure!(wc.status == Status::SUCCESS && wc.wr_id == index as u64, "completion {index}: {wc:?}");
        send(index + slots)?;
    }
    ensure!(lost()? > 0, "nothing was lost");
    Ok(())
}

//= spec/requester.md#req-008
//= type=test
//# Every signaled request MUST complete exactly once, whatever the network does.
#[test]
fn messages_arrive_once_and_in_order_over_ipv4() {
    in_world_over_udp(|| messages(GID_IPV4));
}

#[test]
fn messages_arrive_once_and_in_order_over_ipv6() {
    in_world_over_udp(|| messages(GID_IPV6));
}

/// An atomic whose answer was lost is not carried out again (IBA 9.4.5, 9.7.5.1.5).
//= spec/responder.md#rsp-004
//= type=test
//# A duplicate atomic MUST be answered with the first result and MUST NOT be executed.
//= spec/completer.md#cmp-003
//= type=test
//# An acknowledgement behind an unanswered READ or atomic MUST be taken as news that the response was lost.
#[test]
fn atomics_are_carried_out_once() {
    const COUNT: u64 = 1500;
    in_world_over_udp(|| {
        let Pair { near, far } = &Pair::new(&options(GID_IPV4))?;
        let (local, remote) = (near.region(4096)?, far.region(4096)?);
        lose(25)?;
        let add = |id: u64| {
            let op = Op::FetchAdd { remote: remote.at(0), add: 1 };
            SendWr::new(op, &[local.sge(8 * usize::try_from(id % 16).unwrap_or(0), 8)]).id(id)
        };
        for id in 0..16 {
            near.qp.post_send(&add(id))?;
        }
        for id in 0..COUNT {
            let wc = near.send_cq.next()?;
            ensure!(wc.status == Status::SUCCESS && wc.wr_id == id, "{wc:?}");
            let original = local.pages().read_u64(8 * usize::try_from(id % 16)?);
            ensure!(original == id, "atomic {id} found {original}");
            if id + 16 < COUNT {
                near.qp.post_send(&add(id + 16))?;
            }
        }
        ensure!(remote.pages().read_u64(0) == COUNT, "{COUNT} became {}", remote.pages().read_u64(0));
        ensure!(lost()? > 0, "nothing was lost");
        Ok(())
    });
}

/// Long READs and WRITEs at once, in both directions.
fn streams(gid: u32) -> Result<()> {
    const LEN: usize = 1 << 20;
    let Pair { near, far } = &Pair::new(&options(gid))?;
    let regions = [near.region(3 * LEN)?, far.region(3 * LEN)?];
    let [local, remote] = &regions;
    for (seed, mr) in (1..).zip(&regions) {
        mr.pages().write(0, &pattern(seed, LEN));
    }
    lose(100)?;
    // A run of packets is lost at once, so a few rounds may lose nothing.
    for round in 0..50 {
        for (end, own, peer) in [(near, local, remote), (far, remote, local)] {
            own.pages().write(LEN, &vec![0; LEN]);
            end.qp.post_sends(&[
                SendWr::new(Op::Write(peer.at(2 * LEN)), &[own.sge(0, LEN)]),
                SendWr::new(Op::Read(peer.at(0)), &[own.sge(LEN, LEN)]),
            ])?;
        }
        for (end, own, seed) in [(near, local, 2), (far, remote, 1)] {
            for (opcode, wc) in [v::IBV_WC_RDMA_WRITE, v::IBV_WC_RDMA_READ].into_iter().zip(end.send_cq.take(2)?) {
                ensure!(wc.status == Status::SUCCESS && wc.opcode == opcode, "round {round}: {wc:?}");
            }
            ensure!(own.pages().read(LEN, LEN) == pattern(seed, LEN), "round {round}: READ");
        }
        for (own, seed) in [(local, 2), (remote, 1)] {
            ensure!(own.pages().read(2 * LEN, LEN) == pattern(seed, LEN), "round {round}: WRITE");
        }
        if round >= 2 && lost()? > 0 {
            break;
        }
    }
    ensure!(lost()? > 0, "nothing was lost");
    Ok(())
}

#[test]
fn streams_survive_over_ipv4() {
    in_world_over_udp(|| streams(GID_IPV4));
}

#[test]
fn streams_survive_over_ipv6() {
    in_world_over_udp(|| streams(GID_IPV6));
}

/// While no thread polls, the background thread alone finds out what was lost.
#[test]
fn sleepers_survive() {
    in_world_over_udp(|| {
        let Pair { near, far } = &Pair::new(&Options { events: true, ..options(GID_IPV4) })?;
        let channel = near.channel.as_ref().context("no channel")?;
        let (local, remote) = (near.region(100_000)?, far.region(100_000)?);
        lose(20)?;
        for round in 0..100 {
            local.pages().write(0, &pattern(round, 30_000));
            near.send_cq.arm(false)?;
            near.qp.post_send(&SendWr::new(Op::Write(remote.at(0)), &[local.sge(0, 30_000)]))?;
            ensure!(urxe_tests::verbs::is_readable(channel.fd(), urxe_tests::verbs::PATIENCE), "round {round}");
            ensure!(channel.event()? == near.send_cq.address());
            near.send_cq.acknowledge_events(1);
            ensure!(near.send_cq.next()?.status == Status::SUCCESS);
            ensure!(remote.pages().read(0, 30_000) == pattern(round, 30_000), "round {round}: wrong bytes");
        }
        ensure!(lost()? > 0, "nothing was lost");
        Ok(())
    });
}

/// When everything is lost, the tries run out (ibv_modify_qp(3) `retry_cnt`).
#[test]
fn a_cable_that_is_cut() {
    in_world_over_udp(|| {
        let Pair { near, far } = &Pair::new(&options(GID_IPV4))?;
        let (local, remote) = (near.region(4096)?, far.region(4096)?);
        let write = SendWr::new(Op::Write(remote.at(0)), &[local.sge(0, 8)]);
        ensure!(near.complete(&write)?.status == Status::SUCCESS);
        lose(1)?;
        ensure!(near.complete(&write)?.status == Status::RETRY_EXC_ERR);
        Ok(())
    });
}
