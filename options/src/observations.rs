//! Parsed options of diagnostics: captures, explanations, faults, strict mode.

use std::path::PathBuf;

use urxe_engine::QuirkSet;
use urxe_faults::Script;

use crate::{EXPLAIN, FAULTS, Mistake, Opt, PCAP, PCAP_ROTATE, PCAP_SNAPLEN, QUIRKS, STRICT};

/// Old files that are kept where nobody says how many.
const OLD_FILES: u32 = 4;

/// Settings of captures, explanations, faults, strict mode and quirks.
#[derive(Debug, Clone, Default)]
pub struct Observations {
    /// Packets are written down.
    pub capture: Option<Capture>,
    /// Format of explanations, if they are on.
    pub explain: Option<Format>,
    /// Fault script.
    pub faults: Option<Script>,
    /// Strict mode, if it is on.
    pub strict: Option<Strictness>,
    /// Behaviours that are allowed and rarely happen, if they are on.
    pub quirks: Option<QuirkSet>,
}

/// File of a capture, and limits of its size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capture {
    /// The file; `%p` in its name stands for the process id.
    pub path: PathBuf,
    /// Bytes kept of each packet, from the Ethernet header on; 0 for all.
    pub snaplen: u32,
    /// Bytes after which a new file is begun, and how many old ones are kept.
    pub rotation: Option<(u64, u32)>,
}

/// Format of explanations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `urxe: what: why; do this`.
    Text,
    /// One JSON object a line.
    Json,
    /// Text, all at once, when the process ends with a status other than 0.
    Held,
}

/// Extras of strict mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Strictness {
    /// Reports name the place in the program.
    pub with_sites: bool,
    /// The last bytes of a WRITE come first.
    pub write_order: bool,
}

impl Observations {
    /// Parses the variables, each by its name; `None` and empty is "not set". A script of faults may be in a file, which is
    /// read. In a [job of continuous integration](is_ci) explanations are on, unless they are switched off.
    pub fn new(variable: impl Fn(&str) -> Option<String>) -> Result<Self, Mistake> {
        let value = |option: Opt| variable(option.variable).filter(|value| !value.trim().is_empty());
        Ok(Self {
            capture: capture(value(PCAP), value(PCAP_SNAPLEN), value(PCAP_ROTATE))?,
            explain: match value(EXPLAIN) {
                Some(text) => explain(&text)?,
                None => is_ci(&variable).then_some(Format::Text),
            },
            faults: value(FAULTS).map(|text| faults(&text)).transpose()?,
            strict: value(STRICT).map_or(Ok(None), |text| strict(&text))?,
            quirks: value(QUIRKS).map(|text| quirks(&text)).transpose()?,
        })
    }
}

/// Whether the variable `CI` says that this is a job of continuous integration, as GitHub, GitLab and others set it: who reads its
/// log wants to know why it failed.
pub fn is_ci(variable: impl Fn(&str) -> Option<String>) -> bool {
    variable("CI").is_some_and(|value| !["", "0", "false"].iter().any(|no| value.eq_ignore_ascii_case(no)))
}

fn expected<T>(option: Opt, value: &str, what: impl std::fmt::Display) -> Result<T, Mistake> {
    Err(Mistake::new(option, value, format!("expected {what}")))
}

fn capture(
    path: Option<String>,
    snaplen: Option<String>,
    rotation: Option<String>,
) -> Result<Option<Capture>, Mistake> {
    let Some(path) = path else {
        // Who says how packets are to be kept means them to be kept.
        return match [(PCAP_SNAPLEN, snaplen), (PCAP_ROTATE, rotation)]
            .into_iter()
            .find_map(|(option, value)| Some((option, value?)))
        {
            Some((option, value)) => {
                let what = format!("captures nothing by itself: --{} or {} names the file", PCAP.name, PCAP.variable);
                Err(Mistake::new(option, &value, what))
            }
            None => Ok(None),
        };
    };
    let snaplen = snaplen.map_or(Ok(0), |text| match text.trim().parse() {
        Ok(bytes) => Ok(bytes),
        Err(_) => expected(PCAP_SNAPLEN, &text, "a number of bytes"),
    })?;
    let rotation = rotation.map_or(Ok(None), |text| match sizes(&text) {
        Some(sizes) => Ok(Some(sizes)),
        None => expected(PCAP_ROTATE, &text, "SIZE or SIZE,FILES, such as 100M,5"),
    })?;
    Ok(Some(Capture { path: path.into(), snaplen, rotation }))
}

