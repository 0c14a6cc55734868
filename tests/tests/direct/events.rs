//! Completion events at a receiver whose memory is reached without packets.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::own_counter as counter;
use urxe_tests::verbs::memory::PAGE;
use urxe_tests::verbs::{Op, Options, PATIENCE, Pair, RecvWr, SendWr, Status, is_readable};

use crate::memory::is_direct;
use crate::{in_direct_world, succeeds};

/// A queue that is armed for solicited events alone: a SEND with that bit wakes whoever sleeps there. One without it
/// does not, nor do WRITEs, which go without packets.
#[test]
fn solicited_events_only() {
    in_direct_world(|| {
        let pair = Pair::new(&Options { events: true, ..Options::default() })?;
        let (local, memory) = (pair.near.region(PAGE)?, pair.far.region(PAGE)?);
        ensure!(is_direct(&pair, &memory)?);
        let Pair { near, far } = &pair;
        let channel = far.channel.as_ref().context("made without a channel")?;
        let solicited = SendWr::new(Op::Send, &[local.sge(0, 8)]).with(v::IBV_SEND_SOLICITED);
        for round in 0..5 {
            far.recv_cq.arm(true)?;
            let before = counter("direct_requests")?;
            for _ in 0..10 {
                succeeds(near, Op::Write(memory.at(0)), &[local.sge(0, 8)])?;
            }
            ensure!(counter("direct_requests")? > before, "round {round}: all WRITEs by packets");
            far.qp.post_recvs(&vec![RecvWr::new(round, &[memory.sge(8, 8)]); 2])?;
            succeeds(near, Op::Send, &[local.sge(0, 8)])?;
            let wc = far.recv_cq.next()?;
            ensure!((wc.status, wc.wr_id) == (Status::SUCCESS, round), "{wc:?}");
            // An event would have come before the completion could be polled.
            ensure!(!is_readable(channel.fd(), Duration::ZERO), "round {round}: an event that was not solicited");
            ensure!(near.complete(&solicited)?.status == Status::SUCCESS);
            ensure!(is_readable(channel.fd(), PATIENCE), "round {round}: no event");
            ensure!(channel.event()? == far.recv_cq.address());
            far.recv_cq.acknowledge_events(1);
            let wc = far.recv_cq.next()?;
            ensure!((wc.status, wc.wr_id) == (Status::SUCCESS, round), "{wc:?}");
        }
        Ok(())
    });
}
