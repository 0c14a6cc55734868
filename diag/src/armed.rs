//! Fault rules that concern the process instead of a device: whether verbs are to fail, and whether a device was taken out.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use urxe_faults::Script;

use urxe_runtime::fork_safe_mutex::ForkSafeMutex;

/// Any verb is to fail.
static ARMED: AtomicBool = AtomicBool::new(false);
pub(super) static SCRIPT: OnceLock<ForkSafeMutex<Script>> = OnceLock::new();
pub(super) static ARMED_AT: OnceLock<Instant> = OnceLock::new();

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

/// Whether a fault rule may fail a verb. Costs one load.
pub fn is_armed() -> bool {
    !crate::UNOBSERVED && ARMED.load(Ordering::Relaxed)
}
