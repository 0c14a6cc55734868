//! Behaviour that devices may show and rarely do (`URXE_QUIRKS`): each behaviour is seen by a program, and stock programs, which rely
//! on none of it, work as ever.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use urxe_engine::quirks::{AckPolicy, CreditPolicy, QpQuirks, Quirk, QuirkSet};
use urxe_ffi::verbs as v;
use urxe_tests::verbs::memory::{PAGE, pattern};
use urxe_tests::verbs::pair::connect;
use urxe_tests::verbs::qp::Init;
use urxe_tests::verbs::{Change, Context, Cq, Op, Options, Pair, Pd, Qp, RecvWr, SendWr, Srq, Status, is_readable};
use urxe_tests::{Perftest, PingPong, TIMEOUT, World, artifacts, in_world_with};

fn with_quirks<F: FnOnce() -> Result<()>>(quirks: &str, test: F) {
    in_world_with(
        |world| {
            world.host().set_env("URXE_QUIRKS", quirks);
            world.host().set_env("URXE_PCAP", world.dir().join("it.pcapng").to_str().unwrap_or_default());
            Ok(())
        },
        test,
    );
}

fn send(pair: &Pair, wr_id: u64) -> Result<()> {
    let wc = pair.near.complete(&SendWr::new(Op::Send, &[]).id(wr_id))?;
    ensure!(wc.status == Status::SUCCESS, "{wc:?}");
    Ok(())
}

#[test]
fn receives_of_an_srq_in_any_order() {
    with_quirks("1:srq-order", || {
        let context = Context::open()?;
        let (pd, cq) = (Pd::new(&context)?, Cq::new(&context, 256, None)?);
        let srq = Srq::new(&pd, 64, 1)?;
        let near = Qp::new(&pd, &cq, &cq, &Init::default())?;
        let far = Qp::with_srq(&pd, &cq, &srq, &Init::default())?;
        let options = Options::default();
        connect(&context, &near, &far, &options)?;
        srq.post_recvs(&(0..32).map(|wr_id| RecvWr::new(wr_id, &[])).collect::<Vec<_>>())?;
        near.post_sends(&vec![SendWr::new(Op::Send, &[]).unsignaled(); 32])?;
        let mut taken: Vec<u64> = cq.take(32)?.iter().map(|wc| wc.wr_id).collect();
        ensure!(!taken.is_sorted(), "in order: {taken:?}");
        taken.sort_unstable();
        ensure!(taken.into_iter().eq(0..32), "not each once");
        Ok(())
    });
}

#[test]
fn fields_without_a_meaning() {
    with_quirks("1:error-fields", || {
        let pair = Pair::new(&Options::default())?;
        for wr_id in 0..8 {
            pair.far.qp.post_recv(&RecvWr::new(wr_id, &[]))?;
        }
        pair.far.qp.modify(&Change::to(v::IBV_QPS_ERR))?;
        let flushed = pair.far.recv_cq.take(8)?;
        for (wc, wr_id) in flushed.iter().zip(0..) {
            ensure!(wc.status == Status::WR_FLUSH_ERR && wc.wr_id == wr_id, "{wc:?}");
            ensure!(wc.qp_num == pair.far.qp.number(), "{wc:?}");
        }
        let odd = flushed.iter().filter(|wc| wc.opcode != v::IBV_WC_RECV && wc.byte_len != 0);
        ensure!(odd.count() == 8, "{flushed:?}");
        // Where all went well, every field is right.
        let pair = Pair::on(&pair.near.context, &Options::default())?;
        pair.far.qp.post_recv(&RecvWr::new(1, &[]))?;
        send(&pair, 2)?;
        let wc = pair.far.recv_cq.next()?;
        ensure!(wc.status == Status::SUCCESS && wc.opcode == v::IBV_WC_RECV && wc.byte_len == 0, "{wc:?}");
        Ok(())
    });
}

/// The data are there, and nothing can be polled, for a while.
#[test]
fn completions_after_the_data() {
    with_quirks("4:late-completions", || {
        let pair = Pair::new(&Options::default())?;
        let remote = pair.far.region(PAGE)?;
        let local = pair.near.region(PAGE)?;
        let mut late = 0;
        for round in 0..200_u64 {
            let data = pattern(round + 1, 64);
            local.pages().write(0, &data);
            pair.far.qp.post_recv(&RecvWr::new(round, &[remote.sge(0, 64)]))?;
            pair.near.qp.post_send(&SendWr::new(Op::Send, &[local.sge(0, 64)]).id(round))?;
            let mut polls = 0;
            let wc = loop {
                let arrived = remote.pages().read(0, 64) == data;
                if let Some(wc) = pair.far.recv_cq.poll(1)?.pop() {
                    break wc;
                }
                polls += usize::from(arrived);
            };
            late += usize::from(polls > 1);
            ensure!(wc.wr_id == round && wc.status == Status::SUCCESS, "{wc:?}");
            ensure!(pair.near.send_cq.next()?.wr_id == round);
        }
        ensure!(late > 20, "{late} of 200 completions were late");
        Ok(())
    });
}

