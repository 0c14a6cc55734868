//! Shards of a device (`URXE_SHARDS`): threads or completion queues whose queue pairs have sockets, rings and a thread of their own.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context as _, Result, ensure};
use urxe_tests::descriptors::open_numbers;
use urxe_tests::verbs::child::Child;
use urxe_tests::verbs::datagram::{Ah, GRH, Mouth, towards};
use urxe_tests::verbs::memory::{ALL_ACCESS, Mr, pattern};
use urxe_tests::verbs::pair::{connect_to, works};
use urxe_tests::verbs::qp::Init;
use urxe_tests::verbs::{Context, End, Op, Options, Pair, Qp, RecvWr, Remote, SendWr, Status, ThreadDomain};
use urxe_tests::{World, in_world_with, own_counter, wait_until};

/// Shards of each device here, the device itself included.
const SHARDS: usize = 3;

fn sharded(way: &'static str) -> impl FnOnce(&World) -> Result<()> {
    move |world| {
        world.host().set_env("URXE_SHARDS", &SHARDS.to_string());
        world.host().set_env("URXE_LOOPBACK", way);
        Ok(())
    }
}

/// Number of urxe's threads in this process.
fn our_threads() -> Result<usize> {
    let mut count = 0;
    for task in fs::read_dir("/proc/self/task")? {
        // One that has just been joined may still be listed, and go before its name is read.
        count += usize::from(fs::read_to_string(task?.path().join("comm")).unwrap_or_default() == "urxe\n");
    }
    Ok(count)
}

/// Blocks of queue pair numbers: each shard has its own.
fn blocks(pairs: &[Pair]) -> usize {
    let ends = pairs.iter().flat_map(|pair| [&pair.near, &pair.far]);
    ends.map(|end| end.qp.number() >> 8).collect::<BTreeSet<_>>().len()
}

/// One-sided operations get from the one end to the other.
fn reaches(pair: &Pair) -> Result<()> {
    let Pair { near, far } = pair;
    let (local, remote) = (near.region(70_000)?, far.region(70_000)?);
    let at = Remote { addr: remote.at(0).addr, rkey: remote.at(0).rkey };
    local.pages().write(0, &pattern(3, 70_000));
    let done = |op, len| -> Result<()> {
        let wc = near.complete(&SendWr::new(op, &[local.sge(0, len)]))?;
        ensure!(wc.status == Status::SUCCESS, "{op:?}: {wc:?}");
        Ok(())
    };
    done(Op::Write(at), 70_000)?;
    ensure!(remote.pages().read(0, 70_000) == pattern(3, 70_000), "WRITE");
    remote.pages().write(0, &pattern(4, 70_000));
    done(Op::Read(at), 70_000)?;
    ensure!(local.pages().read(0, 70_000) == pattern(4, 70_000), "READ");
    let before = remote.pages().read_u64(0);
    done(Op::FetchAdd { remote: at, add: 5 }, 8)?;
    ensure!(local.pages().read_u64(0) == before && remote.pages().read_u64(0) == before.wrapping_add(5), "atomic");
    Ok(())
}

/// So many pairs, whose ends are at different shards, each with a thread of its own. Returns the runs that went through rings, and the
/// requests that went without packets.
fn all_operations(count: usize) -> Result<[u64; 2]> {
    let context = Context::open()?;
    let options = Options::default();
    let pairs: Vec<Pair> = (0..count).map(|_| Pair::on(&context, &options)).collect::<Result<_>>()?;
    ensure!(blocks(&pairs) == SHARDS, "{} blocks", blocks(&pairs));
    wait_until("a thread for each shard", || Ok(our_threads()? == SHARDS))?;
    std::thread::scope(|scope| {
        let run = |pair| -> Result<()> {
            for _ in 0..20 {
                works(pair)?;
                reaches(pair)?;
            }
            Ok(())
        };
        let threads: Vec<_> = pairs.iter().map(|pair| scope.spawn(move || run(pair))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a thread panicked"))
    })?;
    Ok([own_counter("tx_ring_runs")?, own_counter("direct_requests")?])
}

#[test]
fn all_operations_between_shards_over_udp() {
    in_world_with(sharded("udp"), || {
        let [rings, direct] = all_operations(6)?;
        ensure!(rings == 0 && direct == 0, "{rings} runs through rings, {direct} direct requests");
        Ok(())
    });
}

#[test]
fn all_operations_between_shards_through_memory() {
    in_world_with(sharded("shm"), || {
        let [rings, direct] = all_operations(6)?;
        ensure!(rings > 0 && direct == 0, "{rings} runs through rings, {direct} direct requests");
        Ok(())
    });
}

#[test]
fn all_operations_between_shards_without_packets() {
    let direct = |world: &World| {
        world.host().set_env("URXE_DIRECT", "1");
        sharded("shm")(world)
    };
    in_world_with(direct, || {
        let [rings, direct] = all_operations(6)?;
        ensure!(direct > 0, "all went by packets, in {rings} runs through rings");
        Ok(())
    });
}

/// Shards of a device, itself included, for two threads that create queue pairs.
fn shards_of_two_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(2)
}

