//! Eight rails between two hosts, a device on each, in one program as in NCCL's and Mooncake's: one link goes down and comes up.

use std::ffi::CString;
use std::fmt::Write as _;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::verbs::child::{Child, Parent};
use urxe_tests::verbs::memory::{Mr, pattern};
use urxe_tests::verbs::{Change, Context, End, Errno, Op, Options, PATIENCE, Remote, SendWr, Status};
use urxe_tests::{Host, World, artifacts, in_world_with};

const RAILS: usize = 8;
/// The rail whose link goes down.
const LOST: usize = 3;
const LEN: usize = 5000;
/// A process whose network is the other host's.
const OTHER: &str = "RAILS_OTHER_HOST";
/// Words to the other host.
const RECONNECT: u64 = 1;
const END: u64 = 2;

/// Two hosts with a veth between them for each rail, 10.91.N.1 on the first and 10.91.N.2 on the second, and as many devices.
fn rails(world: &World) -> Result<Host> {
    let other = world.add_host()?;
    let mut script = String::new();
    for rail in 0..RAILS {
        writeln!(script, "ip link add eth{rail} type veth peer name eth{rail} netns {}", other.pid())?;
    }
    world.host().run("sh", &["-ec", &script])?;
    for (host, last) in [(world.host(), 1), (&other, 2)] {
        let mut script = String::new();
        for rail in 0..RAILS {
            // Without addresses that come later.
            writeln!(
                script,
                "ip link set eth{rail} addrgenmode none up; ip address add 10.91.{rail}.{last}/24 dev eth{rail}"
            )?;
        }
        host.run("sh", &["-ec", &script])?;
    }
    let names: Vec<_> = (0..RAILS).map(|rail| format!("eth{rail}")).collect();
    for host in [world.host(), &other] {
        host.wait_for_links(&names)?;
    }
    world.host().set_env("URXE_NETDEV", &names.join(","));
    world.host().set_env(OTHER, &other.pid().to_string());
    world.host().run(artifacts::urxe()?, &["install"])?;
    Ok(other)
}

/// Moves this process, which has one thread, to the other host's network.
fn go_to_other_host() -> Result<()> {
    let namespace = File::open(format!("/proc/{}/ns/net", std::env::var(OTHER)?))?;
    // SAFETY: a descriptor of a namespace.
    let moved = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
    ensure!(moved == 0, "setns: {}", std::io::Error::last_os_error());
    Ok(())
}

/// Enough that a loaded machine gives up no peer, and few seconds for one that is not there.
fn options() -> Options {
    Options { timeout: 17, ..Options::default() }
}

/// The GID of 10.91.`rail`.`last`.
fn gid(rail: usize, last: u8) -> [u8; 16] {
    let mut gid = [0; 16];
    let rail = u8::try_from(rail).expect("few rails");
    gid[10..].copy_from_slice(&[0xff, 0xff, 10, 91, rail, last]);
    gid
}

/// A device with a queue pair and its memory.
struct Rail {
    number: usize,
    context: Arc<Context>,
    end: End,
    memory: Mr,
}

impl Rail {
    fn open(number: usize) -> Result<Self> {
        let context = Context::open_named(&CString::new(format!("urxe{number}"))?)?;
        Self::on(number, &context)
    }

    fn on(number: usize, context: &Arc<Context>) -> Result<Self> {
        let end = End::new(context, &options())?;
        let memory = end.region(2 * LEN)?;
        Ok(Self { number, context: Arc::clone(context), end, memory })
    }

    /// Description for the peer: queue pair, address, key.
    fn told(&self) -> [u64; 3] {
        [self.end.qp.number().into(), self.memory.at(0).addr, self.memory.rkey().into()]
    }

    fn connect(&self, peer: u64, last: u8) -> Result<()> {
        self.end.connect(u32::try_from(peer)?, gid(self.number, last), &options())
    }

    /// Writes to the peer and reads it back.
    fn goes_round(&self, seed: u64, peer: &Remote) -> Result<()> {
        let memory = self.memory.pages();
        memory.write(0, &pattern(seed, LEN));
        for (op, at) in [(Op::Write(*peer), 0), (Op::Read(*peer), LEN)] {
            let wc = self.end.complete(&SendWr::new(op, &[self.memory.sge(at, LEN)]))?;
            ensure!(wc.status == Status::SUCCESS, "rail {}: {wc:?}", self.number);
        }
        ensure!(memory.read(LEN, LEN) == pattern(seed, LEN), "rail {}: other bytes", self.number);
        Ok(())
    }

    fn next_event(&self) -> Result<v::ibv_event_type> {
        Ok(self.context.async_event(PATIENCE)?.context("no event")?.kind())
    }

    fn state(&self) -> Result<v::ibv_port_state> {
        Ok(self.context.query_port(1)?.state)
    }
}

fn remote([_, addr, rkey]: [u64; 3]) -> Result<Remote> {
    Ok(Remote { addr, rkey: u32::try_from(rkey)? })
}

