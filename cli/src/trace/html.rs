//! The diagrams as a page for browsers: one file, with the packets as JSON, and a style sheet and a script that draw them.
//!
//! Members of the JSON: `files`, `warnings`, `opcodes` (names) and `exchanges`. An exchange has its two ends, the time of its
//! first packet, and a column for each field of its packets; a packet is a place in all columns.

use serde_json::{Value, json};

use super::ladder::Ladder;
use super::pairs::End;
use super::row::{Kind, NoteAuthor, Row, Wait};
use super::text;

const PAGE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");

/// Draws the page.
pub(super) fn draw(ladders: &[Ladder], files: &[String], warnings: &[String]) -> String {
    let title = files.join(", ").replace('&', "&amp;").replace('<', "&lt;");
    // In a script element only `</script` and `<!--` mean anything.
    let data = data(ladders, files, warnings).to_string().replace('<', "\\u003c");
    let mut page = String::with_capacity(PAGE.len() + STYLE.len() + SCRIPT.len() + data.len() + title.len());
    for part in PAGE.split_inclusive("}}") {
        let (text, slot) = part.split_once("{{").unwrap_or((part, ""));
        page += text;
        page += match slot {
            "title}}" => &title,
            "style}}" => STYLE,
            "data}}" => &data,
            "script}}" => SCRIPT,
            _ => "",
        };
    }
    page
}

/// The packets, as the script reads them.
fn data(ladders: &[Ladder], files: &[String], warnings: &[String]) -> Value {
    let mut opcodes = Vec::<String>::new();
    let exchanges: Vec<_> = ladders.iter().map(|ladder| exchange(ladder, &mut opcodes)).collect();
    json!({
        "version": env!("CARGO_PKG_VERSION"), "files": files, "warnings": warnings, "opcodes": opcodes,
        "exchanges": exchanges,
    })
}

fn exchange(ladder: &Ladder, opcodes: &mut Vec<String>) -> Value {
    let mut place = |name: String| {
        let known = opcodes.iter().position(|opcode| *opcode == name);
        known.unwrap_or_else(|| {
            opcodes.push(name);
            opcodes.len() - 1
        })
    };
    let column = |of: &dyn Fn(&Row) -> Value| Value::from(ladder.rows.iter().map(of).collect::<Vec<_>>());
    // Columns of which most packets have nothing: pairs of place and value.
    let sparse = |of: &dyn Fn(&Row) -> Option<Value>| {
        let rows = ladder.rows.iter().enumerate();
        Value::from(rows.filter_map(|(index, row)| Some(json!([index, of(row)?]))).collect::<Vec<_>>())
    };
    let notes = ladder.rows.iter().enumerate();
    let notes = notes.flat_map(|(index, row)| row.notes.iter().map(move |note| json!([index, by(note.by), note.text])));
    let mut before = 0;
    let at = ladder.rows.iter().map(|row| {
        let now = nanos(row.at);
        let since = now.saturating_sub(before);
        before = now;
        since
    });
    json!({
        "left": end(ladder.left),
        "right": end(ladder.right),
        "start": ladder.start.as_secs_f64(),
        "troubles": ladder.troubles(),
        // Nanoseconds since the packet before.
        "at": at.collect::<Vec<_>>(),
        "opcode": ladder.rows.iter().map(|row| place(row.opcode.to_string())).collect::<Vec<_>>(),
        "psn": column(&|row| row.psn.get().into()),
        "len": column(&|row| row.len.into()),
        "flags": column(&|row| flags(row).into()),
        "detail": sparse(&|row| (!row.detail.is_empty()).then(|| row.detail.trim().into())),
        "flight": sparse(&|row| row.flight.map(|flight| nanos(flight).into())),
        "wait": sparse(&|row| row.wait.map(|wait| json!([kind(wait), text::waited(wait)]))),
        "notes": notes.collect::<Vec<_>>(),
    })
}

fn end(end: End) -> Value {
    json!({"address": end.address.to_string(), "qp": end.qpn.map(|qpn| format!("{qpn:#x}"))})
}

/// Bits of the column `flags`, as in `page.js`.
fn flags(row: &Row) -> u32 {
    let bits = [
        row.there,
        row.lost,
        row.reordered,
        row.kind == Kind::Again,
        matches!(row.kind, Kind::Response | Kind::Nak),
        row.kind == Kind::Nak,
        row.is_middle(),
        row.is_trouble(),
        row.discarded,
    ];
    bits.iter().zip(0..).map(|(bit, place)| u32::from(*bit) << place).sum()
}

const fn by(by: NoteAuthor) -> &'static str {
    match by {
        NoteAuthor::Left => "left",
        NoteAuthor::Right => "right",
        NoteAuthor::File => "file",
        NoteAuthor::Trace => "trace",
    }
}

const fn kind(wait: Wait) -> &'static str {
    match wait {
        Wait::Timeout(_) => "timeout",
        Wait::Rnr(_) => "rnr",
    }
}

/// Nanoseconds; captures are shorter than 584 years.
fn nanos(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
