//! Completion events and asynchronous events.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::in_world;
use urxe_tests::verbs::pair::{rtr, rts};
use urxe_tests::verbs::{
    Change, Channel, Context, End, Errno, Op, Options, PATIENCE, Pair, RecvWr, SendWr, Status, is_readable,
};

/// Long enough for an event to arrive that should not.
const A_WHILE: Duration = Duration::from_millis(50);

fn events() -> Options {
    Options { events: true, ..Options::default() }
}

fn channel(end: &End) -> Result<&Arc<Channel>> {
    end.channel.as_ref().context("made without a channel")
}

fn nothing_to_read(channel: &Channel) -> Result<()> {
    ensure!(!is_readable(channel.fd(), A_WHILE), "an event that nobody asked for");
    Ok(())
}

fn send() -> SendWr {
    SendWr::new(Op::Send, &[])
}

/// ibv_req_notify_cq(3), ibv_get_cq_event(3): one event for one request, about the completions after it.
//= spec/completions.md#cq-003
//= type=test
//# One request for notification MUST give one event.
#[test]
fn an_event_for_the_next_completion() {
    in_world(|| {
        let Pair { near, far } = &Pair::new(&events())?;
        let channel = channel(far)?;
        far.qp.post_recvs(&vec![RecvWr::new(0, &[]); 8])?;
        // Not armed.
        ensure!(near.complete(&send())?.status == Status::SUCCESS);
        nothing_to_read(channel).context("not armed")?;
        // Armed after the completion came, and before it is polled: whoever goes to sleep now must not miss it.
        far.recv_cq.arm(false)?;
        ensure!(channel.event()? == far.recv_cq.address());
        far.recv_cq.take(1)?;
        far.recv_cq.arm(false)?;
        nothing_to_read(channel).context("polled already")?;
        // Two completions, one event.
        near.complete(&send())?;
        near.complete(&send())?;
        ensure!(channel.event()? == far.recv_cq.address());
        nothing_to_read(channel).context("the second completion")?;
        far.recv_cq.take(2)?;
        // Armed twice, still one event.
        far.recv_cq.arm(false)?;
        far.recv_cq.arm(false)?;
        near.complete(&send())?;
        ensure!(channel.event()? == far.recv_cq.address());
        nothing_to_read(channel).context("armed twice")?;
        far.recv_cq.acknowledge_events(3);
        Ok(())
    });
}

/// Sends of the near end and receives of the far end, one channel each, events alone: nobody polls.
#[test]
fn sleeping_at_both_ends() {
    in_world(|| {
        let Pair { near, far } = &Pair::new(&events())?;
        let (local, remote) = (near.region(4096)?, far.region(4096)?);
        for round in 0..50_u64 {
            near.send_cq.arm(false)?;
            far.recv_cq.arm(false)?;
            local.pages().write(0, &round.to_ne_bytes());
            far.qp.post_recv(&RecvWr::new(round, &[remote.sge(0, 8)]))?;
            near.qp.post_send(&SendWr::new(Op::Send, &[local.sge(0, 8)]).id(round))?;
            for (end, cq) in [(far, &far.recv_cq), (near, &near.send_cq)] {
                ensure!(is_readable(channel(end)?.fd(), PATIENCE), "round {round}: no event");
                ensure!(channel(end)?.event()? == cq.address());
                cq.acknowledge_events(1);
                let wcs = cq.poll(2)?;
                ensure!(wcs.len() == 1 && wcs[0].wr_id == round && wcs[0].status == Status::SUCCESS, "{wcs:?}");
            }
            ensure!(remote.pages().read_u64(0) == round);
        }
        Ok(())
    });
}

