//! Each row of the table of parameters against the paper's equations, in floating point, at the same virtual times.

use std::vec::Vec;

use urxe_wire::Psn;

use super::tests::{at, paper};
use super::*;
use crate::congestion::{Acknowledged, Algorithm, CongestionControl};

/// The paper's equations with NVIDIA's parameters, in floating point and with time in microseconds.
struct Model {
    p: Parameters,
    most: f64,
    current: f64,
    target: f64,
    alpha: f64,
    alpha_at: f64,
    timer_at: f64,
    decreased_at: f64,
    by_timer: u32,
    by_bytes: u32,
    bytes: u64,
    grown: bool,
}

impl Model {
    /// The first CNP comes at 0.
    fn new(settings: &CongestionSettings) -> Self {
        let p = settings.parameters;
        let most = f64::from(if p.rpg_max_rate == 0 { settings.line_rate } else { p.rpg_max_rate });
        let first = f64::from(p.rate_to_set_on_first_cnp);
        let current = if first == 0.0 { most } else { first.min(0.85 * most) };
        let mut new = Self {
            p,
            most,
            current,
            target: current,
            alpha: f64::from(p.initial_alpha_value) / 1024.0,
            alpha_at: 0.0,
            timer_at: 0.0,
            decreased_at: 0.0,
            by_timer: 0,
            by_bytes: 0,
            bytes: 0,
            grown: false,
        };
        if first == 0.0 {
            new.cut();
        }
        new.alpha = new.g() * new.alpha + 1.0 - new.g();
        new
    }

    /// 1 - g of the paper.
    fn g(&self) -> f64 {
        f64::from(self.p.dce_tcp_g) / 1024.0
    }

    /// R_C (1 - alpha / 2), where 2 is 2 ^ (rpg_gd - 10).
    fn cut(&mut self) {
        let least = (self.current * f64::from(self.p.rpg_min_dec_fac) / 100.0).max(f64::from(self.p.rpg_min_rate));
        let cut = self.current * self.alpha / f64::from(1 << (self.p.rpg_gd - 10));
        self.current = (self.current - cut).max(least).min(self.current);
        self.grown = false;
    }

    /// Runs both timers until `now`.
    fn advance(&mut self, now: f64) {
        while now - self.alpha_at >= f64::from(self.p.dce_tcp_rtt) {
            self.alpha_at += f64::from(self.p.dce_tcp_rtt);
            self.alpha *= self.g();
        }
        while now - self.timer_at >= f64::from(self.p.rpg_time_reset) && self.current < self.most {
            self.timer_at += f64::from(self.p.rpg_time_reset);
            self.by_timer += 1;
            self.grown |= self.p.clamp_tgt_rate_after_time_inc == 1;
            self.raise();
        }
    }

    fn raise(&mut self) {
        let (f, least) = (self.p.rpg_threshold, self.by_timer.min(self.by_bytes));
        if least > f {
            self.target += f64::from(self.p.rpg_hai_rate) * f64::from(least - f);
        } else if self.by_timer.max(self.by_bytes) > f {
            self.target += f64::from(self.p.rpg_ai_rate);
        }
        self.target = self.target.min(self.most);
        self.current = f64::midpoint(self.current, self.target);
    }

    fn sent(&mut self, now: f64, bytes: u64) {
        let reset = u64::from(self.p.rpg_byte_reset);
        self.advance(now);
        self.bytes += bytes;
        while reset > 0 && self.bytes >= reset && self.current < self.most {
            self.bytes -= reset;
            self.by_bytes += 1;
            self.grown = true;
            self.raise();
        }
    }

    fn notified(&mut self, now: f64) {
        self.advance(now);
        if now - self.decreased_at >= f64::from(self.p.rate_reduce_monitor_period) {
            if self.p.clamp_tgt_rate == 1 || self.grown {
                self.target = self.current;
            }
            self.cut();
            self.decreased_at = now;
        }
        self.alpha = self.g() * self.alpha + 1.0 - self.g();
        (self.alpha_at, self.timer_at) = (now, now);
        (self.by_timer, self.by_bytes, self.bytes) = (0, 0, 0);
    }
}

/// Rates in Mbit/s after CNPs, times without them and bytes, by the reaction point, each compared with the paper's equations.
fn rates(change: &dyn Fn(&mut Parameters)) -> Vec<u64> {
    let mut settings = paper();
    settings.parameters.rpg_byte_reset = 20_000;
    change(&mut settings.parameters);
    let (mut point, mut model) = (ReactionPoint::new(&settings, at(0)), Model::new(&settings));
    let mut rates = Vec::new();
    let mut now = 0;
    // Congestion, a calm time, another CNP, and a long calm time.
    let cnps = [(50, true); 4].into_iter().chain([(30, false); 12]).chain([(60, true), (6, true)]);
    for (wait, is_cnp) in cnps.chain([(40, false); 120]) {
        now += wait;
        if is_cnp {
            point.notified(at(now));
            model.notified(now as f64);
        } else {
            point.sent(at(now), 8000);
            model.sent(now as f64, 8000);
        }
        point.advance(at(now));
        let (is, wanted) = (point.rate() as f64 / 1e6, model.current);
        assert!((is - wanted).abs() <= 1e-3 * wanted + 0.01, "{is} Mbit/s after {now} us, wanted {wanted}");
        rates.push(point.rate() / MEGABIT);
    }
    rates
}

