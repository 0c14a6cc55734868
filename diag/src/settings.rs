//! Settings of captures, explanations, strict mode and fault injection, from the environment.

use std::sync::OnceLock;

pub use urxe_options::{Mistake, Observations};

use super::verbs;

/// The settings of this process, which the environment had when they were first asked for.
pub fn get() -> &'static Result<Observations, Mistake> {
    static SETTINGS: OnceLock<Result<Observations, Mistake>> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let settings = Observations::new(environment);
        if let Ok(Observations { faults: Some(script), .. }) = &settings {
            verbs::arm(script);
        }
        settings
    })
}

/// Returns a variable of the environment. What is not UTF-8 is no interface, address or number either: the message shows it as
/// far as it can.
pub fn environment(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}