/// `solicited_only`: only receives of messages that were sent with IBV_SEND_SOLICITED, and errors (IBA 11.4.2.2).
//= spec/completions.md#cq-004
//= type=test
//# A request for solicited completions MUST be answered by those and by errors only.
#[test]
fn solicited_events_only() {
    in_world(|| {
        let Pair { near, far } = &Pair::new(&events())?;
        let channel = channel(far)?;
        let mr = far.region(4096)?;
        far.qp.post_recvs(&vec![RecvWr::new(0, &[]); 8])?;
        far.recv_cq.arm(true)?;
        near.complete(&send())?;
        nothing_to_read(channel).context("not solicited")?;
        near.complete(&send().with(v::IBV_SEND_SOLICITED))?;
        ensure!(channel.event()? == far.recv_cq.address());
        // A WRITE with immediate may solicit too, a WRITE may not.
        far.recv_cq.arm(true)?;
        near.complete(&SendWr::new(Op::Write(mr.at(0)), &[]).with(v::IBV_SEND_SOLICITED))?;
        nothing_to_read(channel).context("a WRITE")?;
        near.complete(&SendWr::new(Op::WriteImm(mr.at(0), 1), &[]).with(v::IBV_SEND_SOLICITED))?;
        ensure!(channel.event()? == far.recv_cq.address());
        // Asking for all events after asking for solicited ones.
        far.recv_cq.arm(true)?;
        far.recv_cq.arm(false)?;
        near.complete(&send())?;
        ensure!(channel.event()? == far.recv_cq.address());
        // The other way round: all events it is.
        far.recv_cq.arm(false)?;
        far.recv_cq.arm(true)?;
        near.complete(&send())?;
        ensure!(channel.event()? == far.recv_cq.address());
        // Errors count as solicited.
        far.recv_cq.arm(true)?;
        far.qp.modify(&Change::to(v::IBV_QPS_ERR))?;
        ensure!(is_readable(channel.fd(), PATIENCE), "flushed without an event");
        ensure!(channel.event()? == far.recv_cq.address());
        far.recv_cq.acknowledge_events(5);
        Ok(())
    });
}

/// Two CQs of one channel are told apart.
#[test]
fn one_channel_for_many_queues() {
    in_world(|| {
        let context = Context::open()?;
        let options = events();
        let Pair { near, far } = &Pair::on(&context, &options)?;
        far.qp.post_recv(&RecvWr::new(0, &[]))?;
        near.qp.post_recv(&RecvWr::new(0, &[]))?;
        for cq in [&near.recv_cq, &near.send_cq] {
            cq.arm(false)?;
        }
        near.complete(&send())?;
        far.complete(&send())?;
        let mut found = [channel(near)?.event()?, channel(near)?.event()?];
        let mut expected = [near.send_cq.address(), near.recv_cq.address()];
        found.sort_unstable();
        expected.sort_unstable();
        ensure!(found == expected);
        near.send_cq.acknowledge_events(1);
        near.recv_cq.acknowledge_events(1);
        Ok(())
    });
}

/// ibv_get_cq_event(3): the descriptor may be made non-blocking and polled.
#[test]
fn a_channel_that_does_not_block() {
    in_world(|| {
        let Pair { near, far } = &Pair::new(&events())?;
        let channel = channel(far)?;
        // SAFETY: plain flags on a descriptor that is open.
        let returned = unsafe { libc::fcntl(channel.fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        ensure!(returned == 0, "F_SETFL: {}", std::io::Error::last_os_error());
        ensure!(channel.event() == Err(Errno(libc::EAGAIN)), "{:?}", channel.event());
        far.qp.post_recv(&RecvWr::new(0, &[]))?;
        far.recv_cq.arm(false)?;
        near.qp.post_send(&send())?;
        ensure!(is_readable(channel.fd(), PATIENCE), "no event");
        ensure!(channel.event()? == far.recv_cq.address());
        ensure!(channel.event() == Err(Errno(libc::EAGAIN)));
        far.recv_cq.acknowledge_events(1);
        Ok(())
    });
}

/// A thread that blocks in ibv_get_cq_event is woken by the event.
#[test]
fn a_blocked_reader_is_woken() {
    in_world(|| {
        let Pair { near, far } = &Pair::new(&events())?;
        let channel = channel(far)?;
        far.qp.post_recvs(&vec![RecvWr::new(0, &[]); 20])?;
        for _ in 0..20 {
            far.recv_cq.arm(false)?;
            std::thread::scope(|scope| {
                let reader = scope.spawn(|| channel.event());
                std::thread::sleep(Duration::from_millis(2));
                near.qp.post_send(&send())?;
                ensure!(reader.join().expect("the reader")? == far.recv_cq.address());
                Ok(())
            })?;
        }
        far.recv_cq.acknowledge_events(20);
        Ok(())
    });
}

/// The kernel keeps any number of events until they are read.
#[test]
fn thousands_of_unread_events() {
    const COUNT: u32 = 3000;
    in_world(|| {
        let Pair { near, far } = &Pair::new(&events())?;
        let channel = channel(far)?;
        for _ in 0..COUNT {
            far.qp.post_recv(&RecvWr::new(0, &[]))?;
            far.recv_cq.arm(false)?;
            ensure!(near.complete(&send())?.status == Status::SUCCESS);
            far.recv_cq.next()?;
        }
        for index in 0..COUNT {
            ensure!(is_readable(channel.fd(), PATIENCE), "{index} events of {COUNT}");
            ensure!(channel.event()? == far.recv_cq.address());
        }
        nothing_to_read(channel)?;
        far.recv_cq.acknowledge_events(COUNT);
        Ok(())
    });
}

/// ibv_destroy_cq(3) does not know of events that the application has not read: they must not name a CQ that is gone.
#[test]
fn unread_events_vanish_with_their_queue() {
    in_world(|| {
        let pair = Pair::new(&events())?;
        let far_channel = Arc::clone(channel(&pair.far)?);
        pair.far.qp.post_recv(&RecvWr::new(0, &[]))?;
        pair.far.recv_cq.arm(false)?;
        pair.near.complete(&send())?;
        ensure!(is_readable(far_channel.fd(), PATIENCE), "no event");
        pair.far.qp.destroy()?;
        pair.far.recv_cq.destroy()?;
        nothing_to_read(&far_channel)
    });
}

/// Starts `destroy` in a thread of its own, sees that it waits, lets `acknowledge` go, and sees that it ends.
fn blocks_until(destroy: impl FnOnce() -> Result<(), Errno> + Send, acknowledge: impl FnOnce()) -> Result<()> {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let destroyer = scope.spawn(|| {
            let result = destroy();
            done.store(true, Ordering::Release);
            result
        });
        std::thread::sleep(A_WHILE);
        let early = done.load(Ordering::Acquire);
        acknowledge();
        let result = destroyer.join().expect("the destroying thread");
        ensure!(!early, "destroyed before its events were acknowledged");
        Ok(result?)
    })
}

