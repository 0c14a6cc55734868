//! Processes and threads: sleepers, several threads at one queue pair, and what is left behind.

use std::collections::HashMap;
use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::verbs::child::{Child, Parent, does_not_hang};
use urxe_tests::verbs::memory::{ALL_ACCESS, pattern};
use urxe_tests::verbs::pair::{connect_to, works};
use urxe_tests::verbs::qp::Init;
use urxe_tests::verbs::{
    Change, Context, Cq, End, Mr, Op, Options, PATIENCE, Pair, Pd, Qp, RecvWr, Remote, SendWr, Status, is_readable,
};
use urxe_tests::{World, in_world, in_world_with, own_counter, wakes_of_our_thread};

/// Tells the other process where this queue pair and its memory are.
fn introduction(end: &End, memory: Remote) -> [u64; 3] {
    [u64::from(end.qp.number()), memory.addr, u64::from(memory.rkey)]
}

fn connect(end: &End, [number, addr, rkey]: [u64; 3], options: &Options) -> Result<Remote> {
    end.connect(u32::try_from(number)?, end.gid(options)?, options)?;
    Ok(Remote { addr, rkey: u32::try_from(rkey)? })
}

/// The target of one-sided operations: makes memory, and sleeps until it is told what it should find there. Before that
/// it may have polled, so that nobody else thought that it had to.
fn asleep(parent: &mut Parent, options: &Options, polls_first: bool) -> Result<()> {
    let end = End::new(&Context::open()?, options)?;
    let memory = end.region(1 << 20)?;
    memory.pages().write(0, &pattern(1, 1 << 20));
    parent.send(&introduction(&end, memory.at(0)))?;
    connect(&end, parent.receive()?, options)?;
    let until = Instant::now() + if polls_first { Duration::from_millis(50) } else { Duration::ZERO };
    while Instant::now() < until {
        ensure!(end.recv_cq.poll(1)?.is_empty());
    }
    parent.send(&[0])?;
    // From here on no call into libibverbs.
    let [counter] = parent.receive()?;
    ensure!(memory.pages().read_u64(0) == counter, "the counter is {}", memory.pages().read_u64(0));
    ensure!(memory.pages().read(8, 500_000) == pattern(2, 500_000), "the WRITE did not arrive");
    Ok(())
}

/// One-sided operations need nothing of the target's program.
#[test]
fn the_target_sleeps() {
    in_world(|| one_sided(false));
}

#[test]
fn the_target_sleeps_after_polling() {
    in_world(|| one_sided(true));
}

fn one_sided(polls_first: bool) -> Result<()> {
    let options = Options::default();
    let mut target = Child::fork(|parent| asleep(parent, &Options::default(), polls_first))?;
    let near = End::new(&Context::open()?, &options)?;
    let local = near.region(1 << 20)?;
    let remote = connect(&near, target.receive()?, &options)?;
    target.send(&introduction(&near, local.at(0)))?;
    target.receive::<1>()?;
    let at = |offset| Remote { addr: remote.addr + offset, ..remote };
    let complete = |op, offset, len| -> Result<()> {
        let wc = near.complete(&SendWr::new(op, &[local.sge(offset, len)]))?;
        ensure!(wc.status == Status::SUCCESS, "{op:?}: {wc:?}");
        Ok(())
    };
    complete(Op::Read(at(0)), 0, 1 << 20)?;
    ensure!(local.pages().read(0, 1 << 20) == pattern(1, 1 << 20), "READ");
    let first = local.pages().read_u64(0);
    complete(Op::CmpSwp { remote: at(0), compare: first, swap: 40 }, 16, 8)?;
    ensure!(local.pages().read_u64(16) == first);
    for count in 0..100 {
        complete(Op::FetchAdd { remote: at(0), add: 1 }, 16, 8)?;
        ensure!(local.pages().read_u64(16) == 40 + count);
    }
    local.pages().write(0, &pattern(2, 500_000));
    complete(Op::Write(at(8)), 0, 500_000)?;
    target.send(&[140])?;
    target.finish()
}

