//! Text for the person in front of the program.

use std::fmt::Display;
use std::io::Write;
use std::sync::OnceLock;

use urxe_net::cancellation::CancelGuard;

/// Functions that write to standard error in a process that may have something else there by now.
#[derive(Clone, Copy, Debug)]
pub struct StandardError {
    /// Remembers the present standard error as the place for text.
    pub expect_text: fn(),
    /// Writes text, without waiting, if standard error still is the remembered file, or that of the program's start.
    pub write: fn(&[u8]),
}

static STANDARD_ERROR: OnceLock<StandardError> = OnceLock::new();

/// Has text written by these functions from now on, where it would be by [`std::io::stderr`].
pub fn write_by(standard_error: StandardError) {
    // Set before.
    let _ = STANDARD_ERROR.set(standard_error);
}

/// Notes that somebody asks for text where standard error leads now.
pub(crate) fn are_wanted() {
    if let Some(standard_error) = STANDARD_ERROR.get() {
        (standard_error.expect_text)();
    }
}

/// Prints text, by a single write if it is short: texts of several threads and processes do not mix.
pub(crate) fn print(text: &str) {
    let _guard = CancelGuard::new();
    match STANDARD_ERROR.get() {
        Some(standard_error) => (standard_error.write)(text.as_bytes()),
        // Nothing can be done about a closed stderr.
        None => drop(std::io::stderr().write_all(text.as_bytes())),
    }
}

/// Prints text where a signal handler may be the caller: by async-signal-safe functions alone.
pub(crate) fn print_from_handler(text: &str) {
    let _guard = CancelGuard::new();
    if let Some(standard_error) = STANDARD_ERROR.get() {
        (standard_error.write)(text.as_bytes());
    }
}

/// Says something to the person in front of the program: one line.
pub fn complain(what: &dyn Display) {
    print(&format!("urxe: {what}\n"));
}
