//! Verbs over `--link-layer infiniband`: address vectors with LIDs, headers that are there or not, groups.

use anyhow::{Result, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::verbs::datagram::{Ah, GRH, MULTICAST, Mouth, to_lid, towards};
use urxe_tests::verbs::memory::pattern;
use urxe_tests::verbs::{Context, Errno, Op, Pd, Status};
use urxe_tests::{World, in_world_with};

const EINVAL: Errno = Errno(libc::EINVAL);

/// A GID with the default subnet prefix and the GUID that embeds an address.
fn gid_of([a, b, c, d]: [u8; 4]) -> [u8; 16] {
    [0xFE, 0x80, 0, 0, 0, 0, 0, 0, 0x02, 0, 0x5E, 0xFE, a, b, c, d]
}

const LOCALHOST: [u8; 4] = [127, 0, 0, 1];

fn infiniband(world: &World) -> Result<()> {
    world.host().set_env("URXE_LINK_LAYER", "infiniband");
    Ok(())
}

/// 40 bytes are left in front of the message, and there is no GRH in them.
#[test]
fn datagrams_without_a_grh() {
    in_world_with(infiniband, || {
        let context = Context::open()?;
        let (near, far) = (Mouth::new(&context)?, Mouth::new(&context)?);
        let ah = Ah::new(&near.pd, to_lid(1))?;
        let message = pattern(7, 100);
        far.listen(5, 4096)?;
        far.room.pages().write(0, &[0xA5; GRH]);
        near.say(Op::Send, &message, &ah, far.qp.number())?;
        let wc = far.cq.next()?;
        ensure!(wc.status == Status::SUCCESS && wc.byte_len as usize == GRH + 100, "{wc:?}");
        ensure!(wc.flags & v::IBV_WC_GRH == 0 && wc.slid == 1 && wc.sl == 0, "{wc:?}");
        ensure!(far.hear(100) == message && far.room.pages().read(0, GRH) == [0xA5; GRH]);
        let back = Ah::back(&far.pd, &wc, &far.room)?;
        near.listen(6, 16)?;
        far.say(Op::Send, b"answer", &back, wc.src_qp)?;
        let wc = near.cq.next()?;
        ensure!(wc.slid == 1 && near.hear(6) == b"answer", "{wc:?}");
        Ok(())
    });
}

#[test]
fn datagrams_with_a_grh() {
    in_world_with(infiniband, || {
        let context = Context::open()?;
        ensure!(context.query_gid(1, 0)? == gid_of(LOCALHOST));
        let (near, far) = (Mouth::new(&context)?, Mouth::new(&context)?);
        let ah = Ah::new(&near.pd, towards(gid_of(LOCALHOST), 0))?;
        far.listen(5, 4096)?;
        near.say(Op::Send, b"global", &ah, far.qp.number())?;
        let wc = far.cq.next()?;
        ensure!(wc.flags & v::IBV_WC_GRH != 0 && wc.slid == 1 && wc.sl == 0, "{wc:?}");
        let header = far.room.pages().read(0, GRH);
        ensure!(header[0] >> 4 == 6 && header[6] == 0x1B, "{header:?}");
        ensure!(header[8..24] == gid_of(LOCALHOST) && header[24..] == gid_of(LOCALHOST), "{header:?}");
        let back = Ah::back(&far.pd, &wc, &far.room)?;
        near.listen(6, 16)?;
        far.say(Op::Send, b"answer", &back, wc.src_qp)?;
        let wc = near.cq.next()?;
        ensure!(wc.flags & v::IBV_WC_GRH != 0 && near.hear(6) == b"answer", "{wc:?}");
        Ok(())
    });
}

#[test]
fn lids_that_lead_nowhere() {
    in_world_with(infiniband, || {
        let context = Context::open()?;
        let pd = Pd::new(&context)?;
        for lid in [0, 0xBF00, 0xC000, 0xFFFF] {
            ensure!(Ah::new(&pd, to_lid(lid)).err() == Some(EINVAL), "{lid:#x}");
        }
        // Nobody need have it.
        Ah::new(&pd, to_lid(9))?;
        Ok(())
    });
}

/// MGIDs of IPoIB and others; to a group there is always a GRH.
#[test]
fn multicast_groups() {
    in_world_with(infiniband, || {
        let context = Context::open()?;
        let (near, far, other) = (Mouth::new(&context)?, Mouth::new(&context)?, Mouth::new(&context)?);
        let ipoib = |last| [0xFF, 0x12, 0x40, 0x1B, 0xFF, 0xFF, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
        let own = [0xFF, 0x0E, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x47, 0x91];
        other.attach(ipoib(9))?;
        other.listen(1, 64)?;
        for group in [ipoib(1), own] {
            far.attach(group)?;
            far.listen(1, 64)?;
            let ah = Ah::new(&near.pd, towards(group, 0))?;
            near.say(Op::Send, b"everybody", &ah, MULTICAST)?;
            let wc = far.cq.next()?;
            ensure!(wc.flags & v::IBV_WC_GRH != 0 && wc.slid == 1 && far.hear(9) == b"everybody", "{wc:?}");
            far.detach(group)?;
        }
        ensure!(other.cq.poll(1)?.is_empty());
        other.detach(ipoib(9))?;
        Ok(())
    });
}