fn over_udp(world: &World) -> Result<()> {
    world.host().set_env("URXE_LOOPBACK", "udp");
    Ok(())
}

/// Without the option queue pairs of a thread go together, whichever completion queues they have, and those of another thread elsewhere.
#[test]
fn queue_pairs_of_a_thread_go_together() {
    in_world_with(over_udp, || {
        let context = Context::open()?;
        let options = Options::default();
        let some = || (0..3).map(|_| Pair::on(&context, &options)).collect::<Result<Vec<_>>>();
        let mut pairs = some()?;
        ensure!(blocks(&pairs) == 1, "one thread, {} blocks", blocks(&pairs));
        wait_until("the device's thread", || Ok(our_threads()? == 1))?;
        let others = std::thread::scope(|scope| scope.spawn(some).join().expect("a thread panicked"))?;
        ensure!(blocks(&others) == 1, "one thread, {} blocks", blocks(&others));
        pairs.extend(others);
        pairs.extend(some()?);
        ensure!(blocks(&pairs) == shards_of_two_threads(), "two threads, {} blocks", blocks(&pairs));
        wait_until("a thread for each shard", || Ok(our_threads()? == shards_of_two_threads()))?;
        // Whoever uses them.
        pairs.iter().try_for_each(|pair| works(pair).and_then(|()| reaches(pair)))
    });
}

/// Queue pairs of a thread domain go together, and elsewhere than those of another domain, whoever creates them.
#[test]
fn queue_pairs_of_a_thread_domain_go_together() {
    in_world_with(over_udp, || {
        let context = Context::open()?;
        let options = Options::default();
        let domains = [ThreadDomain::new(&context)?, ThreadDomain::new(&context)?];
        let mut pairs = Vec::new();
        for _ in 0..2 {
            for domain in &domains {
                let end = || End::within(domain.parent(), &options);
                let pair = Pair { near: end()?, far: end()? };
                pair.connect(&options)?;
                pairs.push(pair);
            }
        }
        ensure!(blocks(&pairs) == shards_of_two_threads(), "two domains, {} blocks", blocks(&pairs));
        for of_domain in [[&pairs[0], &pairs[2]], [&pairs[1], &pairs[3]]] {
            let block = of_domain.map(|pair| pair.near.qp.number() >> 8);
            ensure!(block[0] == block[1], "one domain, blocks {block:x?}");
        }
        pairs.iter().try_for_each(works)
    });
}

/// Thread domains without queue pairs take no place: those that have some do not share one.
#[test]
fn thread_domains_without_queue_pairs_take_no_shard() {
    in_world_with(over_udp, || {
        let context = Context::open()?;
        let options = Options::default();
        let domains = (0..4).map(|_| ThreadDomain::new(&context)).collect::<Result<Vec<_>>>()?;
        // One for completion queues and one for queue pairs, as programs may have them for each of their threads.
        let ends = domains.iter().step_by(2).map(|domain| End::within(domain.parent(), &options));
        let blocks: BTreeSet<u32> = ends.map(|end| Ok(end?.qp.number() >> 8)).collect::<Result<_>>()?;
        ensure!(blocks.len() == shards_of_two_threads(), "two domains, blocks {blocks:x?}");
        Ok(())
    });
}

/// Processors that each of urxe's threads in this process may run on.
fn our_processors() -> Result<BTreeSet<String>> {
    let mut all = BTreeSet::new();
    for task in fs::read_dir("/proc/self/task")? {
        let status = fs::read_to_string(task?.path().join("status")).unwrap_or_default();
        if status.starts_with("Name:\turxe\n") {
            let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
            all.insert(list.context("no list of processors")?.trim().to_owned());
        }
    }
    Ok(all)
}

