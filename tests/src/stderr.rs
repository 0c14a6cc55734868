//! Standard error of this process, captured.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result, ensure};

/// Standard error goes to memory while this lives. One at a time in a process.
#[derive(Debug)]
pub struct Stderr {
    before: OwnedFd,
    caught: File,
    at: u64,
}

impl Stderr {
    /// Catches from now on.
    pub fn catch() -> Result<Self> {
        // SAFETY: a string.
        let fd = unsafe { libc::memfd_create(c"stderr".as_ptr(), libc::MFD_CLOEXEC) };
        ensure!(fd >= 0, "memfd_create: {}", std::io::Error::last_os_error());
        // SAFETY: new, and ours.
        let caught = unsafe { File::from_raw_fd(fd) };
        // SAFETY: descriptors that are there.
        let before = unsafe { libc::dup(2) };
        ensure!(before >= 0, "dup: {}", std::io::Error::last_os_error());
        // SAFETY: new, and ours.
        let before = unsafe { OwnedFd::from_raw_fd(before) };
        // Writers of several threads append.
        // SAFETY: as above.
        unsafe {
            libc::fcntl(fd, libc::F_SETFL, libc::O_APPEND);
            ensure!(libc::dup2(fd, 2) == 2, "dup2: {}", std::io::Error::last_os_error());
        }
        Ok(Self { before, caught, at: 0 })
    }

    /// The explanations since the last call, each as one line: urxe indents the lines after the first.
    pub fn explanations(&mut self) -> Result<Vec<String>> {
        let mut told: Vec<String> = Vec::new();
        for line in self.lines()? {
            ensure!(line.chars().count() <= 160 || line.starts_with('{'), "too long: {line}");
            match (line.strip_prefix("      "), told.last_mut()) {
                (Some(rest), Some(last)) => *last += &format!(" {rest}"),
                _ => told.push(line),
            }
        }
        Ok(told)
    }

    /// The lines since the last call.
    pub fn lines(&mut self) -> Result<Vec<String>> {
        let mut text = String::new();
        // The descriptor is shared with the writers, who append: moving its place does not move theirs.
        self.caught.seek(SeekFrom::Start(self.at))?;
        self.caught.read_to_string(&mut text).context("what was printed")?;
        self.at += text.len() as u64;
        Ok(text.lines().map(str::to_owned).collect())
    }
}

impl Drop for Stderr {
    fn drop(&mut self) {
        // SAFETY: descriptors of ours.
        unsafe { libc::dup2(self.before.as_raw_fd(), 2) };
    }
}