/// Timers need nobody who polls: the end of an RNR wait, and the last of the retries, wake a sleeper.
#[test]
fn timers_while_everybody_sleeps() {
    in_world(|| {
        // 0.96 ms.
        let patient = Options { events: true, min_rnr_timer: 15, ..Options::default() };
        let Pair { near, far } = &Pair::new(&patient)?;
        near.send_cq.arm(false)?;
        near.qp.post_send(&SendWr::new(Op::Send, &[]))?;
        let channel = near.channel.as_ref().context("no channel")?;
        ensure!(!is_readable(channel.fd(), Duration::from_millis(50)), "completed without a receive");
        far.qp.post_recv(&RecvWr::new(0, &[]))?;
        ensure!(is_readable(channel.fd(), PATIENCE), "nobody tried again");
        ensure!(channel.event()? == near.send_cq.address() && near.send_cq.next()?.status == Status::SUCCESS);
        near.send_cq.acknowledge_events(1);

        let impatient = Options { events: true, timeout: 10, retry_cnt: 3, ..Options::default() };
        let Pair { near, far } = &Pair::new(&impatient)?;
        far.qp.destroy()?;
        near.send_cq.arm(true)?;
        near.qp.post_send(&SendWr::new(Op::Send, &[]))?;
        let channel = near.channel.as_ref().context("no channel")?;
        ensure!(is_readable(channel.fd(), PATIENCE), "nobody gave up");
        ensure!(channel.event()? == near.send_cq.address() && near.send_cq.next()?.status == Status::RETRY_EXC_ERR);
        near.send_cq.acknowledge_events(1);
        Ok(())
    });
}

/// Much in both directions at once between two processes, the target asleep.
#[test]
fn streams_between_processes() {
    const LEN: usize = 4 << 20;
    in_world(|| {
        let options = Options { rd_atomic: 8, mtu: v::IBV_MTU_4096, ..Options::default() };
        let target = |parent: &mut Parent| {
            let options = Options { rd_atomic: 8, mtu: v::IBV_MTU_4096, ..Options::default() };
            let end = End::new(&Context::open()?, &options)?;
            let memory = end.region(2 * LEN)?;
            memory.pages().write(0, &pattern(1, LEN));
            parent.send(&introduction(&end, memory.at(0)))?;
            connect(&end, parent.receive()?, &options)?;
            parent.send(&[0])?;
            parent.receive::<1>()?;
            ensure!(memory.pages().read(LEN, LEN) == pattern(2, LEN), "the WRITEs did not arrive");
            Ok(())
        };
        let mut target = Child::fork(target)?;
        let near = End::new(&Context::open()?, &options)?;
        let local = near.region(2 * LEN)?;
        let remote = connect(&near, target.receive()?, &options)?;
        target.send(&introduction(&near, local.at(0)))?;
        target.receive::<1>()?;
        local.pages().write(LEN, &pattern(2, LEN));
        // In pieces of odd sizes, READs and WRITEs by turns.
        let (mut offset, mut posted) = (0, 0);
        while offset < LEN {
            let len = (100_003 + 17 * (offset % 1000)).min(LEN - offset);
            let at = |offset: usize| Remote { addr: remote.addr + offset as u64, ..remote };
            near.qp.post_sends(&[
                SendWr::new(Op::Read(at(offset)), &[local.sge(offset, len)]),
                SendWr::new(Op::Write(at(LEN + offset)), &[local.sge(LEN + offset, len)]),
            ])?;
            offset += len;
            posted += 2;
            // As many as are posted in a turn: the queue has room for no more.
            if posted > 50 {
                posted -= 2;
                for wc in near.send_cq.take(2)? {
                    ensure!(wc.status == Status::SUCCESS, "{wc:?}");
                }
            }
        }
        for wc in near.send_cq.take(posted)? {
            ensure!(wc.status == Status::SUCCESS, "{wc:?}");
        }
        ensure!(local.pages().read(0, LEN) == pattern(1, LEN), "READ");
        target.send(&[0])?;
        target.finish()
    });
}

