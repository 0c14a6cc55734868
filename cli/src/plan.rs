//! Creating and removing files without touching anybody else's.
//!
//! A [`Plan`] is collected first and checked as a whole; the manifest is written before anything but empty folders, so an
//! installation that was interrupted can still be removed or repeated.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::device_node;
use crate::manifest::{Entry, Manifest};

/// Content that a path is to get.
enum Content {
    Bytes(Vec<u8>),
    Copy(PathBuf),
    /// A copy that everybody may run.
    Program(PathBuf),
    Link(PathBuf),
    /// The character device of `/dev/null`, as a node of its own.
    NullDevice,
}

/// Content that an installation is to create, except the folders, which follow from the paths.
#[derive(Default)]
pub(crate) struct Plan {
    items: Vec<(PathBuf, Content)>,
}

impl Plan {
    /// A file that holds `text`.
    pub(crate) fn text(&mut self, path: impl Into<PathBuf>, text: impl Into<String>) {
        self.bytes(path, text.into().into_bytes());
    }

    /// A file that holds `bytes`.
    pub(crate) fn bytes(&mut self, path: impl Into<PathBuf>, bytes: Vec<u8>) {
        self.items.push((path.into(), Content::Bytes(bytes)));
    }

    /// A copy of the file `source`.
    pub(crate) fn copy(&mut self, path: impl Into<PathBuf>, source: &Path) {
        self.items.push((path.into(), Content::Copy(source.to_path_buf())));
    }

    /// A copy of the program `source`.
    pub(crate) fn program(&mut self, path: impl Into<PathBuf>, source: &Path) {
        self.items.push((path.into(), Content::Program(source.to_path_buf())));
    }

    /// A symlink to `target`, which may be relative.
    pub(crate) fn link(&mut self, path: impl Into<PathBuf>, target: impl Into<PathBuf>) {
        self.items.push((path.into(), Content::Link(target.into())));
    }

    /// A device node with the number of `/dev/null`. Its mode and owner are its own.
    pub(crate) fn null_device(&mut self, path: impl Into<PathBuf>) {
        self.items.push((path.into(), Content::NullDevice));
    }

