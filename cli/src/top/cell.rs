//! Values of the tables: the same value is shown and sorted by.

use std::cmp::Ordering;
use std::fmt;

/// A value in a table.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Cell {
    Text(String),
    Qpn(u64),
    Count(u64),
    /// Exact number, such as a process id.
    Number(u64),
    /// Per second.
    Rate(f64),
    /// Empty cell: no value, or none yet.
    Nothing,
}

impl Cell {
    pub(super) fn rate(rate: Option<f64>) -> Self {
        rate.map_or(Self::Nothing, Self::Rate)
    }

    /// The order in a column. Values of one column are of one kind; what there is nothing of comes first.
    pub(super) fn compare(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Text(one), Self::Text(two)) => one.cmp(two),
            (Self::Rate(one), Self::Rate(two)) => one.total_cmp(two),
            (Self::Qpn(one), Self::Qpn(two))
            | (Self::Count(one), Self::Count(two))
            | (Self::Number(one), Self::Number(two)) => one.cmp(two),
            _ => (*self != Self::Nothing).cmp(&(*other != Self::Nothing)),
        }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Qpn(qpn) => write!(f, "{qpn:#08x}"),
            Self::Number(number) => write!(f, "{number}"),
            #[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
            Self::Count(count) => f.write_str(&short(*count as f64)),
            Self::Rate(rate) => f.write_str(&short(*rate)),
            Self::Nothing => f.write_str("-"),
        }
    }
}

/// Three digits and a unit of 1000s: `1.23M`. Up to 9999 all digits.
pub(super) fn short(value: f64) -> String {
    const UNITS: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];
    if value.round() < 10_000.0 {
        return if value > 0.0 && value < 9.95 && value.fract() != 0.0 {
            format!("{value:.1}")
        } else {
            format!("{value:.0}")
        };
    }
    let (mut value, mut unit) = (value, 0);
    // What rounds to 1000 is 1 of the next unit.
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.digits$}{}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        let rows = [
            (0.0, "0"),
            (0.5, "0.5"),
            (2.0, "2"),
            (12.4, "12"),
            (9_999.0, "9999"),
            (9_999.7, "10.0K"),
            (12_345.0, "12.3K"),
            (999_499.0, "999K"),
            (999_600.0, "1.00M"),
            (1.234e9, "1.23G"),
            (99.96e9, "100G"),
            (1.8e19, "18.0E"),
        ];
        for (value, said) in rows {
            assert_eq!(short(value), said, "{value}");
        }
    }

    #[test]
    fn empty_cells_sort_first() {
        assert_eq!(Cell::Nothing.compare(&Cell::Rate(0.0)), Ordering::Less);
        assert_eq!(Cell::Rate(2.0).compare(&Cell::Rate(10.0)), Ordering::Less);
        assert_eq!(Cell::Nothing.compare(&Cell::Nothing), Ordering::Equal);
    }
}
