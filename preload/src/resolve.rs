//! Path resolution: whether a path means a file of the folder or of the machine.
//!
//! The kernel walks a path from the root, the working directory or a descriptor, and follows symbolic links on the way. A
//! path is walked here in the same order, over the machine's tree with the folder's files in their places. Two things keep
//! that cheap: a path is looked at only if one of its components may be hidden, or leads out of the folder by `..`; and
//! the kernel is asked only about prefixes that can hold a symbolic link.
//!
//! Not seen is a symbolic link of the machine, outside `/sys` and `/dev`, as the last component before a hidden folder.

use core::ffi::{c_char, c_int};
use core::sync::atomic::{AtomicU8, Ordering};

use crate::folder::{VERBS, folder, is_below, is_parent, is_shadowed, may_be_shadowed};
use crate::next::{system_call, with_errno_kept};
use crate::pointer::is_plausible;
use crate::text::{Path, Prefix, Text};

/// The working directory, in the place of a descriptor.
pub(crate) const CWD: c_int = libc::AT_FDCWD;

/// Location of a file that the path of the program does not lead to.
pub(crate) struct Located {
    path: Path,
    /// Whether the path is one of the folder's.
    pub(crate) is_shadowed: bool,
}

impl Located {
    pub(crate) fn as_ptr(&self) -> *const c_char {
        self.path.as_ptr()
    }

    /// The mount point that a file of the folder is shown below.
    pub(crate) fn mount_point(&self) -> Option<&'static core::ffi::CStr> {
        let shown = self.path.as_bytes().strip_prefix(folder()?).filter(|_| self.is_shadowed)?;
        Some(if is_below(shown, b"/dev") { c"/dev" } else { c"/sys" })
    }
}

/// Locates the file at `path`, relative to `dir`; `None` if libc finds it by itself.
///
/// # Safety
/// `path` is null or a C string.
pub(crate) unsafe fn locate(dir: c_int, path: *const c_char) -> Option<Located> {
    // SAFETY: the caller's promise.
    let path = unsafe { of_interest(path) }?;
    let leaves = |component: &[u8]| component == b"..";
    let mut components = path.split(|byte| *byte == b'/');
    let is_worth_it = components.any(may_be_shadowed)
        || (path.first() != Some(&b'/') && path.split(|byte| *byte == b'/').any(leaves) && may_be_inside(dir));
    is_worth_it.then(|| with_errno_kept(|| walk(dir, path))).flatten()
}

/// As [`locate`], and a relative path into the folder is made absolute too: for functions that are not let through.
///
/// # Safety
/// As [`locate`].
pub(crate) unsafe fn locate_always(dir: c_int, path: *const c_char) -> Option<Located> {
    // SAFETY: the caller's promise.
    let bytes = unsafe { of_interest(path) }?;
    let is_relative = bytes.first() != Some(&b'/');
    if is_relative && may_be_inside(dir) {
        return with_errno_kept(|| walk(dir, bytes));
    }
    // SAFETY: the caller's promise.
    unsafe { locate(dir, path) }
}

/// The bytes of a path that is not empty, in a program that has a folder.
///
/// # Safety
/// `path` is null or a C string, which stays.
unsafe fn of_interest<'a>(path: *const c_char) -> Option<&'a [u8]> {
    if !is_plausible(path) || folder().is_none() {
        return None;
    }
    // SAFETY: the caller's promise.
    let path = unsafe { core::ffi::CStr::from_ptr(path) }.to_bytes();
    (!path.is_empty()).then_some(path)
}

