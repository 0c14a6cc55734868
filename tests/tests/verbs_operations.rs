//! Right use: every operation moves the right bytes and completes with the right fields.

use anyhow::{Context, Result, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::verbs::memory::pattern;
use urxe_tests::verbs::{End, Mr, Op, Options, Pair, RecvWr, Remote, SendWr, Status, Wc};
use urxe_tests::{GID_DEFAULT, GID_IPV4, GID_IPV6, in_world};

/// Lengths around every boundary that packets have, and many packets.
const LENGTHS: [usize; 15] = [0, 1, 3, 4, 7, 8, 255, 256, 257, 1023, 1024, 1025, 4096, 65_537, 1 << 20];
/// Bytes around a message that must not change.
const MARGIN: usize = 64;
const IMM: u32 = 0x0102_a3b4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
}

/// Two ends with a large region each.
struct Scene {
    pair: Pair,
    local: Mr,
    remote: Mr,
}

impl Scene {
    fn new(options: &Options) -> Result<Self> {
        let pair = Pair::new(options)?;
        let len = (1 << 20) + 2 * MARGIN;
        let (local, remote) = (pair.near.region(len)?, pair.far.region(len)?);
        Ok(Self { pair, local, remote })
    }

    /// One operation of `len` bytes, checked from all sides.
    fn exchange(&self, kind: Kind, len: usize, seed: u64) -> Result<()> {
        let Self { pair: Pair { near, far }, local, remote } = self;
        let (source, sink) = if kind == Kind::Read { (remote, local) } else { (local, remote) };
        let (message, before) = (pattern(seed, len), pattern(seed + 1, len + 2 * MARGIN));
        source.pages().write(MARGIN, &message);
        sink.pages().write(0, &before);
        // An address that is not a multiple of anything.
        let op = match kind {
            Kind::Send => Op::Send,
            Kind::SendImm => Op::SendImm(IMM),
            Kind::Write => Op::Write(remote.at(MARGIN)),
            Kind::WriteImm => Op::WriteImm(remote.at(MARGIN), IMM),
            Kind::Read => Op::Read(remote.at(MARGIN)),
        };
        if matches!(kind, Kind::Send | Kind::SendImm) {
            // More room than the message needs.
            far.qp.post_recv(&RecvWr::new(seed, &[remote.sge(MARGIN, len + MARGIN)]))?;
        } else if kind == Kind::WriteImm {
            far.qp.post_recv(&RecvWr::new(seed, &[]))?;
        }
        let wc = near.complete(&SendWr::new(op, &[local.sge(MARGIN, len)]).id(seed + 2))?;
        ensure!(wc.status == Status::SUCCESS, "{wc:?}");
        let opcode = match kind {
            Kind::Send | Kind::SendImm => v::IBV_WC_SEND,
            Kind::Write | Kind::WriteImm => v::IBV_WC_RDMA_WRITE,
            Kind::Read => v::IBV_WC_RDMA_READ,
        };
        ensure!(wc.opcode == opcode, "{wc:?}");
        ensure!(kind != Kind::Read || wc.byte_len as usize == len, "{wc:?}");
        match kind {
            Kind::Write | Kind::Read => ensure!(far.recv_cq.poll(1)?.is_empty(), "a receive completed"),
            Kind::Send | Kind::SendImm | Kind::WriteImm => {
                let opcode = if kind == Kind::WriteImm { v::IBV_WC_RECV_RDMA_WITH_IMM } else { v::IBV_WC_RECV };
                let imm = (kind != Kind::Send).then_some(IMM);
                check_recv(&far.recv_cq.next()?, far, seed, opcode, len, imm)?;
            }
        }
        let mut after = before;
        after[MARGIN..MARGIN + len].copy_from_slice(&message);
        ensure!(sink.pages().read(0, after.len()) == after, "wrong bytes");
        Ok(())
    }
}

fn check_recv(wc: &Wc, far: &End, wr_id: u64, opcode: u32, len: usize, imm: Option<u32>) -> Result<()> {
    ensure!(wc.status == Status::SUCCESS && wc.wr_id == wr_id && wc.opcode == opcode, "{wc:?}");
    ensure!(wc.byte_len as usize == len && wc.qp_num == far.qp.number(), "{wc:?}");
    let flags = if imm.is_some() { v::IBV_WC_WITH_IMM } else { 0 };
    ensure!(wc.flags & v::IBV_WC_WITH_IMM == flags && imm.is_none_or(|imm| wc.imm == imm), "{wc:?}");
    Ok(())
}

