//! The folder that `urxe run` made, and the paths that lie in it.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicU8, Ordering};

use crate::buffer::PATH_MAX;
use crate::pointer::is_plausible;
use crate::text::at;

/// Paths of the machine that are hidden behind the folder, with all below them.
const SHADOWED: [&[u8]; 10] = [
    b"/dev/infiniband",
    b"/sys/class/infiniband",
    b"/sys/class/infiniband_cm",
    b"/sys/class/infiniband_mad",
    b"/sys/class/infiniband_verbs",
    b"/sys/class/misc/rdma_cm",
    b"/sys/devices/virtual/infiniband",
    b"/sys/devices/virtual/infiniband_mad",
    b"/sys/devices/virtual/infiniband_verbs",
    b"/sys/devices/virtual/misc/rdma_cm",
];

/// Prefixes of the last hidden component, one for each of the above and below.
const SHADOWED_COMPONENTS: [&[u8]; 4] = [b"infiniband", b"rdma_cm", b"pci7572:", b"7572:"];

/// Folders of the machine that hidden ones lie in. None of them is a symbolic link.
const PARENTS: [&[u8]; 8] = [
    b"/dev",
    b"/sys/bus/pci/devices",
    b"/sys/class",
    b"/sys/class/misc",
    b"/sys/class/pci_bus",
    b"/sys/devices",
    b"/sys/devices/virtual",
    b"/sys/devices/virtual/misc",
];

/// Shadowed prefixes of names: the PCI domain that no machine has.
const SHADOWED_NAMES: [&[u8]; 3] =
    [b"/sys/devices/pci7572:", b"/sys/bus/pci/devices/7572:", b"/sys/class/pci_bus/7572:"];

/// Where libibverbs looks for devices when netlink has none.
pub(crate) const VERBS: &[u8] = b"/sys/class/infiniband_verbs";

/// The longest path of a folder that leaves room for what is in it.
const FOLDER_MAX: usize = 256;

/// States of [`FOLDER`].
mod state {
    pub(super) const UNKNOWN: u8 = 0;
    pub(super) const BUSY: u8 = 1;
    pub(super) const NONE: u8 = 2;
    pub(super) const KNOWN: u8 = 3;
}

/// A copy of the variable's value: a program may change its environment.
struct Folder {
    state: AtomicU8,
    value: UnsafeCell<[u8; FOLDER_MAX]>,
}

// SAFETY: `value` is written once, by who changed the state from UNKNOWN to BUSY, and read after KNOWN.
unsafe impl Sync for Folder {}

static FOLDER: Folder = Folder { state: AtomicU8::new(state::UNKNOWN), value: UnsafeCell::new([0; FOLDER_MAX]) };

unsafe extern "C" {
    /// getenv(3), but null in a program with other rights than its user's.
    fn secure_getenv(name: *const c_char) -> *mut c_char;
}

/// Whether `urxe run` started this program, or one that this descends from.
pub fn is_active() -> bool {
    folder().is_some()
}

/// The folder's path, without a slash at the end.
pub fn folder() -> Option<&'static [u8]> {
    match FOLDER.state.load(Ordering::Acquire) {
        state::KNOWN => {
            // SAFETY: nobody writes any more.
            let value: &'static [u8; FOLDER_MAX] = unsafe { &*FOLDER.value.get() };
            CStr::from_bytes_until_nul(value).ok().map(CStr::to_bytes)
        }
        state::NONE => None,
        _ => remember_folder(),
    }
}

/// Looks at the environment. Whoever comes while another thread does so, or in a signal handler, sees the variable itself.
#[cold]
fn remember_folder() -> Option<&'static [u8]> {
    // SAFETY: a name.
    let variable = unsafe { secure_getenv(c"URXE_RUN".as_ptr()) };
    let value = if variable.is_null() {
        &[][..]
    } else {
        // SAFETY: a C string of the environment.
        unsafe { CStr::from_ptr(variable) }.to_bytes()
    };
    let usable = value.first() == Some(&b'/') && value.len() < FOLDER_MAX;
    let change = |from, to| FOLDER.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok();
    if change(state::UNKNOWN, state::BUSY) {
        if usable {
            // SAFETY: the state says that we are the one to write, and nobody reads yet.
            let to = unsafe { &mut *FOLDER.value.get() };
            for (to, from) in to.iter_mut().zip(value) {
                *to = *from;
            }
        }
        FOLDER.state.store(if usable { state::KNOWN } else { state::NONE }, Ordering::Release);
    }
    usable.then_some(value)
}