/// The other host: queue pairs that are written to and read from. Its port of the lost link goes down and up too, and no other.
fn other_host(parent: &mut Parent) -> Result<()> {
    go_to_other_host()?;
    let mut rails = (0..RAILS).map(Rail::open).collect::<Result<Vec<_>>>()?;
    for rail in &rails {
        parent.send(&rail.told())?;
        let [peer] = parent.receive()?;
        rail.connect(peer, 1)?;
        parent.send(&[0])?;
    }
    loop {
        let [word] = parent.receive()?;
        if word == END {
            break;
        }
        ensure!(rails[LOST].next_event()? == v::IBV_EVENT_PORT_ERR);
        ensure!(rails[LOST].next_event()? == v::IBV_EVENT_PORT_ACTIVE);
        // The old one after RESET, and a new one.
        let new = Rail::on(LOST, &rails[LOST].context)?;
        rails[LOST].end.qp.modify(&Change::to(v::IBV_QPS_RESET))?;
        for rail in [&rails[LOST], &new] {
            parent.send(&rail.told())?;
            let [peer] = parent.receive()?;
            rail.connect(peer, 1)?;
            parent.send(&[0])?;
        }
        rails.push(new);
    }
    rails.iter().try_for_each(|rail| rail.context.expect_no_event(Duration::ZERO))
}

/// Connects with the queue pair that the other host tells of next. Returns where its memory is.
fn connect_next(rail: &Rail, other: &mut Child) -> Result<Remote> {
    let told = other.receive()?;
    other.send(&[rail.told()[0]])?;
    rail.connect(told[0], 2)?;
    let [_] = other.receive()?;
    remote(told)
}

fn ip(args: &str) -> Result<()> {
    let output = Command::new("ip").args(args.split(' ')).output()?;
    ensure!(output.status.success(), "ip {args}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

#[test]
fn one_rail_of_eight_fails_and_recovers() {
    in_world_with(rails, || {
        let mut other = Child::fork(other_host)?;
        let rails = (0..RAILS).map(Rail::open).collect::<Result<Vec<_>>>()?;
        let mut peers = rails.iter().map(|rail| connect_next(rail, &mut other)).collect::<Result<Vec<_>>>()?;
        let all_but = |lost| rails.iter().enumerate().filter(move |(number, _)| Some(*number) != lost);
        let round = |seed, lost, peers: &[Remote]| {
            all_but(lost).try_for_each(|(number, rail)| rail.goes_round(seed, &peers[number]))
        };
        (0..20).try_for_each(|seed| round(seed, None, &peers))?;

        ip(&format!("link set eth{LOST} down"))?;
        let lost = &rails[LOST];
        ensure!(lost.next_event()? == v::IBV_EVENT_PORT_ERR);
        ensure!(lost.state()? == v::IBV_PORT_DOWN);
        for id in 0..3 {
            lost.end.qp.post_send(&SendWr::new(Op::Write(peers[LOST]), &[lost.memory.sge(0, LEN)]).id(id))?;
        }
        // The others go on, meanwhile and afterwards.
        let mut wcs = Vec::new();
        let mut seed = 100;
        while wcs.len() < 3 {
            round(seed, Some(LOST), &peers)?;
            seed += 1;
            wcs.extend(lost.end.send_cq.poll(4)?);
        }
        let statuses: Vec<_> = wcs.iter().map(|wc| (wc.wr_id, wc.status)).collect();
        let flushed = Status::WR_FLUSH_ERR;
        ensure!(statuses == [(0, Status::RETRY_EXC_ERR), (1, flushed), (2, flushed)], "{wcs:?}");
        ensure!(lost.end.qp.state()? == v::IBV_QPS_ERR);
        (200..220).try_for_each(|seed| round(seed, Some(LOST), &peers))?;
        for (number, rail) in all_but(Some(LOST)) {
            rail.context.expect_no_event(Duration::ZERO)?;
            ensure!(rail.state()? == v::IBV_PORT_ACTIVE && rail.end.qp.state()? == v::IBV_QPS_RTS, "rail {number}");
        }
        // Nothing is connected over it now.
        let refused = Rail::on(LOST, &lost.context)?.connect(1, 2).err().context("it connects")?;
        ensure!(refused.downcast_ref() == Some(&Errno(libc::ENETUNREACH)), "{refused:#}");

        ip(&format!("link set eth{LOST} up"))?;
        ensure!(lost.next_event()? == v::IBV_EVENT_PORT_ACTIVE);
        ensure!(lost.state()? == v::IBV_PORT_ACTIVE);
        other.send(&[RECONNECT])?;
        lost.end.qp.modify(&Change::to(v::IBV_QPS_RESET))?;
        peers[LOST] = connect_next(lost, &mut other)?;
        let new = Rail::on(LOST, &lost.context)?;
        let peer = connect_next(&new, &mut other)?;
        for seed in 300..320 {
            round(seed, None, &peers)?;
            new.goes_round(seed, &peer)?;
        }
        rails.iter().try_for_each(|rail| rail.context.expect_no_event(Duration::ZERO))?;
        other.send(&[END])?;
        other.finish()
    });
}
