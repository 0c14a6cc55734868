//! Explanations on standard error of every verb that fails and every completion with an error: the cause, with what was
//! asked, and on the next line the remedy.
//!
//! `verbs` explains failed calls, `cm` those of rdma_cm and its events, `completions` errors that show later, `drops` what
//! shows nowhere, `faults` counts what was asked for, `line` prints; `held` keeps texts for the end of the process, `record`
//! in a file.

mod cm;
mod completions;
pub(super) mod drops;
mod faults;
mod held;
mod line;
mod print;
mod record;
mod verbs;

use line::Line;
use urxe_options::Format;
use urxe_wire::Qpn;

pub use cm::{CmEvent, cm_event, cm_failed};
pub(super) use completions::{async_event, completion, overrun};
pub use faults::tell_hits;
pub use held::tell_held;
pub use line::quoted;
pub use record::record_in;
pub use verbs::{Quiet, failed, is_answer, is_wanted, with_reason};

/// Notes that this process has opened a device with faults: the program's end tells of each rule how often it struck.
pub(super) fn begin_faults() {
    faults::begin();
    if wanted() == Some(Format::Held) {
        held::register();
    }
}

/// Tells of something that is no error here.
pub(super) fn advise(device: &str, qpn: Qpn, what: &str, why: &str, remedy: &str, site: Option<&str>) {
    let qp = (qpn != Qpn::default()).then_some(qpn.get());
    let format = wanted().filter(|format| *format == Format::Json).unwrap_or(Format::Text);
    let site = site.filter(|site| !site.is_empty());
    Line { kind: "strict", device, code: "strict", qp, what, why, remedy, site, ..Line::default() }.print(format);
}

/// How this process wants them, if at all.
fn wanted() -> Option<Format> {
    super::settings::get().as_ref().ok()?.explain
}
