//! `ibv_modify_cq(3)`: one completion event for several completions.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::in_world;
use urxe_tests::verbs::{Channel, Cq, Errno, Op, Options, PATIENCE, Pair, RecvWr, SendWr, Status, is_readable};

/// The longest that there is.
const PERIOD: u16 = u16::MAX;
const AS_DURATION: Duration = Duration::from_micros(PERIOD as u64);

fn send(pair: &Pair, messages: usize) -> Result<()> {
    pair.far.qp.post_recvs(&vec![RecvWr::new(0, &[]); messages])?;
    for _ in 0..messages {
        let wc = pair.near.complete(&SendWr::new(Op::Send, &[]))?;
        ensure!(wc.status == Status::SUCCESS, "{wc:?}");
    }
    Ok(())
}

/// Waits for the event of an armed queue; there is but one.
fn one_event(channel: &Channel, cq: &Cq) -> Result<()> {
    ensure!(channel.event()? == cq.address());
    cq.acknowledge_events(1);
    ensure!(!is_readable(channel.fd(), Duration::ZERO), "a second event");
    Ok(())
}

fn pair() -> Result<Pair> {
    Pair::new(&Options { events: true, ..Options::default() })
}

#[test]
fn the_event_comes_with_the_last_of_so_many_completions() {
    in_world(|| {
        let pair = pair()?;
        let (channel, cq) = (pair.far.channel.as_ref().context("no channel")?, &pair.far.recv_cq);
        cq.moderate(4, PERIOD)?;
        let mut quickest = Duration::MAX;
        // Until one attempt is not held up by others that want the processor.
        let deadline = Instant::now() + PATIENCE;
        while quickest >= AS_DURATION && Instant::now() < deadline {
            let start = Instant::now();
            cq.arm(false)?;
            send(&pair, 4)?;
            one_event(channel, cq)?;
            quickest = quickest.min(start.elapsed());
            cq.take(4)?;
        }
        ensure!(quickest < AS_DURATION, "only after the period, each time");
        Ok(())
    });
}

#[test]
fn the_event_comes_after_the_period_when_there_are_fewer() {
    in_world(|| {
        let pair = pair()?;
        let (channel, cq) = (pair.far.channel.as_ref().context("no channel")?, &pair.far.recv_cq);
        cq.moderate(4, PERIOD)?;
        for messages in [1, 3] {
            let start = Instant::now();
            cq.arm(false)?;
            send(&pair, messages)?;
            one_event(channel, cq)?;
            ensure!(start.elapsed() >= AS_DURATION, "after {:?} only", start.elapsed());
            cq.take(messages)?;
        }
        // The same while the application polls, and so keeps the provider's thread away.
        cq.arm(false)?;
        let start = Instant::now();
        send(&pair, 1)?;
        while !is_readable(channel.fd(), Duration::ZERO) {
            pair.near.send_cq.poll(1)?;
        }
        ensure!(start.elapsed() >= AS_DURATION);
        one_event(channel, cq)
    });
}

#[test]
fn moderation_is_announced_and_ends() {
    in_world(|| {
        let pair = pair()?;
        let (channel, cq) = (pair.far.channel.as_ref().context("no channel")?, &pair.far.recv_cq);
        let caps = pair.far.context.query_device_ex()?.cq_mod_caps;
        ensure!((caps.max_cq_count, caps.max_cq_period) == (u16::MAX, u16::MAX));
        // Half of it is none: an event for each request.
        for (count, period) in [(0, 0), (4, 0), (0, PERIOD), (1, PERIOD)] {
            cq.moderate(count, period)?;
            cq.arm(false)?;
            send(&pair, 1)?;
            one_event(channel, cq)?;
        }
        // What is being put off is due when nothing is put off any more.
        cq.moderate(100, PERIOD)?;
        cq.arm(false)?;
        send(&pair, 1)?;
        cq.moderate(0, 0)?;
        one_event(channel, cq)?;
        let mut unknown =
            v::ibv_modify_cq_attr { attr_mask: 1 << 7, moderate: v::ibv_moderate_cq { cq_count: 0, cq_period: 0 } };
        ensure!(cq.modify(&mut unknown) == Err(Errno(libc::EINVAL)));
        // A queue may go while an event is put off.
        cq.moderate(100, PERIOD)?;
        cq.arm(false)?;
        send(&pair, 1)?;
        drop(pair);
        Ok(())
    });
}
