//! Real networks that lose packets, or let others overtake them: stock programs finish with the right data.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use urxe_tests::forward::{DIFFERENT_PATHS, EQUAL_PATHS};
use urxe_tests::{Capture, Host, Perftest, PingPong, Process, World, host_counters};

/// Has a host's kernel drop so many in a thousand of the RoCE packets that arrive.
fn lose(host: &Host, per_mille: u32) -> Result<()> {
    let rule = format!("udp dport 4791 numgen random mod 1000 lt {per_mille} counter drop");
    for command in [
        &["add", "table", "inet", "lossy"][..],
        &["add", "chain", "inet", "lossy", "input", "{ type filter hook input priority 0; }"],
        &["flush", "chain", "inet", "lossy", "input"],
        &["add", "rule", "inet", "lossy", "input", &rule],
    ] {
        host.run("nft", command)?;
    }
    Ok(())
}

/// Counts the packets that `host` has dropped.
fn dropped(host: &Host) -> Result<u64> {
    let rules = host.run("nft", &["list", "table", "inet", "lossy"])?.stdout;
    let mut words = rules.split_whitespace().skip_while(|word| *word != "packets");
    words.nth(1).and_then(|count| count.parse().ok()).with_context(|| format!("no counter in {rules}"))
}

/// World with losses in both directions.
fn world() -> Result<(World, Host)> {
    let (world, other) = World::linked()?;
    // The kernel drops whole GRO runs: one loss of several packets.
    lose(world.host(), 10)?;
    lose(&other, 10)?;
    Ok((world, other))
}

fn ensure_packets_were_dropped(world: &World, other: &Host) -> Result<()> {
    let (here, there) = (dropped(world.host())?, dropped(other)?);
    ensure!(here > 0 && there > 0, "{here} and {there} packets were lost: this shows nothing");
    Ok(())
}

/// Sizes and iterations.
const PINGPONGS: [(u64, u32); 4] = [(64, 1000), (1024, 1000), (65_536, 100), (1 << 20, 20)];

#[test]
fn pingpong_with_data_compared() -> Result<()> {
    let (world, other) = world()?;
    pingpong(&world, &other)?;
    ensure_packets_were_dropped(&world, &other)
}

fn pingpong(world: &World, other: &Host) -> Result<()> {
    for (size, iters) in PINGPONGS {
        let pingpong = PingPong { size, iters, validate: true, ..PingPong::default() };
        pingpong.run_despite_loss(world.host(), other).with_context(|| format!("{size} bytes"))?;
    }
    Ok(())
}

#[test]
fn perftest_of_every_operation() -> Result<()> {
    let (world, other) = world()?;
    perftest(world.host(), &other)?;
    ensure_packets_were_dropped(&world, &other)
}

fn perftest(here: &Host, there: &Host) -> Result<()> {
    for program in ["ib_send_bw", "ib_write_bw", "ib_read_bw", "ib_atomic_bw"] {
        let size: &[&str] = if program == "ib_atomic_bw" { &[] } else { &["-s", "65536"] };
        Perftest::run(program, &[&["-n", "200", "-u", "16"], size].concat(), here, there)
            .with_context(|| program.to_owned())?;
    }
    Ok(())
}

#[test]
fn rping_compares_what_it_reads() -> Result<()> {
    let (world, other) = world()?;
    rping(world.host(), &other, "1000")?;
    ensure_packets_were_dropped(&world, &other)
}

fn rping(here: &Host, there: &Host, size: &str) -> Result<()> {
    let address = here.address();
    let server = here.spawn("rping", &["-s", "-a", &address, "-V", "-C", "300", "-S", size])?;
    // rping's client does not try again when nobody listens yet.
    urxe_tests::wait_until("rping listens", || {
        Ok(here.run("cat", &["/proc/net/unix"])?.stdout.contains("@urxe/1/service/"))
    })?;
    let client = there.spawn("rping", &["-c", "-a", &address, "-V", "-C", "300", "-S", size])?;
    let client = client.finish(urxe_tests::TIMEOUT)?;
    let server = server.finish(urxe_tests::TIMEOUT)?;
    ensure!(client.status.success(), "{client}\n{server}");
    ensure!(!format!("{}{}", client.stdout, client.stderr).contains("data mismatch"), "{client}");
    Ok(())
}

