//! The list of what an installation created: `uninstall` removes exactly this.
//!
//! A text file, one entry a line in order of creation: `dir PATH`, `file PATH`, `null-device PATH`, or `link PATH`
//! followed by a tab and the link's target.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::device_node::is_null_device;

/// File, folder or node that an installation created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Entry {
    Dir(PathBuf),
    File(PathBuf),
    Link(PathBuf, PathBuf),
    NullDevice(PathBuf),
}

impl Entry {
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Dir(path) | Self::File(path) | Self::Link(path, _) | Self::NullDevice(path) => path,
        }
    }

    /// Whether what is at the path now is still what the entry says. A symlink that became a device node is not.
    pub(crate) fn is_in_place(&self) -> bool {
        let Ok(metadata) = std::fs::symlink_metadata(self.path()) else { return false };
        match self {
            Self::Dir(_) => metadata.is_dir(),
            Self::File(_) => metadata.is_file(),
            Self::Link(path, target) => {
                metadata.is_symlink() && std::fs::read_link(path).is_ok_and(|found| found == *target)
            }
            Self::NullDevice(path) => is_null_device(path),
        }
    }
}

/// The entries of one installation, in order of creation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) entries: Vec<Entry>,
}

impl Manifest {
    /// Reads the manifest at `path`; `None` when there is none.
    pub(crate) fn read(path: &Path) -> Result<Option<Self>> {
        match std::fs::read_to_string(path) {
            Ok(text) => Self::parse(&text).with_context(|| format!("reading {}", path.display())).map(Some),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("reading {}", path.display())),
        }
    }

    /// Whether the installation that wrote this created what is at `path`, and it is still there.
    pub(crate) fn owns(&self, path: &Path) -> bool {
        self.entries.iter().any(|entry| entry.path() == path && entry.is_in_place())
    }

    pub(crate) fn to_text(&self) -> Result<String> {
        let mut text = String::new();
        for entry in &self.entries {
            let path = entry.path().to_str().with_context(|| format!("{:?} is not valid UTF-8", entry.path()))?;
            ensure!(!path.contains(['\n', '\t']), "{path:?}: a path with a line end or a tab cannot be written down");
            match entry {
                Entry::Dir(_) => text += &format!("dir {path}\n"),
                Entry::File(_) => text += &format!("file {path}\n"),
                Entry::NullDevice(_) => text += &format!("null-device {path}\n"),
                Entry::Link(_, target) => text += &format!("link {path}\t{}\n", target.display()),
            }
        }
        Ok(text)
    }

    fn parse(text: &str) -> Result<Self> {
        let entry = |line: &str| match line.split_once(' ') {
            Some(("dir", path)) => Ok(Entry::Dir(path.into())),
            Some(("file", path)) => Ok(Entry::File(path.into())),
            Some(("null-device", path)) => Ok(Entry::NullDevice(path.into())),
            Some(("link", rest)) => match rest.split_once('\t') {
                Some((path, target)) => Ok(Entry::Link(path.into(), target.into())),
                None => bail!("no link target in {line:?}"),
            },
            _ => bail!("not an entry of a manifest: {line:?}"),
        };
        Ok(Self { entries: text.lines().map(entry).collect::<Result<_>>()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trip() {
        let manifest = Manifest {
            entries: vec![
                Entry::Dir("/var/lib/urxe".into()),
                Entry::File("/etc/with space/urxe.driver".into()),
                Entry::Link("/dev/infiniband/uverbs0".into(), "/dev/null".into()),
                Entry::NullDevice("/dev/infiniband/uverbs1".into()),
            ],
        };
        assert_eq!(Manifest::parse(&manifest.to_text().unwrap()).unwrap(), manifest);
    }

    #[test]
    fn paths_with_tabs_or_newlines_are_not_written() {
        for path in ["/a\nfile /etc/passwd", "/a\tb"] {
            assert!(Manifest { entries: vec![Entry::File(path.into())] }.to_text().is_err(), "{path:?}");
        }
    }

    #[test]
    fn damaged_text_is_refused() {
        assert!(Manifest::parse("file").is_err());
        assert!(Manifest::parse("link /a").is_err());
        assert!(Manifest::parse("socket /a").is_err());
    }
}
