//! The provider library that belongs to this command.

use std::fs::Permissions;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// File name of the library as `cargo build` leaves it.
pub(crate) const NAME: &str = "liburxe.so";

/// The library within this executable, if it was built so.
#[cfg(feature = "embedded")]
const EMBEDDED: Option<&[u8]> = Some(include_bytes!(env!("URXE_EMBEDDED_LIBRARY")));
#[cfg(not(feature = "embedded"))]
const EMBEDDED: Option<&[u8]> = None;

/// `liburxe.so` beside this executable: the two files travel together. One that brings the library along puts it there.
pub(crate) fn beside_this_command() -> Result<PathBuf> {
    let command = std::env::current_exe().context("finding this executable")?;
    let library = command.with_file_name(NAME);
    if let Some(bytes) = EMBEDDED {
        unpack(bytes, &library).with_context(|| {
            format!("writing {}: run `{} doctor` once as a user who may", library.display(), command.display())
        })?;
    }
    ensure!(
        library.is_file(),
        "{} is missing: keep {NAME} in the same folder as `urxe`. `make build` leaves both in target/release; \
         `cargo install --path cli --features embedded` installs a command that brings it along",
        library.display(),
    );
    Ok(library)
}

/// Writes the library, unless it is there. Programs that have loaded another one keep that.
fn unpack(bytes: &[u8], library: &Path) -> Result<()> {
    let is_as_long = std::fs::metadata(library).is_ok_and(|found| found.len() == bytes.len() as u64);
    if is_as_long && std::fs::read(library).is_ok_and(|found| found == bytes) {
        return Ok(());
    }
    let mut file = tempfile::NamedTempFile::new_in(library.parent().unwrap_or(Path::new("/")))?;
    file.write_all(bytes)?;
    file.as_file().set_permissions(Permissions::from_mode(0o644))?;
    file.persist(library)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn a_library_is_unpacked_once() {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join(NAME);
        let written = || std::fs::metadata(&library).unwrap();
        unpack(b"one", &library).unwrap();
        let first = written();
        assert_eq!(first.permissions().mode() & 0o777, 0o644);
        unpack(b"one", &library).unwrap();
        assert_eq!(written().ino(), first.ino(), "as it was");
        // Another release of the command.
        for bytes in [&b"two"[..], b"three"] {
            unpack(bytes, &library).unwrap();
            assert_eq!(std::fs::read(&library).unwrap(), bytes);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn a_folder_that_is_not_there_is_told() {
        assert!(unpack(b"one", Path::new("/nonexistent/urxe/liburxe.so")).is_err());
    }
}
