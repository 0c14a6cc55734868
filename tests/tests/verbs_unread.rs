//! A program that had no processor for a while: what came meanwhile counts, however late it is read.

use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use urxe_tests::verbs::child::{Child, Parent};
use urxe_tests::verbs::memory::ALL_ACCESS;
use urxe_tests::verbs::pair::{rtr, rts};
use urxe_tests::verbs::qp::Init;
use urxe_tests::verbs::{Change, Context, Cq, Mr, Op, Options, Pd, Qp, Remote, SendWr, Status};
use urxe_tests::{in_world, in_world_over_udp};

/// So many queue pairs each wait for an ACK: more than are read at a time.
const COUNT: usize = 1000;

/// Two seconds, and no second try.
fn options() -> Options {
    Options { timeout: 19, retry_cnt: 0, ..Options::default() }
}

/// One end of all connections.
struct Ends {
    cq: Arc<Cq>,
    mr: Mr,
    qps: Vec<Qp>,
}

impl Ends {
    fn new() -> Result<Self> {
        let context = Context::open()?;
        let pd = Pd::new(&context)?;
        let cq = Cq::new(&context, i32::try_from(COUNT)?, None)?;
        let mr = Mr::alloc(&pd, 4096, ALL_ACCESS)?;
        let qps = (0..COUNT).map(|_| Qp::new(&pd, &cq, &cq, &Init::default())).collect::<Result<_, _>>()?;
        Ok(Self { cq, mr, qps })
    }

    /// Their numbers, then where the memory is.
    fn introduction(&self) -> Vec<u64> {
        let memory = self.mr.at(0);
        let numbers = self.qps.iter().map(|qp| u64::from(qp.number()));
        numbers.chain([memory.addr, u64::from(memory.rkey)]).collect()
    }

    fn connect(&self, introduction: &[u64; COUNT + 2]) -> Result<Remote> {
        let options = options();
        let gid = self.cq.context().query_gid(1, i32::try_from(options.gid)?)?;
        for (qp, peer) in self.qps.iter().zip(introduction) {
            qp.modify(&Change::init(options.access))?;
            qp.modify(&rtr(u32::try_from(*peer)?, gid, &options))?;
            qp.modify(&rts(&options))?;
        }
        Ok(Remote { addr: introduction[COUNT], rkey: u32::try_from(introduction[COUNT + 1])? })
    }

    /// Each writes eight bytes.
    fn post(&self, remote: Remote) -> Result<()> {
        self.qps.iter().try_for_each(|qp| self.write(qp, remote))
    }

    fn write(&self, qp: &Qp, remote: Remote) -> Result<()> {
        Ok(qp.post_send(&SendWr::new(Op::Write(remote), &[self.mr.sge(0, 8)]))?)
    }

    fn take(&self, count: usize) -> Result<()> {
        for wc in self.cq.take(count)? {
            ensure!(wc.status == Status::SUCCESS, "{wc:?}");
        }
        Ok(())
    }
}

fn target(parent: &mut Parent) -> Result<()> {
    let ends = Ends::new()?;
    parent.send(&ends.introduction())?;
    ends.connect(&parent.receive()?)?;
    parent.send(&[0])?;
    // Its program does nothing.
    parent.receive::<1>()?;
    Ok(())
}

fn writer(parent: &mut Parent) -> Result<()> {
    let ends = Ends::new()?;
    parent.send(&ends.introduction())?;
    let remote = ends.connect(&parent.receive()?)?;
    // Each has sockets of its own from now on, and needs nobody to forward to it.
    for qp in &ends.qps {
        ends.write(qp, remote)?;
        ends.take(1)?;
    }
    parent.send(&[0])?;
    parent.receive::<1>()?;
    ends.post(remote)?;
    parent.send(&[0])?;
    ends.take(COUNT)
}

/// The target answers in time, but while the writer is stopped, for longer than it would wait.
fn answers_lie_unread(stopped: Duration) -> Result<()> {
    let mut target = Child::fork(target)?;
    let mut writer = Child::fork(writer)?;
    let of_target = target.receive::<{ COUNT + 2 }>()?;
    let of_writer = writer.receive::<{ COUNT + 2 }>()?;
    target.send(&of_writer)?;
    target.receive::<1>()?;
    writer.send(&of_target)?;
    writer.receive::<1>()?;
    target.stop()?;
    writer.send(&[0])?;
    writer.receive::<1>()?;
    // It polls by now, and its background thread keeps away from what comes.
    sleep(Duration::from_millis(100));
    writer.stop()?;
    target.signal(libc::SIGCONT)?;
    sleep(stopped);
    writer.signal(libc::SIGCONT)?;
    writer.finish()?;
    target.send(&[0])?;
    target.finish()
}

//= spec/hosts.md#net-023
//= type=test
//# What has arrived SHOULD be read before a peer is taken for silent.
#[test]
fn answers_lie_in_memory() {
    in_world(|| answers_lie_unread(Duration::from_millis(2500)));
}

#[test]
fn answers_lie_in_sockets() {
    in_world_over_udp(|| answers_lie_unread(Duration::from_millis(2500)));
}
