//! Real networks that lose packets, or let others overtake them: stock programs finish with the right data.

mod goodput;
mod paths;
mod repeated;

use anyhow::{Context as _, Result, ensure};
use repeated::ensure_few_in_vain;
use urxe_tests::{Host, Perftest, PingPong, Process, World, host_counters};

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

/// Runs stock programs of every operation, most of which compare their data, the last with so many messages.
fn compare_data(here: &Host, there: &Host, messages: &str) -> Result<()> {
    for (size, iters) in PINGPONGS {
        PingPong { size, iters, validate: true, ..PingPong::default() }
            .run(here, there)
            .with_context(|| format!("{size} bytes"))?;
    }
    perftest(here, there)?;
    rping(here, there, messages)
}

#[test]
fn packets_that_others_overtake() -> Result<()> {
    let network = Forwarded::overtaken_by(FEW)?;
    let [here, there] = network.hosts();
    compare_data(here, there, "1000")?;
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

/// Packets that others overtake are kept, hardly any taken for lost ones, and arrive as the right data.
#[test]
fn packets_that_others_overtake_are_kept() -> Result<()> {
    let network = Forwarded::overtaken_by(FEW)?;
    let [here, there] = network.hosts();
    repeat_selectively([here, there], 1);
    compare_data(here, there, MANY_PACKETS)?;
    ["ib_write_bw", "ib_read_bw"].into_iter().try_for_each(|program| ensure_few_in_vain(program, here, there))?;
    ensure_counted(here, there, [&["sack_kept", "sack_sent"], &["sack_connections", "sack_received"]])?;
    network.ensure_some_were_overtaken()
}