#[cold]
#[inline(never)]
fn walk(dir: c_int, path: &[u8]) -> Option<Located> {
    let folder = folder()?;
    let is_absolute = path.first() == Some(&b'/');
    // Where the walk is. No slash at the end; the root is empty.
    let mut at = Path::new()?;
    let mut was_inside = !is_absolute && start(dir, &mut at)?;
    // So much of it has no symbolic link.
    let mut resolved = at.len();
    for component in path.split(|byte| *byte == b'/') {
        let is_up = component == b"..";
        if matches!(component, b"" | b".") {
            continue;
        }
        let may_hide_a_link = at.len() > resolved && !is_parent(at.as_bytes());
        let matters = is_up || (may_be_shadowed(component) && !is_shadowed(at.as_bytes()));
        if may_hide_a_link && matters {
            was_inside |= is_shadowed(at.as_bytes());
            match resolve(&mut at) {
                Some(inside) => was_inside |= inside,
                // The machine may have it, but the program must not find it there.
                None if is_shadowed(at.as_bytes()) => break,
                None => return None,
            }
            resolved = at.len();
        }
        if is_up {
            was_inside |= is_shadowed(at.as_bytes());
            at.pop_component();
            resolved = resolved.min(at.len());
        } else if !at.push_component(component) {
            return None;
        }
    }
    let is_shadowed = is_shadowed(at.as_bytes());
    if is_shadowed && is_below(at.as_bytes(), VERBS) {
        crate::devices_are_looked_for();
    }
    if !is_shadowed && !was_inside {
        return None;
    }
    let must_be_a_folder = at.len() == 0 || path.ends_with(b"/") || path.ends_with(b"/.");
    let fits = (!is_shadowed || at.insert_prefix(folder)) && (!must_be_a_folder || at.push(b'/'));
    fits.then_some(Located { path: at, is_shadowed })
}

/// Start of a relative path, and whether it lies in the folder.
fn start(dir: c_int, at: &mut Path) -> Option<bool> {
    if dir == CWD { working_directory(at) } else { read_link(dir, at) }?;
    if at.as_bytes() == b"/" {
        at.truncate(0);
        return Some(false);
    }
    is_absolute(at)?;
    Some(without_folder(at))
}

fn is_absolute(path: &Path) -> Option<()> {
    (path.as_bytes().first() == Some(&b'/')).then_some(())
}

/// Follows all symbolic links of a path. Whether that leads into the folder; `None`, and the path stays, if there is no
/// such file.
fn resolve(at: &mut Path) -> Option<bool> {
    let inside = is_shadowed(at.as_bytes());
    let prefix = if inside { folder()? } else { b"" };
    if !at.insert_prefix(prefix) {
        return None;
    }
    // SAFETY: a C string.
    let fd = unsafe {
        let flags = libc::O_PATH | libc::O_CLOEXEC;
        system_call(libc::SYS_openat, [CWD as usize, at.as_ptr() as usize, flags as usize, 0])
    };
    let fd = c_int::try_from(fd).ok().filter(|fd| *fd >= 0);
    let found = fd.and_then(|fd| {
        let found = read_link(fd, at);
        // SAFETY: the descriptor of above.
        unsafe { system_call(libc::SYS_close, [fd as usize, 0, 0, 0]) };
        found
    });
    if found.is_none() {
        at.remove_prefix(prefix.len());
        return None;
    }
    is_absolute(at)?;
    if at.as_bytes() == b"/" {
        at.truncate(0);
    }
    Some(without_folder(at))
}

/// Turns a path into the folder into the one that it stands for. Whether it was one.
fn without_folder<B: AsRef<[u8]> + AsMut<[u8]>>(path: &mut Text<B>) -> bool {
    let Some(folder) = folder() else { return false };
    let inside = is_below(path.as_bytes(), folder) && path.len() > folder.len();
    if inside {
        path.remove_prefix(folder.len());
    }
    inside
}

/// Locates the file that `fd` was opened as, by libc's own calls and names.
pub(crate) fn path_of(fd: c_int) -> Option<Path> {
    let mut path = Path::new()?;
    read_link(fd, &mut path)?;
    Some(path)
}

/// As [`path_of`], and cuts a long path off.
pub(crate) fn prefix_of(fd: c_int) -> Option<Prefix> {
    let mut prefix = Prefix::new();
    read_link(fd, &mut prefix)?;
    Some(prefix)
}