/// Each row of the table has the effect that the paper's equations give it, and some effect.
#[test]
fn every_row_of_the_table_has_the_effect_of_the_equations() {
    for row in Parameters::ALL {
        let others: &[u32] = match row.name {
            "rpg_time_reset" => &[20, 110],
            "rpg_byte_reset" => &[0, 9000],
            "rpg_threshold" => &[1, 9],
            "rpg_ai_rate" => &[5, 400],
            "rpg_hai_rate" => &[50, 800],
            "rpg_max_rate" => &[10_000],
            "rpg_min_rate" => &[5000],
            "rpg_min_dec_fac" => &[80, 100],
            "rpg_gd" => &[10],
            "clamp_tgt_rate" => &[0],
            "clamp_tgt_rate_after_time_inc" => &[0],
            "rate_to_set_on_first_cnp" => &[3000],
            "rate_reduce_monitor_period" => &[55, 120],
            "initial_alpha_value" => &[256, 768],
            "dce_tcp_g" => &[900, 1023],
            "dce_tcp_rtt" => &[10, 200],
            // Of Swift: the test below.
            "swift_target" => continue,
            // Of the notification point: `min_time_between_cnps_is_kept` in `engine/tests/congestion`.
            "min_time_between_cnps" => continue,
            // The engine hands it on; the runtime's network puts it into IP headers: `tshark_sees_ect_and_the_cnp` in
            // `tests/tests/congestion/shared_link.rs`.
            "cnp_dscp" => continue,
            name => panic!("no figures of {name}"),
        };
        // Settings where the row has a say.
        let prepare = |parameters: &mut Parameters| match row.name {
            // Growth by bytes counts anyway.
            "clamp_tgt_rate_after_time_inc" => (parameters.clamp_tgt_rate, parameters.rpg_byte_reset) = (0, 0),
            "rpg_gd" => parameters.rpg_min_dec_fac = 1,
            _ => {}
        };
        let usual = rates(&prepare);
        for value in others {
            let changed = rates(&|parameters| {
                prepare(parameters);
                parameters.set(row.name, *value).unwrap();
            });
            assert_ne!(changed, usual, "{} = {value} changes nothing", row.name);
        }
    }
}

/// Packets that Swift lets be outstanding after each of several round trips, at the end of which all are acknowledged.
/// Each is compared with the paper's equations: one packet more below the target, and above it 0.8 of the excess less,
/// half of the window at most.
fn windows(swift_target: u32) -> [u32; 16] {
    const LEAST: u32 = 50;
    // In microseconds: a calm time, congestion, a calm time, two sudden delays.
    const ROUND_TRIPS: [u32; 16] = [LEAST, 50, 120, 160, 160, 160, 60, 60, 300, 100, 100, 900, 50, 50, 50, 50];
    let parameters = Parameters { swift_target, ..Parameters::default() };
    let settings = CongestionSettings { algorithm: Algorithm::Swift, parameters, ..CongestionSettings::NONE };
    let mut swift = CongestionControl::new(256, &settings);
    let target = f64::from(LEAST + swift_target);
    let (mut window, mut doubles, mut acknowledged) = (f64::from(swift.packets()), true, Psn::new(0));
    ROUND_TRIPS.map(|micros| {
        let count = swift.packets();
        acknowledged = acknowledged.add(count);
        let (snd_una, snd_max, round_trip) = (acknowledged, acknowledged, Some(u64::from(micros) * 1000));
        swift.on_acknowledged(Acknowledged { count, snd_una, snd_max, round_trip });
        let delay = f64::from(micros);
        doubles &= delay <= target;
        if delay > target {
            window *= (1.0 - 0.8 * (delay - target) / delay).max(0.5);
        } else {
            window += if doubles { f64::from(count) } else { f64::from(count) / window };
        }
        window = window.clamp(2.0, 256.0);
        let is = swift.packets();
        // Whole packets, and whole hundredths of them in a decrease.
        let is_close = (f64::from(is) - window).abs() <= 0.02 * window + 1.0;
        assert!(is_close, "{is} packets after {micros} us, wanted {window}");
        is
    })
}

/// The row of Swift has the effect that the paper's equations give it, and some effect.
#[test]
fn the_row_of_swift_has_the_effect_of_its_equations() {
    let usual = windows(Parameters::DEFAULT.swift_target);
    for value in [20, 200, 1000] {
        assert_ne!(windows(value), usual, "swift_target = {value} changes nothing");
    }
}