#[test]
fn packets_that_others_overtake() -> Result<()> {
    let world = World::new()?;
    let (other, between) = (world.add_host()?, world.add_host()?);
    let forwarder = world.link_through(world.host(), &between, &other, 1500, 42)?;
    for (size, iters) in PINGPONGS {
        PingPong { size, iters, validate: true, ..PingPong::default() }
            .run(world.host(), &other)
            .with_context(|| format!("{size} bytes"))?;
    }
    perftest(world.host(), &other)?;
    rping(world.host(), &other, "1000")?;
    let said = forwarder.stderr_so_far();
    ensure!(said.contains("16 overtaken"), "too few packets were overtaken, this shows nothing: {said}");
    Ok(())
}

/// Has programs on these hosts started from now on repeat selectively, over so many paths.
fn repeat_selectively(hosts: [&Host; 2], paths: usize) {
    for host in hosts {
        host.set_env("URXE_SELECTIVE_REPEAT", "1");
        host.set_env("URXE_PATHS", &paths.to_string());
    }
}

/// Bytes of a message of rping that is many packets: they are compared after a READ and a WRITE.
const MANY_PACKETS: &str = "65000";

/// Streams WRITEs from `there` to `here` until counters of selective repeat have begun to count, `wanted[0]` at `here` and `wanted[1]`
/// at `there`; no acknowledgement may be invalid then.
fn ensure_counted(here: &Host, there: &Host, wanted: [&[&str]; 2]) -> Result<()> {
    let args = ["-s", "65536", "-u", "16", "--run_infinitely"];
    let mut last = vec![];
    Perftest::start("ib_write_bw", &args, here, there)?
        .watch("packets are kept and repeated", || {
            let [near, far] = [[wanted[0], &["sack_invalid"]].concat(), [wanted[1], &["sack_invalid"]].concat()];
            last = [host_counters(here, &near)?, host_counters(there, &far)?].concat();
            let (invalid, counts): (Vec<_>, Vec<_>) =
                near.iter().chain(&far).zip(&last).partition(|(name, _)| **name == "sack_invalid");
            ensure!(invalid.iter().all(|(_, value)| **value == 0), "acknowledgements of nothing: {last:?}");
            Ok(counts.iter().all(|(_, value)| **value > 0))
        })
        .with_context(|| format!("{wanted:?} are {last:?}"))
}

/// SENDs, WRITEs and READs bring the right data where packets are lost in both directions, and only what is missing is repeated.
#[test]
fn lost_packets_are_repeated_selectively() -> Result<()> {
    for paths in [1, 4] {
        let (world, other) = world()?;
        repeat_selectively([world.host(), &other], paths);
        pingpong(&world, &other)?;
        perftest(world.host(), &other)?;
        rping(world.host(), &other, MANY_PACKETS)?;
        let [receiver, sender] = [
            &["sack_kept", "sack_sent"][..],
            &["sack_connections", "sack_received", "sack_lost", "sack_retransmitted"],
        ];
        ensure_counted(world.host(), &other, [receiver, sender]).with_context(|| format!("{paths} paths"))?;
        ensure_packets_were_dropped(&world, &other)?;
    }
    Ok(())
}

/// Packets that others overtake are kept, not taken for lost ones, and arrive as the right data.
#[test]
fn packets_that_others_overtake_are_kept() -> Result<()> {
    let world = World::new()?;
    let (other, between) = (world.add_host()?, world.add_host()?);
    let forwarder = world.link_through(world.host(), &between, &other, 1500, 42)?;
    repeat_selectively([world.host(), &other], 1);
    for (size, iters) in PINGPONGS {
        PingPong { size, iters, validate: true, ..PingPong::default() }
            .run(world.host(), &other)
            .with_context(|| format!("{size} bytes"))?;
    }
    perftest(world.host(), &other)?;
    rping(world.host(), &other, MANY_PACKETS)?;
    ensure_counted(world.host(), &other, [&["sack_kept", "sack_sent"], &["sack_connections", "sack_received"]])?;
    let said = forwarder.stderr_so_far();
    ensure!(said.contains("16 overtaken"), "too few packets were overtaken, this shows nothing: {said}");
    Ok(())
}