fn all_lengths(options: &Options) -> Result<()> {
    let scene = Scene::new(options)?;
    let mut seed = 0;
    for kind in [Kind::Send, Kind::SendImm, Kind::Write, Kind::WriteImm, Kind::Read] {
        for len in LENGTHS {
            seed += 10;
            scene.exchange(kind, len, seed).with_context(|| format!("{kind:?} of {len} bytes"))?;
        }
    }
    Ok(())
}

#[test]
fn every_length_over_ipv4() {
    in_world(|| all_lengths(&Options { gid: GID_IPV4, ..Options::default() }));
}

#[test]
fn every_length_over_ipv6() {
    in_world(|| all_lengths(&Options { gid: GID_IPV6, ..Options::default() }));
}

#[test]
fn every_path_mtu() {
    in_world(|| {
        let mtus = [v::IBV_MTU_256, v::IBV_MTU_512, v::IBV_MTU_1024, v::IBV_MTU_2048, v::IBV_MTU_4096];
        for mtu in mtus {
            let scene = Scene::new(&Options { mtu, ..Options::default() })?;
            for kind in [Kind::Send, Kind::WriteImm, Kind::Read] {
                for len in [0, (128 << mtu) - 1, 128 << mtu, (128 << mtu) + 1, 100_000] {
                    let case = || format!("{kind:?} of {len} bytes, MTU {}", 128 << mtu);
                    scene.exchange(kind, len, len as u64 + 3).with_context(case)?;
                }
            }
        }
        Ok(())
    });
}

/// Every GID of the table works between queue pairs of one host.
#[test]
fn every_gid() {
    in_world(|| {
        for gid in [GID_DEFAULT, GID_IPV4, GID_IPV6] {
            let options = Options { gid, ..Options::default() };
            let exchange = || Scene::new(&options)?.exchange(Kind::Send, 5000, 1);
            exchange().with_context(|| format!("GID {gid}"))?;
        }
        Ok(())
    });
}

/// A queue pair connected to itself: RoCE has nothing against it.
#[test]
fn a_queue_pair_connected_to_itself() {
    in_world(|| {
        let options = Options::default();
        let end = End::new(&urxe_tests::verbs::Context::open()?, &options)?;
        end.connect(end.qp.number(), end.gid(&options)?, &options)?;
        let mr = end.region(8192)?;
        mr.pages().write(0, &pattern(1, 4096));
        end.qp.post_recv(&RecvWr::new(1, &[mr.sge(4096, 4096)]))?;
        ensure!(end.complete(&SendWr::new(Op::Send, &[mr.sge(0, 4096)]))?.status == Status::SUCCESS);
        check_recv(&end.recv_cq.next()?, &end, 1, v::IBV_WC_RECV, 4096, None)?;
        ensure!(mr.pages().read(4096, 4096) == pattern(1, 4096));
        Ok(())
    });
}

//= spec/memory.md#mem-009
//= type=test
//# CMP_SWP and FETCH_ADD MUST be atomic to the processor's own atomics.
#[test]
fn atomics() {
    in_world(|| {
        let Scene { pair: Pair { near, .. }, local, remote } = &Scene::new(&Options::default())?;
        let at = |offset: usize| remote.at(offset);
        let swap = |compare, swap| Op::CmpSwp { remote: at(8), compare, swap };
        let add = |add| Op::FetchAdd { remote: at(8), add };
        let start = 0x0123_4567_89ab_cdef;
        remote.pages().write(0, &pattern(1, 24));
        remote.pages().write(8, &u64::to_ne_bytes(start));
        // What is done, what was there before, what is there after.
        let steps = [
            (swap(start, 5), start, 5),
            (swap(start, 6), 5, 5),
            (add(u64::MAX), 5, 4),
            (add(0), 4, 4),
            (add(u64::MAX - 3), 4, 0),
            (swap(0, u64::MAX), 0, u64::MAX),
            (add(3), u64::MAX, 2),
        ];
        for (op, before, after) in steps {
            local.pages().write(0, &pattern(2, 24));
            let wc = near.complete(&SendWr::new(op, &[local.sge(8, 8)]))?;
            let opcode = if matches!(op, Op::FetchAdd { .. }) { v::IBV_WC_FETCH_ADD } else { v::IBV_WC_COMP_SWAP };
            ensure!(wc.status == Status::SUCCESS && wc.opcode == opcode && wc.byte_len == 8, "{op:?}: {wc:?}");
            ensure!(local.pages().read_u64(8) == before, "{op:?}: returned {:#x}", local.pages().read_u64(8));
            ensure!(remote.pages().read_u64(8) == after, "{op:?}: left {:#x}", remote.pages().read_u64(8));
            for pages in [(local, 2), (remote, 1)] {
                let (mr, expected) = (pages.0, pattern(pages.1, 24));
                ensure!(mr.pages().read(0, 8) == expected[..8] && mr.pages().read(16, 8) == expected[16..], "around");
            }
        }
        Ok(())
    });
}