/// ibv_ack_cq_events(3): "ibv_destroy_cq() waits for all completion events to be acknowledged".
#[test]
fn destroying_a_queue_waits_for_acknowledgements() {
    in_world(|| {
        let Pair { near, far } = &Pair::new(&events())?;
        far.qp.post_recv(&RecvWr::new(0, &[]))?;
        far.recv_cq.arm(false)?;
        near.complete(&send())?;
        ensure!(channel(far)?.event()? == far.recv_cq.address());
        far.qp.destroy()?;
        let cq = far.recv_cq.raw() as usize;
        blocks_until(
            || far.recv_cq.destroy(),
            || {
                // SAFETY: the CQ is there until its event is acknowledged; `Cq` may have let go of it in the other thread.
                unsafe { urxe_ffi::functions::ibv_ack_cq_events(cq as *mut v::ibv_cq, 1) };
            },
        )
    });
}

/// The first message in RTR (IBA 11.6.3.1 "Communication Established"), once.
//= spec/responder.md#rsp-021
//= type=test
//# The first request that arrives in RTR MUST raise the event COMM_EST.
#[test]
fn communication_established() {
    in_world(|| {
        let (context, options) = (Context::open()?, Options::default());
        let (near, far) = (End::new(&context, &options)?, End::new(&context, &options)?);
        near.connect(far.qp.number(), far.gid(&options)?, &options)?;
        far.qp.modify(&Change::init(options.access))?;
        far.qp.post_recvs(&vec![RecvWr::new(0, &[]); 3])?;
        far.qp.modify(&rtr(near.qp.number(), near.gid(&options)?, &options))?;
        ensure!(near.complete(&send())?.status == Status::SUCCESS, "RTR receives");
        context.expect_event(v::IBV_EVENT_COMM_EST, far.qp.address())?;
        near.complete(&send())?;
        far.qp.modify(&rts(&options))?;
        near.complete(&send())?;
        context.expect_no_event(A_WHILE)
    });
}

/// Without a message before RTS there is no event.
#[test]
fn no_event_in_rts() {
    in_world(|| {
        let Pair { near, far } = &Pair::new(&Options::default())?;
        far.qp.post_recv(&RecvWr::new(0, &[]))?;
        near.complete(&send())?;
        near.context.expect_no_event(A_WHILE)
    });
}

