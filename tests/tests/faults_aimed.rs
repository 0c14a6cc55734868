//! Faults on demand that are aimed: at a queue pair, at a peer, at a time; and scripts of `urxe run`.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::verbs::memory::{PAGE, pattern};
use urxe_tests::verbs::{Context, Op, Options, Pair, RecvWr, SendWr, Status};
use urxe_tests::{Finished, GID_IPV4, GID_IPV6, Host, Launcher, TIMEOUT, World, in_world_with, wait_for_listener};

fn with_faults(script: &'static str) -> impl FnOnce(&World) -> Result<()> {
    move |world| {
        world.host().set_env("URXE_FAULTS", script);
        Ok(())
    }
}

/// For a queue pair that will not be answered.
fn impatient() -> Options {
    Options { timeout: 10, retry_cnt: 2, ..Options::default() }
}

/// How a WRITE of the near end completes.
fn write(pair: &Pair) -> Result<Status> {
    let (local, remote) = (pair.near.region(PAGE)?, pair.far.region(PAGE)?);
    local.pages().write(0, &pattern(1, 64));
    let wc = pair.near.complete(&SendWr::new(Op::Write(remote.at(0)), &[local.sge(0, 64)]))?;
    ensure!(wc.status != Status::SUCCESS || remote.pages().read(0, 64) == pattern(1, 64), "other data");
    Ok(wc.status)
}

/// Packets of one queue pair are lost on their way out, and no others.
#[test]
fn one_queue_pair_is_cut_off() {
    in_world_with(with_faults("drop,qp=@3,dir=tx"), || {
        let context = Context::open()?;
        let [first, second] = [Pair::on(&context, &Options::default())?, Pair::on(&context, &impatient())?];
        ensure!(write(&first)? == Status::SUCCESS, "the first pair's");
        ensure!(write(&second)? == Status::RETRY_EXC_ERR, "the third queue pair's");
        ensure!(write(&first)? == Status::SUCCESS, "the first pair's, again");
        ensure!(second.far.qp.state()? == v::IBV_QPS_RTS, "its peer's");
        Ok(())
    });
}

/// Losses on arrival: a peer's requests are not answered.
#[test]
fn one_queue_pair_is_deaf() {
    in_world_with(with_faults("drop,qp=@2,dir=rx"), || {
        let context = Context::open()?;
        let [first, second] = [Pair::on(&context, &impatient())?, Pair::on(&context, &Options::default())?];
        ensure!(write(&first)? == Status::RETRY_EXC_ERR, "to the second queue pair");
        ensure!(write(&second)? == Status::SUCCESS, "to the fourth");
        Ok(())
    });
}

#[test]
fn a_completion_of_one_queue_pair_alone() {
    in_world_with(with_faults("wc=LOC_PROT_ERR,qp=@3"), || {
        let context = Context::open()?;
        let options = Options::default();
        let [first, second] = [Pair::on(&context, &options)?, Pair::on(&context, &options)?];
        ensure!(write(&first)? == Status::SUCCESS && write(&second)? == Status::LOC_PROT_ERR);
        ensure!(second.near.qp.state()? == v::IBV_QPS_ERR && first.near.qp.state()? == v::IBV_QPS_RTS);
        Ok(())
    });
}

/// The fifth receive of a queue pair, by its number among those that are made.
#[test]
fn the_nth_receive_fails() {
    in_world_with(with_faults("wc=LOC_LEN_ERR,qp=@2,dir=rx,nth=5"), || {
        let Pair { near, far } = &Pair::new(&Options::default())?;
        let (local, remote) = (near.region(PAGE)?, far.region(PAGE)?);
        for number in 1..=5 {
            far.qp.post_recv(&RecvWr::new(number, &[remote.sge(0, 8)]))?;
            near.qp.post_send(&SendWr::new(Op::Send, &[local.sge(0, 8)]))?;
            let wc = far.recv_cq.next()?;
            let expected = if number == 5 { Status::LOC_LEN_ERR } else { Status::SUCCESS };
            ensure!(wc.wr_id == number && wc.status == expected, "{wc:?}");
        }
        ensure!(far.qp.state()? == v::IBV_QPS_ERR);
        Ok(())
    });
}

