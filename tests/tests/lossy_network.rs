//! Real networks that lose one packet in a hundred, or let others overtake it: stock programs finish with the right data.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use urxe_tests::{Capture, Host, Perftest, PingPong, World};

/// Has a host's kernel drop one in a hundred of the RoCE packets that arrive.
fn drop_one_percent(host: &Host) -> Result<()> {
    for command in [
        &["add", "table", "inet", "lossy"][..],
        &["add", "chain", "inet", "lossy", "input", "{ type filter hook input priority 0; }"],
        &["add", "rule", "inet", "lossy", "input", "udp dport 4791 numgen random mod 100 lt 1 counter drop"],
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
    drop_one_percent(world.host())?;
    drop_one_percent(&other)?;
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
    for (size, iters) in PINGPONGS {
        let pingpong = PingPong { size, iters, validate: true, ..PingPong::default() };
        // One run in fifty loses its last ACK.
        for attempt in 0.. {
            ensure!(attempt < 4, "{size} bytes: no run in four came to its end");
            let pair = pingpong.start(world.host(), &other)?;
            if pair.finish_despite_loss().with_context(|| format!("{size} bytes"))? {
                break;
            }
        }
    }
    ensure_packets_were_dropped(&world, &other)
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
        Perftest::run(program, &[&["-n", "200"], size].concat(), here, there).with_context(|| program.to_owned())?;
    }
    Ok(())
}

#[test]
fn rping_compares_what_it_reads() -> Result<()> {
    let (world, other) = world()?;
    rping(world.host(), &other)?;
    ensure_packets_were_dropped(&world, &other)
}

fn rping(here: &Host, there: &Host) -> Result<()> {
    let address = here.address();
    let server = here.spawn("rping", &["-s", "-a", &address, "-V", "-C", "300", "-S", "1000"])?;
    // rping's client does not try again when nobody listens yet.
    urxe_tests::wait_until("rping listens", || Ok(here.run("cat", &["/proc/net/unix"])?.stdout.contains("urxe")))?;
    let client = there.spawn("rping", &["-c", "-a", &address, "-V", "-C", "300", "-S", "1000"])?;
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
    rping(world.host(), &other)?;
    let said = forwarder.stderr_so_far();
    ensure!(said.contains("16 overtaken"), "too few packets were overtaken, this shows nothing: {said}");
    Ok(())
}

/// With `URXE_PATHS` packets leave from several source ports, and READ responses too.
#[test]
fn packets_take_several_paths() -> Result<()> {
    const PATHS: usize = 4;
    let (world, other) = World::linked()?;
    for host in [world.host(), &other] {
        host.set_env("URXE_SELECTIVE_REPEAT", "1");
        host.set_env("URXE_PATHS", &PATHS.to_string());
    }
    // WRITEs leave the client, and responses to READs the server.
    for (program, opcodes) in [("ib_write_bw", 6..=11), ("ib_read_bw", 13..=16)] {
        let capture = Capture::start(&other, "veth0", &world.dir().join(format!("{program}.pcapng")))?;
        Perftest::run(program, &["-s", "65536", "-n", "200"], world.host(), &other)?;
        let packets = capture.finish(&["infiniband.bth.opcode", "udp.srcport"])?;
        let is_data = |packet: &&Vec<String>| packet[0].parse().is_ok_and(|opcode: u8| opcodes.contains(&opcode));
        let ports: BTreeSet<_> = packets.iter().filter(is_data).map(|packet| &packet[1]).collect();
        ensure!(ports.len() == PATHS, "{program}: {ports:?} of {} packets", packets.len());
    }
    Ok(())
}

/// Prints the goodput for `make lossy-network`.
#[test]
fn goodput() -> Result<()> {
    const PROGRAMS: [&str; 3] = ["ib_write_bw", "ib_send_bw", "ib_read_bw"];
    let measure = |here: &Host, there: &Host| -> Result<Vec<f64>> {
        let args = ["-s", "65536", "-n", "2000", "--report_gbits"];
        PROGRAMS
            .iter()
            .map(|program| average(&Perftest::start(program, &args, here, there)?.output()?.stdout))
            .collect()
    };
    let (world, other) = World::linked()?;
    let lossless = measure(world.host(), &other)?;
    drop_one_percent(world.host())?;
    drop_one_percent(&other)?;
    let lossy = measure(world.host(), &other)?;
    ensure_packets_were_dropped(&world, &other)?;

    let world = World::new()?;
    let (other, between) = (world.add_host()?, world.add_host()?);
    let forwarder = world.link_through(world.host(), &between, &other, 1500, 42)?;
    let reordered = measure(world.host(), &other)?;
    ensure!(forwarder.stderr_so_far().contains("16 overtaken"), "{}", forwarder.stderr_so_far());

    println!("| 64 KiB over veth, MTU 1500, Gbit/s | no losses | 1 % lost both ways | 1 % overtaken, by a forwarder |");
    println!("|---|---|---|---|");
    for (at, program) in PROGRAMS.iter().enumerate() {
        println!("| {program} | {:.2} | {:.2} | {:.2} |", lossless[at], lossy[at], reordered[at]);
    }
    Ok(())
}

/// The average bandwidth in perftest's table: `#bytes #iterations BW-peak BW-average MsgRate`.
fn average(stdout: &str) -> Result<f64> {
    let mut lines = stdout.lines().skip_while(|line| !line.trim_start().starts_with("#bytes"));
    let figures = lines.nth(1).and_then(|line| line.split_whitespace().nth(3)?.parse().ok());
    figures.with_context(|| format!("no figures in {stdout}"))
}