/// Fills `path` with that of a descriptor.
fn read_link<B: AsRef<[u8]> + AsMut<[u8]>>(fd: c_int, path: &mut Text<B>) -> Option<()> {
    const LINKS: &[u8] = b"/proc/self/fd/";
    // With ten digits and NUL.
    let mut link = [0; LINKS.len() + 11];
    let mut digits = [0; 10];
    let mut start = digits.len();
    let mut rest = u32::try_from(fd).ok()?;
    loop {
        start -= 1;
        *digits.get_mut(start)? = b'0' + u8::try_from(rest % 10).ok()?;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    for (to, from) in link.iter_mut().zip(LINKS.iter().chain(digits.get(start..)?)) {
        *to = *from;
    }
    // SAFETY: a C string, and room for the answer.
    path.fill(|to, room| unsafe {
        let len = system_call(libc::SYS_readlinkat, [CWD as usize, link.as_ptr() as usize, to as usize, room]);
        usize::try_from(len).ok()
    })
}

fn working_directory(path: &mut Path) -> Option<()> {
    // SAFETY: room for the answer, whose length counts its NUL.
    path.fill(|to, room| unsafe {
        let len = system_call(libc::SYS_getcwd, [to as usize, room, 0, 0]);
        usize::try_from(len).ok()?.checked_sub(1)
    })
}

/// States of [`WORKING_DIRECTORY`].
mod state {
    pub(super) const UNKNOWN: u8 = 0;
    pub(super) const OUTSIDE: u8 = 1;
    /// The working directory has been inside at least once. Never left: a child that shares this memory (vfork) may have a directory of its own.
    pub(super) const INSIDE: u8 = 2;
}

/// Whether the working directory can be in the folder.
static WORKING_DIRECTORY: AtomicU8 = AtomicU8::new(state::UNKNOWN);

/// Whether a descriptor's path leads into the folder, or to what the folder hides. An unknown one may.
fn is_inside(dir: c_int) -> bool {
    prefix_of(dir).is_none_or(|mut prefix| without_folder(&mut prefix) || is_shadowed(prefix.as_bytes()))
}

/// Whether a relative path may start in the folder.
fn may_be_inside(dir: c_int) -> bool {
    if dir != CWD {
        return with_errno_kept(|| is_inside(dir));
    }
    match WORKING_DIRECTORY.load(Ordering::Relaxed) {
        state::UNKNOWN => find_working_directory(),
        state::OUTSIDE => false,
        _ => true,
    }
}

/// Whether the working directory is in the folder. One that the kernel does not tell is not.
fn find_working_directory() -> bool {
    let Some(mut path) = with_errno_kept(Path::new) else { return false };
    let found = with_errno_kept(|| working_directory(&mut path));
    let inside = found.is_some() && without_folder(&mut path);
    let now = if inside { state::INSIDE } else { state::OUTSIDE };
    let _ = WORKING_DIRECTORY.compare_exchange(state::UNKNOWN, now, Ordering::Relaxed, Ordering::Relaxed);
    inside
}

/// Finds the working directory, so that getcwd(2) need not be called once the program has forbidden it to itself (seccomp(2)).
pub(crate) fn remember_working_directory() {
    if folder().is_some() && WORKING_DIRECTORY.load(Ordering::Relaxed) == state::UNKNOWN {
        find_working_directory();
    }
}

/// Notes that the working directory has become that of descriptor `dir`, or of a path of the folder.
pub(crate) fn working_directory_changed(dir: Option<c_int>) {
    if folder().is_some()
        && WORKING_DIRECTORY.load(Ordering::Relaxed) != state::INSIDE
        && dir.is_none_or(|dir| with_errno_kept(|| prefix_of(dir)).is_none_or(|mut path| without_folder(&mut path)))
    {
        WORKING_DIRECTORY.store(state::INSIDE, Ordering::Relaxed);
    }
}
