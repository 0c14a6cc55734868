//! Rates and alpha against the paper's equations, in floating point, at the same virtual times.

use std::vec::Vec;

use urxe_wire::Psn;

use super::*;
use crate::congestion::dcqcn::Dcqcn;
use crate::congestion::{Algorithm, Controller};

/// The reaction point as the paper writes it (section 3.2, equations 1 to 4), for one parameter set.
struct Paper {
    g: f64,
    current: f64,
    target: f64,
    alpha: f64,
    by_timer: f64,
    by_bytes: f64,
}

impl Paper {
    fn cut(&mut self) {
        self.target = self.current;
        self.current *= 1.0 - self.alpha / 2.0;
        self.alpha = (1.0 - self.g) * self.alpha + self.g;
        (self.by_timer, self.by_bytes) = (0.0, 0.0);
    }

    fn raise(&mut self, f: f64, ai: f64, hai: f64) {
        if self.by_timer.min(self.by_bytes) > f {
            self.target += hai * (self.by_timer.min(self.by_bytes) - f);
        } else if self.by_timer.max(self.by_bytes) > f {
            self.target += ai;
        }
        self.current = f64::midpoint(self.current, self.target);
    }
}

/// The paper's parameters: g = 1/256, K = 55 µs, T = 55 µs, F = 5, R_AI = 40 Mbit/s; a line of 40 Gbit/s.
pub(super) fn paper() -> CongestionSettings {
    let parameters = Parameters {
        dce_tcp_g: 1020,
        dce_tcp_rtt: 55,
        rpg_time_reset: 55,
        rpg_byte_reset: 0,
        rpg_threshold: 5,
        rpg_ai_rate: 40,
        rpg_hai_rate: 200,
        clamp_tgt_rate: 1,
        ..Parameters::default()
    };
    CongestionSettings { ecn: true, algorithm: Algorithm::Dcqcn, parameters, line_rate: 40_000 }
}

pub(super) fn at(micros: u64) -> Instant {
    Instant::from_nanos(micros * 1000)
}

#[track_caller]
fn close(point: &ReactionPoint, paper: &Paper) {
    let near = |is: f64, wanted: f64, of: f64| (is - wanted).abs() <= of * wanted.abs();
    let (current, target) = (point.current as f64, point.target as f64);
    assert!(near(current, paper.current, 1e-4), "R_C {current}, wanted {}", paper.current);
    assert!(near(target, paper.target, 1e-4), "R_T {target}, wanted {}", paper.target);
    let alpha = point.alpha as f64 / ONE as f64;
    assert!((alpha - paper.alpha).abs() < 1e-4, "alpha {alpha}, wanted {}", paper.alpha);
}

fn begun() -> (ReactionPoint, Paper) {
    let mut paper_point =
        Paper { g: 1.0 / 256.0, current: 40e9, target: 40e9, alpha: 1023.0 / 1024.0, by_timer: 0.0, by_bytes: 0.0 };
    paper_point.cut();
    (ReactionPoint::new(&paper(), at(0)), paper_point)
}

#[test]
fn cuts_by_equation_1() {
    let (mut point, mut paper) = begun();
    close(&point, &paper);
    for n in 1..8 {
        point.notified(at(50 * n));
        paper.cut();
        close(&point, &paper);
    }
}

#[test]
fn alpha_decays_by_equation_2() {
    let (mut point, mut paper) = begun();
    point.notified(at(10));
    paper.cut();
    for n in 1..=100_u64 {
        point.advance(at(10 + 55 * n));
        paper.alpha *= 1.0 - paper.g;
        assert!((point.alpha as f64 / ONE as f64 - paper.alpha).abs() < 1e-4, "after {n} periods");
    }
    // The same in one step.
    let (mut other, _) = begun();
    other.notified(at(10));
    other.advance(at(10 + 5500));
    assert!(other.alpha.abs_diff(point.alpha) < 100);
    other.advance(at(3_600_000_000));
    assert_eq!(other.alpha, 0);
}

#[test]
fn recovers_and_then_increases_by_equations_3_and_4() {
    let (mut point, mut paper) = begun();
    for n in 1..=5_u64 {
        point.notified(at(50 * n));
        paper.cut();
    }
    for n in 1..=40_u64 {
        point.advance(at(250 + 55 * n));
        paper.alpha *= 1.0 - paper.g;
        paper.by_timer += 1.0;
        paper.raise(5.0, 40e6, 200e6);
        close(&point, &paper);
    }
    assert_eq!(point.by_timer, 40);
}

