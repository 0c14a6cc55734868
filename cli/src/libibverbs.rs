//! The libibverbs of this machine: where it is, and where it loads providers from.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// How `VERBS_PROVIDER_DIR "/lib%s" VERBS_PROVIDER_SUFFIX` ends up in the binary (libibverbs/dynamic_driver.c).
const PROVIDER_FORMAT: &[u8] = b"/lib%s-rdmav";

/// The folder that this machine's libibverbs loads providers from, as compiled into it.
pub(crate) fn provider_dir() -> Result<PathBuf> {
    let library = path()?;
    let bytes = std::fs::read(&library).with_context(|| format!("reading {}", library.display()))?;
    find_provider_dir(&bytes).with_context(|| {
        format!(
            "{} names no folder for providers; use `urxe install --prefix DIR`, which needs none",
            library.display()
        )
    })
}

/// Path at which the dynamic linker finds `libibverbs.so.1`: its own search order, so asked of the linker itself.
pub(crate) fn path() -> Result<PathBuf> {
    // SAFETY: the name is a NUL-terminated literal. Loading libibverbs runs its constructors, which any program linked
    // against it does as well. The handle stays open, so that the path below stays valid.
    let handle = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
    if handle.is_null() {
        bail!("libibverbs.so.1 is not installed: apt-get install libibverbs1 (RHEL: dnf install libibverbs)");
    }
    // SAFETY: `handle` is a live handle and the name a NUL-terminated literal.
    let symbol = unsafe { libc::dlsym(handle, c"ibv_get_device_list".as_ptr()) };
    // SAFETY: all-zero is a valid `Dl_info` (null pointers).
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: `dladdr` accepts any address, null too, and fills `info` when it returns non-zero.
    let found = unsafe { libc::dladdr(symbol, &raw mut info) } != 0;
    if !found || info.dli_fname.is_null() {
        bail!("libibverbs.so.1 has no ibv_get_device_list: is it another library?");
    }
    // SAFETY: after success `dli_fname` is a NUL-terminated string that lives as long as the library is loaded.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Ok(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}

/// The folder in front of `/lib%s-rdmavNN.so` in the bytes of a libibverbs.
fn find_provider_dir(library: &[u8]) -> Option<PathBuf> {
    library.windows(PROVIDER_FORMAT.len()).enumerate().filter(|(_, bytes)| *bytes == PROVIDER_FORMAT).find_map(
        |(end, _)| {
            let before = library.get(..end)?;
            let start = before.iter().rposition(|&byte| byte == 0).map_or(0, |nul| nul + 1);
            let dir = Path::new(OsStr::from_bytes(before.get(start..)?));
            dir.is_absolute().then(|| dir.to_path_buf())
        },
    )
}

/// Whether the machine's libibverbs has a function of this name.
pub(crate) fn exports(name: &str) -> bool {
    let Ok(name) = std::ffi::CString::new(name) else { return false };
    // SAFETY: names; see `path`.
    unsafe {
        let handle = libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL);
        !handle.is_null() && !libc::dlsym(handle, name.as_ptr()).is_null()
    }
}

/// The number behind `-rdmav` in the bytes of a libibverbs: that of its private ABI.
pub(crate) fn suffix(library: &[u8]) -> Option<u32> {
    const BEFORE: &[u8] = b"-rdmav";
    library.windows(BEFORE.len()).enumerate().filter(|(_, bytes)| *bytes == BEFORE).find_map(|(start, _)| {
        let after = library.get(start + BEFORE.len()..)?;
        let digits = after.iter().take_while(|byte| byte.is_ascii_digit()).count();
        std::str::from_utf8(after.get(..digits)?).ok()?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_compiled_in_folder_is_found() {
        let library = b"\x7fELF\0lib%s-rdmav34.so\0/usr/lib64/libibverbs/lib%s-rdmav34.so\0/etc/libibverbs.d\0";
        assert_eq!(find_provider_dir(library), Some(PathBuf::from("/usr/lib64/libibverbs")));
    }

    #[test]
    fn the_number_of_the_private_abi() {
        assert_eq!(suffix(b"\0/usr/lib/libibverbs/lib%s-rdmav99.so\0"), Some(99));
        assert_eq!(suffix(b"\0-rdmav.so\0"), None);
    }

    #[test]
    fn a_libibverbs_without_a_folder_yields_none() {
        assert_eq!(find_provider_dir(b"\0lib%s-rdmav34.so\0"), None);
        assert_eq!(find_provider_dir(b"\0/lib%s-rdmav34.so\0"), None);
        assert_eq!(find_provider_dir(b""), None);
    }
}