/// A receiver that sleeps in ibv_get_cq_event is woken by a message of another process.
#[test]
fn the_receiver_sleeps() {
    in_world(|| {
        let options = || Options { events: true, ..Options::default() };
        let mut receiver = Child::fork(|parent| {
            let end = End::new(&Context::open()?, &options())?;
            let memory = end.region(4096)?;
            end.qp.modify(&Change::init(options().access))?;
            end.qp.post_recvs(&vec![RecvWr::new(0, &[memory.sge(0, 4096)]); 10])?;
            end.recv_cq.arm(false)?;
            parent.send(&introduction(&end, memory.at(0)))?;
            let [number, ..] = parent.receive::<3>()?;
            end.ready_to_receive(u32::try_from(number)?, end.gid(&options())?, &options())?;
            parent.send(&[0])?;
            for round in 0..10_u64 {
                let channel = end.channel.as_ref().context("no channel")?;
                ensure!(is_readable(channel.fd(), PATIENCE) && channel.event()? == end.recv_cq.address());
                end.recv_cq.acknowledge_events(1);
                ensure!(end.recv_cq.next()?.byte_len == 8 && memory.pages().read_u64(0) == round);
                end.recv_cq.arm(false)?;
                parent.send(&[round])?;
            }
            Ok(())
        })?;
        let near = End::new(&Context::open()?, &options())?;
        let local = near.region(4096)?;
        connect(&near, receiver.receive()?, &options())?;
        receiver.send(&introduction(&near, local.at(0)))?;
        receiver.receive::<1>()?;
        for round in 0..10_u64 {
            // Time to fall asleep.
            std::thread::sleep(Duration::from_millis(10));
            local.pages().write(0, &round.to_ne_bytes());
            ensure!(near.complete(&SendWr::new(Op::Send, &[local.sge(0, 8)]))?.status == Status::SUCCESS);
            ensure!(receiver.receive()? == [round]);
        }
        receiver.finish()
    });
}

/// Verbs are thread-safe (ibv_post_send(3) and all others): two threads at the same queue pair and the same CQs.
#[test]
fn two_threads_at_one_queue_pair() {
    const EACH: u64 = 2000;
    in_world(|| {
        let pair = Pair::new(&Options::default())?;
        let Pair { near, far } = &pair;
        let (local, remote) = (near.region(1 << 20)?, far.region(1 << 20)?);
        let left = AtomicUsize::new(2 * usize::try_from(EACH)?);
        let work = |thread: u64| -> Result<Vec<u64>> {
            let mut seen = Vec::new();
            let mut next = 0;
            while left.load(Ordering::Relaxed) > 0 {
                if next < EACH {
                    let id = thread * EACH + next;
                    let offset = usize::try_from(id)? * 8;
                    local.pages().write(offset, &id.to_ne_bytes());
                    let wr = SendWr::new(Op::Write(remote.at(offset)), &[local.sge(offset, 8)]).id(id);
                    match near.qp.post_send(&wr) {
                        Ok(()) => next += 1,
                        Err(error) => ensure!(error.errno.0 == libc::ENOMEM, "{error:?}"),
                    }
                }
                let wcs = near.send_cq.poll(3)?;
                ensure!(wcs.iter().all(|wc| wc.status == Status::SUCCESS), "{wcs:?}");
                left.fetch_sub(wcs.len(), Ordering::Relaxed);
                seen.extend(wcs.iter().map(|wc| wc.wr_id));
            }
            Ok(seen)
        };
        let mut seen = std::thread::scope(|scope| -> Result<Vec<u64>> {
            let threads = [0, 1].map(|thread| scope.spawn(move || work(thread)));
            let mut all = Vec::new();
            for thread in threads {
                all.extend(thread.join().expect("a working thread")?);
            }
            Ok(all)
        })?;
        seen.sort_unstable();
        ensure!(seen == (0..2 * EACH).collect::<Vec<_>>(), "{} completions of {}", seen.len(), 2 * EACH);
        for id in 0..2 * EACH {
            ensure!(remote.pages().read_u64(usize::try_from(id)? * 8) == id, "WRITE {id} did not arrive");
        }
        Ok(())
    });
}

/// Two threads, a queue pair each, one device: neither waits for the other.
#[test]
fn two_threads_at_two_queue_pairs() {
    in_world(|| {
        let context = Context::open()?;
        std::thread::scope(|scope| {
            let run = || -> Result<()> {
                let pair = Pair::on(&context, &Options::default())?;
                (0..100).try_for_each(|_| works(&pair))
            };
            let threads = [scope.spawn(run), scope.spawn(run)];
            threads.into_iter().try_for_each(|thread| thread.join().expect("a working thread"))
        })
    });
}