/// `SIZE` or `SIZE,FILES`; sizes may end in K, M or G.
fn sizes(text: &str) -> Option<(u64, u32)> {
    let (size, files) = match text.split_once(',') {
        Some((size, files)) => (size, files.trim().parse().ok()?),
        None => (text, OLD_FILES),
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

fn explain(text: &str) -> Result<Option<Format>, Mistake> {
    match text.trim() {
        "0" => Ok(None),
        "1" => Ok(Some(Format::Text)),
        "json" => Ok(Some(Format::Json)),
        "failure" => Ok(Some(Format::Held)),
        _ => expected(EXPLAIN, text, "0, 1, json or failure"),
    }
}

/// `0`, `1`, or names of what is wanted besides.
fn strict(text: &str) -> Result<Option<Strictness>, Mistake> {
    if text.trim() == "0" {
        return Ok(None);
    }
    let mut strictness = Strictness::default();
    for word in text.split(',').map(str::trim) {
        match word {
            "1" => {}
            "backtrace" => strictness.with_sites = true,
            "write-order" => strictness.write_order = true,
            _ => return expected(STRICT, text, "0, 1, backtrace, write-order or backtrace,write-order"),
        }
    }
    Ok(Some(strictness))
}

fn quirks(text: &str) -> Result<QuirkSet, Mistake> {
    text.parse().or_else(|what| expected(QUIRKS, text, what))
}

/// A script, or `@FILE` for one in a file.
fn faults(text: &str) -> Result<Script, Mistake> {
    let rules = match text.strip_prefix('@') {
        None => text.to_owned(),
        Some(path) if path.ends_with(".toml") => {
            let what = "rules; `urxe faults @FILE.toml` makes them from TOML, as `urxe run --faults` does by itself";
            return expected(FAULTS, text, what);
        }
        Some(path) => match std::fs::read_to_string(path) {
            Ok(rules) => rules,
            Err(error) => return expected(FAULTS, text, format_args!("a file that can be read ({error})")),
        },
    };
    let parsed: Result<Script, urxe_faults::Invalid> = rules.parse();
    let mut script = match parsed {
        Ok(script) => script,
        Err(invalid) => return expected(FAULTS, &invalid.item, invalid.expected),
    };
    match script.load_dictionaries(|path| std::fs::read_to_string(path)) {
        Ok(()) => Ok(script),
        Err(unread) => {
            let what = format_args!("a dictionary that can be read ({})", unread.why);
            expected(FAULTS, &format!("dict={}", unread.path), what)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(set: &[(&str, &str)]) -> Result<Observations, Mistake> {
        Observations::new(|name| set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
    }

    fn said(variable: &str, value: &str) -> String {
        with(&[(variable, value)]).unwrap_err().to_string()
    }

    #[test]
    fn file_sizes() {
        assert_eq!(sizes("1000"), Some((1000, 4)));
        assert_eq!(sizes("10K"), Some((10 << 10, 4)));
        assert_eq!(sizes("1G, 9"), Some((1 << 30, 9)));
        for wrong in ["", "x", "0", "10X", "10,", "-1", "99999999999G"] {
            assert_eq!(sizes(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn nothing_is_on_by_itself() {
        for nothing in [&[][..], &[("URXE_EXPLAIN", "0"), ("URXE_STRICT", "0"), ("URXE_PCAP", "")]] {
            let none = with(nothing).unwrap();
            assert!(none.capture.is_none() && none.explain.is_none() && none.strict.is_none());
            assert!(none.faults.is_none() && none.quirks.is_none());
        }
    }

    #[test]
    fn jobs_of_continuous_integration_are_explained() {
        let explains = |set: &[(&str, &str)]| with(set).unwrap().explain;
        for yes in ["true", "1", "True", "woodpecker"] {
            assert_eq!(explains(&[("CI", yes)]), Some(Format::Text), "{yes}");
            assert_eq!(explains(&[("CI", yes), ("URXE_EXPLAIN", "")]), Some(Format::Text), "{yes}");
            assert_eq!(explains(&[("CI", yes), ("URXE_EXPLAIN", "0")]), None, "{yes}");
            assert_eq!(explains(&[("CI", yes), ("URXE_EXPLAIN", "failure")]), Some(Format::Held), "{yes}");
        }
        for no in ["", "0", "false", "False"] {
            assert_eq!(explains(&[("CI", no)]), None, "{no}");
        }
    }

    #[test]
    fn diagnostics_by_variables() {
        assert_eq!(with(&[("URXE_EXPLAIN", "json")]).unwrap().explain, Some(Format::Json));
        let strict = with(&[("URXE_STRICT", "1,write-order")]).unwrap().strict;
        assert_eq!(strict, Some(Strictness { write_order: true, with_sites: false }));
        assert_eq!(with(&[("URXE_QUIRKS", "7")]).unwrap().quirks, Some(QuirkSet::new(7)));
        let set = [("URXE_PCAP", "/tmp/it"), ("URXE_PCAP_SNAPLEN", "96"), ("URXE_PCAP_ROTATE", "1M,2")];
        let capture = Capture { path: "/tmp/it".into(), snaplen: 96, rotation: Some((1 << 20, 2)) };
        assert_eq!(with(&set).unwrap().capture, Some(capture));
    }

    #[test]
    fn nonsense_is_named() {
        assert_eq!(said("URXE_EXPLAIN", "yes"), "--explain or URXE_EXPLAIN=yes: expected 0, 1, json or failure");
        assert!(said("URXE_STRICT", "1,order").starts_with("--strict or URXE_STRICT=1,order: expected 0, 1, "));
        assert!(said("URXE_QUIRKS", "often").contains("URXE_QUIRKS=often: expected a seed, such as 7,"));
        assert!(said("URXE_FAULTS", "drop=1%,dup=2").contains("URXE_FAULTS=dup=2: expected dup=1%"));
        assert!(said("URXE_FAULTS", "@/nowhere").contains("expected a file that can be read (No such file"));
        for (name, wrong) in [("URXE_PCAP_SNAPLEN", "few"), ("URXE_PCAP_ROTATE", "often")] {
            let said = with(&[("URXE_PCAP", "/tmp/it"), (name, wrong)]).unwrap_err().to_string();
            assert!(said.contains(&format!("{name}={wrong}: expected ")), "{said}");
        }
    }

    #[test]
    fn how_to_capture_is_no_capture() {
        for (name, value) in [("URXE_PCAP_SNAPLEN", "96"), ("URXE_PCAP_ROTATE", "1M")] {
            let said = said(name, value);
            assert!(
                said.contains(&format!("{name}={value}: captures nothing by itself: --pcap or URXE_PCAP")),
                "{said}"
            );
        }
    }
}
