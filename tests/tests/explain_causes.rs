//! Explanations of requests that fail for a reason outside of both queue pairs: the interface, and faults that were asked
//! for.

use std::io::Write as _;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::verbs::datagram::{Ah, Mouth, Q_KEY, towards};
use urxe_tests::verbs::memory::PAGE;
use urxe_tests::verbs::{Context, Cq, End, Op, Options, Pair, SendWr, Status};
use urxe_tests::{GID_IPV4, Stderr, World, in_world_with, wait_until};
use urxe_wire::icrc::{self, Flow};
use urxe_wire::packet::Service;
use urxe_wire::{Bth, Deth, Ext, Header, Opcode, Operation, Psn, QKey, Qpn, ROCE_PORT, Transport};

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

/// A request to a number that no queue pair of the process has is told of, though it leaves the process by no socket.
#[test]
fn a_request_to_nobody() {
    in_world_with(explaining("URXE_EXPLAIN", "1"), || {
        let mut stderr = Stderr::catch()?;
        let options = Options { timeout: 8, retry_cnt: 1, ..Options::default() };
        let near = End::new(&Context::open()?, &options)?;
        let nobody = near.qp.number() ^ 1;
        near.connect(nobody, near.gid(&options)?, &options)?;
        let local = near.region(64)?;
        let wc = near.complete(&SendWr::new(Op::Send, &[local.sge(0, 64)]))?;
        ensure!(wc.status == Status::RETRY_EXC_ERR, "{wc:?}");
        let told = stderr.explanations()?;
        let nobody = format!("there is no QP {nobody:#08x}");
        ensure!(told.iter().filter(|line| line.contains(&nobody)).count() == 1, "{told:#?}");
        Ok(())
    });
}

/// A datagram with a wrong ICRC, which says nothing about anybody, before each one that is right.
#[test]
fn damaged_packets_are_not_told_of() {
    in_world_with(explaining("URXE_EXPLAIN", "1"), || {
        let mut stderr = Stderr::catch()?;
        let context = Context::open()?;
        let mouth = Mouth::new(&context)?;
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        let to = SocketAddr::from(([127, 0, 0, 1], ROCE_PORT));
        let opcode = Opcode::new(Transport::Ud, Operation::SendOnly).context("UD has it")?;
        let send = |qpn: u32, damage: u32| -> Result<()> {
            let deth = Deth { q_key: QKey(Q_KEY), src_qp: Qpn::new(77), lid_routed: false };
            let bth = Bth::new(opcode, Qpn::new(qpn), Psn::new(0));
            let header = Header { bth, service: Service::Datagram(deth), ext: Ext::None };
            let mut packet = vec![0; header.len()];
            header.emit(&mut packet);
            let icrc = icrc::compute(&Flow::new(socket.local_addr()?, to), 0, &packet) ^ damage;
            packet.extend_from_slice(&icrc.to_le_bytes());
            socket.send_to(&packet, to)?;
            Ok(())
        };
        let (damaged, intact) = (mouth.qp.number() ^ 1, mouth.qp.number() ^ 2);
        let mut told = Vec::new();
        wait_until("somebody is told", || {
            send(damaged, 1)?;
            send(intact, 0)?;
            mouth.cq.poll(1)?;
            told.extend(stderr.explanations()?);
            Ok(!told.is_empty())
        })?;
        ensure!(told.len() == 1 && told[0].contains(&format!("there is no QP {intact:#08x}")), "{told:#?}");
        Ok(())
    });
}

/// A packet that was lost before a message arrived is no reason for a later failure.
#[test]
fn faults_before_the_last_success_are_not_blamed() {
    in_world_with(explaining("URXE_FAULTS", "drop,opcode=ACK,dir=rx,nth=1"), || {
        let mut stderr = Stderr::catch()?;
        let pair = Pair::on(&Context::open()?, &Options { timeout: 12, retry_cnt: 7, ..Options::default() })?;
        let (local, remote) = (pair.near.region(PAGE)?, pair.far.region(PAGE)?);
        let write = SendWr::new(Op::Write(remote.at(0)), &[local.sge(0, 8)]);
        let wc = pair.near.complete(&write)?;
        ensure!(wc.status == Status::SUCCESS, "{wc:?}");
        drop(pair.far);
        let wc = pair.near.complete(&write)?;
        ensure!(wc.status == Status::RETRY_EXC_ERR, "{wc:?}");
        let lines = stderr.explanations()?;
        ensure!(lines.len() == 1 && lines[0].contains("though it has answered before"), "{lines:#?}");
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

/// Puts a file under the number of standard error.
fn replace_stderr(file: &impl AsRawFd) -> Result<()> {
    // SAFETY: descriptors that are there.
    ensure!(unsafe { libc::dup2(file.as_raw_fd(), 2) } == 2, "dup2: {}", std::io::Error::last_os_error());
    Ok(())
}

fn make_mistake(context: &Arc<Context>) -> Result<()> {
    ensure!(Cq::new(context, 1 << 30, None).is_err(), "it was not refused");
    Ok(())
}

/// A program that has closed standard error may have a file of its own under that number.
#[test]
fn a_file_with_the_number_of_standard_error_is_not_written() {
    in_world_with(explaining("URXE_EXPLAIN", "1"), || {
        let mut stderr = Stderr::catch()?;
        let context = Context::open()?;
        make_mistake(&context)?;
        ensure!(stderr.explanations()?.len() == 1);
        let mut own = Stderr::catch()?;
        make_mistake(&context)?;
        let written = own.lines()?;
        drop(own);
        ensure!(written.is_empty(), "{written:?}");
        make_mistake(&context)?;
        ensure!(stderr.explanations()?.len() == 1, "it is what it was");
        // Asked for where it leads now.
        let mut own = Stderr::catch()?;
        let _again = Context::open()?;
        make_mistake(&context)?;
        ensure!(own.explanations()?.len() == 1);
        Ok(())
    });
}

/// A verb fails as usual where a person who reads slowly, or nobody, is at the other end.
#[test]
fn a_full_or_closed_pipe_loses_what_is_explained() {
    in_world_with(explaining("URXE_EXPLAIN", "1"), || {
        // Restores what was there before.
        let _before = Stderr::catch()?;
        let (reader, mut writer) = std::io::pipe()?;
        replace_stderr(&writer)?;
        let context = Context::open()?;
        // SAFETY: a descriptor, and no pointers.
        let size = unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_GETPIPE_SZ) };
        writer.write_all(&vec![b'x'; usize::try_from(size)?])?;
        make_mistake(&context)?;
        // The Rust runtime ignores this signal, a C program does not.
        // SAFETY: no handler.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        drop(reader);
        make_mistake(&context)
    });
}
