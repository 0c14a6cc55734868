//! Several paths by UDP source port, also of different delay.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use urxe_tests::forward::DIFFERENT_PATHS;
use urxe_tests::{Capture, Perftest, PingPong, World};

use crate::repeated::ensure_few_in_vain;
use crate::{Forwarded, MANY_PACKETS, PINGPONGS, ensure_counted, perftest, repeat_selectively, rping};

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
    for (size, iters) in PINGPONGS {
        PingPong { size, iters, validate: true, ..PingPong::default() }
            .run(here, there)
            .with_context(|| format!("{size} bytes"))?;
    }
    perftest(here, there)?;
    rping(here, there, MANY_PACKETS)?;
    ["ib_write_bw", "ib_read_bw"].into_iter().try_for_each(|program| ensure_few_in_vain(program, here, there))?;
    ensure_counted(here, there, [&["sack_kept", "sack_sent"], &["sack_connections", "sack_received"]])?;
    network.ensure_all_paths_were_taken()
}
