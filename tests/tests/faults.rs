//! Faults on demand (`URXE_FAULTS`): programs see what a network or a card with that fault would give them.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::verbs::memory::{ALL_ACCESS, PAGE, pattern};
use urxe_tests::verbs::{Context, Errno, Mr, Op, Options, PATIENCE, Pair, Pd, RecvWr, SendWr, Status};
use urxe_tests::{PingPong, TIMEOUT, World, dissect, in_world_with};

fn options() -> Options {
    Options { timeout: 10, retry_cnt: 7, ..Options::default() }
}

/// With an ACK timeout of seconds, where packets are counted: none is sent again because somebody has to wait for his turn.
fn patient() -> Options {
    Options { timeout: 20, ..options() }
}

/// Writes, sends and reads a few hundred messages; all of them must come through whole.
fn everything_comes_through() -> Result<()> {
    const LEN: usize = 9000;
    let Pair { near, far } = &Pair::new(&options())?;
    let (local, remote) = (near.region(3 * LEN)?, far.region(3 * LEN)?);
    for round in 0..60 {
        local.pages().write(0, &pattern(round, LEN));
        far.qp.post_recv(&RecvWr::new(round, &[remote.sge(LEN, LEN)]))?;
        near.qp.post_sends(&[
            SendWr::new(Op::Write(remote.at(0)), &[local.sge(0, LEN)]),
            SendWr::new(Op::Send, &[local.sge(0, LEN)]),
            SendWr::new(Op::Read(remote.at(0)), &[local.sge(2 * LEN, LEN)]),
        ])?;
        let sent = near.send_cq.take(3)?;
        ensure!(sent.iter().all(|wc| wc.status == Status::SUCCESS), "round {round}: {sent:?}");
        let wc = far.recv_cq.next()?;
        ensure!(wc.status == Status::SUCCESS && wc.wr_id == round, "round {round}: {wc:?}");
        for part in [0, LEN] {
            ensure!(remote.pages().read(part, LEN) == pattern(round, LEN), "round {round}: at {part}");
        }
        ensure!(local.pages().read(2 * LEN, LEN) == pattern(round, LEN), "round {round}: READ");
        ensure!(far.recv_cq.poll(1)?.is_empty(), "round {round}: it came twice");
    }
    Ok(())
}

