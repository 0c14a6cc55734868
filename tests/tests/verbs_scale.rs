//! Many queue pairs and many processes: that they work, and what they cost while nothing happens.

use std::time::Duration;

use anyhow::{Result, ensure};
use urxe_tests::verbs::scale::{Scale, Shape, Wait};
use urxe_tests::verbs::{Many, Op, Options, RecvWr, SendWr};
use urxe_tests::{in_world, in_world_over_udp, memory_of_our_own, wakes_of_our_thread};

/// Connects each with its neighbour.
fn connect(many: &Many) -> Result<()> {
    let numbers = many.numbers();
    let neighbours: Vec<u32> = (0..numbers.len()).map(|index| numbers[index ^ 1]).collect();
    many.connect(&neighbours, &Options::default())
}

/// Each sends a message to its neighbour.
fn talk(many: &Many) -> Result<()> {
    many.post(|qp| qp.post_recv(&RecvWr::new(1, &[many.mr.sge(0, 8)])))?;
    many.post(|qp| qp.post_send(&SendWr::new(Op::Send, &[many.mr.sge(8, 8)])))?;
    many.complete(2 * many.qps.len())
}

#[test]
fn a_hundred_idle_queue_pairs_wake_nobody() {
    in_world(|| {
        let many = Many::new(100)?;
        connect(&many)?;
        talk(&many)?;
        let wakes = wakes_of_our_thread(Duration::from_secs(10))?;
        ensure!(wakes == 0, "woke {wakes} times in 10 s of nothing");
        talk(&many)
    });
}

/// An idle queue pair takes no more than 8 KiB, though each has room for 64 requests each way.
#[test]
fn a_thousand_idle_queue_pairs_are_small() {
    const COUNT: usize = 1000;
    in_world(|| {
        // What is there once is not theirs.
        let other = Many::new(2)?;
        connect(&other)?;
        talk(&other)?;
        let before = memory_of_our_own()?;
        let many = Many::new(COUNT)?;
        connect(&many)?;
        let each = memory_of_our_own()?.saturating_sub(before) / COUNT;
        println!("{each} bytes for an idle queue pair");
        ensure!(each <= 8 << 10, "{each} bytes each");
        talk(&many)?;
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
        connect(&many)?;
        talk(&many)?;
        talk(&many)
    });
}

/// Sixty-four processes, each with a queue pair for each of the other 63.
#[test]
fn sixty_four_processes_write_to_each_other() {
    in_world(|| {
        let scale = Scale { processes: 64, shape: Shape::Mesh, messages: 8, wait: Wait::Sleeps };
        let cost = scale.run()?;
        println!("{cost:?}");
        Ok(())
    });
}

/// Processes by UDP, where one socket must serve all until each has sockets of its own.
#[test]
fn sixty_four_processes_and_a_hub_by_udp() {
    in_world_over_udp(|| {
        let scale = Scale { processes: 64, shape: Shape::Star, messages: 50, wait: Wait::Sleeps };
        let cost = scale.run()?;
        println!("{cost:?}");
        Ok(())
    });
}
