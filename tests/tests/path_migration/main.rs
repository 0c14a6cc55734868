//! Automatic path migration: two hosts with two cables, of which one is unplugged.
//!
//! urxe0 is on `lo`, with two addresses of which each is reached by a cable of its own, as where several uplinks lead to a
//! machine; or it is on both cables' interfaces.

mod gids;

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::verbs::child::{Child, Parent};
use urxe_tests::verbs::datagram::towards;
use urxe_tests::verbs::memory::pattern;
use urxe_tests::verbs::{Change, Context, End, Mr, Op, Options, PATIENCE, RecvWr, Remote, SendWr, Status};
use urxe_tests::{Host, World, in_world_with, own_counter, wait_until};

/// The variable with a process on the other host.
const OTHER: &str = "TEST_OTHER_HOST";
const LENGTH: usize = 20_000;
/// Messages of a round.
const MESSAGES: u64 = 20;
/// Exponent of the ACK timeout: 0.54 s, four times, is longer than an end on a busy machine keeps the other waiting.
const PATIENT: u8 = 17;

/// Two hosts. `lo` of the first has 10.91.0.1 and 10.92.0.1, of the second 10.91.0.2 and 10.92.0.2; packets between the first
/// ones take `wire1`, between the second ones `wire2`.
fn two_cables(world: &World) -> Result<Host> {
    let (here, there) = (world.host(), world.add_host()?);
    let pid = there.pid().to_string();
    for wire in ["1", "2"] {
        let name = format!("wire{wire}");
        here.run("ip", &["link", "add", &name, "type", "veth", "peer", "name", &name, "netns", &pid])?;
        for (host, own, peer) in [(here, "1", "2"), (&there, "2", "1")] {
            host.run("ip", &["address", "add", &format!("10.9{wire}.0.{own}/32"), "dev", "lo"])?;
            host.run("ip", &["address", "add", &format!("10.8{wire}.0.{own}/24"), "dev", &name])?;
            host.run("ip", &["link", "set", &name, "up"])?;
            let (to, via) = (format!("10.9{wire}.0.{peer}"), format!("10.8{wire}.0.{peer}"));
            host.run("ip", &["route", "add", &to, "via", &via, "dev", &name])?;
        }
    }
    for host in [here, &there] {
        host.wait_for_links(&["wire1", "wire2"])?;
    }
    here.set_env(OTHER, &pid);
    Ok(there)
}

/// As [`two_cables`], with urxe0 on both: 10.81.0.1 and 10.82.0.1, 10.81.0.2 and 10.82.0.2.
fn joined(world: &World) -> Result<Host> {
    let there = two_cables(world)?;
    world.host().set_env("URXE_NETDEV", "wire1+wire2");
    Ok(there)
}

fn ip(args: &str) -> Result<()> {
    let output = Command::new("ip").args(args.split(' ')).output()?;
    ensure!(output.status.success(), "ip {args}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Plugs a cable of this host in again, and puts back the route that went with it.
fn plug_in(wire: u8) -> Result<()> {
    ip(&format!("link set wire{wire} up"))?;
    ip(&format!("route add 10.9{wire}.0.1 via 10.8{wire}.0.1 dev wire{wire}"))?;
    is_plugged_in(wire)
}

/// Waits until packets can leave by a cable: the kernel takes up to a second to notice.
fn is_plugged_in(wire: u8) -> Result<()> {
    wait_until("the cable is plugged in", || {
        let output = Command::new("ip").args(["link", "show", &format!("wire{wire}"), "up"]).output()?;
        Ok(String::from_utf8_lossy(&output.stdout).contains("state UP"))
    })
}

/// Has this process be on the other host from now on.
fn move_to_other() -> Result<()> {
    let pid = std::env::var(OTHER)?;
    let open = |name: &&str| File::open(format!("/proc/{pid}/ns/{name}"));
    let namespaces = ["net", "mnt"].iter().map(open).collect::<Result<Vec<_>, _>>()?;
    for namespace in namespaces {
        // SAFETY: a plain system call; this process has one thread.
        let entered = unsafe { libc::setns(namespace.as_raw_fd(), 0) };
        ensure!(entered == 0, "setns: {}", std::io::Error::last_os_error());
    }
    Ok(())
}

/// An address of these hosts as a GID.
fn gid(net: u8, host: u8) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, net, 0, host]
}

