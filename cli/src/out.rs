//! Output of the subcommands.

use std::fmt::Display;
use std::io::{ErrorKind, Write as _};

use anyhow::{Context as _, Result};

/// Prints to standard output. That nobody reads to the end, as in `urxe trace FILE | head`, is no error.
pub(crate) fn print(text: &str) -> Result<()> {
    offer(text).map(|_| ())
}

/// Prints a text; false if nobody reads any more.
pub(crate) fn offer(text: &str) -> Result<bool> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error).context("standard output"),
    }
}

/// A line on standard error, by a single write.
pub(crate) fn complain(what: &dyn Display) {
    // Nothing can be done about a closed stderr.
    let _ = std::io::stderr().write_all(format!("urxe: {what}\n").as_bytes());
}
