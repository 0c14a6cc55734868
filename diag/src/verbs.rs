//! Verbs that fail because `URXE_FAULTS` says so.

use urxe_explain::Verb;

use super::armed::{ARMED_AT, SCRIPT};
pub use super::armed::{has_taken_out, is_armed};
use super::explain;

/// The errno with which a fault rule has this call fail.
pub fn refuse(verb: Verb) -> Option<i32> {
    let armed_at = ARMED_AT.get()?;
    let refused = SCRIPT.get()?.with(|script| {
        // A script's clock starts with the device's; this is when the process first asked for one.
        script.at(armed_at.elapsed());
        // Those are for the devices' own copies.
        let _ = script.take_announcements();
        script.verb(verb)
    })?;
    let errno = i32::try_from(refused.0).unwrap_or(libc::EIO);
    Some(explain::with_reason(errno, || ("URXE_FAULTS asks for it", "see how the program takes it")))
}
