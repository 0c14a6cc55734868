//! `urxe explain`: codes, and what `URXE_QUIRKS` does.

use std::io;

use anyhow::{Context as _, Result, ensure};
use urxe_engine::quirks::{QuirkSet, Row, TABLE};
use urxe_explain::{Entry, TABLES, Table, wc};

use crate::out;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A completion status, NAK syndrome, asynchronous event, event or rejection of rdma_cm, or errno, by name or number:
    /// RETRY_EXC_ERR, 12, 0x62, EINVAL, QP_FATAL, REJECTED; `wc 12` or `rej 8` asks for one kind; a part of a name, or the text that a
    /// program prints of it; `quirks` and `quirks 7` for what URXE_QUIRKS may do. Without any, all are listed
    #[arg(value_name = "CODE")]
    code: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let words: Vec<&str> = args.code.iter().map(String::as_str).collect();
    out::print(&match words[..] {
        [] => list(),
        ["quirks"] => TABLE.iter().map(quirk).collect(),
        ["quirks", value] => {
            let quirks: QuirkSet = value.parse().with_context(|| format!("URXE_QUIRKS={value}"))?;
            quirks.shown().map(quirk).collect()
        }
        _ => {
            let exact = find(&words);
            let found = if exact.is_empty() { search(&args.code.join(" ")) } else { exact };
            ensure!(!found.is_empty(), "nothing is known by `{}`; `urxe explain` lists all codes", args.code.join(" "));
            // An exact number is a code of each kind.
            if found.len() > MANY {
                found.iter().map(|(table, entry)| row(table, entry)).collect()
            } else {
                found.iter().map(|(table, entry)| meaning(table, entry)).collect::<Vec<_>>().join("\n")
            }
        }
    })
}

/// Codes that are more than this are listed, a line each.
const MANY: usize = TABLES.len();

fn row(table: &Table, entry: &Entry) -> String {
    format!("  {:>4}  {:<30} {}\n", number(table, entry), entry.name, entry.meaning)
}

/// List of all that can be asked for.
fn list() -> String {
    let codes = TABLES.iter().map(|table| {
        let rows: String = table.entries.iter().map(|entry| row(table, entry)).collect();
        format!("{} (`urxe explain {} CODE`):\n{rows}\n", table.kind, table.word)
    });
    let quirks = TABLE.iter().map(|row| format!("  {:<16} {}\n", row.name, row.what));
    let title = "what devices may do (`urxe explain quirks`):\n".to_owned();
    codes.chain([title]).chain(quirks).collect()
}

/// Text about a code.
fn meaning(table: &Table, entry: &Entry) -> String {
    let Entry { name, meaning, cause, remedy, .. } = entry;
    let number = number(table, entry);
    format!("{name} ({}, {number})\n  means:  {meaning}\n  cause:  {cause}\n  remedy: {remedy}\n", table.kind)
}

/// Text about a behaviour that devices may show.
fn quirk(row: &Row) -> String {
    format!("{}\n  does:    {}\n  allowed: {}\n  so:      {}\n", row.name, row.what, row.source, row.lesson)
}

/// NAK syndromes are written in hexadecimal, as in a capture.
fn number(table: &Table, entry: &Entry) -> String {
    if table.word == "nak" { format!("{:#04x}", entry.number) } else { entry.number.to_string() }
}

fn find(words: &[&str]) -> Vec<(Table, &'static Entry)> {
    let (kind, code) = match *words {
        [kind, code] => (Some(kind), code),
        [code] => (None, code),
        _ => return Vec::new(),
    };
    let number = match code.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => code.parse().ok(),
    };
    let tables = TABLES.iter().filter(|table| kind.is_none_or(|kind| table.word.eq_ignore_ascii_case(kind)));
    let matching = tables.filter_map(|table| {
        let entry = match number {
            // All RNR NAKs are one, whatever their timer (IBA 9.7.5.2).
            Some(number @ 0x20..0x40) if table.word == "nak" => table.by_number(number & !0x1f),
            Some(number) => table.by_number(number),
            None => table.by_name(code),
        };
        entry.map(|entry| (*table, entry))
    });
    let mut found: Vec<_> = matching.collect();
    // Of all codes, only syndromes are written in hexadecimal.
    if code.starts_with("0x") && found.iter().any(|(table, _)| table.word == "nak") {
        found.retain(|(table, _)| table.word == "nak");
    }
    found
}

