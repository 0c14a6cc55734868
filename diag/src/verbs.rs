//! Verbs that fail because `URXE_FAULTS` says so.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use urxe_explain::Verb;
use urxe_faults::Script;

use super::explain;
use urxe_runtime::fork_safe_mutex::ForkSafeMutex;

/// Any verb is to fail.
static ARMED: AtomicBool = AtomicBool::new(false);
static SCRIPT: OnceLock<ForkSafeMutex<Script>> = OnceLock::new();
static ARMED_AT: OnceLock<Instant> = OnceLock::new();

/// The script of this process; its rules about verbs count calls of all devices together.
pub(super) fn arm(script: &Script) {
    if script.is_about_verbs() && SCRIPT.set(ForkSafeMutex::new(script.clone())).is_ok() {
        ARMED_AT.get_or_init(Instant::now);
        ARMED.store(true, Ordering::Release);
    }
}

/// A script has taken devices out.
static TAKEN_OUT: AtomicBool = AtomicBool::new(false);

/// Notes that a script has taken a device out.
pub(super) fn devices_are_taken_out() {
    TAKEN_OUT.store(true, Ordering::Relaxed);
}

/// Whether a script has taken a device of this process out.
pub fn has_taken_out() -> bool {
    TAKEN_OUT.load(Ordering::Relaxed)
}

/// Whether any verb is to fail. Cheap.
pub fn is_armed() -> bool {
    !super::UNOBSERVED && ARMED.load(Ordering::Relaxed)
}

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