#[test]
fn bytes_increase_too_and_both_together_hyper() {
    let mut settings = paper();
    settings.parameters.rpg_byte_reset = 10_000;
    let mut point = ReactionPoint::new(&settings, at(0));
    let (_, mut paper) = begun();
    for n in 1..=3_u64 {
        point.notified(at(50 * n));
        paper.cut();
    }
    for n in 1..=12_u64 {
        point.advance(at(150 + 55 * n));
        paper.alpha *= 1.0 - paper.g;
        paper.by_timer += 1.0;
        paper.raise(5.0, 40e6, 200e6);
        for half in 0..2 {
            point.sent(at(150 + 55 * n), 5000);
            if half == 1 {
                paper.by_bytes += 1.0;
                paper.raise(5.0, 40e6, 200e6);
            }
        }
        close(&point, &paper);
    }
    assert_eq!((point.by_timer, point.by_bytes), (12, 12));
}

#[test]
fn the_target_stays_where_it_was_unless_the_rate_has_grown() {
    let mut settings = paper();
    settings.parameters.clamp_tgt_rate = 0;
    let mut point = ReactionPoint::new(&settings, at(0));
    for n in 1..4_u64 {
        point.notified(at(10 * n));
        assert_eq!(point.target, 40_000 * MEGABIT, "no increase since");
    }
    let before = point.current;
    point.advance(at(30 + 55));
    assert!(point.current > before);
    let grown = point.current;
    point.notified(at(30 + 56));
    assert_eq!(point.target, grown);
    settings.parameters.clamp_tgt_rate_after_time_inc = 0;
    let mut point = ReactionPoint::new(&settings, at(0));
    point.advance(at(55));
    point.notified(at(56));
    assert_eq!(point.target, 40_000 * MEGABIT, "an increase by the timer does not count");
}

/// A CNP within the monitor period decreases nothing, and what the rate has grown by is not forgotten.
#[test]
fn a_cnp_that_decreases_nothing_keeps_the_growth() {
    let mut settings = paper();
    settings.parameters.clamp_tgt_rate = 0;
    settings.parameters.rate_reduce_monitor_period = 100;
    let mut point = ReactionPoint::new(&settings, at(0));
    point.notified(at(56));
    let grown = point.current;
    point.notified(at(100));
    assert!(grown < 40_000 * MEGABIT);
    assert_eq!(point.target, grown);
}

/// Each bound of the table, from figures of its own.
#[test]
fn bounds_of_the_table() {
    let with = |change: &dyn Fn(&mut Parameters)| {
        let mut settings = paper();
        change(&mut settings.parameters);
        ReactionPoint::new(&settings, at(0))
    };
    let megabits = |point: &ReactionPoint| point.rate() / MEGABIT;
    assert_eq!(megabits(&with(&|p| p.rpg_min_dec_fac = 80)), 32_000);
    assert_eq!(megabits(&with(&|p| p.rpg_min_dec_fac = 100)), 40_000);
    assert_eq!(megabits(&with(&|p| p.rpg_min_rate = 30_000)), 30_000);
    assert_eq!(megabits(&with(&|p| p.rate_to_set_on_first_cnp = 123)), 123);
    assert_eq!(megabits(&with(&|p| p.rate_to_set_on_first_cnp = 40_000)), 34_000);
    assert_eq!(megabits(&with(&|p| (p.rate_to_set_on_first_cnp, p.rpg_min_rate) = (1, 10))), 10);
    assert_eq!(megabits(&with(&|p| p.initial_alpha_value = 512)), 30_000);
    // 1023/1024 of the rate is gone, but half of it stays at least.
    assert_eq!(megabits(&with(&|p| p.rpg_gd = 10)), 20_000);
    assert_eq!(megabits(&with(&|p| (p.rpg_gd, p.rpg_min_dec_fac, p.initial_alpha_value) = (10, 0, 768))), 10_000);
    assert_eq!(megabits(&with(&|p| (p.rpg_max_rate, p.initial_alpha_value) = (1000, 512))), 750);
    // Cuts within the monitor period count once.
    let mut point = with(&|p| p.rate_reduce_monitor_period = 100);
    let rate = point.rate();
    point.notified(at(99));
    assert!(point.rate() >= rate);
    point.notified(at(100));
    assert!(point.rate() < rate);
}

#[test]
fn a_rate_that_is_the_links_again_is_no_limit() {
    let mut dcqcn = Dcqcn::new(128, &paper());
    assert!(dcqcn.limiter().is_none());
    dcqcn.on_notification(at(0), Psn::new(0));
    let now = at(3_600_000_000);
    assert!(dcqcn.limiter().is_some_and(|limiter| limiter.allowance(now, 1024).is_ok()));
    assert!(dcqcn.limiter().is_none(), "an hour later");
}

/// Floods of CNPs end at the least rate, and time goes on.
#[test]
fn stays_within_its_bounds() {
    let mut point = ReactionPoint::new(&CongestionSettings { line_rate: 1000, ..paper() }, at(0));
    let rates: Vec<_> = (1..100_000_u64)
        .map(|n| {
            point.notified(at(4 * n));
            point.rate()
        })
        .collect();
    assert!(rates.is_sorted_by(|a, b| a >= b));
    assert_eq!(rates.last(), Some(&MEGABIT));
}