/// Gather and scatter lists cut at odd places, and not in the order of addresses.
#[test]
fn lists_of_elements() {
    in_world(|| {
        let Scene { pair: Pair { near, far }, local, remote } = &Scene::new(&Options::default())?;
        let total = 10 + 2000 + 1 + 1033;
        let gather = [local.sge(5000, 10), local.sge(100, 2000), local.sge(9000, 1), local.sge(3000, 1033)];
        let scatter = [remote.sge(4001, 1500), remote.sge(1, 3), remote.sge(0, 0), remote.sge(7003, 1541)];
        let bytes = pattern(7, 10_000);
        local.pages().write(0, &bytes);
        let message = [&bytes[5000..5010], &bytes[100..2100], &bytes[9000..9001], &bytes[3000..4033]].concat();

        far.qp.post_recv(&RecvWr::new(1, &scatter))?;
        ensure!(near.complete(&SendWr::new(Op::Send, &gather))?.status == Status::SUCCESS);
        check_recv(&far.recv_cq.next()?, far, 1, v::IBV_WC_RECV, total, None)?;
        let read = |offset, len| remote.pages().read(offset, len);
        ensure!([read(4001, 1500), read(1, 3), read(7003, 1541)].concat() == message, "SEND");

        ensure!(near.complete(&SendWr::new(Op::Write(remote.at(20_001)), &gather))?.status == Status::SUCCESS);
        ensure!(read(20_001, total) == message, "WRITE");

        let into = [local.sge(30_001, 1), local.sge(20_000, 2047), local.sge(40_000, total - 2048)];
        let wc = near.complete(&SendWr::new(Op::Read(remote.at(20_001)), &into))?;
        ensure!(wc.status == Status::SUCCESS && wc.byte_len as usize == total, "{wc:?}");
        let read = |offset, len| local.pages().read(offset, len);
        ensure!([read(30_001, 1), read(20_000, 2047), read(40_000, total - 2048)].concat() == message, "READ");
        Ok(())
    });
}

/// Inline data is the caller's again when the post returns, and its L_Key is not looked at (ibv_post_send(3)).
#[test]
fn inline_data() {
    in_world(|| {
        let Scene { pair: Pair { near, far }, remote, .. } = &Scene::new(&Options::default())?;
        let pages = urxe_tests::verbs::Pages::new(4096);
        let sge = |offset: usize, length| v::ibv_sge { addr: pages.addr() + offset as u64, length, lkey: 0xbad };
        pages.write(0, &pattern(1, 100));
        far.qp.post_recv(&RecvWr::new(1, &[remote.sge(0, 64)]))?;
        let list = [
            SendWr::new(Op::Send, &[sge(0, 30), sge(40, 34)]).with(v::IBV_SEND_INLINE),
            SendWr::new(Op::Write(remote.at(100)), &[sge(3, 1)]).with(v::IBV_SEND_INLINE),
        ];
        near.qp.post_sends(&list)?;
        pages.write(0, &[0; 100]);
        for wc in near.send_cq.take(2)? {
            ensure!(wc.status == Status::SUCCESS, "{wc:?}");
        }
        check_recv(&far.recv_cq.next()?, far, 1, v::IBV_WC_RECV, 64, None)?;
        let bytes = pattern(1, 100);
        ensure!(remote.pages().read(0, 64) == [&bytes[..30], &bytes[40..74]].concat());
        ensure!(remote.pages().read(100, 1) == bytes[3..4]);
        Ok(())
    });
}

