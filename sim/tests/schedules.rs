//! Thousands of simulated schedules: whatever the network does, the oracle finds nothing to complain about.
//!
//! `URXE_SIM_SEEDS` sets how many, `URXE_SIM_FIRST` the first of them, `URXE_SIM_SEED` runs a single one. A schedule that fails is
//! run again with a packet capture, whose path is printed.

use std::fs::File;
use std::path::PathBuf;

use urxe_sim::Fabric;
use urxe_sim::oracle::{Profile, Report, Scenario};

/// Runs a scenario; if it fails, says how to see it again.
fn check(scenario: &Scenario) -> Report {
    let complaint = match scenario.run(&mut Fabric::new()) {
        Ok(report) => return report,
        Err(complaint) => complaint,
    };
    let mut fabric = Fabric::new();
    fabric.start_capture();
    let again = scenario.run(&mut fabric).err();
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("seed-{}.pcapng", scenario.seed));
    fabric.capture().unwrap().write_pcapng(File::create(&path).unwrap()).unwrap();
    assert_eq!(again.as_ref(), Some(&complaint), "the same seed gives the same run");
    panic!(
        "seed {} ({:?}): {}\nrun it alone with URXE_SIM_SEED={} cargo test -p urxe-sim --test schedules\npackets: {}",
        scenario.seed,
        scenario.profile,
        complaint.0,
        scenario.seed,
        path.display()
    );
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is not a number: {text}")))
}

/// Every fourth schedule, so that test threads share the work.
fn quarter(offset: u64) {
    if let Some(seed) = number("URXE_SIM_SEED") {
        if seed % 4 == offset {
            check(&Scenario::from_seed(seed));
        }
        return;
    }
    let first = number("URXE_SIM_FIRST").unwrap_or(0);
    let seeds = number("URXE_SIM_SEEDS").unwrap_or(10_000);
    for seed in (first + offset..first + seeds).step_by(4) {
        check(&Scenario::from_seed(seed));
    }
}

/// Schedules that failed among a million: more READs than there are resources for, as an answer that was leaving was given twice; a
/// requester without a timer, as its window was full when the time of a receiver that was not ready was over; an answer in parts, to a
/// requester that had not heard of selective repeat.
#[test]
fn schedules_that_failed_once() {
    for seed in [358_484, 579_437, 117_555, 69_048, 20_885, 141_339] {
        check(&Scenario::from_seed(seed));
    }
}

#[test]
fn schedules_first_quarter() {
    quarter(0);
}

#[test]
fn schedules_second_quarter() {
    quarter(1);
}

#[test]
fn schedules_third_quarter() {
    quarter(2);
}

#[test]
fn schedules_last_quarter() {
    quarter(3);
}

#[test]
fn same_seed_same_bytes() {
    for (seed, profile) in (1_000_000..).zip(Profile::ALL) {
        let scenario = Scenario::new(seed, profile);
        let (first, second) = (check(&scenario), check(&scenario));
        assert_eq!((first.digest, first.counts), (second.digest, second.counts), "{profile:?}");
        assert_ne!(first.digest, check(&Scenario::new(seed + 1000, profile)).digest, "{profile:?}");
    }
}

/// The profiles do what their names say: a simulation that never loses a packet tests nothing.
//= spec/packets.md#pkt-010
//= type=test
//# A packet whose ICRC is wrong MUST be counted and dropped without an answer.
#[test]
fn profiles_bite() {
    let total = |profile| {
        let reports = (2_000_000..2_000_020).map(|seed| check(&Scenario::new(seed, profile)));
        reports.fold((0, 0, 0, [0; 2]), |(impaired, retries, failed, [agreed, kept]), report| {
            let selective = [agreed + report.agreed, kept + report.kept];
            (impaired + report.counts.impaired(), retries + report.retries, failed + report.failed, selective)
        })
    };
    for profile in Profile::ALL {
        let (impaired, retries, failed, [agreed, kept]) = total(profile);
        println!("{profile:?}: {impaired} packets impaired, {retries} retries, {failed} directions failed");
        println!("{profile:?}: {agreed} requesters repeat selectively, {kept} packets kept behind a gap");
        let lossless = matches!(profile, Profile::Clean | Profile::NotReady | Profile::Deregister | Profile::Poisoned);
        assert_eq!(impaired == 0, lossless, "{profile:?}");
        assert_eq!(retries == 0, profile == Profile::Clean, "{profile:?}");
        assert_eq!(failed == 0, profile.must_succeed(), "{profile:?}");
        let has_gaps = matches!(
            profile,
            Profile::Loss | Profile::HeavyLoss | Profile::Reorder | Profile::Corrupt | Profile::Mixed
        );
        assert!(!has_gaps || (agreed > 0 && kept > 0), "{profile:?}");
    }
}