/// Waits while no packet arrives, by the script's clock: it takes as long as that, and is right in the end.
#[test]
fn a_network_that_comes_back() {
    const AWAY: Duration = Duration::from_millis(700);
    in_world_with(with_faults("step,lasts=700ms; drop,opcode=WRITE; step"), || {
        let began = Instant::now();
        // 4.096 µs · 2^15 is 134 ms: seven retries of that are more than it takes.
        let pair = Pair::new(&Options { timeout: 15, retry_cnt: 7, ..Options::default() })?;
        ensure!(write(&pair)? == Status::SUCCESS);
        ensure!(began.elapsed() >= AWAY, "after {:?}", began.elapsed());
        Ok(())
    });
}

/// An ACK timeout of 1 ms, for what is not answered anyway.
const IMPATIENT: u8 = 8;
/// ACK timeout of a second, which no load exceeds seven times.
const PATIENT: u8 = 18;

/// perftest's `ib_write_bw` between two hosts; what the client says, and whether it succeeded.
fn perftest(server: &Host, client: &Host, gid: u32, timeout: u8) -> Result<Finished> {
    let port = server.next_port();
    let options = format!("-d urxe0 -x {gid} -p {port} -F -s 4096 -n 200 -u {timeout} -Q 1");
    let args: Vec<&str> = options.split_whitespace().collect();
    let listener = wait_for_listener(server, server.spawn("ib_write_bw", &args)?, port)?;
    let said = client.spawn("ib_write_bw", &[&args[..], &["10.77.0.1"]].concat())?.finish(TIMEOUT)?;
    if said.status.success() {
        listener.finish(TIMEOUT)?.success()?;
    }
    Ok(said)
}

/// One peer is cut off, by its address; the same host is reached at another.
#[test]
fn perftest_with_one_peer_cut_off() -> Result<()> {
    let (world, other) = World::linked()?;
    for (faults, gid, reached) in [
        ("drop,peer=10.77.0.1,dir=tx", GID_IPV4, false),
        ("drop,peer=10.77.0.1,dir=tx", GID_IPV6, true),
        ("drop,peer=fd77::1,dir=rx", GID_IPV6, false),
        ("drop,peer=10.77.0.9", GID_IPV4, true),
    ] {
        other.set_env("URXE_FAULTS", faults);
        let said = perftest(world.host(), &other, gid, if reached { PATIENT } else { IMPATIENT })?;
        ensure!(said.status.success() == reached, "{faults}: {said}");
        // IBV_WC_RETRY_EXC_ERR.
        let all = format!("{}{}", said.stdout, said.stderr);
        ensure!(reached || all.contains("Failed status 12"), "{faults}: {said}");
    }
    Ok(())
}

/// perftest sees a refusal, an error of its own device, and a verb that fails, as it would with a card.
#[test]
fn perftest_with_faults_of_a_card() -> Result<()> {
    let (world, other) = World::linked()?;
    for (faults, told) in [
        ("nak=access,opcode=ACK,dir=rx,nth=3", "Failed status 10"),
        ("nak=operational,opcode=ACK,dir=rx,nth=3", "Failed status 11"),
        ("nak=invalid,opcode=ACK,dir=rx,nth=3", "Failed status 9"),
        ("wc=LOC_QP_OP_ERR,nth=50", "Failed status 2"),
        ("fail=create_cq:ENOMEM", "Couldn't create CQ"),
    ] {
        other.set_env("URXE_FAULTS", faults);
        let said = perftest(world.host(), &other, GID_IPV4, PATIENT)?;
        ensure!(!said.status.success(), "{faults}: {said}");
        ensure!(format!("{}{}", said.stdout, said.stderr).contains(told), "{faults}: {said}");
    }
    Ok(())
}