    /// Makes it so in a folder that is new, and that somebody removes as a whole.
    pub(crate) fn write(self) -> Result<()> {
        let mut made: Option<PathBuf> = None;
        for (path, content) in &self.items {
            let dir = path.parent().context("a path without a folder")?;
            if made.as_deref() != Some(dir) {
                fs::create_dir_all(dir).with_context(|| format!("creating the folder {}", dir.display()))?;
                made = Some(dir.to_path_buf());
            }
            match content {
                Content::Bytes(bytes) => fs::write(path, bytes),
                Content::Copy(source) | Content::Program(source) => fs::copy(source, path).map(|_| ()),
                Content::Link(target) => symlink(target, path),
                Content::NullDevice => device_node::make(path),
            }
            .with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(())
    }

    /// Makes it so, replacing an earlier installation whose manifest is at `manifest_path`. Refuses, before it changes
    /// anything, when a path is taken by a file that the earlier installation did not create.
    pub(crate) fn apply(mut self, manifest_path: &Path) -> Result<()> {
        let old = Manifest::read(manifest_path)?.unwrap_or_default();
        for (path, _) in &self.items {
            if path.symlink_metadata().is_ok() && !old.owns(path) {
                bail!("{} exists and urxe did not create it: move it away first", path.display());
            }
        }

        let manifest = self.manifest(manifest_path, &old);
        let text = manifest.to_text()?;
        let dirs = |entries: &[Entry]| -> Vec<PathBuf> {
            entries.iter().filter(|entry| matches!(entry, Entry::Dir(_))).map(|entry| entry.path().into()).collect()
        };
        for dir in dirs(&manifest.entries) {
            create_dir(&dir)?;
        }
        let stale = |entry: &&Entry| !manifest.entries.iter().any(|kept| kept.path() == entry.path());
        remove_entries(old.entries.iter().filter(stale))?;
        replace(manifest_path, &Content::Bytes(text.into_bytes()))?;
        for (path, content) in self.items.drain(..) {
            // A node that is there keeps the mode and the owner that an administrator gave it.
            if !matches!(content, Content::NullDevice) || !device_node::is_null_device(&path) {
                replace(&path, &content)?;
            }
        }
        Ok(())
    }

    /// Paths that will be urxe's afterwards: folders first (those of the old manifest and those that are missing now), then
    /// the manifest itself, then the rest.
    fn manifest(&self, manifest_path: &Path, old: &Manifest) -> Manifest {
        let mut dirs: Vec<PathBuf> = Vec::new();
        for path in self.items.iter().map(|(path, _)| path.as_path()).chain([manifest_path]) {
            for dir in path.ancestors().skip(1) {
                if !dirs.iter().any(|known| known == dir) && (!dir.is_dir() || old.owns(dir)) {
                    dirs.push(dir.to_path_buf());
                }
            }
        }
        dirs.sort();
        let mut entries: Vec<Entry> = dirs.into_iter().map(Entry::Dir).collect();
        entries.push(Entry::File(manifest_path.to_path_buf()));
        entries.extend(self.items.iter().map(|(path, content)| match content {
            Content::Bytes(_) | Content::Copy(_) | Content::Program(_) => Entry::File(path.clone()),
            Content::Link(target) => Entry::Link(path.clone(), target.clone()),
            Content::NullDevice => Entry::NullDevice(path.clone()),
        }));
        Manifest { entries }
    }
}

/// Removes what the manifest at `manifest_path` lists; false when there is no manifest.
pub(crate) fn remove(manifest_path: &Path) -> Result<bool> {
    let Some(manifest) = Manifest::read(manifest_path)? else { return Ok(false) };
    // The manifest goes after everything that it lists, so that a removal that failed can be repeated; folders last.
    let (own, rest): (Vec<&Entry>, Vec<&Entry>) =
        manifest.entries.iter().partition(|entry| entry.path() == manifest_path || matches!(entry, Entry::Dir(_)));
    remove_entries(rest.into_iter())?;
    remove_entries(own.into_iter())?;
    Ok(true)
}

/// Removes entries in reverse order. What is gone or has become somebody else's is passed over, and so is a folder
/// that is not empty.
fn remove_entries<'a>(entries: impl DoubleEndedIterator<Item = &'a Entry>) -> Result<()> {
    for entry in entries.rev().filter(|entry| entry.is_in_place()) {
        let path = entry.path();
        let result = match entry {
            Entry::Dir(_) => fs::remove_dir(path),
            Entry::File(_) | Entry::Link(..) | Entry::NullDevice(_) => fs::remove_file(path),
        };
        match result {
            Err(error) if !matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::NotFound) => {
                return Err(error).with_context(|| format!("removing {}", path.display()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Puts `text` at `path`, a file of ours that is there, in one step: nobody reads half of it.
pub(crate) fn replace_text(path: &Path, text: String) -> Result<()> {
    replace(path, &Content::Bytes(text.into_bytes()))
}

/// Puts `content` at `path` in one step: a process that has the old library mapped keeps the old file.
fn replace(path: &Path, content: &Content) -> Result<()> {
    let mut name = path.file_name().context("a path without a file name")?.to_owned();
    name.push(".urxe-new");
    let new = path.with_file_name(name);
    // A leftover of an interrupted run, or a link of somebody else's, which would be followed.
    let _ = fs::remove_file(&new);
    let written = match content {
        Content::Bytes(bytes) => fs::write(&new, bytes).and_then(|()| set_mode(&new, 0o644)),
        Content::Copy(source) => fs::copy(source, &new).and_then(|_| set_mode(&new, 0o644)),
        Content::Program(source) => fs::copy(source, &new).and_then(|_| set_mode(&new, 0o755)),
        Content::Link(target) => symlink(target, &new),
        Content::NullDevice => device_node::make(&new),
    };
    written.and_then(|()| fs::rename(&new, path)).with_context(|| format!("writing {}", path.display())).inspect_err(
        |_| {
            let _ = fs::remove_file(&new);
        },
    )
}

/// World-readable whatever the umask: other users' programs load these files.
fn set_mode(path: &Path, mode: u32) -> std::io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

fn create_dir(path: &Path) -> Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    fs::create_dir(path)
        .and_then(|()| set_mode(path, 0o755))
        .with_context(|| format!("creating the folder {}", path.display()))
}

#[cfg(test)]
mod tests;
