//! Versions of glibc, as the names of symbol versions in ELF files tell them.

use std::fmt;

/// `2.34`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct Version(pub(crate) u32, pub(crate) u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// Returns the newest version that an ELF file names: the oldest glibc that it works with, or that it is.
pub(crate) fn newest(file: &[u8]) -> Option<Version> {
    const BEFORE: &[u8] = b"GLIBC_";
    let names = file.windows(BEFORE.len()).enumerate().filter(|(_, bytes)| *bytes == BEFORE);
    names.filter_map(|(start, _)| version(file.get(start + BEFORE.len()..)?)).max()
}

/// The version in front of a NUL: `2.2.5`, of which the last part does not matter.
fn version(bytes: &[u8]) -> Option<Version> {
    let end = bytes.iter().take(16).position(|byte| *byte == 0)?;
    let mut parts = std::str::from_utf8(bytes.get(..end)?).ok()?.split('.').map(str::parse);
    Some(Version(parts.next()?.ok()?, parts.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_counts() {
        let file = b"\x7fELF\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.9\0GLIBC_PRIVATE\0GLIBC_2.";
        assert_eq!(newest(file), Some(Version(2, 34)));
        assert_eq!(newest(b"\x7fELF"), None);
        assert_eq!(Version(2, 34).to_string(), "2.34");
    }
}
