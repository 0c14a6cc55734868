//! Complaints of the oracle.

use std::fmt;

/// Complaint of the oracle: the first thing that must not be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Complaint(pub String);

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Complaint {}

macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(Complaint(format!($($message)+)));
        }
    };
}
pub(super) use ensure;
