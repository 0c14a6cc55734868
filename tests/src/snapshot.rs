//! Snapshot of a tree of files, to compare before and after.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::world::Host;

/// Folders of a machine that an installation could write to.
const MACHINE: [&str; 6] = ["etc", "usr/lib", "usr/local", "usr/bin", "dev", "var/lib"];

/// Every path below some folders with its kind, mode, owner, link target, and what changes whenever a file's content does:
/// its inode, size and time of change, which nobody can set back. Links are not followed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot(BTreeMap<PathBuf, String>);

impl Snapshot {
    /// Snapshot of everything below `root`.
    pub fn of(root: &Path) -> Result<Self> {
        let mut files = BTreeMap::new();
        let mut pending = vec![root.to_path_buf()];
        while let Some(dir) = pending.pop() {
            let entries = match fs::read_dir(&dir) {
                // What this user cannot look into, nobody in a world of his can write to. Others' files come and go.
                Err(error)
                    if dir != root && matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::NotFound) =>
                {
                    continue;
                }
                entries => entries.with_context(|| format!("reading {}", dir.display()))?,
            };
            for entry in entries {
                let path = entry?.path();
                match describe(&path, &mut pending) {
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    what => _ = files.insert(path, what?),
                }
            }
        }
        Ok(Self(files))
    }

    /// Snapshot of the folders that an installation could write to on `host`.
    pub fn of_machine(host: &Host) -> Result<Self> {
        let mut all = Self::default();
        for dir in MACHINE {
            all.0.extend(Self::of(&host.root().join(dir))?.0);
        }
        // Terminals are made by who opens them, and no program can leave anything else there.
        let terminals = host.root().join("dev/pts");
        all.0.retain(|path, _| path.parent() != Some(&terminals));
        Ok(all)
    }

    /// A line for everything that is not there afterwards (`-`), and one for everything that was not before (`+`).
    pub fn difference(&self, after: &Self) -> Vec<String> {
        let gone = self.0.iter().filter(|(path, what)| after.0.get(*path) != Some(*what));
        let new = after.0.iter().filter(|(path, what)| self.0.get(*path) != Some(*what));
        gone.map(|(path, what)| format!("- {} {what}", path.display()))
            .chain(new.map(|(path, what)| format!("+ {} {what}", path.display())))
            .collect()
    }
}

fn describe(path: &Path, folders: &mut Vec<PathBuf>) -> io::Result<String> {
    let metadata = path.symlink_metadata()?;
    let what = if metadata.is_symlink() {
        fs::read_link(path)?.display().to_string()
    } else if metadata.is_dir() {
        folders.push(path.to_path_buf());
        // A folder's time changes when something comes and goes.
        String::new()
    } else {
        let (inode, size) = (metadata.ino(), metadata.size());
        format!("inode {inode}, {size} bytes, {}.{}", metadata.ctime(), metadata.ctime_nsec())
    };
    Ok(format!("{:o} {}:{} {what}", metadata.mode(), metadata.uid(), metadata.gid()))
}
