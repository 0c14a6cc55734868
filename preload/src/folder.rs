//! The folder that `urxe run` made, and the paths that lie in it.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU8, Ordering};

use crate::buffer::PATH_MAX;
use crate::next::{system_call, with_errno_kept};
use crate::pointer::is_plausible;
use crate::text::{Prefix, at};

/// Paths of the machine that are hidden behind the folder, with all below them.
const SHADOWED: [&[u8]; 11] = [
    b"/dev/infiniband",
    b"/sys/bus/pci/drivers/urxe",
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
const SHADOWED_COMPONENTS: [&[u8]; 5] = [b"infiniband", b"rdma_cm", b"pci757", b"757", b"urxe"];

/// Last components of paths that are hidden where the folder has something in their place.
const REPLACED_COMPONENTS: [&[u8]; 2] = [DEVICE, b"mlx5_core"];
/// Below the folder of an interface: the bus's device that it belongs to.
const DEVICE: &[u8] = b"device";
/// A driver that a machine may have.
const DRIVER: &[u8] = b"/sys/bus/pci/drivers/mlx5_core";
/// A folder of the folder, where devices have PCI functions: else nothing is replaced.
const FUNCTIONS: &[u8] = b"/sys/bus/pci/drivers";

/// Folders of the machine that hidden ones lie in. None of them is a symbolic link.
const PARENTS: [&[u8]; 10] = [
    b"/dev",
    b"/sys/bus/pci/devices",
    b"/sys/bus/pci/drivers",
    b"/sys/class",
    b"/sys/class/misc",
    b"/sys/class/pci_bus",
    b"/sys/devices",
    b"/sys/devices/virtual",
    b"/sys/devices/virtual/misc",
    b"/sys/kernel/iommu_groups",
];

/// Shadowed prefixes of names, each with the PCI domain behind it.
const SHADOWED_DOMAINS: [&[u8]; 3] = [b"/sys/devices/pci", b"/sys/bus/pci/devices/", b"/sys/class/pci_bus/"];

/// The start of the PCI domains that no machine has: 7572 to 757f.
const DOMAINS: &[u8] = b"757";

/// A shadowed prefix of names: numbers that no machine's IOMMU groups have.
const SHADOWED_GROUPS: &[u8] = b"/sys/kernel/iommu_groups/7572";

/// Folder in which libibverbs looks for devices when netlink has none.
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

/// Whether `urxe run` started this program, or one that this descends from. Each system call by number asks: nothing is read of
/// the path.
pub fn is_active() -> bool {
    match FOLDER.state.load(Ordering::Acquire) {
        state::KNOWN => true,
        state::NONE => false,
        _ => remember_folder().is_some(),
    }
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
    match component.first() {
        Some(b'i' | b'r' | b'p' | b'7' | b'u') => {
            SHADOWED_COMPONENTS.iter().any(|shadowed| component.starts_with(shadowed))
        }
        Some(b'd' | b'm') => REPLACED_COMPONENTS.contains(&component) && has_functions(),
        _ => false,
    }
}

/// Whether hidden folders lie in `path`, whose components are as the kernel would name them.
pub(crate) fn is_parent(path: &[u8]) -> bool {
    PARENTS.contains(&path)
}

/// Whether `path` is the folder of an interface whose `device` is the folder's.
pub(crate) fn is_netdev(path: &[u8]) -> bool {
    let mut device = Prefix::new();
    device.push_all(path) && device.push_component(DEVICE) && is_replaced(device.as_bytes())
}

pub(crate) fn is_shadowed(path: &[u8]) -> bool {
    SHADOWED.iter().any(|shadowed| is_below(path, shadowed))
        || SHADOWED_DOMAINS.iter().any(|shadowed| path.strip_prefix(*shadowed).is_some_and(is_domain))
        || path.starts_with(SHADOWED_GROUPS)
        || is_replaced(path)
}

/// Whether `name` starts with a PCI domain that no machine has, `7572:` to `757f:`.
fn is_domain(name: &[u8]) -> bool {
    let digit = |byte: &u8| matches!(byte, b'2'..=b'9' | b'a'..=b'f');
    name.strip_prefix(DOMAINS).is_some_and(|rest| matches!(rest, [last, b':', ..] if digit(last)))
}

/// Whether the folder has something in the place of `path`, or of what it is in.
fn is_replaced(path: &[u8]) -> bool {
    let Some(place) = replaceable(path) else { return false };
    has_functions() && folder().is_some_and(|folder| exists(folder, place))
}

/// The beginning of `path` that the folder may have something in the place of.
fn replaceable(path: &[u8]) -> Option<&[u8]> {
    if is_below(path, DRIVER) {
        return path.get(..DRIVER.len());
    }
    if !is_below(path, b"/sys/devices") {
        return None;
    }
    // The last three components: `net`, the interface, `device`.
    let (mut last, mut at) = ([&[][..]; 2], 0);
    for component in path.split(|byte| *byte == b'/') {
        at += component.len() + 1;
        if component == DEVICE && last[0] == b"net" {
            return path.get(..at - 1);
        }
        last = [last[1], component];
    }
    None
}

/// Whether devices have PCI functions.
fn has_functions() -> bool {
    static FOUND: AtomicU8 = AtomicU8::new(state::UNKNOWN);
    match FOUND.load(Ordering::Relaxed) {
        state::UNKNOWN => {}
        found => return found == state::KNOWN,
    }
    let found = folder().is_some_and(|folder| exists(folder, FUNCTIONS));
    FOUND.store(if found { state::KNOWN } else { state::NONE }, Ordering::Relaxed);
    found
}

/// Whether the folder has a file at this path, which may be a link. Paths that are too long have none.
fn exists(folder: &[u8], path: &[u8]) -> bool {
    let mut place = Prefix::new();
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    place.push_all(folder)
        && place.push_all(path)
        && with_errno_kept(|| {
            let (dir, flags) = (libc::AT_FDCWD as usize, libc::AT_SYMLINK_NOFOLLOW as usize);
            let arguments = [dir, place.as_ptr() as usize, stat.as_mut_ptr() as usize, flags];
            // SAFETY: a C string, and room for the answer: the kernel's structure is libc's on 64-bit machines.
            unsafe { system_call(libc::SYS_newfstatat, arguments) == 0 }
        })
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
        let domains = super::SHADOWED_DOMAINS.map(|before| [before, b"757f:"].concat());
        let others = domains.iter().map(Vec::as_slice).chain([super::SHADOWED_GROUPS]);
        for path in super::SHADOWED.iter().copied().chain(others) {
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
            "/sys/bus/pci/devices/757f:0a:00.0/class",
            "/dev/infiniband/uverbs0",
        ] {
            assert!(is_shadowed(path.as_bytes()), "{path}");
        }
        for path in [
            "/sys/class",
            "/sys/class/infiniband_else",
            "/sys/class/net",
            "/sys/devices/pci0000:00",
            "/dev/null",
            "",
            "/sys/devices/pci7571:00",
            "/sys/bus/pci/devices/7572",
            "/sys/class/pci_bus/75720:00",
            "/sys/kernel/iommu_groups/757",
        ] {
            assert!(!is_shadowed(path.as_bytes()), "{path}");
        }
        assert!(is_below(b"/a/b", b"/a") && is_below(b"/a", b"/a") && !is_below(b"/ab", b"/a"));
    }

    #[test]
    fn the_device_of_an_interface_may_be_replaced_and_no_other() {
        let replaceable =
            |path: &'static str| super::replaceable(path.as_bytes()).map(|place| core::str::from_utf8(place).unwrap());
        let device = Some("/sys/devices/virtual/net/v0/device");
        assert_eq!(replaceable("/sys/devices/virtual/net/v0/device"), device);
        assert_eq!(replaceable("/sys/devices/virtual/net/v0/device/net/v0"), device);
        assert_eq!(replaceable("/sys/bus/pci/drivers/mlx5_core/unbind"), Some("/sys/bus/pci/drivers/mlx5_core"));
        for path in [
            "/sys/devices/virtual/net/v0/devices",
            "/sys/devices/virtual/net/device",
            "/sys/devices/virtual/net/v0/queues/device",
            "/sys/class/net/v0/device",
            "/sys/bus/pci/drivers/mlx4_core",
        ] {
            assert_eq!(replaceable(path), None, "{path}");
        }
        // Without a folder.
        assert!(!is_shadowed(b"/sys/devices/virtual/net/v0/device") && !super::may_be_shadowed(b"device"));
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