/// Queue pairs cost no descriptors, and share CQs and a PD. Two blocks of numbers may cost a socket and a ring's two ends
/// each.
#[test]
fn many_queue_pairs() {
    in_world(|| {
        let (context, options) = (Context::open()?, Options::default());
        let pd = Pd::new(&context)?;
        let cq = Cq::new(&context, 1000, None)?;
        let mr = Mr::alloc(&pd, 4096, ALL_ACCESS)?;
        let gid = context.query_gid(1, i32::try_from(options.gid)?)?;
        let qps = (0..300).map(|_| Qp::new(&pd, &cq, &cq, &Init::default())).collect::<Result<Vec<_>, _>>()?;
        let before = descriptors()?.len();
        // Each sends to the next.
        for (index, qp) in qps.iter().enumerate() {
            let peer = qps[if index % 2 == 0 { index + 1 } else { index - 1 }].number();
            connect_to(qp, peer, gid, &options)?;
            qp.post_recv(&RecvWr::new(1, &[mr.sge(0, 8)]))?;
        }
        for qp in &qps {
            qp.post_send(&SendWr::new(Op::Send, &[mr.sge(8, 8)]))?;
        }
        let mut completions = HashMap::new();
        for wc in cq.take(2 * qps.len())? {
            ensure!(wc.status == Status::SUCCESS, "{wc:?}");
            *completions.entry((wc.qp_num, wc.opcode)).or_insert(0) += 1;
        }
        for qp in &qps {
            let of = |opcode| completions.get(&(qp.number(), opcode)) == Some(&1);
            ensure!(of(v::IBV_WC_SEND) && of(v::IBV_WC_RECV), "QP {:#x}", qp.number());
        }
        let after = descriptors()?.len();
        ensure!(after <= before + 8, "{before} descriptors became {after}");
        Ok(())
    });
}

/// Closing one context leaves the other alone.
#[test]
fn one_of_two_contexts_is_closed() {
    in_world(|| {
        let one = Pair::new(&Options::default())?;
        let other = Pair::new(&Options::default())?;
        works(&one)?;
        drop(one);
        works(&other)
    });
}

/// Two contexts of one device are strangers, whose queue pairs hand packets to each other inside of the process.
#[test]
fn two_contexts() {
    let through_memory = |world: &World| {
        world.host().set_env("URXE_LOOPBACK", "shm");
        Ok(())
    };
    in_world_with(through_memory, || {
        let (one, other) = (Context::open()?, Context::open()?);
        let options = Options::default();
        let pair = Pair { near: End::new(&one, &options)?, far: End::new(&other, &options)? };
        pair.connect(&options)?;
        works(&pair)?;
        ensure!(own_counter("inside_runs")? > 0, "the message left the process");
        // Protection domains are not shared either.
        let foreign = pair.far.region(4096)?;
        let wc = pair.near.complete(&SendWr::new(Op::Send, &[foreign.sge(0, 8)]))?;
        ensure!(wc.status == Status::LOC_PROT_ERR, "{wc:?}");
        Ok(())
    });
}

fn descriptors() -> Result<HashMap<String, String>> {
    let mut found = HashMap::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        // The one that reads the folder is gone by now.
        if let Ok(target) = fs::read_link(entry.path()) {
            found.insert(entry.file_name().to_string_lossy().into_owned(), target.to_string_lossy().into_owned());
        }
    }
    Ok(found)
}

fn threads() -> Result<usize> {
    Ok(fs::read_dir("/proc/self/task")?.count())
}

/// Closing a device gives everything back.
#[test]
fn opening_and_closing_leaks_nothing() {
    in_world(|| {
        // What the first use of a library leaves for the next.
        works(&Pair::new(&Options::default())?)?;
        let (before, threads_before) = (descriptors()?, threads()?);
        for round in 0..200 {
            if round % 10 == 0 {
                works(&Pair::new(&Options { events: true, ..Options::default() })?)?;
            } else {
                drop(Context::open()?);
            }
        }
        urxe_tests::wait_until("the threads are gone", || Ok(threads()? <= threads_before))?;
        let mut after = descriptors()?;
        after.retain(|fd, _| !before.contains_key(fd));
        ensure!(after.len() <= 1, "left open: {after:?}");
        Ok(())
    });
}