/// With `URXE_PATHS` packets leave from several source ports, and READ responses too.
#[test]
fn packets_take_several_paths() -> Result<()> {
    const PATHS: usize = 4;
    let (world, other) = World::linked()?;
    repeat_selectively([world.host(), &other], PATHS);
    // WRITEs leave the client, and responses to READs the server.
    for (program, opcodes) in [("ib_write_bw", 6..=11), ("ib_read_bw", 13..=16)] {
        let capture = Capture::start(&other, "veth0", &world.dir().join(format!("{program}.pcapng")))?;
        Perftest::run(program, &["-s", "65536", "-n", "200", "-u", "17"], world.host(), &other)?;
        let packets = capture.finish(&["infiniband.bth.opcode", "udp.srcport"])?;
        let is_data = |packet: &&Vec<String>| packet[0].parse().is_ok_and(|opcode: u8| opcodes.contains(&opcode));
        let ports: BTreeSet<_> = packets.iter().filter(is_data).map(|packet| &packet[1]).collect();
        ensure!(ports.len() == PATHS, "{program}: {ports:?} of {} packets", packets.len());
    }
    Ok(())
}

/// Two hosts with eight paths between them, and what forwards packets.
struct ManyPaths {
    world: World,
    other: Host,
    _between: Host,
    forwarder: Process,
}

impl ManyPaths {
    /// Connects two hosts by paths that take so many microseconds each. Their programs spread packets over as many.
    fn new(micros: [u64; 8]) -> Result<Self> {
        let world = World::new()?;
        let (other, between) = (world.add_host()?, world.add_host()?);
        let forwarder = world.link_by_paths(world.host(), &between, &other, &micros)?;
        repeat_selectively([world.host(), &other], micros.len());
        Ok(Self { world, other, _between: between, forwarder })
    }

    fn ensure_all_were_taken(&self) -> Result<()> {
        let said = self.forwarder.stderr_so_far();
        ensure!(said.contains("8 source ports"), "too few paths were taken, this shows nothing: {said}");
        Ok(())
    }
}

/// Packets of data that a client has sent or got, and those that it has sent again, and asked for again, in vain.
#[derive(Clone, Copy, Debug, Default)]
struct Repeated {
    packets: u64,
    again: u64,
    in_vain: u64,
}

impl Repeated {
    fn since(self, before: Self) -> Self {
        Self {
            packets: self.packets - before.packets,
            again: self.again - before.again,
            in_vain: self.in_vain - before.in_vain,
        }
    }
}

/// Streams with `program` from or to `there`, until `look` has seen enough of what is repeated. Returns what it saw last.
fn watch_repeated(
    program: &str,
    here: &Host,
    there: &Host,
    mut look: impl FnMut(Repeated) -> bool,
) -> Result<Repeated> {
    let mut last = Repeated::default();
    Perftest::start(program, &["-s", "65536", "-u", "16", "--run_infinitely"], here, there)?
        .watch("hardly any packet is sent again in vain", || {
            let counters = ["sack_connections", "tx_packets", "rx_packets", "sack_retransmitted", "sack_spurious"];
            let counts = host_counters(there, &counters)?;
            let &[connections, sent, received, again, in_vain] = &counts[..] else { return Ok(false) };
            last = Repeated { packets: sent.max(received), again, in_vain };
            // A client that is slow to say what it counts has counted nothing.
            Ok(connections > 0 && look(last))
        })
        .with_context(|| format!("{program}: {last:?}"))?;
    Ok(last)
}

/// Packets that take eight paths of different delay overtake one another all the time: the data is right, and hardly any are sent again
/// in vain.
#[test]
fn packets_take_paths_of_different_delay() -> Result<()> {
    /// Packets of which one in a thousand is sent again in vain at most. Beside other programs an end waits for a processor until it
    /// is asked whether it is there, so there are several attempts.
    const ENOUGH: u64 = 20_000;
    let network = ManyPaths::new(DIFFERENT_PATHS)?;
    let (here, there) = (network.world.host(), &network.other);
    for (size, iters) in PINGPONGS {
        PingPong { size, iters, validate: true, ..PingPong::default() }
            .run(here, there)
            .with_context(|| format!("{size} bytes"))?;
    }
    perftest(here, there)?;
    rping(here, there, MANY_PACKETS)?;
    for program in ["ib_write_bw", "ib_read_bw"] {
        let mut before = Repeated::default();
        watch_repeated(program, here, there, |now| {
            let more = now.since(before);
            let has_enough = more.packets >= ENOUGH;
            if has_enough {
                before = now;
            }
            has_enough && more.in_vain * 1000 <= more.packets
        })?;
    }
    ensure_counted(here, there, [&["sack_kept", "sack_sent"], &["sack_connections", "sack_received"]])?;
    network.ensure_all_were_taken()
}

/// How many times as long runs of `make lossy-network` are.
fn times() -> Result<u32> {
    Ok(std::env::var("URXE_GOODPUT").map_or(Ok(1), |times| times.parse())?)
}

const PROGRAMS: [&str; 3] = ["ib_write_bw", "ib_send_bw", "ib_read_bw"];

