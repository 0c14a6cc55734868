//! Listings of the machine's folders that hidden ones lie in: `/sys/class` shows `infiniband`.
//!
//! The machine's entries come first, without those that are hidden, then the folder's. The folder of this run does not show in
//! the listing of `/dev/shm`: a walk that came into it there would leave it by `..` for the folders that it stands for.

use core::ffi::{CStr, c_long, c_ulong, c_void};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::folder::{folder, is_netdev, is_parent, is_shadowed};
use crate::next::{Next, with_errno_kept};
use crate::resolve::prefix_of;
use crate::text::Prefix;

type Dir = *mut c_void;

/// An open listing of two folders, or of one from which entries are left out.
struct Listing {
    /// The machine's; null if the slot is free.
    machine: AtomicPtr<c_void>,
    /// The folder's; null if there is none.
    ours: AtomicPtr<c_void>,
    /// Set when `machine` has come to its end.
    is_at_end: AtomicUsize,
    /// Entries that have been read of `ours`.
    read: AtomicUsize,
}

static LISTINGS: [Listing; 32] = [const {
    Listing {
        machine: AtomicPtr::new(core::ptr::null_mut()),
        ours: AtomicPtr::new(core::ptr::null_mut()),
        is_at_end: AtomicUsize::new(0),
        read: AtomicUsize::new(0),
    }
}; 32];

/// Positions from here on are those in the folder's listing: no file system that the joined listings lie in has so large ones.
const OURS_FROM: c_long = 1 << 62;

/// How many there are: all that other listings pay.
static COUNT: AtomicUsize = AtomicUsize::new(0);

static OPENDIR: Next = Next::new(c"opendir");
static READDIR: Next = Next::new(c"readdir");
static REWINDDIR: Next = Next::new(c"rewinddir");
static CLOSEDIR: Next = Next::new(c"closedir");

/// Finds libc's functions.
pub(crate) fn find_all() {
    for next in [&OPENDIR, &READDIR, &REWINDDIR, &CLOSEDIR] {
        next.address();
    }
}

/// Registers a stream that opendir(3) or fdopendir(3) has returned, and returns it.
///
/// # Safety
/// `dir` is null or an open directory stream.
pub(crate) unsafe fn opened(dir: Dir) -> Dir {
    if !dir.is_null() && folder().is_some() {
        // SAFETY: the caller's promise.
        with_errno_kept(|| unsafe { remember(dir) });
    }
    dir
}

/// # Safety
/// `dir` is an open directory stream.
unsafe fn remember(dir: Dir) -> Option<()> {
    // SAFETY: the caller's promise.
    let parent = prefix_of(unsafe { libc::dirfd(dir.cast()) })?;
    if is_parent(parent.as_bytes()) || is_netdev(parent.as_bytes()) {
        join(dir, parent.as_bytes())
    } else if holds_folder(parent.as_bytes()) {
        add(dir, core::ptr::null_mut())
    } else {
        None
    }
}

/// The folder that `urxe run` has made, of which [`folder`] is a part.
fn made_folder() -> Option<&'static [u8]> {
    let inner = folder()?;
    inner.iter().rposition(|byte| *byte == b'/').map(|end| &inner[..end])
}

/// Whether `path` is the folder that holds the one of `urxe run`: `/dev/shm`, or where else that one has been made.
fn holds_folder(path: &[u8]) -> bool {
    made_folder()
        .and_then(|made| made.strip_prefix(path))
        .is_some_and(|rest| rest.strip_prefix(b"/").is_some_and(|name| !name.is_empty() && !name.contains(&b'/')))
}

/// Opens the folder's listing of `parent`, which goes with the machine's.
#[cold]
#[inline(never)]
fn join(dir: Dir, parent: &[u8]) -> Option<()> {
    let mut place = Prefix::new();
    if !place.push_all(folder()?) || !place.push_all(parent) {
        return None;
    }
    let opendir = OPENDIR.address();
    if opendir.is_null() {
        return None;
    }
    // SAFETY: the function of this name has this type; a C string.
    let ours = unsafe {
        core::mem::transmute::<Dir, unsafe extern "C" fn(*const core::ffi::c_char) -> Dir>(opendir)(place.as_ptr())
    };
    // No personality needs every one of them.
    if ours.is_null() {
        return None;
    }
    let added = add(dir, ours);
    if added.is_none() {
        close(ours);
    }
    added
}

/// Takes a slot for a listing; `None` if there is none.
fn add(dir: Dir, ours: Dir) -> Option<()> {
    let is_free = |listing: &&Listing| {
        listing.machine.compare_exchange(core::ptr::null_mut(), dir, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    };
    let listing = LISTINGS.iter().find(is_free)?;
    listing.is_at_end.store(0, Ordering::Relaxed);
    listing.read.store(0, Ordering::Relaxed);
    listing.ours.store(ours, Ordering::Relaxed);
    COUNT.fetch_add(1, Ordering::Relaxed);
    Some(())
}

fn find(dir: Dir) -> Option<&'static Listing> {
    if COUNT.load(Ordering::Relaxed) == 0 || dir.is_null() {
        return None;
    }
    LISTINGS.iter().find(|listing| listing.machine.load(Ordering::Relaxed) == dir)
}

