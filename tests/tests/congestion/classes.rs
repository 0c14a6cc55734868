//! Traffic classes of connections and of CNPs, over both IP versions.

use anyhow::{Context as _, Result, ensure};
use urxe_tests::{Capture, GID_IPV4, GID_IPV6, Host, Perftest, World, without_segmentation_offload};

use super::{Marked, mark};

/// Opcode, DSCP and ECN bits of a packet, as tshark prints them.
type Class = [String; 3];

/// Runs a stream of WRITEs with `how`, by a row of the GID table, and returns what arrived at the server, each packet alone.
fn captured(world: &World, client: &Host, gid: u32, how: &[&str]) -> Result<Vec<Class>> {
    let receiver = world.host();
    without_segmentation_offload(client, "veth0")?;
    let file = world.dir().join(format!("{gid}{}.pcapng", how.concat()));
    let capture = Capture::start(receiver, "veth0", &file)?;
    let gid_arg = gid.to_string();
    let args = [&["-s", "4096", "-n", "200", "-u", "17", "-x", &gid_arg], how].concat();
    Perftest::run("ib_write_bw", &args, receiver, client)?;
    let [dscp, ecn] =
        if gid == GID_IPV6 { ["ipv6.tclass.dscp", "ipv6.tclass.ecn"] } else { ["ip.dsfield.dscp", "ip.dsfield.ecn"] };
    let packets = capture.finish(&["infiniband.bth.opcode", dscp, ecn])?;
    packets.into_iter().map(|fields| Class::try_from(fields).ok().context("three fields")).collect()
}

#[test]
fn cnps_over_ipv6_have_their_dscp() -> Result<()> {
    let (world, client) = World::linked()?;
    mark(world.host(), Marked::Capable)?;
    world.host().set_env("URXE_CC_PARAMS", "cnp_dscp=46");
    let packets = captured(&world, &client, GID_IPV6, &[])?;
    let (cnps, others): (Vec<_>, Vec<_>) = packets.iter().partition(|[opcode, ..]| opcode == "129");
    ensure!(!cnps.is_empty(), "no CNP among {} packets", packets.len());
    ensure!(cnps.iter().all(|[_, dscp, _]| dscp == "46"), "{cnps:?}");
    ensure!(others.iter().all(|[_, dscp, ecn]| dscp == "0" && ecn == "2"), "not all are ECT(0): {others:?}");
    Ok(())
}

/// ECN bits that an address vector has stay; where it has none, packets are ECT(0).
//= spec/congestion.md#ecn-001
//= type=test
//# A packet of a connection MUST leave as ECT(0) where ECN is on, unless its address vector's traffic class says otherwise.
#[test]
fn ecn_bits_of_an_address_vector_stay() -> Result<()> {
    let (world, client) = World::linked()?;
    for gid in [GID_IPV4, GID_IPV6] {
        // DSCP 10 with ECT(1), and without ECN bits.
        for (class, wanted) in [("41", "1"), ("40", "2")] {
            let packets = captured(&world, &client, gid, &["--tclass", class])?;
            // WRITEs of the client, and ACKs of the server.
            for opcodes in [&["6", "7", "8", "10"][..], &["17"]] {
                let of_end = packets.iter().filter(|[opcode, ..]| opcodes.contains(&opcode.as_str()));
                let others: Vec<_> = of_end.clone().filter(|[_, dscp, ecn]| dscp != "10" || ecn != wanted).collect();
                ensure!(of_end.count() > 0, "class {class}: no packets of {opcodes:?} among {}", packets.len());
                ensure!(others.is_empty(), "GID {gid}, class {class}: {others:?}");
            }
        }
    }
    Ok(())
}