/// Looks for codes whose text the words have, as programs print it, or whose name has the words as a part.
fn search(words: &str) -> Vec<(Table, &'static Entry)> {
    /// Shorter words are a part of too many.
    const LEAST: usize = 3;
    let words = words.to_lowercase();
    let name = words.replace([' ', '-'], "_");
    let entries = || TABLES.iter().flat_map(|table| table.entries.iter().map(|entry| (*table, entry)));
    let has_text = |table: &Table, entry: &Entry| match table.word {
        "wc" => wc::text(entry.number).map(str::to_lowercase),
        "errno" => {
            let text = io::Error::from_raw_os_error(entry.number.cast_signed()).to_string();
            text.split_once(" (os error").map(|(text, _)| text.to_lowercase())
        }
        _ => None,
    };
    let is_told =
        |(table, entry): &(Table, &'static Entry)| has_text(table, entry).is_some_and(|text| words.contains(&text));
    let told: Vec<_> = entries().filter(is_told).collect();
    if !told.is_empty() || name.len() < LEAST {
        return told;
    }
    entries().filter(|(_, entry)| entry.name.to_lowercase().contains(&name)).collect()
}

#[cfg(test)]
mod tests {
    use super::{find, search};

    fn names(words: &[&str]) -> Vec<&'static str> {
        find(words).iter().map(|(_, entry)| entry.name).collect()
    }

    #[test]
    fn codes_are_found_by_parts_and_by_what_programs_print() {
        let names = |words| search(words).iter().map(|(_, entry)| entry.name).collect::<Vec<_>>();
        assert_eq!(names("retry"), ["IBV_WC_RETRY_EXC_ERR", "IBV_WC_RNR_RETRY_EXC_ERR", "REJ_INVALID_RNR_RETRY"]);
        assert_eq!(names("RNR"), ["IBV_WC_RNR_RETRY_EXC_ERR", "RNR_NAK", "REJ_INVALID_RNR_RETRY"]);
        assert_eq!(names("rem access"), ["IBV_WC_REM_ACCESS_ERR"]);
        let line = "Failed status transport retry counter exceeded (12) for wr_id 2";
        assert_eq!(names(line), ["IBV_WC_RETRY_EXC_ERR"]);
        assert_eq!(names("Couldn't create CQ: Cannot allocate memory"), ["ENOMEM"]);
        assert!(names("nonsense").is_empty() && names("rn").is_empty() && names("").is_empty());
    }

    #[test]
    fn codes_are_found_by_number_name_and_kind() {
        assert_eq!(
            names(&["12"]),
            [
                "IBV_WC_RETRY_EXC_ERR",
                "IBV_EVENT_PKEY_CHANGE",
                "RDMA_CM_EVENT_MULTICAST_JOIN",
                "REJ_INVALID_GID",
                "ENOMEM"
            ]
        );
        assert_eq!(names(&["wc", "12"]), ["IBV_WC_RETRY_EXC_ERR"]);
        assert_eq!(names(&["0x62"]), ["NAK_REMOTE_ACCESS_ERROR"]);
        assert_eq!(names(&["nak", "0x2c"]), ["RNR_NAK"]);
        assert_eq!(names(&["qp_fatal"]), ["IBV_EVENT_QP_FATAL"]);
        assert_eq!(names(&["rejected"]), ["RDMA_CM_EVENT_REJECTED"]);
        assert_eq!(names(&["rej", "8"]), ["REJ_INVALID_SERVICE_ID"]);
        assert_eq!(names(&["EADDRNOTAVAIL"]), ["EADDRNOTAVAIL"]);
        assert!(names(&["nonsense"]).is_empty() && names(&["wc", "0x7777"]).is_empty());
    }
}
