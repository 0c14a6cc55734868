//! Several paths by UDP source port: of different delay, and one that loses all.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use urxe_tests::forward::DIFFERENT_PATHS;
use urxe_tests::{Capture, Host, Perftest, World, host_counter};

use crate::repeated::ensure_few_in_vain;
use crate::{Forwarded, MANY_PACKETS, compare_data, ensure_counted, repeat_selectively};

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

/// Packets that take eight paths of different delay overtake one another all the time: the data is right, and hardly any are sent again
/// in vain.
#[test]
fn packets_take_paths_of_different_delay() -> Result<()> {
    let network = Forwarded::over_paths(DIFFERENT_PATHS)?;
    let [here, there] = network.hosts();
    compare_data(here, there, MANY_PACKETS)?;
    ["ib_write_bw", "ib_read_bw"].into_iter().try_for_each(|program| ensure_few_in_vain(program, here, there))?;
    ensure_counted(here, there, [&["sack_kept", "sack_sent"], &["sack_connections", "sack_received"]])?;
    network.ensure_all_paths_were_taken()
}

/// Sets and rules by which a kernel drops the packets of one path of several: of the source port of a stream that it sees second. Each set
/// is full when it has one port.
const ONE_PATH_LOSES: &str = "
    table inet broken {
        set first { type inet_service; size 1; flags dynamic; }
        set second { type inet_service; size 1; flags dynamic; }
        counter lost { }
        counter passed { }
        chain input {
            type filter hook input priority 0;
            udp dport != 4791 accept
            udp sport @second counter name lost drop
            udp sport @first counter name passed accept
            add @first { udp sport } counter name passed accept
            add @second { udp sport } counter name lost drop
            udp dport 4791 counter name passed
        }
    }
";

/// Has a host's kernel drop every packet that arrives on one path of the next stream.
fn break_one_path(host: &Host) -> Result<()> {
    let _ = host.try_run("nft", &["delete", "table", "inet", "broken"])?;
    host.run("nft", &[ONE_PATH_LOSES]).map(drop)
}

/// RoCE packets that a host's kernel has dropped, and has let pass.
fn lost_and_passed(host: &Host) -> Result<[u64; 2]> {
    let count = |name| {
        let counter = host.run("nft", &["list", "counter", "inet", "broken", name])?.stdout;
        let mut words = counter.split_whitespace().skip_while(|word| *word != "packets");
        words.nth(1).and_then(|count| count.parse().ok()).with_context(|| format!("no counter in {counter}"))
    };
    Ok([count("lost")?, count("passed")?])
}

/// Programs end though one path of four loses every packet. It is left, and after that few packets take it.
#[test]
fn a_path_that_loses_all_is_left() -> Result<()> {
    /// Packets, or runs of them, of the other paths.
    const ENOUGH: u64 = 2000;
    let (world, other) = World::linked()?;
    let here = world.host();
    repeat_selectively([here, &other], 4);
    for program in ["ib_write_bw", "ib_send_bw"] {
        break_one_path(here)?;
        Perftest::run(program, &["-s", "65536", "-n", "500", "-u", "18"], here, &other)
            .with_context(|| program.to_owned())?;
        let [lost, passed] = lost_and_passed(here)?;
        ensure!(lost > 0 && passed > lost, "{program}: {lost} were lost, and {passed} passed");
    }
    break_one_path(here)?;
    let (mut since, mut last) = (None, [0; 2]);
    Perftest::start("ib_write_bw", &["-s", "65536", "-u", "18", "--run_infinitely"], here, &other)?
        .watch("few packets take the path that was left", || {
            last = lost_and_passed(here)?;
            let Some(before) = since else {
                since = (host_counter(&other, "paths_left")? > 0).then_some(last);
                return Ok(false);
            };
            let [lost, passed] = [0, 1].map(|at| last[at] - before[at]);
            if passed < ENOUGH {
                return Ok(false);
            }
            since = Some(last);
            // A fourth of them before.
            Ok(lost * 20 <= passed)
        })
        .with_context(|| format!("left: {}; {last:?} lost and passed", since.is_some()))
}
