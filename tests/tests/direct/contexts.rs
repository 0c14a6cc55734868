//! Two contexts of one process.

use anyhow::ensure;
use urxe_tests::verbs::memory::{PAGE, pattern};
use urxe_tests::verbs::{Context, End, Op, Options, Pair, RecvWr, SendWr, Status};
use urxe_tests::{own_counter as counter, wait_until};

use crate::memory::is_direct;
use crate::{in_direct_world, succeeds};

/// Queue pairs of two contexts reach each other's memory without packets, and no more of it than keys give.
#[test]
fn two_contexts_of_a_process() {
    in_direct_world(|| {
        let options = Options::default();
        let (near, far) = (End::new(&Context::open()?, &options)?, End::new(&Context::open()?, &options)?);
        let pair = Pair { near, far };
        pair.connect(&options)?;
        let Pair { near, far } = &pair;
        let (local, memory) = (near.region(PAGE)?, far.region(PAGE)?);
        ensure!(is_direct(&pair, &memory)?);
        let exchange = || {
            let (before, packets) = (counter("direct_requests")?, counter("tx_packets")?);
            local.pages().write(0, &pattern(1, PAGE));
            succeeds(near, Op::Write(memory.at(0)), &[local.sge(0, PAGE)])?;
            ensure!(memory.pages().read(0, PAGE) == pattern(1, PAGE));
            far.qp.post_recv(&RecvWr::new(0, &[memory.sge(0, PAGE)]))?;
            local.pages().write(0, &pattern(2, PAGE));
            succeeds(near, Op::Send, &[local.sge(0, PAGE)])?;
            let wc = far.recv_cq.next()?;
            ensure!(wc.status == Status::SUCCESS && memory.pages().read(0, PAGE) == pattern(2, PAGE), "{wc:?}");
            Ok((counter("direct_requests")?, counter("tx_packets")?) == (before + 2, packets))
        };
        // An ACK of before may be on its way, and somebody at work on the far end.
        wait_until("a WRITE and a SEND without packets", exchange)?;
        // A key of the near end's own protection domain gives nothing at the far end.
        let before = counter("direct_requests")?;
        let wc = near.complete(&SendWr::new(Op::Write(local.at(0)), &[local.sge(0, 8)]))?;
        ensure!(wc.status == Status::REM_ACCESS_ERR && counter("direct_requests")? == before, "{wc:?}");
        Ok(())
    });
}
