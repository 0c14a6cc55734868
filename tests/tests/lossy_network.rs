//! Real networks that lose packets, or let others overtake them: stock programs finish with the right data.

use std::collections::BTreeSet;
use std::fmt;

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

/// Two hosts, and a third one between them that forwards packets.
struct Forwarded {
    world: World,
    other: Host,
    _between: Host,
    forwarder: Process,
}

impl Forwarded {
    /// Connects two hosts by a network in which one packet in a hundred is overtaken by up to so many.
    fn overtaken_by(most: u32) -> Result<Self> {
        Self::new(|world, between, other| world.link_through(world.host(), between, other, most, 42))
    }

    /// Connects two hosts by paths that take so many microseconds each. Their programs spread packets over as many.
    fn over_paths(micros: [u64; 8]) -> Result<Self> {
        let network = Self::new(|world, between, other| world.link_by_paths(world.host(), between, other, &micros))?;
        repeat_selectively(network.hosts(), micros.len());
        Ok(network)
    }

    fn new(link: impl FnOnce(&World, &Host, &Host) -> Result<Process>) -> Result<Self> {
        let world = World::new()?;
        let (other, between) = (world.add_host()?, world.add_host()?);
        let forwarder = link(&world, &between, &other)?;
        Ok(Self { world, other, _between: between, forwarder })
    }

    fn hosts(&self) -> [&Host; 2] {
        [self.world.host(), &self.other]
    }

    /// Fails if the forwarder has not come so far as to say this.
    fn ensure_said(&self, words: &str) -> Result<()> {
        let said = self.forwarder.stderr_so_far();
        ensure!(said.contains(words), "not “{words}”, this shows nothing: {said}");
        Ok(())
    }

    fn ensure_some_were_overtaken(&self) -> Result<()> {
        self.ensure_said("16 overtaken")
    }

    fn ensure_all_paths_were_taken(&self) -> Result<()> {
        self.ensure_said("8 source ports")
    }
}

/// Packets that overtake one at most, where stock programs compare their data, and where goodput is measured.
const FEW: u32 = 8;
const MANY: u32 = 64;

#[test]
fn packets_that_others_overtake() -> Result<()> {
    let network = Forwarded::overtaken_by(FEW)?;
    let [here, there] = network.hosts();
    for (size, iters) in PINGPONGS {
        PingPong { size, iters, validate: true, ..PingPong::default() }
            .run(here, there)
            .with_context(|| format!("{size} bytes"))?;
    }
    perftest(here, there)?;
    rping(here, there, "1000")?;
    network.ensure_some_were_overtaken()
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
    let network = Forwarded::overtaken_by(FEW)?;
    let [here, there] = network.hosts();
    repeat_selectively([here, there], 1);
    for (size, iters) in PINGPONGS {
        PingPong { size, iters, validate: true, ..PingPong::default() }
            .run(here, there)
            .with_context(|| format!("{size} bytes"))?;
    }
    perftest(here, there)?;
    rping(here, there, MANY_PACKETS)?;
    ensure_counted(here, there, [&["sack_kept", "sack_sent"], &["sack_connections", "sack_received"]])?;
    network.ensure_some_were_overtaken()
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
    let network = Forwarded::over_paths(DIFFERENT_PATHS)?;
    let [here, there] = network.hosts();
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
    network.ensure_all_paths_were_taken()
}

/// Rounds of `make lossy-network`: `URXE_GOODPUT` says how many.
fn rounds() -> Result<u32> {
    Ok(std::env::var("URXE_GOODPUT").map_or(Ok(1), |rounds| rounds.parse())?)
}

/// Length of a run: seconds where figures are wanted, else as many messages as show that it works.
fn length(rounds: u32) -> [&'static str; 2] {
    if rounds > 1 { ["-D", "2"] } else { ["-n", "500"] }
}

const PROGRAMS: [&str; 3] = ["ib_write_bw", "ib_send_bw", "ib_read_bw"];

/// Measures the goodput of a program, in Gbit/s, for so long ([`length`]).
fn gigabits(program: &str, [here, there]: [&Host; 2], length: [&str; 2]) -> Result<f64> {
    // The tail of a message that is lost is probed for long before: the timeout is for an end that waits for a processor.
    let args = [&["-s", "65536", "-u", "16", "--report_gbits"], &length[..]].concat();
    Perftest::start(program, &args, here, there)?.gigabits()
}

/// Figures of several rounds, from the smallest to the largest.
struct Figures(Vec<f64>);

impl Figures {
    fn new(mut figures: Vec<f64>) -> Self {
        figures.sort_by(f64::total_cmp);
        Self(figures)
    }

    fn median(&self) -> f64 {
        self.0[self.0.len() / 2]
    }

    /// Prints the figures, and whether their median reaches the goal.
    fn judged(&self, goal: f64) -> String {
        format!("{self}, {}", if self.median() >= goal { "met" } else { "missed" })
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2}", self.median())?;
        match &self.0[..] {
            [least, .., most] => write!(f, " ({least:.2} to {most:.2})"),
            _ => Ok(()),
        }
    }
}

