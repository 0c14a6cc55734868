//! libibverbs and librdmacm, and the library beside this command.

use std::path::Path;

use super::Finding;
use crate::layout::PROVIDER_ABIS;
use crate::{libibverbs, library};

pub(super) fn check() -> Vec<Finding> {
    let mut findings = Vec::new();
    match library::beside_this_command() {
        Ok(path) => findings.extend(loads(&path)),
        Err(error) => findings.push(Finding::error(&error)),
    }
    match libibverbs::path() {
        Ok(path) => findings.push(private_abi(&path)),
        Err(error) => findings.push(Finding::error(&error)),
    }
    // SAFETY: a name. Loading it runs its constructors, as in any program that is linked with it.
    if unsafe { libc::dlopen(c"librdmacm.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) }.is_null() {
        findings.push(Finding::warning(
            "librdmacm.so.1 is not installed: programs that connect by rdma_cm (rping, perftest -R) do not start",
            "apt-get install librdmacm1 (RHEL: dnf install librdmacm)",
        ));
    }
    findings
}

/// Whether the loader takes our library: another machine's does not fit, or lacks what it needs.
fn loads(path: &Path) -> Option<Finding> {
    let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).ok()?;
    // SAFETY: a C string. Its constructor does nothing without a libibverbs.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if !handle.is_null() {
        return None;
    }
    // SAFETY: after a failure it is a C string, valid until the next call.
    let why = unsafe { std::ffi::CStr::from_ptr(libc::dlerror()) }.to_string_lossy().into_owned();
    Some(Finding::problem(
        format!("liburxe.so cannot be loaded: {why}"),
        "take the two files from a build for this machine and its C library: `make build`",
    ))
}

fn private_abi(path: &Path) -> Finding {
    let exports = |number: u32| libibverbs::exports(&format!("verbs_register_driver_{number}"));
    if let Some(number) = PROVIDER_ABIS.into_iter().find(|number| exports(*number)) {
        return Finding::fine(format!("libibverbs is {}, with private ABI {number}", path.display()));
    }
    let found = std::fs::read(path).ok().and_then(|bytes| libibverbs::suffix(&bytes));
    let number = found.map_or_else(|| "an unknown private ABI".to_owned(), |number| format!("private ABI {number}"));
    let known: Vec<String> = PROVIDER_ABIS.iter().map(u32::to_string).collect();
    Finding::problem(
        format!("{} has {number}; urxe knows {}", path.display(), known.join(", ")),
        "use a libibverbs from rdma-core 36 to 65 (LD_LIBRARY_PATH chooses one), or a newer urxe",
    )
}