/// Whether a path may be one of those that are hidden: decided by its first bytes, for that is all that other calls pay.
///
/// # Safety
/// `path` is null or a C string.
pub(crate) unsafe fn is_of_interest(path: *const c_char) -> bool {
    // SAFETY: each byte is looked at only if the one before is not the end.
    unsafe {
        is_plausible(path)
            && at(path, 0) == b'/'
            && match at(path, 1) {
                b's' => at(path, 2) == b'y',
                b'd' => at(path, 2) == b'e',
                b'/' | b'.' => true,
                _ => false,
            }
    }
}

/// Whether a path that ends with this component may be hidden.
pub(crate) fn may_be_shadowed(component: &[u8]) -> bool {
    matches!(component.first(), Some(b'i' | b'r' | b'p' | b'7'))
        && SHADOWED_COMPONENTS.iter().any(|shadowed| component.starts_with(shadowed))
}

/// Whether hidden folders lie in `path`, whose components are as the kernel would name them.
pub(crate) fn is_parent(path: &[u8]) -> bool {
    PARENTS.contains(&path)
}

pub(crate) fn is_shadowed(path: &[u8]) -> bool {
    SHADOWED.iter().any(|shadowed| is_below(path, shadowed))
        || SHADOWED_NAMES.iter().any(|shadowed| path.starts_with(shadowed))
}

/// Whether `path` is `ancestor`, or in it.
pub(crate) fn is_below(path: &[u8], ancestor: &[u8]) -> bool {
    path.strip_prefix(ancestor).is_some_and(|rest| matches!(rest.first(), None | Some(b'/')))
}

/// Turns a path that was found in the folder into the one that it stands for, in place, and returns its length.
///
/// # Safety
/// `path` is readable and writable for `len` bytes.
pub(crate) unsafe fn unshadow(path: *mut c_char, len: usize) -> usize {
    let Some(folder) = folder() else { return len };
    if len < folder.len() || len > PATH_MAX {
        return len;
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { core::slice::from_raw_parts_mut(path.cast::<u8>(), len) };
    if !is_below(bytes, folder) || bytes.len() == folder.len() {
        return len;
    }
    bytes.copy_within(folder.len().., 0);
    let shorter = len - folder.len();
    // Programs that clear their buffer first count on zeros behind what readlink(2) has put there.
    if let Some(rest) = bytes.get_mut(shorter..) {
        rest.fill(0);
    }
    shorter
}

/// Redirects a C string. Null stays null.
///
/// # Safety
/// `path` is null or a C string that may be changed.
pub(crate) unsafe fn unshadow_text(path: *mut c_char) {
    if path.is_null() || folder().is_none() {
        return;
    }
    // SAFETY: the caller's promise. A shorter text has room for its end.
    unsafe {
        let len = libc::strlen(path);
        let shorter = unshadow(path, len);
        if shorter != len {
            *path.add(shorter) = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{is_below, is_of_interest, is_shadowed};

    #[test]
    fn every_hidden_path_has_a_parent_and_a_component_that_tells_it() {
        for path in super::SHADOWED.iter().chain(&super::SHADOWED_NAMES) {
            let slash = path.iter().rposition(|byte| *byte == b'/').unwrap();
            assert!(super::is_parent(&path[..slash]), "{}", path.escape_ascii());
            assert!(super::may_be_shadowed(&path[slash + 1..]), "{}", path.escape_ascii());
        }
        assert!(!super::may_be_shadowed(b"include") && !super::may_be_shadowed(b""));
    }

    #[test]
    fn rdma_devices_are_hidden_and_nothing_else() {
        for path in [
            "/sys/class/infiniband",
            "/sys/class/infiniband/mlx5_0/ports",
            "/sys/class/infiniband_verbs/uverbs0",
            "/sys/class/misc/rdma_cm/dev",
            "/sys/devices/pci7572:00/7572:00:00.0",
            "/dev/infiniband/uverbs0",
        ] {
            assert!(is_shadowed(path.as_bytes()), "{path}");
        }
        for path in
            ["/sys/class", "/sys/class/infiniband_else", "/sys/class/net", "/sys/devices/pci0000:00", "/dev/null", ""]
        {
            assert!(!is_shadowed(path.as_bytes()), "{path}");
        }
        assert!(is_below(b"/a/b", b"/a") && is_below(b"/a", b"/a") && !is_below(b"/ab", b"/a"));
    }

    #[test]
    fn other_paths_are_told_by_their_first_bytes() {
        // SAFETY: C strings and null.
        unsafe {
            for path in [c"/sys/class", c"/dev/null", c"//sys", c"/./sys"] {
                assert!(is_of_interest(path.as_ptr()), "{path:?}");
            }
            for path in [c"", c"/", c"/s", c"/etc/passwd", c"sys/class", c"/usr/lib"] {
                assert!(!is_of_interest(path.as_ptr()), "{path:?}");
            }
            assert!(!is_of_interest(core::ptr::null()));
        }
    }
}
