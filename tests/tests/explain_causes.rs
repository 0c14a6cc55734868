//! Explanations of requests that fail for a reason outside of both queue pairs: the interface, and faults that were asked
//! for.

use anyhow::{Result, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::verbs::datagram::{Ah, Mouth, Q_KEY, towards};
use urxe_tests::verbs::memory::PAGE;
use urxe_tests::verbs::{Context, Op, Options, Pair, SendWr, Status};
use urxe_tests::{GID_IPV4, Stderr, World, in_world_with, wait_until};

/// The remedy of everything that was asked for.
const ASKED: &str = "see how the program takes it";

/// A world whose processes explain, with another variable.
fn explaining(variable: &'static str, value: &'static str) -> impl FnOnce(&World) -> Result<()> {
    move |world| {
        world.host().set_env("URXE_EXPLAIN", "1");
        world.host().set_env(variable, value);
        Ok(())
    }
}

/// Returns options of a queue pair that gives up within milliseconds: there is no answer to wait for.
fn impatient(mtu: v::ibv_mtu) -> Options {
    Options { timeout: 8, retry_cnt: 1, mtu, ..Options::default() }
}

/// A WRITE fails, and all that is told names this cause or this remedy.
fn told_of_failure(mtu: v::ibv_mtu, cause: &str, remedy: &str) -> Result<()> {
    let mut stderr = Stderr::catch()?;
    let context = Context::open()?;
    let pair = Pair::on(&context, &impatient(mtu))?;
    let (local, remote) = (pair.near.region(PAGE)?, pair.far.region(PAGE)?);
    let wc = pair.near.complete(&SendWr::new(Op::Write(remote.at(0)), &[local.sge(0, 3000)]))?;
    ensure!(wc.status != Status::SUCCESS, "{wc:?}");
    let lines = stderr.explanations()?;
    ensure!(lines.iter().any(|line| line.contains(cause) && line.contains(remedy)), "no {cause:?}: {lines:#?}");
    ensure!(lines.iter().all(|line| line.contains(remedy)), "something else is blamed: {lines:#?}");
    Ok(())
}

fn faults_say_so(cause: &str) -> Result<()> {
    told_of_failure(v::IBV_MTU_1024, cause, ASKED)
}

/// `EMSGSIZE` of the system, which a sender on RC sees as silence.
#[test]
fn a_path_mtu_above_the_interface_s() {
    let narrow = |world: &World| {
        world.host().run("ip", &["link", "set", "lo", "mtu", "1500"])?;
        explaining("URXE_LOOPBACK", "udp")(world)
    };
    in_world_with(narrow, || {
        let cause = "path_mtu 4096 does not fit through lo, whose MTU is 1500: packets with more than 1024 bytes";
        told_of_failure(v::IBV_MTU_4096, cause, "active_mtu")
    });
}

#[test]
fn lost_packets_that_were_asked_for() {
    in_world_with(explaining("URXE_FAULTS", "drop,opcode=ACK,dir=rx"), || {
        faults_say_so("URXE_FAULTS has lost, damaged or held back")
    });
}

#[test]
fn lost_packets_that_were_asked_for_at_the_peer() {
    in_world_with(explaining("URXE_FAULTS", "drop,opcode=ACK,dir=tx"), || {
        faults_say_so("at the peer: URXE_FAULTS loses, damages or holds back packets")
    });
}

#[test]
fn refusals_that_were_asked_for() {
    in_world_with(explaining("URXE_FAULTS", "nak=access,dir=rx"), || faults_say_so("URXE_FAULTS asks for it"));
}

#[test]
fn refusals_that_were_asked_for_at_the_peer() {
    in_world_with(explaining("URXE_FAULTS", "nak=access,dir=tx"), || {
        faults_say_so("at the peer: URXE_FAULTS asks for it")
    });
}

#[test]
fn queue_pairs_that_were_to_fail() {
    in_world_with(explaining("URXE_FAULTS", "drop,opcode=ACK,dir=tx;qp_error,dir=tx"), || {
        faults_say_so("URXE_FAULTS asks for it")
    });
}

#[test]
fn completions_that_were_to_fail() {
    in_world_with(explaining("URXE_FAULTS", "wc=RETRY_EXC_ERR"), || faults_say_so("URXE_FAULTS asks for it"));
}

/// Both ends are told of a datagram to a number that no queue pair has.
#[test]
fn a_datagram_to_nobody() {
    in_world_with(explaining("URXE_EXPLAIN", "1"), || {
        let mut stderr = Stderr::catch()?;
        let context = Context::open()?;
        let near = Mouth::new(&context)?;
        let ah = Ah::new(&near.pd, towards(context.query_gid(1, 1)?, GID_IPV4))?;
        let post = || near.post(&SendWr::new(Op::Send, &[near.out.sge(0, 64)]), &ah, near.qp.number() ^ 1, Q_KEY);
        let mut told = Vec::new();
        wait_until("both ends are told", || {
            post()?;
            near.cq.next()?;
            told.extend(stderr.explanations()?);
            Ok(told.len() >= 2)
        })?;
        let remedy = "the qp_num of a queue pair that is there";
        ensure!(told.len() == 2 && told.iter().all(|line| line.contains(remedy)), "{told:#?}");
        ensure!(
            told[0].starts_with("urxe: there is no QP ") && told[1].contains("at the peer: there is no QP "),
            "{told:#?}"
        );
        Ok(())
    });
}

#[test]
fn devices_that_were_to_go() {
    in_world_with(explaining("URXE_FAULTS", "remove"), || {
        let mut stderr = Stderr::catch()?;
        let context = Context::open()?;
        let refused = || -> Result<bool> { Ok(urxe_tests::verbs::Pd::new(&context).is_err()) };
        wait_until("the device is gone", refused)?;
        let lines = stderr.explanations()?;
        let [line] = &lines[..] else { anyhow::bail!("{lines:#?}") };
        ensure!(line.contains("URXE_FAULTS has taken the device out") && line.contains(ASKED), "{line}");
        Ok(())
    });
}
