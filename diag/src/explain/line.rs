//! A line, as text or JSON.

use std::fmt::Write as _;
use std::io::Write as _;

use urxe_net::cancellation::CancelGuard;

use super::Format;

/// One explanation.
#[derive(Debug, Default)]
pub(super) struct Line<'a> {
    /// `verb`, `completion` or `event`.
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
    /// Where in the program.
    pub(super) site: Option<&'a str>,
}

impl Line<'_> {
    /// Prints it by a single write, so that lines of several threads and processes do not mix.
    pub(super) fn print(&self, format: Format) {
        let mut text = match format {
            Format::Text => self.text(),
            Format::Json => self.json(),
        };
        text.push('\n');
        let _guard = CancelGuard::new();
        // Nothing can be done about a closed stderr.
        let _ = std::io::stderr().write_all(text.as_bytes());
    }

    fn text(&self) -> String {
        let Self { what, why, remedy, .. } = self;
        let site = self.site.map_or(String::new(), |site| format!(" [{site}]"));
        format!("urxe: {what}: {why}; {remedy}{site}")
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
        assert_eq!(line.text(), "urxe: ibv_x(\"a\\b\"): tab\there; do");
        assert_eq!(
            line.json(),
            r#"{"kind":"verb","device":"urxe0","code":"EINVAL","qp":17,"what":"ibv_x(\"a\\b\")","why":"tab\u0009here","do":"do"}"#
        );
    }
}