/// A fenced request waits for READs and atomics before it (IBA 10.8.3.3): it may send what they return.
#[test]
fn fence() {
    in_world(|| {
        let Scene { pair: Pair { near, far }, local, remote } = &Scene::new(&Options::default())?;
        let len = 100_000;
        for round in 0..20 {
            let message = pattern(round + 50, len);
            remote.pages().write(0, &message);
            remote.pages().write(len, &[0; 16]);
            local.pages().write(0, &vec![0; len + 8]);
            far.qp.post_recv(&RecvWr::new(1, &[remote.sge(200_000, len + 8)]))?;
            near.qp.post_sends(&[
                SendWr::new(Op::Read(remote.at(0)), &[local.sge(0, len)]).unsignaled(),
                SendWr::new(Op::FetchAdd { remote: remote.at(100_000), add: 1 }, &[local.sge(len, 8)]).unsignaled(),
                SendWr::new(Op::Send, &[local.sge(0, len + 8)]).with(v::IBV_SEND_FENCE),
            ])?;
            ensure!(near.send_cq.next()?.status == Status::SUCCESS);
            check_recv(&far.recv_cq.next()?, far, 1, v::IBV_WC_RECV, len + 8, None)?;
            ensure!(remote.pages().read(200_000, len) == message, "round {round}: sent before it was read");
        }
        Ok(())
    });
}

/// Without a fence too, what is read comes after what was written before (IBA 10.8.3.3: operations on one QP are
/// carried out in order at the responder).
#[test]
fn reads_see_the_writes_before_them() {
    in_world(|| {
        let Scene { pair: Pair { near, .. }, local, remote } = &Scene::new(&Options::default())?;
        let len = 50_000;
        for round in 0..20 {
            let message = pattern(round, len);
            local.pages().write(0, &message);
            near.qp.post_sends(&[
                SendWr::new(Op::Write(remote.at(0)), &[local.sge(0, len)]).unsignaled(),
                SendWr::new(Op::Read(remote.at(0)), &[local.sge(100_000, len)]),
            ])?;
            ensure!(near.send_cq.next()?.status == Status::SUCCESS);
            ensure!(local.pages().read(100_000, len) == message, "round {round}");
        }
        Ok(())
    });
}

/// Both ends at once, as many as fit, of all kinds: completions in the order of posting.
#[test]
fn everything_at_once_in_both_directions() {
    in_world(|| {
        let options = Options { sq_sig_all: true, ..Options::default() };
        let Scene { pair: Pair { near, far }, local, remote } = &Scene::new(&options)?;
        let ops = |peer: &Mr, own: &Mr, index: u64| {
            let at = Remote { addr: peer.at(600_000).addr + 8 * index, ..peer.at(0) };
            let sge = own.sge(usize::try_from(index).unwrap_or(0) * 4096, 4000);
            match index % 5 {
                0 => SendWr::new(Op::Send, &[sge]),
                1 => SendWr::new(Op::Write(peer.at(500_000)), &[sge]),
                2 => SendWr::new(Op::FetchAdd { remote: at, add: 1 }, &[own.sge(800_000, 8)]),
                3 => SendWr::new(Op::Read(peer.at(0)), &[own.sge(700_000, 30_000)]),
                _ => SendWr::new(Op::WriteImm(peer.at(500_000), 1), &[sge]),
            }
            .unsignaled()
            .id(index)
        };
        for (end, mr) in [(near, local), (far, remote)] {
            let recvs: Vec<_> = (0..40).map(|id| RecvWr::new(id, &[mr.sge(900_000, 4000)])).collect();
            end.qp.post_recvs(&recvs)?;
        }
        let of = |peer, own| (0..60).map(|index| ops(peer, own, index)).collect::<Vec<_>>();
        near.qp.post_sends(&of(remote, local))?;
        far.qp.post_sends(&of(local, remote))?;
        for end in [near, far] {
            for (index, wc) in (0..).zip(end.send_cq.take(60)?) {
                ensure!(wc.status == Status::SUCCESS && wc.wr_id == index, "send {index}: {wc:?}");
            }
            for (index, wc) in (0..).zip(end.recv_cq.take(24)?) {
                ensure!(wc.status == Status::SUCCESS && wc.wr_id == index, "receive {index}: {wc:?}");
            }
        }
        Ok(())
    });
}
