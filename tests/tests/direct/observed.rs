//! Devices that are observed, or injected with faults: requests go by packets.

use anyhow::{Context as _, Result, ensure};
use urxe_tests::verbs::child::Child;
use urxe_tests::verbs::memory::{PAGE, pattern};
use urxe_tests::verbs::{Op, Options, Pair};
use urxe_tests::{World, in_world_with, own_counter as counter};

use crate::{Scene, succeeds, target};

/// Runs a process that has `variable`, and one without it, as target and requester: all that goes between them goes by packets.
fn goes_by_packets(variable: &str, is_target_observed: bool) -> Result<()> {
    // SAFETY: nobody else reads the environment of a process that has just been forked.
    let forget = || unsafe { std::env::remove_var(variable) };
    let child = Child::fork(|parent| {
        if !is_target_observed {
            forget();
        }
        target(parent)
    })?;
    if is_target_observed {
        forget();
    }
    let mut scene = Scene::introduced(child)?;
    scene.local.pages().write(0, &pattern(2, 100));
    for _ in 0..100 {
        scene.complete(Op::Write(scene.at(8)), 0, 100)?;
        scene.complete(Op::Read(scene.at(8)), 200, 100)?;
    }
    scene.expects(2, 8, 100)?;
    ensure!(counter("direct_requests")? == 0, "{} are direct", counter("direct_requests")?);
    scene.finish()
}

/// Both roles of a device that is observed.
fn both_go_by_packets(variable: &str) -> Result<()> {
    for is_target_observed in [false, true] {
        // In a process of its own: another may not read the environment again.
        let role = Child::fork(|_| goes_by_packets(variable, is_target_observed))?;
        role.finish().with_context(|| format!("{variable} of the target: {is_target_observed}"))?;
    }
    Ok(())
}

/// A world as for direct requests, with another variable.
fn observing<'a>(variable: &'a str, value: &'a str) -> impl FnOnce(&World) -> Result<()> + 'a {
    move |world| {
        world.host().go_direct();
        world.host().set_env(variable, value);
        Ok(())
    }
}

#[test]
fn strict_devices() {
    in_world_with(observing("URXE_STRICT", "1"), || both_go_by_packets("URXE_STRICT"));
}

#[test]
fn devices_that_are_strict_about_the_order_of_writes() {
    in_world_with(observing("URXE_STRICT", "write-order"), || both_go_by_packets("URXE_STRICT"));
}

#[test]
fn captured_devices() {
    let capturing = |world: &World| {
        let file = world.dir().join("it-%p.pcapng");
        observing("URXE_PCAP", file.to_str().context("a name in UTF-8")?)(world)
    };
    in_world_with(capturing, || both_go_by_packets("URXE_PCAP"));
}

#[test]
fn devices_with_faults() {
    // None that strikes here.
    in_world_with(observing("URXE_FAULTS", "drop,opcode=SEND"), || both_go_by_packets("URXE_FAULTS"));
}

#[test]
fn devices_with_quirks() {
    in_world_with(observing("URXE_QUIRKS", "7"), || both_go_by_packets("URXE_QUIRKS"));
}

/// Explanations are of failures: they need no packets of requests that succeed.
#[test]
fn explained_devices() {
    in_world_with(observing("URXE_EXPLAIN", "failure"), || Scene::new()?.finish());
}

/// Without the option nothing is direct.
#[test]
fn off_by_default() {
    urxe_tests::in_world(|| {
        let pair = Pair::new(&Options::default())?;
        let (local, memory) = (pair.near.region(PAGE)?, pair.far.region(PAGE)?);
        for _ in 0..100 {
            succeeds(&pair.near, Op::Write(memory.at(0)), &[local.sge(0, 8)])?;
        }
        ensure!(counter("direct_requests")? == 0);
        Ok(())
    });
}
