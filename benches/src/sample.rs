//! Samples: one value a figure and round.

use crate::suite::{Comparison, Figure};

/// The values of a figure, or of a ratio of two, in the order of the rounds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sample(Vec<f64>);

/// Measurements so far.
#[derive(Debug, Default)]
pub struct Measured(Vec<(Figure, Sample)>);

impl Sample {
    /// The value in the middle; of an even number the lower of the two. `None` when nothing was measured.
    pub fn median(&self) -> Option<f64> {
        let sorted = self.sorted();
        sorted.get(sorted.len().checked_sub(1)? / 2).copied()
    }

    /// Smallest and largest.
    pub fn range(&self) -> Option<(f64, f64)> {
        let sorted = self.sorted();
        Some((*sorted.first()?, *sorted.last()?))
    }

    /// Values by round.
    pub fn values(&self) -> &[f64] {
        &self.0
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }
}

impl FromIterator<f64> for Sample {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        Self(values.into_iter().collect())
    }
}

impl Measured {
    /// Adds a round's value.
    pub fn push(&mut self, figure: Figure, value: f64) {
        match self.0.iter_mut().find(|(known, _)| *known == figure) {
            Some((_, sample)) => sample.0.push(value),
            None => self.0.push((figure, Sample(vec![value]))),
        }
    }

    /// The values of a figure; none if it was not measured.
    pub fn sample(&self, figure: Figure) -> Sample {
        self.0.iter().find(|(known, _)| *known == figure).map(|(_, sample)| sample.clone()).unwrap_or_default()
    }

    /// A ratio for each round. Their median is steadier than the ratio of two medians: what disturbs a round disturbs
    /// both sides of it.
    pub fn ratio(&self, comparison: &Comparison) -> Sample {
        let (of, to) = (self.sample(comparison.of), self.sample(comparison.to));
        of.0.iter().zip(&to.0).map(|(of, to)| of / to).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::{Goals, TCP, UDP_LATENCY, UDP_STREAM};

    #[test]
    fn the_median_is_a_measured_value() {
        let sample: Sample = [3.0, 1.0, 9.0, 2.0].into_iter().collect();
        assert_eq!(sample.median(), Some(2.0));
        assert_eq!(sample.range(), Some((1.0, 9.0)));
        assert_eq!(Sample::default().median(), None);
        assert_eq!(Sample::default().range(), None);
    }

    #[test]
    fn ratios_pair_the_rounds() {
        let mut measured = Measured::default();
        for (stream, tcp) in [(10.0, 20.0), (1.0, 1.0), (30.0, 40.0)] {
            measured.push(UDP_STREAM, stream);
            measured.push(TCP, tcp);
        }
        let ratio = measured.ratio(&Comparison { of: UDP_STREAM, to: TCP, goals: Goals::NONE });
        assert_eq!(ratio.values(), [0.5, 1.0, 0.75]);
        assert_eq!(ratio.median(), Some(0.75));
        assert_eq!(measured.sample(UDP_LATENCY), Sample::default());
    }
}
