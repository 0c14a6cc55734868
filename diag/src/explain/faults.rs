//! At the program's end: how often each rule of `URXE_FAULTS` struck.

use std::sync::atomic::{AtomicU32, Ordering};

use urxe_options::{Format, Observations};

use super::line::Line;
use super::wanted;
use crate::{messages, settings};

/// Process whose devices have faults; 0 before it opens one. A child of fork(2) has none of its own.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Notes that this process has opened a device with faults.
pub(super) fn begin() {
    OWNER.store(std::process::id(), Ordering::Relaxed);
}

/// Tells of each rule how often it struck, where explanations are on. To be called when the program ends.
pub fn tell_hits() {
    match wanted() {
        None | Some(Format::Held) => {}
        Some(format) => messages::print(&summary(format)),
    }
}

/// Lines about all rules, but for events and the removal of the device; empty in a process without a device.
pub(super) fn summary(format: Format) -> String {
    if OWNER.load(Ordering::Relaxed) != std::process::id() {
        return String::new();
    }
    let Ok(Observations { faults: Some(script), .. }) = settings::get() else { return String::new() };
    let tell = |rule, hits: u64| {
        let times = if hits == 1 { "once".to_owned() } else { format!("{hits} times") };
        let (why, remedy) = match hits {
            0 => (
                "warning: a rule of URXE_FAULTS never struck".to_owned(),
                "aim it at what the program does (`urxe faults --help`), or let the program run for longer",
            ),
            _ if format == Format::Json => (format!("a rule of URXE_FAULTS struck {times}"), ""),
            _ => return format!("urxe: URXE_FAULTS: {rule} struck {times}\n"),
        };
        Line { kind: "faults", code: "faults", what: rule, why: &why, remedy, ..Line::default() }.rendered(format)
    };
    script.counters().map(|counter| tell(counter.rule(), counter.hits())).collect()
}
