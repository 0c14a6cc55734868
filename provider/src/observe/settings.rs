//! What the environment asks to see of devices: the variables `URXE_PCAP…`, `URXE_EXPLAIN`, `URXE_STRICT`,
//! `URXE_FAULTS`, `URXE_CHAOS`.

use std::env;
use std::fmt;
use std::sync::OnceLock;

use urxe_engine::Chaos;
use urxe_faults::Script;

use super::explain::Format;
use super::{capture, verbs};

/// All of it.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    pub(super) capture: Option<capture::Settings>,
    pub(super) explain: Option<Format>,
    pub(super) faults: Option<Script>,
    pub(super) strict: Option<Strictness>,
    pub(super) chaos: Option<Chaos>,
}

/// What strict mode does besides.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Strictness {
    /// It says where in the program it was.
    pub(super) with_sites: bool,
    /// The last bytes of a WRITE come first.
    pub(super) write_order: bool,
}

/// A variable whose value makes no sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Invalid {
    variable: &'static str,
    value: String,
    expected: String,
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { variable, value, expected } = self;
        write!(f, "{variable}={value}: expected {expected}")
    }
}

/// The settings of this process, which the environment had when they were first asked for.
pub(crate) fn get() -> &'static Result<Settings, Invalid> {
    static SETTINGS: OnceLock<Result<Settings, Invalid>> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let settings = parse(|name| env::var(name).ok());
        if let Ok(Settings { faults: Some(script), .. }) = &settings {
            verbs::arm(script);
        }
        settings
    })
}

fn parse(variable: impl Fn(&str) -> Option<String>) -> Result<Settings, Invalid> {
    let get = |name| variable(name).filter(|value| !value.is_empty());
    let invalid = |variable, value: &str, expected: &str| {
        Err(Invalid { variable, value: value.to_owned(), expected: expected.to_owned() })
    };
    let mut settings = Settings::default();
    let snaplen = match get("URXE_PCAP_SNAPLEN") {
        None => 0,
        Some(value) => match value.parse() {
            Ok(snaplen) => snaplen,
            Err(_) => return invalid("URXE_PCAP_SNAPLEN", &value, "a number of bytes"),
        },
    };
    let rotation = match get("URXE_PCAP_ROTATE") {
        None => None,
        Some(value) => match rotation(&value) {
            Some(rotation) => Some(rotation),
            None => return invalid("URXE_PCAP_ROTATE", &value, "SIZE or SIZE,FILES, such as 100M,5"),
        },
    };
    settings.capture = get("URXE_PCAP").map(|path| capture::Settings { path: path.into(), snaplen, rotation });
    settings.explain = match get("URXE_EXPLAIN").as_deref() {
        None | Some("0") => None,
        Some("1") => Some(Format::Text),
        Some("json") => Some(Format::Json),
        Some(value) => return invalid("URXE_EXPLAIN", value, "1 or json"),
    };
    settings.strict = match get("URXE_STRICT").as_deref() {
        None | Some("0") => None,
        Some(value) => match strictness(value) {
            Some(strictness) => Some(strictness),
            None => return invalid("URXE_STRICT", value, "1, backtrace, write-order or backtrace,write-order"),
        },
    };
    settings.chaos = match get("URXE_CHAOS").map(|value| (value.parse(), value)) {
        None => None,
        Some((Ok(chaos), _)) => Some(chaos),
        Some((Err(expected), value)) => return invalid("URXE_CHAOS", &value, &expected.to_string()),
    };
    if let Some(value) = get("URXE_FAULTS") {
        settings.faults = Some(faults(&value)?);
    }
    Ok(settings)
}

/// `1`, or names of what is wanted besides.
fn strictness(value: &str) -> Option<Strictness> {
    let mut strictness = Strictness::default();
    for word in value.split(',').map(str::trim) {
        match word {
            "1" => {}
            "backtrace" => strictness.with_sites = true,
            "write-order" => strictness.write_order = true,
            _ => return None,
        }
    }
    Some(strictness)
}

/// A script, or `@FILE` for one in a file.
fn faults(value: &str) -> Result<Script, Invalid> {
    let invalid =
        |value: &str, expected: String| Invalid { variable: "URXE_FAULTS", value: value.to_owned(), expected };
    let text = match value.strip_prefix('@') {
        None => value.to_owned(),
        Some(path) if path.ends_with(".toml") => {
            let expected =
                "rules; `urxe faults @FILE.toml` makes them from TOML, as `urxe run --faults` does by itself";
            return Err(invalid(value, expected.to_owned()));
        }
        Some(path) => std::fs::read_to_string(path)
            .map_err(|error| invalid(value, format!("a file that can be read ({error})")))?,
    };
    text.parse().map_err(|error: urxe_faults::Invalid| invalid(&error.item, error.expected.to_owned()))
}

/// `SIZE` or `SIZE,FILES`; sizes may end in K, M or G. Four old files are kept unless it says otherwise.
fn rotation(value: &str) -> Option<(u64, u32)> {
    let (size, files) = match value.split_once(',') {
        Some((size, files)) => (size, files.trim().parse().ok()?),
        None => (value, 4),
    };
    let size = size.trim();
    let (digits, unit) = match size.find(|c: char| !c.is_ascii_digit()) {
        Some(at) => size.split_at(at),
        None => (size, ""),
    };
    let unit = match unit {
        "" => 1,
        "K" | "k" => 1 << 10,
        "M" | "m" => 1 << 20,
        "G" | "g" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit).filter(|size| *size > 0).map(|size| (size, files))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> Result<Settings, Invalid> {
        parse(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn sizes() {
        assert_eq!(rotation("1000"), Some((1000, 4)));
        assert_eq!(rotation("10K"), Some((10 << 10, 4)));
        assert_eq!(rotation("1G, 9"), Some((1 << 30, 9)));
        for wrong in ["", "x", "0", "10X", "10,", "-1", "99999999999G"] {
            assert_eq!(rotation(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn nothing_is_on_by_itself_and_nonsense_is_named() {
        let settings = with(&[]).unwrap();
        assert!(settings.capture.is_none() && settings.explain.is_none());
        assert_eq!(with(&[("URXE_EXPLAIN", "json")]).unwrap().explain, Some(Format::Json));
        let strict = with(&[("URXE_STRICT", "1,write-order")]).unwrap().strict;
        assert_eq!(strict, Some(Strictness { write_order: true, with_sites: false }));
        assert!(with(&[("URXE_STRICT", "1,order")]).is_err());
        let invalid = with(&[("URXE_EXPLAIN", "yes")]).unwrap_err();
        assert_eq!(invalid.to_string(), "URXE_EXPLAIN=yes: expected 1 or json");
        let invalid = with(&[("URXE_CHAOS", "often")]).unwrap_err();
        assert!(invalid.to_string().starts_with("URXE_CHAOS=often: expected a seed, such as 7,"), "{invalid}");
    }
}
