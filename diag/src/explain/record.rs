//! A file of `urxe run` gets each explanation as well, where artifacts of a failure are asked for.
//!
//! The command makes the file, for its user alone, and the library never does. Nothing about it is taken on trust: the variable that
//! names its folder may be somebody else's.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::OnceLock;

use urxe_net::cancellation::CancelGuard;
use urxe_net::ipc::credentials::{file_may_have, own_uid};

/// Bytes that the file may have. A program that fails without end would fill the memory that the file is in.
const MOST: u64 = 1 << 20;

static FILE: OnceLock<PathBuf> = OnceLock::new();

/// Has explanations added to this file from now on, if it is there now: a program may have forbidden itself later to open files (seccomp(2)).
pub fn record_in(file: PathBuf) {
    if file.symlink_metadata().is_ok() {
        // Set before.
        let _ = FILE.set(file);
    }
}

/// Adds an explanation. What goes wrong loses it.
pub(super) fn add(text: impl FnOnce() -> String) {
    let Some(path) = FILE.get() else { return };
    let _guard = CancelGuard::new();
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let Ok(mut file) = OpenOptions::new().append(true).custom_flags(flags).open(path) else { return };
    let Ok(metadata) = file.metadata() else { return };
    let is_ours = metadata.is_file() && metadata.nlink() == 1 && metadata.uid() == own_uid();
    let text = text();
    let length = metadata.len().saturating_add(text.len() as u64);
    if is_ours && length <= MOST && usize::try_from(length).is_ok_and(file_may_have) {
        // By one write: texts of several processes do not mix.
        let _ = file.write_all(text.as_bytes());
    }
}
