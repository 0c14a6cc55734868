//! Values that cannot be what was meant.

use std::fmt;

use crate::Opt;

/// A value that cannot be what was meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    option: Opt,
    value: String,
    what: String,
}

impl Mistake {
    pub(crate) fn new(option: Opt, value: &str, what: impl Into<String>) -> Self {
        Self { option, value: value.to_owned(), what: what.into() }
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { option, value, what } = self;
        write!(f, "--{} or {}={value}: {what}", option.name, option.variable)
    }
}

impl std::error::Error for Mistake {}