/// How the responder of a [`Pair`] behaves: its far end is the second queue pair that is made.
fn quirks() -> Result<QpQuirks> {
    let quirks: QuirkSet = std::env::var("URXE_QUIRKS")?.parse()?;
    Ok(quirks.queue_pair(1))
}

macro_rules! seeds {
    ($($name:ident: $quirks:literal, $act:ident;)*) => {$(
        #[test]
        fn $name() {
            with_quirks($quirks, || $act());
        }
    )*};
}

seeds! {
    credits_of_seed_1: "1:credits", few_credits;
    credits_of_seed_2: "2:credits", few_credits;
    credits_of_seed_3: "3:credits", few_credits;
    acks_of_seed_1: "1:acks", extreme_acks;
    acks_of_seed_2: "2:acks", extreme_acks;
}

/// Each extreme is among the seeds above.
#[test]
fn the_seeds_differ() {
    let credits = [1, 2, 3].map(|seed| QuirkSet::of(seed, &[Quirk::Credits]).queue_pair(1).credits);
    assert!(credits.iter().any(|policy| *policy != credits[0]), "{credits:?}");
    let acks = [1, 2].map(|seed| QuirkSet::of(seed, &[Quirk::Acks]).queue_pair(1).acks);
    assert!(
        acks.contains(&AckPolicy::PerPacket) && acks.iter().any(|policy| *policy != AckPolicy::PerPacket),
        "{acks:?}"
    );
}

