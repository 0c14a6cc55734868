//! An explanation as text (the cause on one line, the remedy on the next) or as a line of JSON.

use std::fmt::Write as _;
use std::io::IsTerminal as _;

use urxe_options::Format;

use crate::settings;

/// Explanation: cause and remedy.
#[derive(Debug, Default)]
pub(super) struct Line<'a> {
    /// `verb`, `cm` (functions and events of librdmacm), `completion`, `event`, `dropped`, `faults` or `strict`.
    pub(super) kind: &'a str,
    /// The device.
    pub(super) device: &'a str,
    /// Name of the status, errno or event.
    pub(super) code: &'a str,
    /// The queue pair's number.
    pub(super) qp: Option<u32>,
    /// The work request.
    pub(super) wr_id: Option<u64>,
    /// The failed operation.
    pub(super) what: &'a str,
    /// The rule that was broken.
    pub(super) why: &'a str,
    /// The remedy.
    pub(super) remedy: &'a str,
    /// Place in the program.
    pub(super) site: Option<&'a str>,
}

/// The longest line of text, in characters.
const WIDTH: usize = 160;
/// Start of the first line.
const NAME: &str = "urxe: ";
/// Start of the other lines.
const INDENT: &str = "      ";

impl Line<'_> {
    /// Renders the explanation as it is printed, line ends included.
    pub(super) fn rendered(&self, format: Format) -> String {
        match format {
            Format::Text => self.text(settings::has_colour() && std::io::stderr().is_terminal()),
            Format::Json => self.json() + "\n",
            Format::Held => self.text(false),
        }
    }

    /// Renders the explanation for a file.
    pub(super) fn recorded(&self, format: Format) -> String {
        match format {
            Format::Json => self.rendered(format),
            Format::Text | Format::Held => self.text(false),
        }
    }

    fn text(&self, is_coloured: bool) -> String {
        let Self { kind, what, why, remedy, .. } = self;
        let (red, green, plain) = if is_coloured { ("\x1b[1;31m", "\x1b[32m", "\x1b[0m") } else { ("", "", "") };
        // Of strict mode, what was seen is the cause.
        let cause = if *kind == "strict" { format!("{what}: {why}") } else { format!("{why} ({what})") };
        let site = self.site.map_or(String::new(), |site| format!(" [{site}]"));
        let mut out = String::new();
        for (index, line) in wrapped(&cause).into_iter().enumerate() {
            let start = if index == 0 { NAME } else { INDENT };
            out += &format!("{start}{red}{line}{plain}\n");
        }
        for line in wrapped(&format!("{remedy}{site}")) {
            out += &format!("{INDENT}{green}{line}{plain}\n");
        }
        out
    }

    fn json(&self) -> String {
        let mut out = String::from("{");
        let mut field = |name: &str, value: &str| {
            // Writing to a string cannot fail.
            let _ = write!(out, "{}\"{name}\":{value}", if out.len() > 1 { "," } else { "" });
        };
        field("kind", &quoted(self.kind));
        field("device", &quoted(self.device));
        field("code", &quoted(self.code));
        if let Some(qp) = self.qp {
            field("qp", &qp.to_string());
        }
        if let Some(wr_id) = self.wr_id {
            field("wr_id", &wr_id.to_string());
        }
        field("what", &quoted(self.what));
        field("why", &quoted(self.why));
        field("do", &quoted(self.remedy));
        if let Some(site) = self.site {
            field("at", &quoted(site));
        }
        out.push('}');
        out
    }
}

/// Breaks a text between words into lines of at most [`WIDTH`] characters, their start included.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if NAME.len() + line.chars().count() + 1 + word.chars().count() <= WIDTH => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// A JSON string (RFC 8259 7).
pub fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c < ' ' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let line = Line {
            kind: "verb",
            device: "urxe0",
            code: "EINVAL",
            qp: Some(17),
            what: "ibv_x(\"a\\b\")",
            why: "tab\there",
            remedy: "do",
            ..Line::default()
        };
        assert_eq!(line.text(false), "urxe: tab here (ibv_x(\"a\\b\"))\n      do\n");
        let coloured = "urxe: \x1b[1;31mtab here (ibv_x(\"a\\b\"))\x1b[0m\n      \x1b[32mdo\x1b[0m\n";
        assert_eq!(line.text(true), coloured);
        assert_eq!(
            line.json(),
            r#"{"kind":"verb","device":"urxe0","code":"EINVAL","qp":17,"what":"ibv_x(\"a\\b\")","why":"tab\u0009here","do":"do"}"#
        );
    }
    #[test]
    fn no_line_is_longer_than_160_characters() {
        let long = "word ".repeat(100);
        let line = Line { kind: "event", what: "a", why: &long, remedy: &long, ..Line::default() };
        let text = line.text(false);
        assert!(text.lines().all(|line| line.chars().count() <= 160), "{text}");
        assert!(text.lines().any(|line| line.chars().count() > 150), "{text}");
        assert_eq!(text.matches("word").count(), 200);
        assert_eq!(text.lines().filter(|line| line.starts_with("urxe: ")).count(), 1);
        let strict = Line { kind: "strict", what: "seen", why: "matters", remedy: "do", ..Line::default() };
        assert_eq!(strict.text(false), "urxe: seen: matters\n      do\n");
    }
}