/// Prints two rows of a table, those of going back and of selective repeat. `measure` is given which it is, and a place of the row: the
/// first is printed as it is, the others as ratios to the first one of their round, which have goals with selective repeat.
fn print_rows(program: &str, rounds: u32, goals: &[f64], measure: impl Fn(bool, usize) -> Result<f64>) -> Result<()> {
    let mut rows = [false, true].map(|is_selective| (is_selective, vec![Vec::new(); 1 + goals.len()]));
    for round in 0..rounds {
        for (is_selective, columns) in &mut rows {
            let mut rates = vec![0.0; columns.len()];
            for turn in 0..rates.len() {
                // Every other round goes backwards: what changes in the course of a round changes no ratio for long.
                let place = if round.is_multiple_of(2) { turn } else { rates.len() - 1 - turn };
                rates[place] = measure(*is_selective, place)?;
            }
            let first = rates[0];
            rates[1..].iter_mut().for_each(|rate| *rate /= first);
            columns.iter_mut().zip(rates).for_each(|(column, figure)| column.push(figure));
        }
    }
    for (is_selective, columns) in rows {
        let goals = std::iter::once(None).chain(goals.iter().map(Some));
        let cells = columns.into_iter().map(Figures::new).zip(goals).map(|(figures, goal)| match goal {
            Some(goal) if is_selective => figures.judged(*goal),
            _ => figures.to_string(),
        });
        let cells: Vec<String> = cells.collect();
        println!("| {program}{} | {} |", if is_selective { ", selective repeat" } else { "" }, cells.join(" | "));
    }
    Ok(())
}

/// Has programs on these hosts started from now on repeat selectively, or go back.
fn choose(hosts: [&Host; 2], is_selective: bool) {
    for host in hosts {
        host.set_env("URXE_SELECTIVE_REPEAT", if is_selective { "1" } else { "0" });
    }
}

/// Prints the goodput over eight paths for `make lossy-network`, in rounds, and what is repeated from the start of a connection on.
#[test]
fn goodput_over_paths() -> Result<()> {
    const PACKETS: u64 = 20_000;
    let rounds = rounds()?;
    let networks = [Forwarded::over_paths(EQUAL_PATHS)?, Forwarded::over_paths(DIFFERENT_PATHS)?];
    println!("64 KiB messages over eight paths, selective repeat, by a forwarder; Gbit/s, medians of {rounds}.\n");
    println!("| program | paths of one delay | of different delay | ratio | packets | sent again | in vain |");
    println!("|---|---|---|---|---|---|---|");
    for program in PROGRAMS {
        let mut columns = [vec![], vec![], vec![]];
        for _ in 0..rounds {
            let measure = |network: &Forwarded| gigabits(program, network.hosts(), ["-n", "1000"]);
            let [equal, different] = [measure(&networks[0])?, measure(&networks[1])?];
            [equal, different, different / equal].into_iter().zip(&mut columns).for_each(|(new, all)| all.push(new));
        }
        let [equal, different, ratio] = columns.map(|column| Figures::new(column).median());
        let enough = u64::from(rounds) * PACKETS;
        let [here, there] = networks[1].hosts();
        let Repeated { packets, again, in_vain } = watch_repeated(program, here, there, |now| now.packets >= enough)?;
        println!("| {program} | {equal:.2} | {different:.2} | {ratio:.2} | {packets} | {again} | {in_vain} |");
    }
    networks.iter().try_for_each(Forwarded::ensure_all_paths_were_taken)
}

/// Prints the goodput over losses for `make lossy-network`, in rounds.
#[test]
fn goodput() -> Result<()> {
    /// Packets lost in a thousand, and the part of the goodput without losses that is to be left.
    const LOSSES: [(u32, f64); 4] = [(1, 0.97), (10, 0.9), (30, 0.75), (100, 0.4)];
    let rounds = rounds()?;
    let (world, other) = World::linked()?;
    let hosts = [world.host(), &other];
    // A veth passes runs of GSO on as one packet, and the kernel would drop them whole.
    for host in hosts {
        host.run("ethtool", &["-K", "veth0", "gro", "off", "gso", "off", "tx-udp-segmentation", "off"])?;
    }
    println!("64 KiB messages over veth, MTU 1500, losses in both directions: medians of {rounds}, and ranges.");
    println!("With losses: ratios to the run of the same round without; the goals are those of selective repeat.\n");
    println!("| program | no losses, Gbit/s | 0.1 %: ≥ 0.97 | 1 %: ≥ 0.9 | 3 %: ≥ 0.75 | 10 %: ≥ 0.4 |");
    println!("|---|---|---|---|---|---|");
    for program in PROGRAMS {
        print_rows(program, rounds, &LOSSES.map(|(_, goal)| goal), |is_selective, place| {
            let per_mille = place.checked_sub(1).map_or(0, |at| LOSSES[at].0);
            choose(hosts, is_selective);
            hosts.into_iter().try_for_each(|host| lose(host, per_mille))?;
            let rate = gigabits(program, hosts, length(rounds));
            let rate = rate.with_context(|| format!("{program}, {per_mille} in 1000, selective: {is_selective}"))?;
            let lost = dropped(world.host())? + dropped(&other)?;
            ensure!(per_mille == 0 || lost > 0, "no packet was lost: this shows nothing");
            Ok(rate)
        })?;
    }
    Ok(())
}

/// Prints the goodput of packets that others overtake for `make lossy-network`, in rounds, beside that of the same network in order.
#[test]
fn goodput_of_overtaken_packets() -> Result<()> {
    let rounds = rounds()?;
    let networks = [Forwarded::overtaken_by(0)?, Forwarded::overtaken_by(MANY)?];
    println!("64 KiB messages by a forwarder: medians of {rounds}, and ranges.");
    println!("The ratio is one within a round; the goal is that of selective repeat.\n");
    println!("| program | in order, Gbit/s | 1 % overtaken by up to {MANY}, to that: ≥ 0.95 |");
    println!("|---|---|---|");
    for program in PROGRAMS {
        print_rows(program, rounds, &[0.95], |is_selective, place| {
            let hosts = networks[place].hosts();
            choose(hosts, is_selective);
            let rate = gigabits(program, hosts, length(rounds));
            rate.with_context(|| format!("{program}, place {place}, selective: {is_selective}"))
        })?;
    }
    networks[1].ensure_some_were_overtaken()
}
