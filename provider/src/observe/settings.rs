//! Settings of captures, explanations, strict mode and fault injection, from the environment.

use std::sync::OnceLock;

pub(crate) use urxe_options::{Mistake, Observations};

use super::verbs;
use crate::device;

/// The settings of this process, which the environment had when they were first asked for.
pub(crate) fn get() -> &'static Result<Observations, Mistake> {
    static SETTINGS: OnceLock<Result<Observations, Mistake>> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let settings = Observations::new(device::environment);
        if let Ok(Observations { faults: Some(script), .. }) = &settings {
            verbs::arm(script);
        }
        settings
    })
}
