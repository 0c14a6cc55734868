//! A hook that container runtimes call before they start a container with a device: refuses images in which the library
//! cannot work, in a line that the engine shows.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{glibc, library};

/// Name of the hidden subcommand.
pub(crate) const SUBCOMMAND: &str = "cdi-check";

/// Bytes that are read of a file of an image, which may be of any length.
const MOST: u64 = 64 << 20;

/// A library that a build for this machine's glibc needs; one by `make … GLIBC=2.28` has its own copy.
const LIBGCC: &str = "libgcc_s.so.1";

/// Where dynamic linkers lie.
const FOLDERS: [&str; 6] = ["lib64", "lib", "usr/lib64", "usr/lib", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu"];

/// Reads the container's state (runtime-spec of OCI, "State") from standard input.
pub(crate) fn run() -> Result<()> {
    let mut state = String::new();
    io::stdin().read_to_string(&mut state)?;
    let state: Value = serde_json::from_str(&state).context("the state of the container on standard input")?;
    let bundle = Path::new(state["bundle"].as_str().context("no bundle in the container's state")?);
    let config = std::fs::read_to_string(bundle.join("config.json"))
        .with_context(|| format!("reading config.json in {}", bundle.display()))?;
    let config: Value = serde_json::from_str(&config)?;
    let root = bundle.join(config["root"]["path"].as_str().unwrap_or("rootfs"));
    let library = std::fs::read(library::beside_this_command()?)?;
    check(&root, &library)
}

/// Whether programs below `root` can load a library.
fn check(root: &Path, library: &[u8]) -> Result<()> {
    let needed = glibc::newest(library).unwrap_or_default();
    let needs_libgcc = library.windows(LIBGCC.len()).any(|bytes| bytes == LIBGCC.as_bytes());
    let root = &Image::open(root)?;
    if root.file(|name| name.starts_with("ld-linux-")).is_none() {
        if root.file(|name| name.starts_with("ld-musl-")).is_some() {
            bail!(
                "this image has musl (Alpine?), and urxe needs glibc {needed} or newer: take an image of Debian, Ubuntu, Fedora \
                 or RHEL, or leave out the device"
            );
        }
        // Statically linked programs only, or somewhere else: nothing is loaded, and nothing breaks.
        return Ok(());
    }
    if needs_libgcc && root.file(|name| name == LIBGCC).is_none() {
        bail!(
            "this image has no {LIBGCC}, which urxe needs: add its package (Debian libgcc-s1, RHEL libgcc), or leave out the device"
        );
    }
    let found = root.file(|name| name == "libc.so.6").and_then(|path| glibc::newest(&root.read(&path).ok()?));
    match found {
        Some(found) if found < needed => bail!(
            "this image has glibc {found}, and this build of urxe needs {needed} or newer: take a newer image, or a urxe that was \
             built for older ones (make tarball GLIBC={found})"
        ),
        _ => Ok(()),
    }
}

/// Root folder of an image, which may be anybody's work.
///
/// The hook runs as root outside the container: links of the image lead to files of the image only, and nothing but regular
/// files is opened. Before Linux 5.6, which has no openat2(2), nothing is found, and nothing refused.
struct Image(OwnedFd);

impl Image {
    fn open(root: &Path) -> Result<Self> {
        let folder = File::open(root).with_context(|| format!("opening {}", root.display()))?;
        Ok(Self(folder.into()))
    }

    /// Finds what is at `path` for processes of the image, and opens nothing yet: a descriptor of `O_PATH`.
    fn find(&self, path: &Path) -> io::Result<File> {
        let path = CString::new(path.as_os_str().as_bytes())?;
        // SAFETY: all-zero is a value of this plain C struct.
        let mut how: libc::open_how = unsafe { std::mem::zeroed() };
        how.flags = (libc::O_PATH | libc::O_CLOEXEC).unsigned_abs().into();
        how.resolve = libc::RESOLVE_IN_ROOT | libc::RESOLVE_NO_MAGICLINKS;
        let (root, size) = (self.0.as_raw_fd(), size_of::<libc::open_how>());
        // SAFETY: a C string, and a structure of that size to read.
        let fd = unsafe { libc::syscall(libc::SYS_openat2, root, path.as_ptr(), &raw const how, size) };
        let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: new, and ours.
        Ok(unsafe { File::from_raw_fd(fd) })
    }

    /// Path of a file of such a name, where dynamic linkers and the C library are.
    fn file(&self, is_it: impl Fn(&str) -> bool) -> Option<PathBuf> {
        FOLDERS.iter().find_map(|folder| {
            let entries = std::fs::read_dir(opened(&self.find(Path::new(folder)).ok()?)).ok()?;
            let mut names = entries.flatten().map(|entry| entry.file_name());
            let name = names.find(|name| name.to_str().is_some_and(&is_it))?;
            Some(Path::new(folder).join(name))
        })
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let file = self.find(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut bytes = Vec::new();
        File::open(opened(&file))?.take(MOST).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// Path that leads to what a descriptor of `O_PATH` has found.
fn opened(file: &File) -> PathBuf {
    Path::new("/proc/self/fd").join(file.as_raw_fd().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names in a library that needs libgcc.
    const LIBRARY: &[u8] = b"\x7fELF\0libgcc_s.so.1\0GLIBC_2.34\0";

    fn verdict(files: &[(&str, &str)]) -> Result<(), String> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        check(root.path(), LIBRARY).map_err(|error| error.to_string())
    }

    #[test]
    fn images_with_musl_old_glibc_or_no_libgcc_are_refused() {
        let linker = ("lib64/ld-linux-x86-64.so.2", "");
        let libgcc = ("usr/lib64/libgcc_s.so.1", "");
        assert!(verdict(&[("lib/ld-musl-x86_64.so.1", "")]).unwrap_err().contains("musl"));
        assert_eq!(verdict(&[("lib/ld-musl-x86_64.so.1", ""), linker, libgcc]), Ok(()));
        let old =
            verdict(&[linker, libgcc, ("usr/lib64/libc.so.6", "GLIBC_2.2.5\0GLIBC_2.28\0GLIBC_PRIVATE")]).unwrap_err();
        assert!(old.contains("has glibc 2.28") && old.contains("needs 2.34"), "{old}");
        assert_eq!(verdict(&[linker, libgcc, ("lib/x86_64-linux-gnu/libc.so.6", "GLIBC_2.36\0")]), Ok(()));
        assert!(verdict(&[linker]).unwrap_err().contains("no libgcc_s.so.1"));
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("lib64")).unwrap();
        std::fs::write(root.path().join(linker.0), "").unwrap();
        check(root.path(), b"\x7fELF\0GLIBC_2.28\0").unwrap();
        assert_eq!(verdict(&[]), Ok(()));
    }

    /// An image whose files are links that lead out of it, a pipe that nobody writes to, or a device.
    #[test]
    fn nothing_outside_the_image_is_read() {
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(outside.path().join("ld-musl-x86_64.so.1"), "").unwrap();
        std::fs::write(outside.path().join("libc.so.6"), "GLIBC_2.28").unwrap();
        std::os::unix::fs::symlink(outside.path(), root.path().join("lib")).unwrap();
        let check = || check(root.path(), LIBRARY);
        check().unwrap();
        let lib64 = root.path().join("lib64");
        std::fs::create_dir(&lib64).unwrap();
        for name in ["ld-linux-x86-64.so.2", "libgcc_s.so.1"] {
            std::fs::write(lib64.join(name), "").unwrap();
        }
        let up = Path::new("../../../../../../../..");
        let leaves = outside.path().strip_prefix("/").unwrap().join("libc.so.6");
        for target in [outside.path().join("libc.so.6"), up.join(leaves), "/dev/zero".into(), up.join("dev/zero")] {
            std::os::unix::fs::symlink(&target, lib64.join("libc.so.6")).unwrap();
            check().unwrap();
            std::fs::remove_file(lib64.join("libc.so.6")).unwrap();
        }
        let pipe = CString::new(lib64.join("libc.so.6").as_os_str().as_bytes()).unwrap();
        // SAFETY: a C string.
        assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
        check().unwrap();
    }
}