/// Syndromes of the AETHs of all ACKs, by the capture.
fn syndromes() -> Result<Vec<u8>> {
    let file = std::env::var("URXE_PCAP")?;
    let args = ["-r", &file, "-Y", "infiniband.bth.opcode == 17", "-T", "fields", "-e", "infiniband.aeth.syndrome"];
    // Received, not sent: each is there once.
    let output = std::process::Command::new("tshark").args(args).output()?;
    ensure!(output.status.success(), "tshark: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    text.lines().map(|line| Ok(line.parse()?)).collect()
}

/// A sender that fills its queue is let through all the same, however few receives it is told of.
fn few_credits() -> Result<()> {
    let pair = Pair::new(&Options::default())?;
    for round in 0..5 {
        pair.far.qp.post_recvs(&vec![RecvWr::new(round, &[]); 50])?;
        pair.near.qp.post_sends(&vec![SendWr::new(Op::Send, &[]).id(round); 50])?;
        let done = pair.near.send_cq.take(50)?.into_iter().chain(pair.far.recv_cq.take(50)?);
        ensure!(done.into_iter().all(|wc| wc.status == Status::SUCCESS && wc.wr_id == round));
    }
    // IBA table 46: the credit count is in the low five bits.
    let most = match quirks()?.credits {
        CreditPolicy::AtMost(most) => u8::try_from(most)?,
        CreditPolicy::Uncounted => 31,
        CreditPolicy::All => bail!("nothing was asked for"),
    };
    let told = syndromes()?;
    ensure!(!told.is_empty() && told.iter().all(|syndrome| *syndrome == most || *syndrome == 0), "{told:?}");
    Ok(())
}

/// One ACK for each packet, or one for many and late.
fn extreme_acks() -> Result<()> {
    const PACKETS: usize = 20;
    let pair = Pair::new(&Options { timeout: 18, ..Options::default() })?;
    let (local, remote) = (pair.near.region(PACKETS * 1024)?, pair.far.region(PACKETS * 1024)?);
    let mut times = Vec::new();
    for _ in 0..50 {
        let start = Instant::now();
        let write = SendWr::new(Op::Write(remote.at(0)), &[local.sge(0, PACKETS * 1024)]);
        ensure!(pair.near.complete(&write)?.status == Status::SUCCESS);
        times.push(start.elapsed());
    }
    // A few may seem shorter: the target's thread looked at the clock, and lost its processor before it took the packet.
    times.sort_unstable();
    let median = times[times.len() / 2];
    // Each was sent and received by this process.
    let acks = syndromes()?.len() / 2;
    match quirks()?.acks {
        AckPolicy::PerPacket => ensure!(acks >= 50 * PACKETS, "{acks} ACKs of {} packets", 50 * PACKETS),
        AckPolicy::Delayed(by) => ensure!(median >= by && acks <= 100, "{median:?} instead of {by:?}, {acks} ACKs"),
        AckPolicy::Coalesced => bail!("nothing was asked for"),
    }
    Ok(())
}

/// An ACK that the engine keeps back, on queue pairs whose ACKs wait for the application's answer as well: it leaves when
/// its time has come. A timer that was due for ever held up everything else, while both programs looked at their memory.
#[test]
fn late_acks_of_who_answers_at_once() -> Result<()> {
    let world = World::new()?;
    let host = world.host();
    for seed in 0..100 {
        let quirks = QuirkSet::of(seed, &[Quirk::Acks]);
        // Soon enough for what the answer is late by to be still an answer at once.
        if !matches!(quirks.queue_pair(0).acks, AckPolicy::Delayed(by) if by < Duration::from_micros(100)) {
            continue;
        }
        host.set_env("URXE_QUIRKS", &format!("{seed}:acks"));
        Perftest::run("ib_write_lat", &["-n", "100", "-s", "5000"], host, host)
            .with_context(|| format!("URXE_QUIRKS={seed}:acks"))?;
    }
    Ok(())
}

/// An event for several completions, and only some time after the first.
#[test]
fn one_event_for_many() {
    with_quirks("1:events", || {
        let options = Options { events: true, ..Options::default() };
        let pair = Pair::new(&options)?;
        let (channel, cq) = (pair.far.channel.as_ref().context("no channel")?, &pair.far.recv_cq);
        pair.far.qp.post_recv(&RecvWr::new(0, &[]))?;
        cq.arm(false)?;
        send(&pair, 0)?;
        let early = is_readable(channel.fd(), Duration::ZERO);
        ensure!(channel.event()? == cq.address());
        cq.acknowledge_events(1);
        ensure!(cq.take(1)?.len() == 1);
        // Once may be due to the moment; on a busy machine some are late to be looked for.
        let (mut put_off, mut rounds) = (usize::from(!early), 1);
        let deadline = Instant::now() + TIMEOUT / 4;
        while rounds < 10 || (put_off == 0 && Instant::now() < deadline) {
            pair.far.qp.post_recv(&RecvWr::new(0, &[]))?;
            cq.arm(false)?;
            send(&pair, 0)?;
            put_off += usize::from(!is_readable(channel.fd(), Duration::ZERO));
            ensure!(channel.event()? == cq.address());
            cq.acknowledge_events(1);
            cq.take(1)?;
            rounds += 1;
        }
        ensure!(put_off > 0, "every event came at once");
        Ok(())
    });
}

/// A program that waits for the last byte of a WRITE finds the first ones missing.
#[test]
fn the_last_byte_first() {
    with_quirks("1:write-order", || {
        const LEN: usize = 3000;
        let pair = Pair::new(&Options::default())?;
        let (local, remote) = (pair.near.region(PAGE)?, pair.far.region(PAGE)?);
        let mut torn = 0;
        // It must be looked at within the gap, which on a busy machine succeeds now and then.
        let until = Instant::now() + TIMEOUT / 4;
        for round in (1..=250_u8).cycle() {
            if torn > 5 || Instant::now() > until {
                break;
            }
            local.pages().write(0, &[round; LEN]);
            pair.near.qp.post_send(&SendWr::new(Op::Write(remote.at(0)), &[local.sge(0, LEN)]))?;
            let deadline = Instant::now() + TIMEOUT;
            while remote.pages().read(LEN - 1, 1) != [round] {
                ensure!(Instant::now() < deadline, "it never came");
            }
            torn += usize::from(remote.pages().read(0, LEN) != [round; LEN]);
            ensure!(pair.near.send_cq.next()?.status == Status::SUCCESS);
            ensure!(remote.pages().read(0, LEN) == [round; LEN], "incomplete after its completion");
        }
        ensure!(torn > 5, "only {torn} were torn");
        Ok(())
    });
}

/// Programs that rely on nothing.
#[test]
fn stock_programs() -> Result<()> {
    let world = World::new()?;
    let host = world.host();
    for seed in 1..=3_u32 {
        host.set_env("URXE_QUIRKS", &seed.to_string());
        for (events, size) in [(false, 4096), (true, 65_536)] {
            PingPong { iters: 100, size, events, validate: true, ..PingPong::default() }
                .run(host, host)
                .with_context(|| format!("ibv_rc_pingpong with URXE_QUIRKS={seed}"))?;
        }
        for program in ["ib_send_bw", "ib_write_lat", "ib_read_bw", "ib_send_lat"] {
            Perftest::run(program, &["-n", "100", "-s", "5000"], host, host)
                .with_context(|| format!("{program} with URXE_QUIRKS={seed}"))?;
        }
    }
    Ok(())
}

#[test]
fn explain_names_the_quirks_of_a_seed() -> Result<()> {
    let world = World::bare()?;
    let all = world.host().run(artifacts::urxe()?, &["explain", "quirks"])?.stdout;
    ensure!(all.contains("srq-order") && all.contains("IBA 10.8.3.2") && all.contains("find the buffer"), "{all}");
    let some = world.host().run(artifacts::urxe()?, &["explain", "quirks", "7:acks,events"])?.stdout;
    ensure!(some.contains("acks") && some.contains("events") && !some.contains("srq-order"), "{some}");
    Ok(())
}

#[test]
fn a_seed_that_makes_no_sense_is_refused() -> Result<()> {
    let world = World::new()?;
    let mut command = world.host().command("ibv_devinfo");
    command.args(["-d", "urxe0"]).env("URXE_QUIRKS", "7:lies");
    let finished = world.host().start(command)?.finish(TIMEOUT)?.failure()?;
    ensure!(
        finished.stderr.contains("urxe: --quirks or URXE_QUIRKS=7:lies: expected a seed, such as 7, or"),
        "{finished}"
    );
    Ok(())
}
