//! Device files that are more than `/dev/null`: opening one gives a descriptor that the library makes.

use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::folder::is_active;
use crate::live::name;
use crate::next::fail;
use crate::pointer::is_plausible;
use crate::read_only::exists;
use crate::resolve::locate_always;

/// Maker of descriptors for device files.
#[derive(Debug, Clone, Copy)]
pub struct Nodes {
    /// Whether a device file has this name. Asked for every path that is opened.
    pub is_name: fn(&[u8]) -> bool,
    /// Opens the device file of this name with these flags of open(2): a descriptor, or a negative error number.
    pub open: fn(&[u8], c_int) -> c_int,
}

static NODES: AtomicPtr<Nodes> = AtomicPtr::new(core::ptr::null_mut());

/// Sets the functions that are asked for device nodes.
pub fn nodes_are(nodes: &'static Nodes) {
    NODES.store(core::ptr::from_ref(nodes).cast_mut(), Ordering::Release);
}

/// Result of open(2) for a device file of the folder; `None` for any other path.
///
/// # Safety
/// `path` is null or a C string.
pub(crate) unsafe fn opened(dir: c_int, path: *const c_char, flags: c_int) -> Option<c_int> {
    if !is_plausible(path) || !is_active() || flags & libc::O_PATH != 0 {
        return None;
    }
    // SAFETY: null, or what `nodes_are` has stored.
    let nodes = unsafe { NODES.load(Ordering::Acquire).as_ref() }?;
    // SAFETY: the caller's promise.
    if !(nodes.is_name)(unsafe { name(path) }) {
        return None;
    }
    // SAFETY: as above.
    let located = unsafe { locate_always(dir, path) }.filter(|located| located.is_shadowed && exists(located))?;
    // SAFETY: a C string.
    let bytes = unsafe { CStr::from_ptr(located.as_ptr()) }.to_bytes();
    let (folder, file) = bytes.split_at(bytes.iter().rposition(|byte| *byte == b'/')? + 1);
    if !folder.ends_with(b"/dev/infiniband/") {
        return None;
    }
    let opened = (nodes.open)(file, flags);
    Some(if opened < 0 { fail(-opened) } else { opened })
}
