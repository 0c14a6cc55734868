//! Complaints of the oracle.

/// Complaint of the oracle: the first thing that must not be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Complaint(pub String);

macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(Complaint(format!($($message)+)));
        }
    };
}
pub(super) use ensure;
