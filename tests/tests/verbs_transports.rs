//! UC and UD through libibverbs: messages, headers, address handles, multicast.

use std::net::{Ipv4Addr, Ipv6Addr};

use anyhow::{Result, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::verbs::datagram::{Ah, GRH, MULTICAST, Mouth, Q_KEY, towards};
use urxe_tests::verbs::memory::{ALL_ACCESS, pattern};
use urxe_tests::verbs::{Change, Context, Cq, Errno, Mr, Op, Pd, Qp, RecvWr, SendWr, Status, qp::Init};
use urxe_tests::{GID_IPV4, in_world, in_world_with};

const EINVAL: Errno = Errno(libc::EINVAL);

fn own_gid(context: &Context, index: u32) -> Result<[u8; 16]> {
    Ok(context.query_gid(1, i32::try_from(index)?)?)
}

//= spec/unreliable.md#unr-005
//= type=test
//# The receive buffer of a datagram MUST begin with 40 bytes of network header.
#[test]
fn datagrams_come_with_their_header_and_can_be_answered() {
    in_world(|| {
        let context = Context::open()?;
        let (near, far) = (Mouth::new(&context)?, Mouth::new(&context)?);
        let ah = Ah::new(&near.pd, towards(own_gid(&context, GID_IPV4)?, GID_IPV4))?;
        for (round, len) in [0, 1, 5, 2048, 4096].into_iter().enumerate() {
            let message = pattern(7, len);
            far.listen(5, 4096)?;
            near.say(Op::SendImm(0x0102_0304), &message, &ah, far.qp.number())?;
            let wc = far.cq.next()?;
            ensure!(wc.status == Status::SUCCESS && wc.wr_id == 5 && wc.opcode == v::IBV_WC_RECV, "{wc:?}");
            ensure!(wc.byte_len as usize == GRH + len && wc.imm == 0x0102_0304, "{wc:?}");
            ensure!(wc.src_qp == near.qp.number(), "{wc:?}");
            ensure!(wc.flags & (v::IBV_WC_GRH | v::IBV_WC_WITH_IMM) == v::IBV_WC_GRH | v::IBV_WC_WITH_IMM, "{wc:?}");
            ensure!(far.hear(len) == message, "length {len}");
            let header = far.room.pages().read(20, 20);
            ensure!(header.starts_with(&[0x45]) && header.ends_with(&[127, 0, 0, 1, 127, 0, 0, 1]), "{header:?}");

            // And back, by what the completion says.
            let back = Ah::back(&far.pd, &wc, &far.room)?;
            near.listen(6, 16)?;
            far.say(Op::Send, b"answer", &back, wc.src_qp)?;
            let wc = near.cq.next()?;
            ensure!(wc.wr_id == 6 && wc.src_qp == far.qp.number() && near.hear(6) == b"answer", "{round}: {wc:?}");
        }
        Ok(())
    });
}

#[test]
fn datagrams_that_do_not_fit_are_dropped() {
    in_world(|| {
        let context = Context::open()?;
        let (near, far) = (Mouth::new(&context)?, Mouth::new(&context)?);
        let ah = Ah::new(&near.pd, towards(own_gid(&context, GID_IPV4)?, GID_IPV4))?;
        far.listen(1, 8)?;
        // Too long for the receive; too long for the port (IBA C10-93.1.1); with another Q_Key.
        near.say(Op::Send, b"nine byte", &ah, far.qp.number())?;
        near.say(Op::Send, &pattern(1, 4097), &ah, far.qp.number())?;
        near.post(&SendWr::new(Op::Send, &[near.out.sge(0, 8)]), &ah, far.qp.number(), Q_KEY ^ 1)?;
        near.cq.next()?;
        near.say(Op::Send, b"just fit", &ah, far.qp.number())?;
        let wc = far.cq.next()?;
        ensure!(wc.wr_id == 1 && far.hear(8) == b"just fit", "{wc:?}");
        // A Q_Key with the high bit set means that of the sending queue pair.
        far.listen(2, 8)?;
        near.post(&SendWr::new(Op::Send, &[near.out.sge(0, 8)]), &ah, far.qp.number(), 0x8000_0000)?;
        near.cq.next()?;
        ensure!(far.cq.next()?.wr_id == 2);
        Ok(())
    });
}

#[test]
fn address_handles_are_checked() {
    in_world(|| {
        let context = Context::open()?;
        let pd = Pd::new(&context)?;
        let good = towards(own_gid(&context, GID_IPV4)?, GID_IPV4);
        let refused = |change: &dyn Fn(&mut v::ibv_ah_attr)| {
            let mut attr = good;
            change(&mut attr);
            Ah::new(&pd, attr).err()
        };
        for (what, errno) in [
            ("no GRH", refused(&|attr| attr.is_global = 0)),
            ("another port", refused(&|attr| attr.port_num = 2)),
            ("nowhere", refused(&|attr| attr.grh.dgid.raw = [0; 16])),
        ] {
            ensure!(errno == Some(EINVAL), "{what}: {errno:?}");
        }
        // An empty row of the GID table (the kernel's `rdma_get_gid_attr`).
        let errno = refused(&|attr| attr.grh.sgid_index = 200);
        ensure!(errno == Some(Errno(libc::ENODATA)), "{errno:?}");
        let ah = Ah::new(&pd, good)?;
        ensure!(pd.dealloc() == Err(Errno(libc::EBUSY)));
        drop(ah);
        Ok(())
    });
}

#[test]
fn services_refuse_what_they_do_not_have() {
    in_world(|| {
        let context = Context::open()?;
        let mouth = Mouth::new(&context)?;
        let ah = Ah::new(&mouth.pd, towards(own_gid(&context, GID_IPV4)?, GID_IPV4))?;
        let remote = mouth.room.at(0);
        for op in [Op::Write(remote), Op::Read(remote), Op::FetchAdd { remote, add: 1 }] {
            let wr = SendWr::new(op, &[mouth.out.sge(0, 8)]);
            ensure!(mouth.post(&wr, &ah, 1, Q_KEY) == Err(EINVAL), "UD: {op:?}");
        }
        let (near, _far) = uc_pair(&context)?;
        for op in [Op::Read(remote), Op::FetchAdd { remote, add: 1 }] {
            let refused = near.qp.post_send(&SendWr::new(op, &[near.mr.sge(0, 8)])).err().map(|error| error.errno);
            ensure!(refused == Some(EINVAL), "UC: {op:?}: {refused:?}");
        }
        Ok(())
    });
}

struct UcEnd {
    qp: Qp,
    cq: std::sync::Arc<Cq>,
    mr: Mr,
}

fn uc_end(context: &std::sync::Arc<Context>) -> Result<UcEnd> {
    let pd = Pd::new(context)?;
    let cq = Cq::new(context, 64, None)?;
    let qp = Qp::new(&pd, &cq, &cq, &Init { qp_type: v::IBV_QPT_UC, ..Init::default() })?;
    Ok(UcEnd { qp, cq, mr: Mr::alloc(&pd, 1 << 18, ALL_ACCESS)? })
}

fn uc_pair(context: &std::sync::Arc<Context>) -> Result<(UcEnd, UcEnd)> {
    let (near, far) = (uc_end(context)?, uc_end(context)?);
    let gid = own_gid(context, GID_IPV4)?;
    for (end, peer) in [(&near, &far), (&far, &near)] {
        end.qp.modify(&Change::init(ALL_ACCESS & 7))?;
        let mask = v::IBV_QP_AV | v::IBV_QP_PATH_MTU | v::IBV_QP_DEST_QPN | v::IBV_QP_RQ_PSN;
        end.qp.modify(&Change::to(v::IBV_QPS_RTR).with(mask, |attr| {
            attr.path_mtu = v::IBV_MTU_1024;
            attr.dest_qp_num = peer.qp.number();
            attr.rq_psn = 0x00ff_fffd;
            attr.ah_attr = towards(gid, GID_IPV4);
        }))?;
        end.qp.modify(&Change::to(v::IBV_QPS_RTS).with(v::IBV_QP_SQ_PSN, |attr| attr.sq_psn = 0x00ff_fffd))?;
    }
    Ok((near, far))
}

#[test]
fn uc_sends_and_writes_of_all_lengths() {
    in_world(|| {
        let context = Context::open()?;
        let (near, far) = uc_pair(&context)?;
        for (seed, len) in (0..).zip([0, 1, 1023, 1024, 1025, 4096, 65_537]) {
            let message = pattern(seed, len);
            for op in [Op::Send, Op::SendImm(9), Op::Write(far.mr.at(0)), Op::WriteImm(far.mr.at(0), 9)] {
                far.mr.pages().write(0, &vec![0; len]);
                near.mr.pages().write(0, &message);
                far.qp.post_recv(&RecvWr::new(3, &[far.mr.sge(0, len)]))?;
                near.qp.post_send(&SendWr::new(op, &[near.mr.sge(0, len)]).id(4))?;
                let wc = near.cq.next()?;
                ensure!(wc.status == Status::SUCCESS && wc.wr_id == 4, "{op:?} {len}: {wc:?}");
                if matches!(op, Op::Write(_)) {
                    // Nothing tells when it has arrived; an empty message behind it does.
                    near.qp.post_send(&SendWr::new(Op::Send, &[]).unsignaled())?;
                }
                let wc = far.cq.next()?;
                ensure!(wc.status == Status::SUCCESS && wc.wr_id == 3, "{op:?} {len}: {wc:?}");
                ensure!(far.mr.pages().read(0, len) == message, "{op:?} {len}");
            }
        }
        let (attr, init) = near.qp.query()?;
        ensure!(init.qp_type == v::IBV_QPT_UC && attr.dest_qp_num == far.qp.number());
        Ok(())
    });
}

fn ipv4_group(last: u8) -> [u8; 16] {
    Ipv4Addr::new(239, 77, 0, last).to_ipv6_mapped().octets()
}

#[test]
fn multicast_reaches_whom_it_is_for() {
    in_world(|| {
        let context = Context::open()?;
        let mouths = [(); 4].map(|()| Mouth::new(&context));
        let [speaker, first, second, other] = mouths;
        let (speaker, first, second, other) = (speaker?, first?, second?, other?);
        let group = ipv4_group(1);
        first.attach(group)?;
        first.attach(group)?;
        second.attach(group)?;
        other.attach(ipv4_group(2))?;
        for mouth in [&first, &second, &other] {
            mouth.listen(1, 64)?;
        }
        let ah = Ah::new(&speaker.pd, towards(group, GID_IPV4))?;
        speaker.say(Op::Send, b"to whom it may concern", &ah, MULTICAST)?;
        for mouth in [&first, &second] {
            let wc = mouth.cq.next()?;
            ensure!(wc.status == Status::SUCCESS && wc.src_qp == speaker.qp.number(), "{wc:?}");
            ensure!(mouth.hear(22) == b"to whom it may concern");
            ensure!(mouth.room.pages().read(36, 4) == [239, 77, 0, 1]);
        }
        first.detach(group)?;
        ensure!(first.detach(group) == Err(EINVAL), "it is not attached any more");
        second.listen(2, 64)?;
        first.listen(2, 64)?;
        speaker.say(Op::Send, b"again", &ah, MULTICAST)?;
        ensure!(second.cq.next()?.wr_id == 2);
        ensure!(first.cq.poll(1)?.is_empty() && other.cq.poll(1)?.is_empty());
        // What is attached is busy, as with the kernel.
        ensure!(second.qp.destroy() == Err(Errno(libc::EBUSY)));
        second.detach(group)?;
        other.detach(ipv4_group(2))?;
        Ok(())
    });
}

#[test]
fn groups_that_are_none() {
    in_world(|| {
        let context = Context::open()?;
        let mouth = Mouth::new(&context)?;
        ensure!(mouth.attach(own_gid(&context, GID_IPV4)?) == Err(EINVAL), "a unicast address");
        // `lo` has no route for IPv6 groups.
        let group = "ff0e::4791".parse::<Ipv6Addr>()?.octets();
        ensure!(mouth.attach(group) == Err(Errno(libc::ENETUNREACH)));
        ensure!(mouth.detach(group) == Err(EINVAL));
        Ok(())
    });
}

#[test]
fn ipv6_multicast_on_an_interface_that_has_it() {
    in_world_with(
        |world| {
            let other = world.add_host()?;
            world.link(world.host(), &other, 1500)?;
            Ok(other)
        },
        || {
            let context = Context::open()?;
            let (speaker, listener) = (Mouth::new(&context)?, Mouth::new(&context)?);
            let own: Ipv6Addr = "fd77::1".parse()?;
            let find = |index: &u32| own_gid(&context, *index).is_ok_and(|gid| gid == own.octets());
            let index = (0..8).find(find).ok_or_else(|| anyhow::anyhow!("fd77::1 is not in the GID table"))?;
            for group in ["ff0e::4791", "ff02::4791"] {
                let group = group.parse::<Ipv6Addr>()?.octets();
                listener.attach(group)?;
                listener.listen(1, 64)?;
                let ah = Ah::new(&speaker.pd, towards(group, index))?;
                speaker.say(Op::Send, b"six", &ah, MULTICAST)?;
                let wc = listener.cq.next()?;
                ensure!(wc.status == Status::SUCCESS && listener.hear(3) == b"six", "{wc:?}");
                let header = listener.room.pages().read(0, GRH);
                ensure!(header.starts_with(&[0x60]) && header.ends_with(&group), "{header:?}");
                listener.detach(group)?;
            }
            Ok(())
        },
    );
}

/// A thread that waits for a datagram does not keep the device busy.
#[test]
fn a_datagram_wakes_a_sleeper() {
    in_world(|| {
        let context = Context::open()?;
        let (near, far) = (Mouth::new(&context)?, Mouth::new(&context)?);
        let ah = Ah::new(&near.pd, towards(own_gid(&context, GID_IPV4)?, GID_IPV4))?;
        let channel = urxe_tests::verbs::Channel::new(&context)?;
        let cq = Cq::new(&context, 4, Some(&channel))?;
        drop(far);
        let far = Mouth::completing_at(&context, &cq)?;
        far.listen(1, 64)?;
        cq.arm(false)?;
        near.say(Op::Send, b"wake up", &ah, far.qp.number())?;
        ensure!(urxe_tests::verbs::is_readable(channel.fd(), urxe_tests::verbs::PATIENCE), "no event");
        channel.event()?;
        cq.acknowledge_events(1);
        ensure!(cq.next()?.wr_id == 1);
        Ok(())
    });
}