/// A thread that is pinned to a processor may spin there: the shard that it opens has all processors of the device nevertheless.
#[test]
fn shards_run_where_the_device_does() {
    in_world_with(over_udp, || {
        let context = Context::open()?;
        let options = Options::default();
        let first = Pair::on(&context, &options)?;
        wait_until("the device's thread", || Ok(our_threads()? == 1))?;
        let before = our_processors()?;
        let pinned = || -> Result<Pair> {
            // SAFETY: all-zero is a set, with room for the number that the kernel tells.
            unsafe {
                let mut set: libc::cpu_set_t = std::mem::zeroed();
                libc::CPU_SET(usize::try_from(libc::sched_getcpu())?, &mut set);
                ensure!(libc::sched_setaffinity(0, size_of_val(&set), &raw const set) == 0);
            }
            Pair::on(&context, &options)
        };
        let second = std::thread::scope(|scope| scope.spawn(pinned).join().expect("a thread panicked"))?;
        wait_until("a thread for each shard", || Ok(our_threads()? == shards_of_two_threads()))?;
        ensure!(our_processors()? == before, "{:?}, not {before:?}", our_processors()?);
        works(&first)?;
        works(&second)
    });
}

/// A queue pair whose queues are at two shards, and datagrams in a queue at a shard: both are the device's own.
#[test]
fn queues_of_several_shards() {
    in_world_with(sharded("udp"), || {
        let context = Context::open()?;
        let options = Options::default();
        let pairs: Vec<Pair> = (0..2).map(|_| Pair::on(&context, &options)).collect::<Result<_>>()?;
        let [first, second] = &pairs[..] else { unreachable!() };
        // Of the four ends, the second is at the first shard and the third at the second.
        let (a, b) = (&first.far, &second.near);
        let mixed = Qp::new(&a.pd, &a.send_cq, &b.recv_cq, &Init::default())?;
        let peer = End::new(&context, &options)?;
        connect_to(&mixed, peer.qp.number(), peer.gid(&options)?, &options)?;
        peer.connect(mixed.number(), peer.gid(&options)?, &options)?;
        let (local, remote) = (Mr::alloc(&a.pd, 5000, ALL_ACCESS)?, peer.region(5000)?);
        for round in 0..10 {
            local.pages().write(0, &pattern(round, 5000));
            peer.qp.post_recv(&RecvWr::new(0, &[remote.sge(0, 5000)]))?;
            mixed.post_send(&SendWr::new(Op::Send, &[local.sge(0, 5000)]))?;
            ensure!(a.send_cq.next()?.status == Status::SUCCESS && peer.recv_cq.next()?.byte_len == 5000);
            ensure!(remote.pages().read(0, 5000) == pattern(round, 5000));
            mixed.post_recv(&RecvWr::new(0, &[local.sge(0, 5000)]))?;
            peer.complete(&SendWr::new(Op::Send, &[remote.sge(0, 5000)]))?;
            ensure!(b.recv_cq.next()?.byte_len == 5000);
            works(first)?;
            works(second)?;
        }
        let gid = a.gid(&options)?;
        let (says, hears) = (Mouth::completing_at(&context, &a.send_cq)?, Mouth::completing_at(&context, &b.recv_cq)?);
        let ah = Ah::new(&says.pd, towards(gid, options.gid))?;
        hears.listen(1, 100)?;
        says.say(Op::Send, &pattern(9, 100), &ah, hears.qp.number())?;
        ensure!(hears.cq.next()?.byte_len as usize == GRH + 100 && hears.hear(100) == pattern(9, 100));
        works(first)?;
        works(second)
    });
}

/// Threads that sleep for their completions, each at a shard.
#[test]
fn events_of_every_shard() {
    in_world_with(sharded("udp"), || {
        let context = Context::open()?;
        let options = Options { events: true, ..Options::default() };
        let pairs: Vec<Pair> = (0..3).map(|_| Pair::on(&context, &options)).collect::<Result<_>>()?;
        for _ in 0..5 {
            for Pair { near, far } in &pairs {
                let (local, remote) = (near.region(100)?, far.region(100)?);
                far.qp.post_recv(&RecvWr::new(0, &[remote.sge(0, 100)]))?;
                far.recv_cq.arm(false)?;
                near.complete(&SendWr::new(Op::Send, &[local.sge(0, 100)]))?;
                let channel = far.channel.as_ref().context("no channel")?;
                ensure!(channel.event()? == far.recv_cq.address());
                far.recv_cq.acknowledge_events(1);
                ensure!(far.recv_cq.next()?.byte_len == 100);
            }
        }
        Ok(())
    });
}

