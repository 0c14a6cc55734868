//! Many queue pairs and many processes: that they work, and what they cost while nothing happens.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use urxe_tests::verbs::crowd::{Crowd, Shape, Wait};
use urxe_tests::verbs::memory::ALL_ACCESS;
use urxe_tests::verbs::pair::{rtr, rts};
use urxe_tests::verbs::qp::Init;
use urxe_tests::verbs::{Change, Context, Cq, Mr, Op, Options, Pd, Qp, RecvWr, SendWr, Status};
use urxe_tests::{in_world, in_world_over_udp, memory_of_our_own, wakes_of_our_thread};

/// Queue pairs that share a completion queue.
struct Many {
    cq: Arc<Cq>,
    mr: Mr,
    qps: Vec<Qp>,
}

impl Many {
    fn new(count: usize) -> Result<Self> {
        let context = Context::open()?;
        let pd = Pd::new(&context)?;
        let cq = Cq::new(&context, i32::try_from(2 * count)?, None)?;
        let mr = Mr::alloc(&pd, 4096, ALL_ACCESS)?;
        let qps = (0..count).map(|_| Qp::new(&pd, &cq, &cq, &Init::default())).collect::<Result<_, _>>()?;
        Ok(Self { cq, mr, qps })
    }

    /// Connects each with its neighbour.
    fn connect(&self) -> Result<()> {
        let options = &Options::default();
        let gid = self.cq.context().query_gid(1, i32::try_from(options.gid)?)?;
        for (index, qp) in self.qps.iter().enumerate() {
            let peer = self.qps[index ^ 1].number();
            qp.modify(&Change::init(options.access))?;
            qp.modify(&rtr(peer, gid, options))?;
            qp.modify(&rts(options))?;
        }
        Ok(())
    }

    /// Each sends a message to its neighbour.
    fn talk(&self) -> Result<()> {
        for qp in &self.qps {
            qp.post_recv(&RecvWr::new(1, &[self.mr.sge(0, 8)]))?;
        }
        for qp in &self.qps {
            qp.post_send(&SendWr::new(Op::Send, &[self.mr.sge(8, 8)]))?;
        }
        for wc in self.cq.take(2 * self.qps.len())? {
            ensure!(wc.status == Status::SUCCESS, "{wc:?}");
        }
        Ok(())
    }
}

#[test]
fn a_hundred_idle_queue_pairs_wake_nobody() {
    in_world(|| {
        let many = Many::new(100)?;
        many.connect()?;
        many.talk()?;
        let wakes = wakes_of_our_thread(Duration::from_secs(10))?;
        ensure!(wakes == 0, "woke {wakes} times in 10 s of nothing");
        many.talk()
    });
}

/// An idle queue pair takes no more than 8 KiB, though each has room for 64 requests each way.
#[test]
fn a_thousand_idle_queue_pairs_are_small() {
    const COUNT: usize = 1000;
    in_world(|| {
        // What is there once is not theirs.
        let other = Many::new(2)?;
        other.connect()?;
        other.talk()?;
        let before = memory_of_our_own()?;
        let many = Many::new(COUNT)?;
        many.connect()?;
        let each = memory_of_our_own()?.saturating_sub(before) / COUNT;
        println!("{each} bytes for an idle queue pair");
        ensure!(each <= 8 << 10, "{each} bytes each");
        many.talk()?;
        let each = memory_of_our_own()?.saturating_sub(before) / COUNT;
        println!("{each} bytes for one that has sent and received");
        Ok(())
    });
}

/// Ten thousand queue pairs in one process, each of which sends and receives.
#[test]
fn ten_thousand_queue_pairs_talk() {
    const COUNT: usize = 10_000;
    in_world(|| {
        let many = Many::new(COUNT)?;
        many.connect()?;
        many.talk()?;
        many.talk()
    });
}

/// Sixty-four processes, each with a queue pair for each of the other 63.
#[test]
fn sixty_four_processes_write_to_each_other() {
    in_world(|| {
        let crowd = Crowd { processes: 64, shape: Shape::Mesh, messages: 8, wait: Wait::Sleeps };
        let cost = crowd.run()?;
        println!("{cost:?}");
        Ok(())
    });
}

/// The same by UDP, where one socket must serve them all until each has those that are its own.
#[test]
fn sixty_four_processes_and_a_hub_by_udp() {
    in_world_over_udp(|| {
        let crowd = Crowd { processes: 64, shape: Shape::Star, messages: 50, wait: Wait::Sleeps };
        let cost = crowd.run()?;
        println!("{cost:?}");
        Ok(())
    });
}