/// The row of an own address.
fn row(context: &Context, gid: [u8; 16]) -> Result<u32> {
    let table = context.query_gid_table(64)?;
    // SAFETY: a GID is 16 bytes, whatever they are.
    let row = table.iter().find(|entry| unsafe { entry.gid.raw } == gid).map(|entry| entry.gid_index);
    row.with_context(|| format!("no row has {gid:?}"))
}

/// One end of a connection between the hosts.
struct Side {
    end: End,
    /// Number of the host.
    own: u8,
    /// Network of the first path.
    net: u8,
    /// Exponent of the ACK timeout.
    timeout: u8,
    local: Mr,
    remote: Mr,
    to: Remote,
    /// Rounds that it has talked.
    round: u64,
}

impl Side {
    fn new(own: u8, [net, timeout]: [u8; 2]) -> Result<Self> {
        let end = End::new(&Context::open()?, &Options::default())?;
        let (local, remote) = (end.region(LENGTH)?, end.region(2 * LENGTH)?);
        let to = remote.at(0);
        Ok(Self { end, own, net, timeout, local, remote, to, round: 0 })
    }

    /// Numbers that the other side is told.
    fn told(&self) -> [u64; 3] {
        [self.end.qp.number().into(), self.remote.at(0).addr, self.remote.at(0).rkey.into()]
    }

    fn connect(&mut self, [peer, addr, rkey]: [u64; 3]) -> Result<()> {
        self.to = Remote { addr, rkey: u32::try_from(rkey)? };
        let gid_row = row(&self.end.context, gid(self.net, self.own))?;
        let options = Options { gid: gid_row, timeout: self.timeout, retry_cnt: 3, ..Options::default() };
        self.end.connect(u32::try_from(peer)?, gid(self.net, 3 - self.own), &options)
    }

    /// Gives an alternate path from the own address in `net` to `peer`, and asks for it to be armed.
    fn rearm(&self, net: u8, peer: [u8; 16]) -> Result<()> {
        let path = towards(peer, row(&self.end.context, gid(net, self.own))?);
        let mask = v::IBV_QP_ALT_PATH | v::IBV_QP_PATH_MIG_STATE;
        self.end.qp.modify(&Change::to(v::IBV_QPS_RTS).with(mask, |attr| {
            (attr.alt_ah_attr, attr.alt_port_num, attr.alt_timeout) = (path, 1, self.timeout);
            attr.path_mig_state = v::IBV_MIG_REARM;
        }))?;
        Ok(())
    }

    fn state(&self) -> Result<v::ibv_mig_state> {
        Ok(self.end.qp.query()?.0.path_mig_state)
    }

    /// Waits for an event of the queue pair. The GID table changes with the interfaces.
    fn expect(&self, kind: v::ibv_event_type) -> Result<()> {
        loop {
            let event = self.end.context.async_event(PATIENCE)?.context("no event")?;
            if event.kind() != v::IBV_EVENT_GID_CHANGE {
                ensure!(event.kind() == kind && event.element() == self.end.qp.address(), "{}", event.name());
                return Ok(());
            }
        }
    }

    /// Asserts that there is no event of the queue pair.
    fn expect_no_event(&self) -> Result<()> {
        while let Some(event) = self.end.context.async_event(Duration::ZERO)? {
            ensure!(event.kind() == v::IBV_EVENT_GID_CHANGE, "unexpected: {}", event.name());
        }
        Ok(())
    }

    /// Posts receives for these messages of a round.
    fn listen(&self, messages: Range<u64>) -> Result<()> {
        let sge = self.remote.sge(LENGTH, LENGTH);
        messages.into_iter().try_for_each(|nth| Ok(self.end.qp.post_recv(&RecvWr::new(nth, &[sge]))?))
    }

