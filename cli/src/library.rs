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
        unpack(bytes, &command, &library).with_context(|| {
            format!(
                "writing {}: run `{} doctor` once as a user who may write there",
                library.display(),
                command.display()
            )
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

/// Writes the library of `command`, unless it is there. Programs that have loaded another one keep that.
///
/// In a folder of cargo's builds, one that is newer than the command is left alone: it was built after it. Elsewhere times say
/// nothing, as copies and archives keep those of their originals.
fn unpack(bytes: &[u8], command: &Path, library: &Path) -> Result<()> {
    if let Ok(found) = std::fs::metadata(library) {
        let is_build = library.with_extension("d").exists();
        let is_newer = || Ok::<_, std::io::Error>(found.modified()? > std::fs::metadata(command)?.modified()?);
        if is_build && is_newer()?
            || found.len() == bytes.len() as u64 && std::fs::read(library).is_ok_and(|found| found == bytes)
        {
            return Ok(());
        }
    }
    let mut file = tempfile::NamedTempFile::new_in(library.parent().unwrap_or(Path::new("/")))?;
    file.write_all(bytes)?;
    file.as_file().set_permissions(Permissions::from_mode(0o644))?;
    file.persist(library)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::MetadataExt as _;
    use std::time::{Duration, SystemTime};

    use super::*;

    /// Gives a file a time of so many seconds since 1970.
    fn age(file: &Path, seconds: u64) {
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        File::options().write(true).open(file).unwrap().set_modified(time).unwrap();
    }

    #[test]
    fn a_library_is_unpacked_where_there_is_none_or_an_older_one() {
        let folder = tempfile::tempdir().unwrap();
        let [command, library] = ["urxe", NAME].map(|name| folder.path().join(name));
        std::fs::write(&command, "the command").unwrap();
        age(&command, 1000);
        let found = || (std::fs::read(&library).unwrap(), std::fs::metadata(&library).unwrap().ino());
        unpack(b"one", &command, &library).unwrap();
        let first = found();
        assert_eq!(first.0, b"one");
        assert_eq!(std::fs::metadata(&library).unwrap().permissions().mode() & 0o777, 0o644);
        // The same is left as it is.
        unpack(b"one", &command, &library).unwrap();
        assert_eq!(found(), first);
        // Another release of the command, however old its files look.
        for (bytes, time) in [(&b"two"[..], 999), (b"three", 1001)] {
            age(&library, time);
            unpack(bytes, &command, &library).unwrap();
            assert_eq!(found().0, bytes);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "nothing else is left");
        // Where cargo builds, what was built later stays.
        std::fs::write(folder.path().join("liburxe.d"), "").unwrap();
        for (bytes, time, left) in [(&b"four"[..], 1001, &b"three"[..]), (b"five", 999, b"five")] {
            age(&library, time);
            unpack(bytes, &command, &library).unwrap();
            assert_eq!(found().0, left);
        }
    }

    #[test]
    fn a_folder_that_is_not_there_is_told() {
        let library = Path::new("/nonexistent/urxe/liburxe.so");
        assert!(unpack(b"one", Path::new("/proc/self/exe"), library).is_err());
    }
}