/// The next entry; `readdir` is libc's own.
///
/// # Safety
/// `dir` is an open directory stream.
pub(crate) unsafe fn next(dir: Dir, readdir: impl Fn(Dir) -> Dir) -> Dir {
    let Some(listing) = find(dir) else { return readdir(dir) };
    // SAFETY: the caller's promise.
    let parent = with_errno_kept(|| prefix_of(unsafe { libc::dirfd(dir.cast()) }));
    let is_hidden = |entry: Dir| {
        // The name of an entry has 255 bytes at most, and fits behind that of a parent.
        let mut path = Prefix::new();
        // SAFETY: an entry that libc has returned.
        let name = unsafe { CStr::from_ptr((*entry.cast::<libc::dirent>()).d_name.as_ptr()) };
        parent.as_ref().is_some_and(|parent| path.push_all(parent.as_bytes()))
            && path.push_component(name.to_bytes())
            && (is_shadowed(path.as_bytes()) || made_folder() == Some(path.as_bytes()))
    };
    while listing.is_at_end.load(Ordering::Relaxed) == 0 {
        let entry = readdir(dir);
        if entry.is_null() {
            listing.is_at_end.store(1, Ordering::Relaxed);
        } else if !is_hidden(entry) {
            return entry;
        }
    }
    let ours = listing.ours.load(Ordering::Relaxed);
    if ours.is_null() {
        return core::ptr::null_mut();
    }
    loop {
        let entry = readdir(ours);
        if !entry.is_null() {
            listing.read.fetch_add(1, Ordering::Relaxed);
        }
        if entry.is_null() || is_hidden(entry) {
            return entry;
        }
    }
}

/// Goes back to the beginning, before rewinddir(3).
pub(crate) fn forget_position(dir: Dir) {
    if let Some(listing) = find(dir) {
        let ours = listing.ours.load(Ordering::Relaxed);
        if !ours.is_null() {
            call(&REWINDDIR, ours);
        }
        listing.read.store(0, Ordering::Relaxed);
        listing.is_at_end.store(0, Ordering::Relaxed);
    }
}

/// The position for telldir(3); `None` if it is that of the machine's listing.
pub(crate) fn position(dir: Dir) -> Option<c_long> {
    let listing = find(dir).filter(|listing| listing.is_at_end.load(Ordering::Relaxed) != 0)?;
    Some(OURS_FROM.saturating_add_unsigned(listing.read.load(Ordering::Relaxed) as c_ulong))
}

/// Goes to a position, before seekdir(3) does so in the machine's listing. False if it is one in the folder's.
pub(crate) fn seek(dir: Dir, position: c_long) -> bool {
    let Some(listing) = find(dir) else { return true };
    forget_position(dir);
    let Ok(entries) = usize::try_from(position.wrapping_sub(OURS_FROM)) else { return true };
    listing.is_at_end.store(1, Ordering::Relaxed);
    let ours = listing.ours.load(Ordering::Relaxed);
    let readdir = READDIR.address();
    if ours.is_null() || readdir.is_null() {
        return false;
    }
    // SAFETY: the function of this name has this type.
    let readdir = unsafe { core::mem::transmute::<Dir, unsafe extern "C" fn(Dir) -> Dir>(readdir) };
    while listing.read.load(Ordering::Relaxed) < entries {
        // SAFETY: a stream of this module's own.
        if with_errno_kept(|| unsafe { readdir(ours) }).is_null() {
            break;
        }
        listing.read.fetch_add(1, Ordering::Relaxed);
    }
    false
}

/// Forgets a stream, before closedir(3).
pub(crate) fn closed(dir: Dir) {
    if let Some(listing) = find(dir) {
        close(listing.ours.load(Ordering::Relaxed));
        COUNT.fetch_sub(1, Ordering::Relaxed);
        listing.machine.store(core::ptr::null_mut(), Ordering::Relaxed);
    }
}

fn close(dir: Dir) {
    if !dir.is_null() {
        with_errno_kept(|| call(&CLOSEDIR, dir));
    }
}

/// Calls a function of libc's with a stream that is this module's own.
fn call(function: &Next, dir: Dir) {
    let address = function.address();
    if !address.is_null() {
        // SAFETY: both functions take a stream. What one returns is an int, in a register that the other leaves alone.
        unsafe { core::mem::transmute::<Dir, unsafe extern "C" fn(Dir)>(address)(dir) };
    }
}
