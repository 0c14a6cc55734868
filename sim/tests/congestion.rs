//! Three senders, one link: what congestion control makes of a bottleneck, in virtual time.

use urxe_engine::congestion::CongestionSettings;
use urxe_sim::incast::{Algorithm, Incast, Outcome};

fn show(name: &str, outcome: &Outcome) {
    println!(
        "{name}: {:?} messages, fairness {:.3}, {:.2} of the link, {} lost, {} marked, up to {} in the queue",
        outcome.messages,
        outcome.fairness(),
        outcome.utilisation(),
        outcome.lost,
        outcome.marked,
        outcome.longest
    );
}

#[test]
fn dcqcn_shares_a_link_without_loss() {
    for seed in 1..=3 {
        let incast = Incast { seed, ..Incast::new(Algorithm::Dcqcn) };
        let outcome = incast.run();
        show("dcqcn", &outcome);
        assert_eq!(outcome.lost, 0);
        assert!(outcome.marked > 0);
        assert!(outcome.longest < 192, "{} in the queue", outcome.longest);
        assert!(outcome.fairness() >= 0.95, "fairness {}", outcome.fairness());
        assert!(outcome.utilisation() >= 0.9, "{} of the link", outcome.utilisation());
        assert_eq!(outcome.digest, incast.run().digest);
    }
}

#[test]
fn a_window_without_marks_finds_the_end_of_the_queue_by_losses() {
    let without = Incast { congestion: CongestionSettings::NONE, is_marking: false, ..Incast::new(Algorithm::Window) };
    let outcome = without.run();
    show("window", &outcome);
    assert!(outcome.lost > 0);
    assert_eq!((outcome.marked, outcome.longest), (0, 256));
}

/// Marks spare the other algorithms the losses, too.
#[test]
fn window_and_swift_obey_marks() {
    for (name, algorithm) in [("window", Algorithm::Window), ("swift", Algorithm::Swift)] {
        let outcome = Incast::new(algorithm).run();
        show(name, &outcome);
        assert_eq!(outcome.lost, 0, "{name}");
        assert!(outcome.longest < 160, "{name}: {} in the queue", outcome.longest);
        assert!(outcome.utilisation() >= 0.9, "{name}: {} of the link", outcome.utilisation());
    }
}

/// A delay target keeps the queue short without any mark.
#[test]
fn swift_keeps_the_queue_short_by_delay() {
    let outcome = Incast { is_marking: false, ..Incast::new(Algorithm::Swift) }.run();
    show("swift without marks", &outcome);
    assert_eq!(outcome.lost, 0);
    assert!(outcome.longest < 224, "{} in the queue", outcome.longest);
    assert!(outcome.utilisation() >= 0.9, "{} of the link", outcome.utilisation());
}

/// Samples say what was sent, and how long the queue was.
#[test]
fn samples_cover_the_whole_time() {
    let outcome = Incast::new(Algorithm::Dcqcn).run();
    assert_eq!(outcome.samples.len(), 1600, "0.4 s in steps of 250 µs");
    let longest = outcome.samples.iter().map(|sample| sample.queue).max();
    assert!(longest.is_some_and(|longest| longest > 20 && longest <= outcome.longest), "{longest:?}");
    let sent: u64 = outcome.samples.iter().flat_map(|sample| sample.sent).sum();
    let messages: u64 = outcome.messages.iter().sum();
    assert!(sent > messages * 16 * 1024, "{sent} bytes for {messages} messages");
}