/// RTS → SQD lets what is outstanding complete, then tells (IBA 10.3.1.5, ibv_modify_qp(3) `en_sqd_async_notify`).
//= spec/states.md#qps-006
//= type=test
//# In SQD no new request MUST be begun, and SQ_DRAINED be raised when asked for and all begun have completed.
#[test]
fn send_queue_drained() {
    in_world(|| {
        let Pair { near, far } = &Pair::new(&Options::default())?;
        let to_sqd = |notify| {
            Change::to(v::IBV_QPS_SQD).with(v::IBV_QP_EN_SQD_ASYNC_NOTIFY, |attr| attr.en_sqd_async_notify = notify)
        };
        // With a SEND outstanding that waits for a receive.
        near.qp.post_send(&send().id(1))?;
        near.qp.modify(&to_sqd(1))?;
        ensure!(near.qp.state()? == v::IBV_QPS_SQD);
        ensure!(near.qp.query()?.0.sq_draining == 1, "it has drained already");
        near.context.expect_no_event(A_WHILE)?;
        far.qp.post_recv(&RecvWr::new(0, &[]))?;
        near.context.expect_event(v::IBV_EVENT_SQ_DRAINED, near.qp.address())?;
        ensure!(near.send_cq.next()?.wr_id == 1);
        ensure!(near.qp.query()?.0.sq_draining == 0, "it drains still");
        // What is posted in SQD waits for RTS.
        far.qp.post_recv(&RecvWr::new(0, &[]))?;
        near.qp.post_send(&send().id(2))?;
        std::thread::sleep(A_WHILE);
        ensure!(near.send_cq.poll(1)?.is_empty(), "sent in SQD");
        near.qp.modify(&Change::to(v::IBV_QPS_RTS))?;
        let wc = near.send_cq.next()?;
        ensure!(wc.wr_id == 2 && wc.status == Status::SUCCESS, "{wc:?}");
        // With nothing outstanding, and with nobody asking.
        near.qp.modify(&to_sqd(1))?;
        near.context.expect_event(v::IBV_EVENT_SQ_DRAINED, near.qp.address())?;
        near.qp.modify(&Change::to(v::IBV_QPS_RTS))?;
        near.qp.modify(&to_sqd(0))?;
        near.context.expect_no_event(A_WHILE)
    });
}

/// An error that a completion tells of raises no event; going to ERR by ibv_modify_qp neither.
#[test]
fn no_event_for_what_completions_say() {
    in_world(|| {
        let Pair { near, far } = &Pair::new(&Options { rnr_retry: 0, ..Options::default() })?;
        ensure!(near.complete(&send())?.status == Status::RNR_RETRY_EXC_ERR);
        far.qp.modify(&Change::to(v::IBV_QPS_ERR))?;
        near.context.expect_no_event(A_WHILE)
    });
}

/// ibv_get_async_event(3): every event must be acknowledged before its object can be destroyed.
#[test]
fn destroying_a_queue_pair_waits_for_acknowledgements() {
    in_world(|| {
        let Pair { near, .. } = &Pair::new(&Options::default())?;
        near.qp.modify(
            &Change::to(v::IBV_QPS_SQD).with(v::IBV_QP_EN_SQD_ASYNC_NOTIFY, |attr| attr.en_sqd_async_notify = 1),
        )?;
        let event = near.context.expect_event(v::IBV_EVENT_SQ_DRAINED, near.qp.address())?.keep_unacknowledged();
        blocks_until(|| near.qp.destroy(), || event.acknowledge())
    });
}

/// Unread asynchronous events must not name a QP that is gone.
#[test]
fn unread_asynchronous_events_vanish_with_their_queue_pair() {
    in_world(|| {
        let Pair { near, .. } = &Pair::new(&Options::default())?;
        near.qp.modify(
            &Change::to(v::IBV_QPS_SQD).with(v::IBV_QP_EN_SQD_ASYNC_NOTIFY, |attr| attr.en_sqd_async_notify = 1),
        )?;
        ensure!(is_readable(near.context.async_fd(), PATIENCE), "no event");
        near.qp.destroy()?;
        ensure!(!is_readable(near.context.async_fd(), A_WHILE), "the event is still there");
        Ok(())
    });
}

/// ibv_get_async_event(3): this descriptor too may be made non-blocking.
#[test]
fn asynchronous_events_without_blocking() {
    in_world(|| {
        let Pair { near, .. } = &Pair::new(&Options::default())?;
        // SAFETY: plain flags on a descriptor that is open.
        let returned = unsafe { libc::fcntl(near.context.async_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        ensure!(returned == 0, "F_SETFL: {}", std::io::Error::last_os_error());
        // SAFETY: room for an event, which is not filled in.
        let returned = unsafe {
            let mut event = std::mem::zeroed();
            urxe_ffi::functions::ibv_get_async_event(near.context.raw(), &raw mut event)
        };
        let error = std::io::Error::last_os_error();
        ensure!(returned == -1 && error.raw_os_error() == Some(libc::EAGAIN), "{returned}: {error}");
        Ok(())
    });
}

/// The event of one context is not read at another.
#[test]
fn events_belong_to_their_context() {
    in_world(|| {
        let options = Options::default();
        let (one, other) = (Context::open()?, Context::open()?);
        let (near, far) = (End::new(&one, &options)?, End::new(&other, &options)?);
        let pair = Pair { near, far };
        pair.connect(&options)?;
        pair.near.qp.modify(
            &Change::to(v::IBV_QPS_SQD).with(v::IBV_QP_EN_SQD_ASYNC_NOTIFY, |attr| attr.en_sqd_async_notify = 1),
        )?;
        one.expect_event(v::IBV_EVENT_SQ_DRAINED, pair.near.qp.address())?;
        other.expect_no_event(A_WHILE)
    });
}