/// Measures the goodput of a program, in Gbit/s.
fn gigabits(program: &str, here: &Host, there: &Host, messages: u32) -> Result<f64> {
    // The tail of a message that is lost is probed for long before: the timeout is for an end that waits for a processor.
    let args = ["-s", "65536", "-n", &messages.to_string(), "-u", "16", "--report_gbits"];
    Perftest::start(program, &args, here, there)?.gigabits()
}

/// Prints the goodput over eight paths for `make lossy-network`, in rounds, and what is repeated from the start of a connection on.
#[test]
fn goodput_over_paths() -> Result<()> {
    const PACKETS: u64 = 20_000;
    let times = times()?;
    let networks = [ManyPaths::new(EQUAL_PATHS)?, ManyPaths::new(DIFFERENT_PATHS)?];
    println!("64 KiB messages over eight paths, selective repeat, by a forwarder; Gbit/s, medians of {times}.\n");
    println!("| program | paths of one delay | of different delay | ratio | packets | sent again | in vain |");
    println!("|---|---|---|---|---|---|---|");
    for program in PROGRAMS {
        let mut columns = [vec![], vec![], vec![]];
        for _ in 0..times {
            let measure = |network: &ManyPaths| gigabits(program, network.world.host(), &network.other, 1000);
            let [equal, different] = [measure(&networks[0])?, measure(&networks[1])?];
            [equal, different, different / equal].into_iter().zip(&mut columns).for_each(|(new, all)| all.push(new));
        }
        let [equal, different, ratio] = columns.map(|mut column| {
            column.sort_by(f64::total_cmp);
            column[column.len() / 2]
        });
        let enough = u64::from(times) * PACKETS;
        let (here, there) = (networks[1].world.host(), &networks[1].other);
        let Repeated { packets, again, in_vain } = watch_repeated(program, here, there, |now| now.packets >= enough)?;
        println!("| {program} | {equal:.2} | {different:.2} | {ratio:.2} | {packets} | {again} | {in_vain} |");
    }
    networks.iter().try_for_each(ManyPaths::ensure_all_were_taken)
}

/// Prints the goodput for `make lossy-network`, with and without selective repeat. `URXE_GOODPUT` sets how many times as long runs are.
#[test]
fn goodput() -> Result<()> {
    let times = times()?;
    /// Packets lost in a thousand, and messages of a run.
    const LOSSES: [(u32, u32); 5] = [(0, 2000), (1, 2000), (10, 2000), (30, 1000), (100, 500)];
    let measure = |here: &Host, there: &Host, messages: u32| -> Result<Vec<f64>> {
        PROGRAMS.iter().map(|program| gigabits(program, here, there, times * messages)).collect()
    };
    println!("64 KiB messages over veth, MTU 1500, Gbit/s; losses in both directions.\n");
    println!("| program | no losses | 0.1 % | 1 % | 3 % | 10 % | 1 % overtaken, by a forwarder |");
    println!("|---|---|---|---|---|---|---|");
    for selective in [false, true] {
        let (world, other) = World::linked()?;
        // The kernel drops whole GRO runs: one loss of several packets.
        for host in [world.host(), &other] {
            host.run("ethtool", &["-K", "veth0", "gro", "off"])?;
        }
        if selective {
            repeat_selectively([world.host(), &other], 1);
        }
        let mut columns = Vec::new();
        for (per_mille, messages) in LOSSES {
            lose(world.host(), per_mille)?;
            lose(&other, per_mille)?;
            columns.push(measure(world.host(), &other, messages).with_context(|| format!("{per_mille} in 1000"))?);
            ensure!(per_mille == 0 || dropped(world.host())? > 0, "no packet was lost: this shows nothing");
        }

        let world = World::new()?;
        let (other, between) = (world.add_host()?, world.add_host()?);
        let forwarder = world.link_through(world.host(), &between, &other, 1500, 42)?;
        if selective {
            repeat_selectively([world.host(), &other], 1);
        }
        columns.push(measure(world.host(), &other, 2000).context("through the forwarder")?);
        ensure!(forwarder.stderr_so_far().contains("16 overtaken"), "{}", forwarder.stderr_so_far());

        for (at, program) in PROGRAMS.iter().enumerate() {
            let how = if selective { ", selective repeat" } else { "" };
            let values: Vec<_> = columns.iter().map(|column| format!("{:.2}", column[at])).collect();
            println!("| {program}{how} | {} |", values.join(" | "));
        }
    }
    Ok(())
}
