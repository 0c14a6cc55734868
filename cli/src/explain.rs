//! `urxe explain`: codes, and what `URXE_QUIRKS` does.

use anyhow::{Context as _, Result, ensure};
use urxe_engine::quirks::{QuirkSet, Row, TABLE};
use urxe_explain::{Entry, TABLES, Table};

use crate::out;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A completion status, NAK syndrome, asynchronous event, event or rejection of rdma_cm, or errno, by name or number:
    /// RETRY_EXC_ERR, 12, 0x62, EINVAL, QP_FATAL, REJECTED; `wc 12` or `rej 8` asks for one kind; `quirks` and `quirks 7` for what URXE_QUIRKS may do. Without any, all
    /// are listed
    #[arg(value_name = "CODE", num_args = 0..=2)]
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
            let found = find(&words);
            ensure!(!found.is_empty(), "nothing is known by `{}`; `urxe explain` lists all codes", args.code.join(" "));
            found.iter().map(|(table, entry)| meaning(table, entry)).collect::<Vec<_>>().join("\n")
        }
    })
}

/// List of all that can be asked for.
fn list() -> String {
    let row =
        |table: &Table, entry: &Entry| format!("  {:>4}  {:<30} {}\n", number(table, entry), entry.name, entry.meaning);
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

#[cfg(test)]
mod tests {
    use super::find;

    fn names(words: &[&str]) -> Vec<&'static str> {
        find(words).iter().map(|(_, entry)| entry.name).collect()
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