/// Descriptors and threads of shards are given back with the device.
#[test]
fn shards_are_closed_with_their_device() {
    in_world_with(sharded("shm"), || {
        let use_it = || -> Result<()> {
            let context = Context::open()?;
            let pairs: Vec<Pair> = (0..2).map(|_| Pair::on(&context, &Options::default())).collect::<Result<_>>()?;
            pairs.iter().try_for_each(works)
        };
        use_it()?;
        let before = open_numbers()?;
        for _ in 0..3 {
            use_it()?;
        }
        // A thread is joined before the kernel has taken it out of the list.
        wait_until("the threads are gone", || Ok(our_threads()? == 0))?;
        let after = open_numbers()?;
        ensure!(after == before, "{after:?} are open, not {before:?}");
        Ok(())
    });
}

/// A child of fork(2) has no part in its parent's shards, and may have its own.
#[test]
fn the_child_of_a_fork_has_its_own_shards() {
    in_world_with(sharded("udp"), || {
        let pairs: Vec<Pair> = (0..2).map(|_| Pair::new(&Options::default())).collect::<Result<_>>()?;
        pairs.iter().try_for_each(works)?;
        Child::fork(|_| {
            ensure!(pairs[1].near.send_cq.poll(1).is_err(), "the child polled");
            let own: Vec<Pair> = (0..2).map(|_| Pair::new(&Options::default())).collect::<Result<_>>()?;
            own.iter().try_for_each(works).context("the child's own device")
        })?
        .finish()?;
        pairs.iter().try_for_each(works).context("the parent, afterwards")
    });
}

/// The owner of the port ends: of the process that is left the device takes over, not a shard, which could not answer for it.
#[test]
fn the_device_takes_over_the_port() {
    in_world_with(sharded("udp"), || {
        let owner = Context::open()?;
        let mut other = Child::fork(|parent| {
            let options = Options::default();
            let pairs: Vec<Pair> = (0..3).map(|_| Pair::new(&options)).collect::<Result<_>>()?;
            pairs.iter().try_for_each(works)?;
            parent.send(&[0])?;
            parent.receive::<1>()?;
            // Nobody has been heard of by these yet.
            let late: Vec<Pair> = (0..3).map(|_| Pair::new(&options)).collect::<Result<_>>()?;
            pairs.iter().chain(&late).try_for_each(works)
        })?;
        other.receive::<1>()?;
        drop(owner);
        other.send(&[0])?;
        other.finish()
    });
}

/// Sockets of another network namespace are no part of the device: it goes on without further shards.
#[test]
fn no_shard_in_another_namespace() {
    in_world_with(sharded("udp"), || {
        let context = Context::open()?;
        let options = Options::default();
        let pair = Pair::on(&context, &options)?;
        works(&pair)?;
        // SAFETY: no pointers.
        ensure!(unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0, "{}", std::io::Error::last_os_error());
        let late: Vec<Pair> = (0..3).map(|_| Pair::on(&context, &options)).collect::<Result<_>>()?;
        ensure!(blocks(&late) == 2, "the device and the shard that was there: {}", blocks(&late));
        works(&pair)?;
        Ok(())
    });
}

/// Ends the process when the calling thread asks for a socket or starts a thread, as programs do that have all they need.
fn forbid_sockets_and_threads() -> Result<()> {
    let step = |code, jt, k| Ok::<_, anyhow::Error>(libc::sock_filter { code: u16::try_from(code)?, jt, jf: 0, k });
    let is = |call: libc::c_long, jt| step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, jt, u32::try_from(call)?);
    let mut program = [
        // The number of the system call.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0)?,
        is(libc::SYS_socket, 3)?,
        is(libc::SYS_clone, 2)?,
        is(libc::SYS_clone3, 1)?,
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW)?,
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_KILL_PROCESS)?,
    ];
    let program = libc::sock_fprog { len: 6, filter: program.as_mut_ptr() };
    // SAFETY: plain numbers, and a program of six steps, which the kernel copies.
    let set = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    ensure!(set, "{}", std::io::Error::last_os_error());
    Ok(())
}

/// A thread that has given up sockets and threads (seccomp(2)) may create queue pairs: they are the device's.
#[test]
fn no_shard_where_system_calls_are_filtered() {
    in_world_with(over_udp, || {
        let context = Context::open()?;
        let options = Options::default();
        let first = Pair::on(&context, &options)?;
        works(&first)?;
        let filtered = || {
            forbid_sockets_and_threads()?;
            Pair::on(&context, &options)
        };
        let second = std::thread::scope(|scope| scope.spawn(filtered).join().expect("a thread panicked"))?;
        works(&second)?;
        let pairs = [first, second];
        ensure!(blocks(&pairs) == 1, "{} blocks", blocks(&pairs));
        Ok(())
    });
}
