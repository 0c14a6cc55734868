//! Copies of programs.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// Copies a file that is to be executed, by cp(1). If this process opened it for writing, programs that other threads start meanwhile
/// would have it open as well, and `execve(2)` fails with ETXTBSY while anybody has.
///
/// # Errors
/// Failure of cp(1).
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
    let done = Command::new("cp").arg("--").args([from.as_ref(), to.as_ref()]).output().context("cp")?;
    ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    Ok(())
}
