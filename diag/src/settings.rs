//! Settings of captures, explanations, strict mode and fault injection, from the environment.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

pub use urxe_options::{Mistake, Observations};

use super::armed;

/// The settings of this process, which the environment had when they were first asked for.
pub fn get() -> &'static Result<Observations, Mistake> {
    static SETTINGS: OnceLock<Result<Observations, Mistake>> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        HAS_COLOUR.store(may_colour(environment), Ordering::Relaxed);
        let settings = Observations::new(environment);
        if let Ok(Observations { faults: Some(script), .. }) = &settings {
            armed::arm(script);
        }
        settings
    })
}

/// Explanations at a terminal have colours.
static HAS_COLOUR: AtomicBool = AtomicBool::new(false);

/// Whether explanations at a terminal have colours: unless `NO_COLOR` is set (no-color.org) or `TERM` is `dumb`, when
/// the settings were first asked for.
pub(crate) fn has_colour() -> bool {
    HAS_COLOUR.load(Ordering::Relaxed)
}

fn may_colour(variable: impl Fn(&str) -> Option<String>) -> bool {
    let refused = variable("NO_COLOR").is_some_and(|value| !value.is_empty());
    !refused && variable("TERM").is_some_and(|terminal| terminal != "dumb")
}

/// Returns a variable of the environment. What is not UTF-8 is no interface, address or number either: the message shows it as
/// far as it can.
pub fn environment(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::may_colour;

    #[test]
    fn colours_are_refused_by_no_color_and_by_terminals_without_any() {
        let with = |set: &[(&str, &str)]| {
            may_colour(|name| set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
        };
        assert!(with(&[("TERM", "xterm")]) && with(&[("TERM", "xterm"), ("NO_COLOR", "")]));
        assert!(!with(&[]) && !with(&[("TERM", "dumb")]) && !with(&[("TERM", "xterm"), ("NO_COLOR", "1")]));
    }
}