    /// Writes and sends, so that the other side has all of a pattern twice, and waits for all.
    fn talk(&mut self) -> Result<()> {
        self.round += 1;
        self.local.pages().write(0, &pattern(self.round + 16 * u64::from(self.own), LENGTH));
        for nth in 0..MESSAGES {
            let sge = self.local.sge(0, LENGTH);
            for op in [Op::Write(self.to), Op::Send] {
                let wc = self.end.complete(&SendWr::new(op, &[sge]))?;
                ensure!(wc.status == Status::SUCCESS, "message {nth}: {wc:?}");
            }
        }
        Ok(())
    }

    /// Waits for these messages of a round.
    fn hear(&self, messages: Range<u64>) -> Result<()> {
        for nth in messages {
            let wc = self.end.recv_cq.next()?;
            let right = wc.status == Status::SUCCESS && wc.wr_id == nth && wc.byte_len as usize == LENGTH;
            ensure!(right, "message {nth}: {wc:?}");
        }
        Ok(())
    }

    /// Compares what has come with what the other side has talked in a round.
    fn compare(&self, round: u64) -> Result<()> {
        let expected = pattern(round + 16 * u64::from(3 - self.own), LENGTH);
        ensure!(self.remote.pages().read(0, LENGTH) == expected, "what was written is not what is there");
        ensure!(self.remote.pages().read(LENGTH, LENGTH) == expected, "what was sent is not what has come");
        Ok(())
    }

    /// Lets the other side talk a round.
    fn let_talk(&self, parent: &mut Parent, round: u64) -> Result<()> {
        self.listen(0..MESSAGES)?;
        parent.send(&[0])?;
        self.hear(0..MESSAGES)?;
        self.compare(round)
    }
}

/// Two sides, connected over a network with an ACK timeout, the second in a child on the other host, which does what `there`
/// says.
fn connected(how: [u8; 2], there: impl FnOnce(&mut Parent, Side) -> Result<()>) -> Result<(Side, Child)> {
    let mut child = Child::fork(|parent| {
        move_to_other()?;
        let mut side = Side::new(2, how)?;
        parent.send(&side.told())?;
        side.connect(parent.receive()?)?;
        parent.send(&[0])?;
        there(parent, side)
    })?;
    let mut side = Side::new(1, how)?;
    let told = child.receive()?;
    child.send(&side.told())?;
    side.connect(told)?;
    let [_] = child.receive()?;
    Ok((side, child))
}

/// Unplugs the cable of the primary path under a connection that is at work, then the other. Paths are of the networks `first`
/// and the one behind it.
fn turns(first: u8, timeout: u8) -> Result<()> {
    let nets = [first + 1, first];
    let (mut side, mut child) = connected([first, timeout], |parent, mut side| {
        for (round, net) in (1..).zip(nets) {
            side.rearm(net, gid(net, 1))?;
            side.let_talk(parent, 3 * round - 2)?;
            ensure!(side.state()? == v::IBV_MIG_ARMED);
            // In the middle of a round: the other side waits for receives.
            side.listen(0..MESSAGES / 2)?;
            parent.send(&[0])?;
            side.hear(0..MESSAGES / 2)?;
            let wire = if net == first { 2 } else { 1 };
            ip(&format!("link set wire{wire} down"))?;
            side.listen(MESSAGES / 2..MESSAGES)?;
            side.hear(MESSAGES / 2..MESSAGES)?;
            side.compare(3 * round - 1)?;
            side.expect(v::IBV_EVENT_PATH_MIG)?;
            ensure!(side.state()? == v::IBV_MIG_MIGRATED);
            side.let_talk(parent, 3 * round)?;
            side.talk()?;
            plug_in(wire)?;
            parent.send(&[0])?;
            let [_] = parent.receive()?;
        }
        side.expect_no_event()
    })?;
    ensure!(side.end.context.query_device()?.device_cap_flags & v::IBV_DEVICE_AUTO_PATH_MIG != 0);
    for (round, net) in (1..).zip(nets) {
        side.rearm(net, gid(net, 2))?;
        let [_] = child.receive()?;
        side.talk()?;
        ensure!(side.state()? == v::IBV_MIG_ARMED);
        let [_] = child.receive()?;
        side.talk()?;
        side.expect(v::IBV_EVENT_PATH_MIG)?;
        let (attr, _) = side.end.qp.query()?;
        ensure!(attr.path_mig_state == v::IBV_MIG_MIGRATED);
        // SAFETY: a GID is 16 bytes, whatever they are.
        let paths = unsafe { [attr.ah_attr.grh.dgid.raw, attr.alt_ah_attr.grh.dgid.raw] };
        ensure!(paths == [gid(net, 2), gid(2 * first + 1 - net, 2)], "{paths:?}");
        let [_] = child.receive()?;
        side.listen(0..MESSAGES)?;
        side.talk()?;
        side.hear(0..MESSAGES)?;
        side.compare(round)?;
        let [_] = child.receive()?;
        is_plugged_in(if net == first { 2 } else { 1 })?;
        child.send(&[0])?;
    }
    side.expect_no_event()?;
    let migrated = own_counter("paths_migrated")?;
    ensure!(migrated == 2, "paths_migrated is {migrated}");
    child.finish()
}

