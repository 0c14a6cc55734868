//! The diagram as text.

use std::fmt::Write;

use super::ladder::{Kind, Ladder, Row};

/// Columns between the two ends, at least.
const LEAST: usize = 48;

pub(super) fn draw(ladder: &Ladder) -> String {
    let width = ladder.rows.iter().map(|row| row.label.chars().count() + 8).max().unwrap_or(0).max(LEAST);
    let mut out = String::new();
    // Writing to a string cannot fail.
    let gap = (width + 2).saturating_sub(ladder.left.chars().count());
    let _ = writeln!(out, "{:>12}  {}{:>gap$}", "seconds", ladder.left, ladder.right);
    for row in &ladder.rows {
        let seconds = row.at.as_secs_f64();
        let _ = writeln!(out, "{seconds:>12.6}  |{}|{}", arrow(row, width), mark(row));
        for comment in &row.comments {
            let _ = writeln!(out, "{:>12}  |   ! {comment}", "");
        }
    }
    out
}

/// `-- label ----->`
fn arrow(row: &Row, width: usize) -> String {
    let label = format!(" {} ", row.label);
    let rest = width.saturating_sub(label.chars().count() + 4);
    let line = if row.kind == Kind::Again { "=" } else { "-" };
    match (row.there, row.lost) {
        (true, false) => format!("{}{label}{}>", line.repeat(3), line.repeat(rest)),
        (true, true) => format!("{}{label}{}X", line.repeat(3), line.repeat(rest)),
        (false, false) => format!("<{}{label}{}", line.repeat(rest), line.repeat(3)),
        (false, true) => format!("X{}{label}{}", line.repeat(rest), line.repeat(3)),
    }
}

const fn mark(row: &Row) -> &'static str {
    match (row.kind, row.lost) {
        (_, true) => " lost",
        (Kind::Nak, _) => " NAK",
        (Kind::Again, _) => " retry",
        (Kind::Request | Kind::Response, _) => "",
    }
}