/// Opened and closed in two threads at once: the last one out may meet the next one in.
#[test]
fn opening_and_closing_in_two_threads() {
    in_world(|| {
        std::thread::scope(|scope| {
            let run = || (0..60).try_for_each(|_| works(&Pair::new(&Options::default())?));
            let threads = [scope.spawn(run), scope.spawn(run)];
            threads.into_iter().try_for_each(|thread| thread.join().expect("a thread"))
        })
    });
}

/// A program started by exec(2) inherits no descriptor of urxe.
#[test]
fn programs_inherit_nothing() {
    fn inherited() -> Result<Vec<String>> {
        let output = Command::new("ls").args(["-l", "/proc/self/fd"]).output()?;
        let listing = String::from_utf8(output.stdout)?;
        // rights, links, owner, group, size, month, day, time, descriptor -> file
        let file = |line: &str| line.split_once(" -> ").map(|(_, file)| file.to_owned());
        let mut files: Vec<_> = listing.lines().filter_map(file).collect();
        ensure!(output.status.success() && files.len() > 3, "ls: {listing}");
        // Pipes and the folder that is listed have numbers of their own every time.
        files.retain(|file| !file.starts_with("pipe:") && !file.starts_with("/proc/"));
        files.sort_unstable();
        Ok(files)
    }
    in_world(|| {
        let before = inherited()?;
        let pair = Pair::new(&Options { events: true, ..Options::default() })?;
        works(&pair)?;
        let after = inherited()?;
        ensure!(after == before, "{before:?} became {after:?}");
        works(&pair)
    });
}

/// When nothing happens, nothing wakes up.
//= spec/hosts.md#net-008
//= type=test
//# A device on which nothing happens MUST NOT wake anything.
#[test]
fn an_idle_device_sleeps() {
    in_world(|| {
        let pair = Pair::new(&Options { events: true, ..Options::default() })?;
        works(&pair)?;
        for cq in [&pair.near.send_cq, &pair.far.recv_cq] {
            cq.arm(false)?;
        }
        let wakes = wakes_of_our_thread(Duration::from_secs(3))?;
        ensure!(wakes == 0, "woke {wakes} times in 3 s of nothing");
        works(&pair)?;
        Ok(())
    });
}

/// exit(3) without closing anything is not an error, and does not hang.
#[test]
fn exit_without_closing() {
    in_world(|| {
        Child::fork(|_| {
            let pair = Pair::new(&Options::default())?;
            works(&pair)?;
            std::process::exit(0);
        })?
        .finish()
    });
}

/// Destroying a queue pair that has failed does not hang.
#[test]
fn a_failed_queue_pair_can_be_destroyed() {
    in_world(|| {
        let pair = Pair::new(&Options { rnr_retry: 0, ..Options::default() })?;
        let wc = pair.near.complete(&SendWr::new(Op::Send, &[]))?;
        ensure!(wc.status == Status::RNR_RETRY_EXC_ERR, "{wc:?}");
        ensure!(pair.near.qp.state()? == v::IBV_QPS_ERR);
        does_not_hang("destroying it", move || drop(pair))
    });
}

/// Closing a device around its queue pairs is a mistake that concerns nobody else: names and sockets go with the device, as
/// a kernel would see to, and others share its address as before.
#[test]
fn a_device_is_gone_when_it_is_closed_whatever_was_not_destroyed() {
    in_world(|| {
        let names = || -> Result<usize> { Ok(fs::read_to_string("/proc/net/unix")?.matches(" @urxe/").count()) };
        for _ in 0..2 {
            let pair = Pair::new(&Options::default())?;
            works(&pair)?;
            let context = Arc::clone(&pair.near.context);
            std::mem::forget(pair);
            ensure!(names()? > 0);
            context.close()?;
            ensure!(names()? == 0, "names are left:\n{}", fs::read_to_string("/proc/net/unix")?);
        }
        Child::fork(|_| works(&Pair::new(&Options::default())?))?.finish()?;
        works(&Pair::new(&Options::default())?)
    });
}
