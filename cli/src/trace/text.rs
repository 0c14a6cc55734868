//! The diagram as text.

use std::fmt::Write;

use super::ladder::Ladder;
use super::row::{Kind, NoteAuthor, Row, Wait};

/// Columns between the two ends, at least.
const LEAST: usize = 48;

/// A row, or several Middle packets of a message in one.
struct Line<'a> {
    row: &'a Row,
    label: String,
}

/// Draws the diagram; `all` shows each Middle packet.
pub(super) fn draw(ladder: &Ladder, all: bool) -> String {
    let lines = lines(&ladder.rows, all);
    let width = lines.iter().map(|line| line.label.chars().count() + 8).max().unwrap_or(0).max(LEAST);
    let mut out = String::new();
    // Writing to a string cannot fail.
    let (left, right) = (ladder.left.to_string(), ladder.right.to_string());
    let gap = (width + 2).saturating_sub(left.chars().count());
    let _ = writeln!(out, "{:>12}  {left}{right:>gap$}", "seconds");
    for Line { row, label } in &lines {
        let seconds = row.at.as_secs_f64();
        if let Some(wait) = row.wait {
            let _ = writeln!(out, "{:>12}  :   {}", "...", waited(wait));
        }
        let _ = writeln!(out, "{seconds:>12.6}  |{}|{}", arrow(row, label, width), mark(row));
        for note in &row.notes {
            let by = match note.by {
                NoteAuthor::Left => format!("{left}: "),
                NoteAuthor::Right => format!("{right}: "),
                NoteAuthor::File | NoteAuthor::Trace => String::new(),
            };
            let _ = writeln!(out, "{:>12}  |   ! {by}{}", "", note.text);
        }
    }
    out
}

fn lines(rows: &[Row], all: bool) -> Vec<Line<'_>> {
    let mut lines = Vec::new();
    let mut rest = rows;
    while let Some((row, _)) = rest.split_first() {
        let count = if all { 1 } else { run(rest) };
        let (run, after) = rest.split_at(count);
        let label = match run {
            [_, .., last] => {
                let again = if row.kind == Kind::Again { ", again" } else { "" };
                format!("{count} x {} PSN={}..{}{again}", row.opcode, row.psn, last.psn)
            }
            _ => row.label(),
        };
        lines.push(Line { row, label });
        rest = after;
    }
    lines
}

/// How many rows at the beginning stand in one line.
fn run(rows: &[Row]) -> usize {
    let is_plain =
        |row: &Row| row.is_middle() && row.notes.is_empty() && !row.lost && !row.discarded && row.wait.is_none();
    let Some(first) = rows.first().filter(|row| is_plain(row)) else { return 1 };
    let is_like =
        |row: &&Row| is_plain(row) && (row.there, row.kind, row.opcode) == (first.there, first.kind, first.opcode);
    rows.iter().take_while(is_like).count()
}

/// A time that was waited, in words.
pub(super) fn waited(wait: Wait) -> String {
    match wait {
        Wait::Timeout(time) => format!("ACK timeout: no answer for {time:.1?}"),
        Wait::Rnr(time) => format!("the responder had no receive posted: waited for {time:.1?}"),
    }
}

/// `-- label ----->`
fn arrow(row: &Row, label: &str, width: usize) -> String {
    let label = format!(" {label} ");
    let rest = width.saturating_sub(label.chars().count() + 4);
    let line = if row.kind == Kind::Again { "=" } else { "-" };
    match (row.there, row.lost || row.discarded) {
        (true, false) => format!("{}{label}{}>", line.repeat(3), line.repeat(rest)),
        (true, true) => format!("{}{label}{}X", line.repeat(3), line.repeat(rest)),
        (false, false) => format!("<{}{label}{}", line.repeat(rest), line.repeat(3)),
        (false, true) => format!("X{}{label}{}", line.repeat(rest), line.repeat(3)),
    }
}

const fn mark(row: &Row) -> &'static str {
    match (row.kind, row.lost) {
        (_, true) => " lost",
        _ if row.discarded => " dropped",
        (Kind::Nak, _) => " NAK",
        _ if row.reordered => " reordered",
        (Kind::Again, _) => " retry",
        (Kind::Request | Kind::Response, _) => "",
    }
}
