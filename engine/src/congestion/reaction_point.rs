//! DCQCN's reaction point: the rate of a queue pair, by congestion notifications (Zhu et al., SIGCOMM 2015, section 3).
//!
//! Timers are not armed: what they would have done until now is done when the rate is asked for. All numbers are integers:
//! rates in bits a second, alpha in 2^-20.

use core::time::Duration;

use super::{CongestionSettings, MEGABIT, Parameters};
use crate::time::Instant;

/// Alpha of 1.
const ONE: u64 = 1 << 20;

/// The rate of one queue pair since its first CNP.
#[derive(Clone, Debug)]
pub(crate) struct ReactionPoint {
    parameters: Parameters,
    /// Rate at which nothing is limited any more.
    most: u64,
    /// R_C of the paper.
    current: u64,
    /// R_T of the paper.
    target: u64,
    /// Estimate of congestion.
    alpha: u64,
    /// When alpha was updated last.
    alpha_at: Instant,
    /// When the rate was decreased last.
    decreased_at: Instant,
    /// When the timer of increases began.
    timer_at: Instant,
    /// Increases by the timer since the last decrease.
    by_timer: u32,
    /// Bytes sent towards the next increase by bytes.
    bytes: u64,
    /// Increases by bytes since the last decrease.
    by_bytes: u32,
    /// The rate has grown since the last decrease, in a way that the next one sets the target by.
    grown: bool,
}

impl ReactionPoint {
    /// The rate after the first CNP.
    pub(crate) fn new(settings: &CongestionSettings, now: Instant) -> Self {
        let (parameters, most) = (settings.parameters, settings.most_rate());
        let first = u64::from(parameters.rate_to_set_on_first_cnp) * MEGABIT;
        let least = u64::from(parameters.rpg_min_rate) * MEGABIT;
        // Cards take up to 85 % of the link's rate.
        let rate = if first == 0 { most } else { first.min(most * 85 / 100).max(least).min(most) };
        let mut new = Self {
            parameters,
            most,
            current: rate,
            target: rate,
            alpha: u64::from(parameters.initial_alpha_value) * (ONE / 1024),
            alpha_at: now,
            decreased_at: now,
            timer_at: now,
            by_timer: 0,
            bytes: 0,
            by_bytes: 0,
            grown: false,
        };
        if first == 0 {
            new.decrease();
        }
        new.raise_alpha();
        new
    }

    /// R_C, in bits a second.
    pub(crate) const fn rate(&self) -> u64 {
        self.current
    }

    /// Whether the limit has no meaning any more.
    pub(crate) const fn is_at_line_rate(&self) -> bool {
        self.current >= self.most
    }

    /// A CNP came: equation (1) of the paper.
    pub(crate) fn notified(&mut self, now: Instant) {
        self.advance(now);
        if now.since(self.decreased_at) >= micros(self.parameters.rate_reduce_monitor_period) {
            if self.parameters.clamp_tgt_rate == 1 || self.grown {
                self.target = self.current;
            }
            self.decrease();
            self.decreased_at = now;
        }
        self.raise_alpha();
        (self.alpha_at, self.timer_at) = (now, now);
        (self.by_timer, self.by_bytes, self.bytes) = (0, 0, 0);
    }

    /// R_C ← R_C (1 − α/2), not below its bounds.
    fn decrease(&mut self) {
        self.grown = false;
        let p = &self.parameters;
        // rpg_gd is the logarithm of what divides an alpha of ten bits.
        let cut = (u128::from(self.current) * u128::from(self.alpha)) >> (10 + p.rpg_gd);
        let least = (self.current * u64::from(p.rpg_min_dec_fac) / 100).max(u64::from(p.rpg_min_rate) * MEGABIT);
        let cut = u64::try_from(cut).unwrap_or(u64::MAX);
        self.current = self.current.saturating_sub(cut).max(least).min(self.current);
    }

    /// α ← (1 − g) α + g.
    fn raise_alpha(&mut self) {
        let g = u64::from(self.parameters.dce_tcp_g);
        self.alpha = (self.alpha * g + ONE * (1024 - g)) / 1024;
    }

    /// Catches up with the timers that have expired.
    pub(crate) fn advance(&mut self, now: Instant) {
        let period = micros(self.parameters.dce_tcp_rtt);
        let periods = now.since(self.alpha_at).as_nanos() / period.as_nanos().max(1);
        if periods > 0 {
            let periods = u32::try_from(periods).unwrap_or(u32::MAX);
            // Equation (2) of the paper, so many times: α ← (1 − g) α.
            self.alpha = decayed(self.alpha, self.parameters.dce_tcp_g, periods);
            self.alpha_at = self.alpha_at + period * periods;
        }
        let period = micros(self.parameters.rpg_time_reset);
        while now.since(self.timer_at) >= period && !self.is_at_line_rate() {
            self.timer_at = self.timer_at + period;
            self.by_timer += 1;
            self.grown |= self.parameters.clamp_tgt_rate_after_time_inc == 1;
            self.increase();
        }
    }

    /// Bytes were sent.
    pub(crate) fn sent(&mut self, now: Instant, bytes: u64) {
        let reset = u64::from(self.parameters.rpg_byte_reset);
        if reset == 0 {
            return;
        }
        self.advance(now);
        self.bytes += bytes;
        while self.bytes >= reset && !self.is_at_line_rate() {
            self.bytes -= reset;
            self.by_bytes += 1;
            self.grown = true;
            self.increase();
        }
    }

    /// Increases the rate after one of the two counters has advanced: equations (3) and (4) of the paper, and hyper increase.
    fn increase(&mut self) {
        let p = &self.parameters;
        let (least, most) = (self.by_timer.min(self.by_bytes), self.by_timer.max(self.by_bytes));
        if least > p.rpg_threshold {
            let step = u64::from(p.rpg_hai_rate) * MEGABIT;
            self.target = self.target.saturating_add(step.saturating_mul((least - p.rpg_threshold).into()));
        } else if most > p.rpg_threshold {
            self.target = self.target.saturating_add(u64::from(p.rpg_ai_rate) * MEGABIT);
        }
        self.target = self.target.min(self.most);
        // Rounded up, so that it arrives.
        self.current = self.current.max(self.current.midpoint(self.target).saturating_add(1)).min(self.target);
    }
}

const fn micros(micros: u32) -> Duration {
    Duration::from_micros(micros as u64)
}

/// `alpha` after `periods` times α ← α · g / 1024.
fn decayed(alpha: u64, g: u32, periods: u32) -> u64 {
    // By squaring, in 2^-32: a queue pair may have been idle for hours.
    let (mut factor, mut base, mut left) = (1_u64 << 32, u64::from(g) << 22, periods);
    while left > 0 && factor > 0 {
        if left % 2 == 1 {
            factor = product(factor, base);
        }
        base = product(base, base);
        left /= 2;
    }
    product(alpha, factor)
}

/// `a` times `b`, which is in 2^-32.
fn product(a: u64, b: u64) -> u64 {
    u64::try_from((u128::from(a) * u128::from(b)) >> 32).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod table;
#[cfg(test)]
mod tests;
