//! Copies of programs.

use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt as _;
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

/// Writes a file that is to be executed, readable by everybody, for the reason of [`copy_program`].
///
/// # Errors
/// Failure of a system call or of cp(1).
pub fn write_program(path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) -> Result<()> {
    let path = path.as_ref();
    let draft = tempfile::NamedTempFile::new()?;
    fs::write(&draft, bytes)?;
    fs::set_permissions(&draft, Permissions::from_mode(0o755))?;
    // A new file, whoever executes the one of before.
    if let Err(error) = fs::remove_file(path) {
        ensure!(error.kind() == ErrorKind::NotFound, "{}: {error}", path.display());
    }
    copy_program(&draft, path)
}