/// `urxe run --faults @FILE.toml`: a program that waits for events is told of those of each step, in order, and that the
/// device is gone.
#[test]
fn a_script_of_urxe_run() -> Result<()> {
    let launcher = Launcher::new()?;
    let file = launcher.tmp().join("a day.toml");
    let text = r#"
        [[step]]
        lasts = "300ms"

        [[step]]
        lasts = "300ms"
        rules = ["event=PORT_ERR"]

        [[step]]
        rules = ["event=PORT_ACTIVE", { event = "GID_CHANGE", after = "100ms" }, "remove,after=200ms"]
    "#;
    std::fs::write(&file, text)?;
    let script = format!("@{}", file.to_str().context("a path that is not UTF-8")?);
    let said = launcher.try_run(&["--faults", &script], &["ibv_asyncwatch", "-d", "urxe0"])?;
    let mut told = said.stdout.lines().filter(|line| line.contains("IBV_EVENT"));
    for event in ["PORT_ERR", "PORT_ACTIVE", "GID_CHANGE", "DEVICE_FATAL"] {
        ensure!(told.next().is_some_and(|line| line.contains(event)), "no {event:?}: {said}");
    }
    ensure!(told.next().is_none(), "{said}");
    Ok(())
}

/// Each rule is counted, and one that never struck is warned of, when the program ends and explanations are on.
#[test]
fn hits_of_rules() -> Result<()> {
    let launcher = Launcher::new()?;
    let rules = "fail=create_qp:ENOMEM; drop,opcode=READ_RESPONSE";
    let program = ["ibv_rc_pingpong", "-d", "urxe0", "-g", "1"];
    let struck = "urxe: URXE_FAULTS: fail=create_qp:ENOMEM struck once\n";
    let never = "urxe: warning: a rule of URXE_FAULTS never struck (drop,opcode=READ_RESPONSE)\n";
    for explain in ["1", "failure", "json"] {
        let said = launcher.try_run(&["--faults", rules, "--explain", explain], &program)?;
        let (struck, never) = match explain {
            "json" => ("a rule of URXE_FAULTS struck once", "a rule of URXE_FAULTS never struck"),
            _ => (struck, never),
        };
        ensure!(said.stderr.matches(struck).count() == 1, "no {struck:?}: {said}");
        ensure!(said.stderr.matches(never).count() == 1, "no {never:?}: {said}");
    }
    let said = launcher.try_run(&["--faults", rules, "--explain", "0"], &program)?;
    ensure!(!said.stderr.contains("URXE_FAULTS"), "{said}");
    // Without a device, nothing was to strike.
    let said = launcher.try_run(&["--faults", rules, "--explain", "1"], &["true"])?;
    ensure!(said.stderr.is_empty(), "{said}");
    Ok(())
}

/// Rules on the command line; those that make no sense keep the program from being started.
#[test]
fn rules_of_urxe_run() -> Result<()> {
    let launcher = Launcher::new()?;
    let said =
        launcher.try_run(&["--faults", "fail=create_qp:ENOMEM"], &["ibv_rc_pingpong", "-d", "urxe0", "-g", "1"])?;
    ensure!(!said.status.success() && said.stderr.contains("Couldn't create QP"), "{said}");
    for wrong in ["drop=200%", "fail=make_qp:ENOMEM", "@/nowhere"] {
        let said = launcher.try_run(&["--faults", wrong], &["echo", "started"])?;
        ensure!(said.status.code() == Some(125) && said.stdout.is_empty(), "{said}");
        ensure!(
            said.stderr.starts_with("urxe: --faults or URXE_FAULTS=") && said.stderr.lines().count() == 1,
            "{said}"
        );
    }
    Ok(())
}
