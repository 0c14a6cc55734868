//! A hook that container runtimes call before they start a container with a device: refuses images in which the library
//! cannot work, in a line that the engine shows.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{glibc, library};

/// How the hidden subcommand is called.
pub(crate) const SUBCOMMAND: &str = "cdi-check";

/// Where dynamic linkers lie. A link with an absolute target is not followed: it leads elsewhere in the container.
const FOLDERS: [&str; 6] = ["lib64", "lib", "usr/lib64", "usr/lib", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu"];

/// Reads the container's state (runtime-spec of OCI, "State") from standard input.
pub(crate) fn run() -> Result<()> {
    let mut state = String::new();
    std::io::stdin().read_to_string(&mut state)?;
    let state: Value = serde_json::from_str(&state).context("the state of the container on standard input")?;
    let bundle = Path::new(state["bundle"].as_str().context("no bundle in the container's state")?);
    let config = std::fs::read_to_string(bundle.join("config.json"))
        .with_context(|| format!("reading config.json in {}", bundle.display()))?;
    let config: Value = serde_json::from_str(&config)?;
    let root = bundle.join(config["root"]["path"].as_str().unwrap_or("rootfs"));
    let library = std::fs::read(library::beside_this_command()?)?;
    check(&root, glibc::newest(&library).unwrap_or_default())
}

/// Whether programs below `root` can load a library that needs this version of glibc.
fn check(root: &Path, needed: glibc::Version) -> Result<()> {
    if file(root, |name| name.starts_with("ld-linux-")).is_none() {
        if file(root, |name| name.starts_with("ld-musl-")).is_some() {
            bail!(
                "this image has musl (Alpine?), and urxe needs glibc {needed} or newer: take an image of Debian, Ubuntu, Fedora \
                 or RHEL, or leave out the device"
            );
        }
        // Statically linked programs only, or somewhere else: nothing is loaded, and nothing breaks.
        return Ok(());
    }
    if file(root, |name| name == "libgcc_s.so.1").is_none() {
        bail!(
            "this image has no libgcc_s.so.1, which urxe needs: add its package (Debian libgcc-s1, RHEL libgcc), or leave out the device"
        );
    }
    let found = file(root, |name| name == "libc.so.6").and_then(|path| glibc::newest(&std::fs::read(path).ok()?));
    match found {
        Some(found) if found < needed => bail!(
            "this image has glibc {found}, and this build of urxe needs {needed} or newer: take a newer image, or a urxe that was \
             built for older ones (make tarball GLIBC={found})"
        ),
        _ => Ok(()),
    }
}

/// A file of such a name, where dynamic linkers and the C library are.
fn file(root: &Path, is_it: impl Fn(&str) -> bool) -> Option<PathBuf> {
    let entries = FOLDERS.iter().filter_map(|folder| std::fs::read_dir(root.join(folder)).ok()).flatten().flatten();
    entries.filter(|entry| entry.file_name().to_str().is_some_and(&is_it)).map(|entry| entry.path()).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(files: &[(&str, &str)]) -> Result<(), String> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        check(root.path(), glibc::Version(2, 34)).map_err(|error| error.to_string())
    }

    #[test]
    fn what_cannot_work_is_refused() {
        let linker = ("lib64/ld-linux-x86-64.so.2", "");
        let libgcc = ("usr/lib64/libgcc_s.so.1", "");
        assert!(verdict(&[("lib/ld-musl-x86_64.so.1", "")]).unwrap_err().contains("musl"));
        assert_eq!(verdict(&[("lib/ld-musl-x86_64.so.1", ""), linker, libgcc]), Ok(()));
        let old =
            verdict(&[linker, libgcc, ("usr/lib64/libc.so.6", "GLIBC_2.2.5\0GLIBC_2.28\0GLIBC_PRIVATE")]).unwrap_err();
        assert!(old.contains("has glibc 2.28") && old.contains("needs 2.34"), "{old}");
        assert_eq!(verdict(&[linker, libgcc, ("lib/x86_64-linux-gnu/libc.so.6", "GLIBC_2.36\0")]), Ok(()));
        assert!(verdict(&[linker]).unwrap_err().contains("libgcc_s"));
        assert_eq!(verdict(&[]), Ok(()));
    }
}