/// Tries run out, and the other cable is taken.
#[test]
fn a_connection_goes_on_over_the_other_cable() {
    in_world_with(two_cables, || turns(91, PATIENT));
}

/// An interface that goes down is left at once: with an ACK timeout of 0 tries never run out.
#[test]
fn a_device_on_two_interfaces_goes_on_over_the_other() {
    in_world_with(joined, || turns(81, 0));
}

/// The application moves the connection, without anything being broken.
#[test]
fn an_application_migrates() {
    in_world_with(two_cables, || {
        let (mut side, mut child) = connected([91, PATIENT], |parent, side| {
            side.rearm(92, gid(92, 1))?;
            side.let_talk(parent, 1)?;
            side.let_talk(parent, 2)?;
            side.expect(v::IBV_EVENT_PATH_MIG)
        })?;
        side.rearm(92, gid(92, 2))?;
        let [_] = child.receive()?;
        side.talk()?;
        ensure!(side.state()? == v::IBV_MIG_ARMED);
        let migrate =
            Change::to(v::IBV_QPS_RTS).with(v::IBV_QP_PATH_MIG_STATE, |attr| attr.path_mig_state = v::IBV_MIG_MIGRATED);
        side.end.qp.modify(&migrate)?;
        side.expect(v::IBV_EVENT_PATH_MIG)?;
        ensure!(own_counter("paths_migrated")? == 1);
        let [_] = child.receive()?;
        side.talk()?;
        child.finish()
    });
}

/// A peer that is armed for another path is told so, and one without any is not reached: the request fails after all tries.
#[test]
fn a_peer_that_does_not_have_the_path() {
    in_world_with(two_cables, || {
        for has_another in [true, false] {
            let (mut side, mut child) = connected([91, PATIENT], |parent, side| {
                if has_another {
                    // Nobody has this address.
                    side.rearm(92, gid(93, 1))?;
                }
                side.let_talk(parent, 1)?;
                ip("link set wire1 down")?;
                parent.send(&[0])?;
                if has_another {
                    side.expect(v::IBV_EVENT_PATH_MIG_ERR)?;
                    ensure!(side.state()? == v::IBV_MIG_ARMED);
                }
                let [_] = parent.receive()?;
                plug_in(1)?;
                side.expect_no_event()
            })?;
            side.rearm(92, gid(92, 2))?;
            let [_] = child.receive()?;
            side.talk()?;
            ensure!(side.state()? == v::IBV_MIG_ARMED);
            let [_] = child.receive()?;
            let sge = side.local.sge(0, 100);
            let wc = side.end.complete(&SendWr::new(Op::Write(side.to), &[sge]))?;
            ensure!(wc.status == Status(v::IBV_WC_RETRY_EXC_ERR), "{wc:?}");
            side.expect(v::IBV_EVENT_PATH_MIG)?;
            child.send(&[0])?;
            child.finish()?;
            is_plugged_in(1)?;
        }
        Ok(())
    });
}