/// Packets of the capture whose comment has `words`.
fn remarks(words: &str) -> Result<usize> {
    let file = std::env::var("URXE_PCAP")?;
    let filter = format!("frame.comment contains \"{words}\"");
    let output = std::process::Command::new("tshark").args(["-r", &file, "-Y", &filter]).output()?;
    ensure!(output.status.success(), "tshark: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?.lines().count())
}

macro_rules! reliable {
    ($($name:ident: $faults:literal, $remark:literal;)*) => {$(
        #[test]
        fn $name() {
            in_world_with(
                |world| {
                    world.host().set_env("URXE_FAULTS", $faults);
                    world.host().set_env("URXE_PCAP", world.dir().join("it.pcapng").to_str().unwrap_or_default());
                    Ok(())
                },
                || {
                    everything_comes_through()?;
                    ensure!(remarks($remark)? > 0, "nothing happened");
                    Ok(())
                },
            );
        }
    )*};
}

reliable! {
    lost_packets_are_sent_again: "drop=1%,seed=42", "URXE_FAULTS: dropped";
    lost_on_arrival_likewise: "drop=1%,dir=rx,seed=42", "URXE_FAULTS: dropped";
    losses_in_a_row_are_sent_again: "burst=1%/6,seed=42", "URXE_FAULTS: dropped";
    duplicates_are_carried_out_once: "dup=3%,seed=42", "a duplicate: answered again";
    damage_is_noticed_by_the_icrc: "corrupt=1%,seed=42", "the ICRC is wrong";
    overtaken_packets_do_no_harm: "reorder=2%/3,seed=42", "packets are missing";
    late_packets_do_no_harm: "delay=10us..300us,dir=rx,seed=42", "comes late";
    a_receiver_that_is_not_ready_is_waited_for: "nak=rnr,opcode=ACK,dir=tx,nth=3..20", "RNR NAK";
    a_sequence_error_costs_a_retry: "nak=sequence,opcode=ACK,dir=rx,nth=5..8", "NAK PSN Sequence Error";
    all_at_once: "drop=0.5%,dup=0.5%,reorder=0.5%/2,corrupt=0.5%,seed=7", "URXE_FAULTS";
}

#[test]
fn delays_are_seen_by_the_clock() {
    in_world_with(
        |world| {
            world.host().set_env("URXE_FAULTS", "delay=20ms,dir=tx,opcode=WRITE");
            Ok(())
        },
        || {
            let Pair { near, far } = &Pair::new(&patient())?;
            let (local, remote) = (near.region(PAGE)?, far.region(PAGE)?);
            let began = Instant::now();
            let wc = near.complete(&SendWr::new(Op::Write(remote.at(0)), &[local.sge(0, 8)]))?;
            ensure!(wc.status == Status::SUCCESS && began.elapsed() >= Duration::from_millis(20), "{wc:?}");
            Ok(())
        },
    );
}

#[test]
fn a_link_that_is_dead_uses_up_the_retries() {
    in_world_with(
        |world| {
            world.host().set_env("URXE_FAULTS", "drop,opcode=ACK");
            Ok(())
        },
        || {
            let Pair { near, far } = &Pair::new(&Options { retry_cnt: 2, ..options() })?;
            let (local, remote) = (near.region(PAGE)?, far.region(PAGE)?);
            let write = SendWr::new(Op::Write(remote.at(0)), &[local.sge(0, 8)]);
            ensure!(near.complete(&write)?.status == Status::RETRY_EXC_ERR);
            ensure!(far.qp.state()? == v::IBV_QPS_RTS, "only acknowledgements were lost");
            Ok(())
        },
    );
}

/// A refusal of the peer, of every kind, for READs as well.
macro_rules! refusals {
    ($($name:ident: $faults:literal, $status:ident, $op:ident;)*) => {$(
        #[test]
        fn $name() {
            in_world_with(
                |world| {
                    world.host().set_env("URXE_FAULTS", $faults);
                    Ok(())
                },
                || {
                    let Pair { near, far } = &Pair::new(&patient())?;
                    let (local, remote) = (near.region(PAGE)?, far.region(PAGE)?);
                    let request = SendWr::new(Op::$op(remote.at(0)), &[local.sge(0, 8)]);
                    ensure!(near.complete(&request)?.status == Status::SUCCESS, "the first is let through");
                    let wc = near.complete(&request)?;
                    ensure!(wc.status == Status::$status, "{wc:?}");
                    ensure!(near.qp.state()? == v::IBV_QPS_ERR);
                    Ok(())
                },
            );
        }
    )*};
}

refusals! {
    a_write_refused_as_invalid: "nak=invalid,dir=tx,nth=2", REM_INV_REQ_ERR, Write;
    a_write_refused_by_memory: "nak=access,dir=rx,nth=2", REM_ACCESS_ERR, Write;
    a_write_that_fails_there: "nak=operational,dir=tx,nth=2", REM_OP_ERR, Write;
    a_read_refused_by_memory: "nak=access,dir=tx,opcode=READ_RESPONSE,nth=2", REM_ACCESS_ERR, Read;
    a_completion_with_an_error: "wc=REM_OP_ERR,dir=tx,nth=2", REM_OP_ERR, Write;
    a_completion_with_another: "wc=RETRY_EXC_ERR,nth=2", RETRY_EXC_ERR, Read;
}

#[test]
fn a_queue_pair_that_breaks() {
    in_world_with(
        |world| {
            world.host().set_env("URXE_FAULTS", "qp_error,opcode=ACK,dir=rx,nth=2");
            Ok(())
        },
        || {
            let Pair { near, far } = &Pair::new(&patient())?;
            let (local, remote) = (near.region(PAGE)?, far.region(PAGE)?);
            let write = SendWr::new(Op::Write(remote.at(0)), &[local.sge(0, 8)]);
            ensure!(near.complete(&write)?.status == Status::SUCCESS);
            near.qp.post_recv(&RecvWr::new(5, &[]))?;
            near.complete(&write)?;
            let wc = near.recv_cq.next()?;
            ensure!(wc.wr_id == 5 && wc.status == Status::WR_FLUSH_ERR, "{wc:?}");
            ensure!(near.qp.state()? == v::IBV_QPS_ERR);
            let event = near.context.async_event(PATIENCE)?;
            ensure!(event.is_some_and(|event| event.kind() == v::IBV_EVENT_QP_FATAL));
            Ok(())
        },
    );
}

#[test]
fn verbs_fail_with_the_errno_asked_for() {
    in_world_with(
        |world| {
            world.host().set_env(
                "URXE_FAULTS",
                "fail=reg_mr:ENOMEM,nth=2; fail=ibv_create_qp:EAGAIN; fail=post_send:EIO,nth=2",
            );
            Ok(())
        },
        || {
            let context = Context::open()?;
            let pd = Pd::new(&context)?;
            let region = || Mr::alloc(&pd, PAGE, ALL_ACCESS).map(drop);
            let found = [region(), region(), region()];
            ensure!(found == [Ok(()), Err(Errno(libc::ENOMEM)), Ok(())], "{found:?}");
            let refused = Pair::new(&options()).err().map(|error| error.to_string()).unwrap_or_default();
            ensure!(refused.contains("Resource temporarily unavailable"), "{refused:?}");
            Ok(())
        },
    );
}

#[test]
fn asynchronous_events_of_port_and_device() {
    in_world_with(
        |world| {
            let script = "event=PORT_ERR; event=PORT_ACTIVE,after=20ms; event=GID_CHANGE,after=40ms; event=DEVICE_FATAL,after=5s";
            world.host().set_env("URXE_FAULTS", script);
            Ok(())
        },
        || {
            let pair = Pair::new(&options())?;
            for kind in
                [v::IBV_EVENT_PORT_ERR, v::IBV_EVENT_PORT_ACTIVE, v::IBV_EVENT_GID_CHANGE, v::IBV_EVENT_DEVICE_FATAL]
            {
                let event = pair.near.context.async_event(PATIENCE)?;
                ensure!(event.as_ref().is_some_and(|event| event.kind() == kind), "not event {kind}");
            }
            let refused = pair.near.qp.post_recv(&RecvWr::new(1, &[]));
            ensure!(refused.is_err_and(|error| error.errno == Errno(libc::EIO)), "a device that has failed works");
            Ok(())
        },
    );
}

/// A device that is taken out: the program is told, its calls fail, nobody waits for ever; its peer gets no answer.
#[test]
fn a_device_that_is_taken_out() {
    in_world_with(
        |world| {
            // A WRITE and its ACK, each sent and received by this process.
            world.host().set_env("URXE_FAULTS", "step,packets=4; step; remove,after=5s");
            Ok(())
        },
        || {
            let pair = Pair::new(&Options { events: true, ..options() })?;
            let (local, remote) = (pair.near.region(PAGE)?, pair.far.region(PAGE)?);
            let write = SendWr::new(Op::Write(remote.at(0)), &[local.sge(0, 8)]);
            pair.far.recv_cq.arm(false)?;
            ensure!(pair.near.complete(&write)?.status == Status::SUCCESS, "it is there to begin with");
            let event = pair.near.context.async_event(PATIENCE)?;
            ensure!(event.is_some_and(|event| event.kind() == v::IBV_EVENT_DEVICE_FATAL));
            let channel = pair.far.channel.as_ref().context("no channel")?;
            ensure!(channel.event().is_err(), "a channel without a device has events");
            ensure!(pair.near.context.async_event(PATIENCE).is_err(), "another event");
            let refused = pair.near.qp.post_send(&write);
            ensure!(refused.is_err_and(|error| error.errno == Errno(libc::EIO)));
            ensure!(pair.near.send_cq.poll(1).is_err() && Pd::new(&pair.near.context).is_err());
            Ok(())
        },
    );
}

/// Steps of a TOML file, by `urxe run`: first all goes well, then all is lost for a while.
#[test]
fn steps_of_a_toml_file() -> Result<()> {
    let world = World::new()?;
    let host = world.host();
    let file = world.dir().join("faults.toml");
    let text = "seed = 1\n[[step]]\npackets = 100\n[[step]]\npackets = 3\nrules = [{ drop = true, opcode = \"SEND\" }]\n[[step]]\n";
    std::fs::write(&file, text)?;
    let script = format!("@{}", file.display());
    let said = host.run(urxe_tests::artifacts::urxe()?, &["faults", &script])?;
    ensure!(said.stdout == "seed=1; step,packets=100; step,packets=3; drop,opcode=SEND; step\n", "{said}");
    host.set_env("URXE_PCAP", world.dir().join("it-%p.pcapng").to_str().unwrap_or_default());
    host.set_env("URXE_FAULTS", said.stdout.trim());
    PingPong { size: 64, iters: 200, ..PingPong::default() }.run(host, host)?;
    let mut lost = 0;
    for entry in std::fs::read_dir(world.dir())? {
        let file = entry?.path();
        if file.extension().is_some_and(|extension| extension == "pcapng") {
            let rows = dissect(host, &file, &["frame.comment"])?;
            let first = rows.iter().position(|row| row[0].contains("URXE_FAULTS"));
            ensure!(first.is_some_and(|at| (100..103).contains(&at)), "not in the second step: {first:?}");
            lost += rows.iter().filter(|row| row[0].contains("URXE_FAULTS")).count();
        }
    }
    ensure!((2..=6).contains(&lost), "{lost} packets");
    // The library itself takes rules.
    let mut command = host.command("ibv_devinfo");
    command.args(["-d", "urxe0"]).env("URXE_FAULTS", &script);
    let refused = host.start(command)?.finish(TIMEOUT)?.failure()?;
    ensure!(refused.stderr.contains("`urxe faults @FILE.toml` makes them"), "{refused}");
    Ok(())
}

/// Messages of a ping-pong from each end.
const ITERS: u32 = 100;

/// Numbers of the SENDs, of the first so many of each end of a ping-pong, that were lost. How many it takes depends on time as
/// well: what is not answered soon is sent again.
fn run_of(seed: u32) -> Result<Vec<Vec<usize>>> {
    let world = World::new()?;
    let host = world.host();
    host.set_env("URXE_PCAP", world.dir().join("it-%p.pcapng").to_str().unwrap_or_default());
    host.set_env("URXE_FAULTS", &format!("drop=5%,opcode=SEND,dir=tx,seed={seed}"));
    PingPong { size: 64, iters: ITERS, ..PingPong::default() }.run(host, host)?;
    let mut runs = Vec::new();
    for entry in std::fs::read_dir(world.dir())? {
        let file = entry?.path();
        if file.extension().is_some_and(|extension| extension == "pcapng") {
            let rows = dissect(host, &file, &["frame.comment", "infiniband.bth.opcode", "infiniband.bth.destqp"])?;
            let is_lost = |row: &&Vec<String>| row[0].contains("dropped, it never left");
            // Those of the other end are there as well.
            let peer = &rows.iter().find(is_lost).context("nothing was lost")?[2];
            let sends = rows.iter().filter(|row| row[1] == "4" && row[2] == *peer);
            let lost = (0..ITERS as usize).zip(sends).filter(|(_, row)| is_lost(row));
            runs.push(lost.map(|(index, _)| index).collect());
        }
    }
    runs.sort();
    Ok(runs)
}

/// Two runs of the same packets lose the same ones.
#[test]
fn the_same_seed_gives_the_same_faults() -> Result<()> {
    let (first, again, other) = (run_of(11)?, run_of(11)?, run_of(12)?);
    ensure!(first.len() == 2 && first == again, "{first:?} and {again:?}");
    ensure!(first != other, "another seed gives the same: {first:?}");
    Ok(())
}

#[test]
fn a_script_that_makes_no_sense_is_refused() -> Result<()> {
    let world = World::new()?;
    for (script, complaint) in [
        ("drop=200%", "urxe: --faults or URXE_FAULTS=drop=200%: expected drop=1%"),
        ("drop=1%,opcode=JUMP", "urxe: --faults or URXE_FAULTS=opcode=JUMP: expected the start of an operation"),
        ("@/nowhere", "urxe: --faults or URXE_FAULTS=@/nowhere: expected a file that can be read"),
    ] {
        let mut command = world.host().command("ibv_devinfo");
        command.args(["-d", "urxe0"]).env("URXE_FAULTS", script);
        let finished = world.host().start(command)?.finish(TIMEOUT)?.failure()?;
        ensure!(finished.stderr.contains(complaint), "{finished}");
    }
    Ok(())
}

/// Bytes of SENDs change on their way, with a right ICRC and in their number; those of the seed, each time.
#[test]
fn payloads_change_and_arrive() {
    in_world_with(
        |world| {
            world.host().set_env("URXE_FAULTS", "mutate=payload,dir=rx,opcode=SEND,nth=1..20,seed=3");
            world.host().set_env("URXE_PCAP", world.dir().join("it.pcapng").to_str().unwrap_or_default());
            Ok(())
        },
        || {
            const LEN: usize = 64;
            let Pair { near, far } = &Pair::new(&patient())?;
            let (local, remote) = (near.region(LEN)?, far.region(LEN)?);
            let mut changed = Vec::new();
            for round in 0..25 {
                local.pages().write(0, &pattern(round, LEN));
                far.qp.post_recv(&RecvWr::new(round, &[remote.sge(0, LEN)]))?;
                near.qp.post_sends(&[SendWr::new(Op::Send, &[local.sge(0, LEN)])])?;
                let wc = far.recv_cq.next()?;
                ensure!(wc.status == Status::SUCCESS && wc.byte_len == 64, "round {round}: {wc:?}");
                ensure!(near.send_cq.next()?.status == Status::SUCCESS, "round {round}");
                if remote.pages().read(0, LEN) != pattern(round, LEN) {
                    changed.push(round);
                }
            }
            ensure!(changed.len() > 15 && changed.iter().all(|round| *round < 20), "{changed:?}");
            ensure!(remarks("URXE_FAULTS: payload changed")? == 20, "20 were asked for");
            Ok(())
        },
    );
}
