//! A thousand stacks, each connected with its neighbours and all with one hub.

use std::time::Duration;

use urxe_sim::NodeConfig;
use urxe_sim::rule::{Chance, Delays, Drops};
use urxe_sim::scale::Scale;

const STACKS: usize = 1000;
const NEIGHBOURS: usize = 2;

/// On a network that loses and delays, and with a hub whose receive buffer cannot hold what comes for it at a time,
/// everything arrives once and in order.
#[test]
fn a_thousand_stacks_talk() {
    // Nobody else has as much to receive.
    let config = NodeConfig { receive_buffer: 512, ..NodeConfig::default() };
    let mut scale = Scale::new(STACKS, NEIGHBOURS, 1, config);
    assert_eq!(scale.queue_pairs(), 2 * (STACKS * NEIGHBOURS + STACKS - 1));
    scale.fabric.add_rule(Drops::new(2, Chance::per_mille(2)));
    scale.fabric.add_rule(Delays::new(3, Chance::per_mille(2), Duration::from_micros(30)));
    for round in 1..=2 {
        scale.talk(round).unwrap();
    }
    let counts = scale.fabric.counts();
    println!("{counts:?} in {:?}", Duration::from_nanos(scale.fabric.now().as_nanos()));
    assert!(counts.dropped > 0 && counts.delayed > 0 && counts.overflowed > 0, "that was too easy: {counts:?}");
}

#[test]
fn the_same_seed_gives_the_same_digest() {
    let run = |seed| {
        let mut scale = Scale::new(50, 3, seed, NodeConfig::default());
        scale.talk(1).unwrap();
        scale.fabric.digest()
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}
