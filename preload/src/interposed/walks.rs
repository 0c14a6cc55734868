//! Functions that list folders and walk trees.
//!
//! libc's tree walkers open folders by themselves: they start in the folder of `urxe run`, and what they tell of it is
//! turned back into the paths that the program knows.

use core::ffi::{CStr, c_char, c_int, c_long, c_ushort, c_void};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use super::{Buffer, with_path};
use crate::folder::{folder, is_below};
use crate::listing;
use crate::resolve::{CWD, locate, working_directory_changed};

interpose! {
    path, by with_path {
        fn scandir(; CWD, path; list: Buffer, filter: Buffer, order: Buffer) -> c_int;
        fn scandir64(; CWD, path; list: Buffer, filter: Buffer, order: Buffer) -> c_int;
        fn scandirat(dir: c_int; dir, path; list: Buffer, filter: Buffer, order: Buffer) -> c_int;
        fn scandirat64(dir: c_int; dir, path; list: Buffer, filter: Buffer, order: Buffer) -> c_int;
    }

    others {
        fn opendir(path: *const c_char) -> Buffer = |next| {
            // SAFETY: the caller's own call, but for the path.
            unsafe { listing::opened(with_path(CWD, path, |path| next(path))) }
        }
        fn fdopendir(fd: c_int) -> Buffer = |next| {
            // SAFETY: the caller's own call.
            unsafe { listing::opened(next(fd)) }
        }
        fn readdir(dir: Buffer) -> Buffer = |next| {
            // SAFETY: the caller's own call, and libc's own function.
            unsafe { listing::next(dir, |dir| next(dir)) }
        }
        fn readdir64(dir: Buffer) -> Buffer = |next| {
            // SAFETY: as above.
            unsafe { listing::next(dir, |dir| next(dir)) }
        }
        fn rewinddir(dir: Buffer) -> () = |next| {
            listing::forget_position(dir);
            // SAFETY: the caller's own call.
            unsafe { next(dir) }
        }
        fn telldir(dir: Buffer) -> c_long = |next| {
            // SAFETY: as above.
            listing::position(dir).unwrap_or_else(|| unsafe { next(dir) })
        }
        fn seekdir(dir: Buffer, position: c_long) -> () = |next| {
            if listing::seek(dir, position) {
                // SAFETY: as above.
                unsafe { next(dir, position) }
            }
        }
        fn closedir(dir: Buffer) -> c_int = |next| {
            listing::closed(dir);
            // SAFETY: as above.
            unsafe { next(dir) }
        }

        fn ftw(path: *const c_char, visit: Buffer, most: c_int) -> c_int = |next| {
            // SAFETY: the caller's own call, but for the path and what is called for each file.
            unsafe { walk(path, visit, visit_ftw as *mut c_void, |path, visit| next(path, visit, most)) }
        }
        fn ftw64(path: *const c_char, visit: Buffer, most: c_int) -> c_int = |next| {
            // SAFETY: as above.
            unsafe { walk(path, visit, visit_ftw as *mut c_void, |path, visit| next(path, visit, most)) }
        }
        fn nftw(path: *const c_char, visit: Buffer, most: c_int, flags: c_int) -> c_int = |next| {
            // SAFETY: as above.
            unsafe { walk(path, visit, visit_nftw as *mut c_void, |path, visit| next(path, visit, most, flags)) }
        }
        fn nftw64(path: *const c_char, visit: Buffer, most: c_int, flags: c_int) -> c_int = |next| {
            // SAFETY: as above.
            unsafe { walk(path, visit, visit_nftw as *mut c_void, |path, visit| next(path, visit, most, flags)) }
        }

        fn fts_open(paths: *const *mut c_char, options: c_int, order: Buffer) -> Buffer = |next| {
            // SAFETY: the caller's own call, but for the paths.
            unsafe { with_paths(paths, |paths| next(paths, options, order)) }
        }
        fn fts64_open(paths: *const *mut c_char, options: c_int, order: Buffer) -> Buffer = |next| {
            // SAFETY: as above.
            unsafe { with_paths(paths, |paths| next(paths, options, order)) }
        }
        fn fts_read(stream: *mut Fts) -> *mut Entry = |next| {
            // SAFETY: the caller's own call.
            unsafe { entry(stream, |stream| next(stream)) }
        }
        fn fts64_read(stream: *mut Fts) -> *mut Entry = |next| {
            // SAFETY: as above.
            unsafe { entry(stream, |stream| next(stream)) }
        }
        fn fts_children(stream: *mut Fts, options: c_int) -> *mut Entry = |next| {
            // SAFETY: as above.
            unsafe { children(stream, |stream| next(stream, options)) }
        }
        fn fts64_children(stream: *mut Fts, options: c_int) -> *mut Entry = |next| {
            // SAFETY: as above.
            unsafe { children(stream, |stream| next(stream, options)) }
        }
    }
}

/// A walk by `ftw` or `nftw` that is under way.
struct Walk {
    /// The thread; 0 if there is no walk.
    thread: AtomicUsize,
    /// An address in the frame that has begun the walk. What the walk calls lies below it. If the thread is back in a frame
    /// above, the walk has been left, by longjmp(3) out of the program's function.
    frame: AtomicUsize,
    /// The program's function.
    visit: AtomicPtr<c_void>,
}

static WALKS: [Walk; 16] = [const {
    Walk { thread: AtomicUsize::new(0), frame: AtomicUsize::new(0), visit: AtomicPtr::new(core::ptr::null_mut()) }
}; 16];

#[expect(clippy::cast_possible_truncation, reason = "an address")]
fn this_thread() -> usize {
    // SAFETY: no preconditions. Never 0 while a program runs.
    unsafe { libc::pthread_self() as usize }
}

/// Calls `then` with the path at which the tree really is, and with `ours` in the place of the program's function if that
/// would be told a path that the program does not know.
///
/// # Safety
/// `path` is null or a C string.
unsafe fn walk(
    path: *const c_char,
    visit: Buffer,
    ours: Buffer,
    then: impl FnOnce(*const c_char, Buffer) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some(located) = (unsafe { locate(CWD, path) }) else { return then(path, visit) };
    let frame = (&raw const located).addr();
    forget_left(frame);
    let is_free =
        |walk: &&Walk| walk.thread.compare_exchange(0, this_thread(), Ordering::Acquire, Ordering::Relaxed).is_ok();
    let Some(walk) = WALKS.iter().find(is_free) else { return then(located.as_ptr(), visit) };
    walk.visit.store(visit, Ordering::Relaxed);
    walk.frame.store(frame, Ordering::Relaxed);
    working_directory_changed(None);
    let result = then(located.as_ptr(), ours);
    walk.thread.store(0, Ordering::Release);
    result
}

/// Forgets this thread's walks that have been left, now that it is back in a frame at this address.
fn forget_left(frame: usize) {
    for left in own_walks().filter(|walk| walk.frame.load(Ordering::Relaxed) <= frame) {
        left.thread.store(0, Ordering::Release);
    }
}

fn own_walks() -> impl Iterator<Item = &'static Walk> {
    WALKS.iter().filter(|walk| walk.thread.load(Ordering::Relaxed) == this_thread())
}

/// The program's function of this thread's innermost walk that has begun above `here`, an address in the frame that calls it.
fn visit(here: usize) -> Buffer {
    let frame = |walk: &&Walk| walk.frame.load(Ordering::Relaxed);
    let innermost = own_walks().filter(|walk| frame(walk) > here).min_by_key(frame);
    innermost.map_or(core::ptr::null_mut(), |walk| walk.visit.load(Ordering::Relaxed))
}

/// How many bytes of a path lead to the folder: 0 if it is not in there.
///
/// # Safety
/// `path` is a C string.
unsafe fn prefix_len(path: *const c_char) -> usize {
    let Some(folder) = folder() else { return 0 };
    // SAFETY: the caller's promise.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    if is_below(path, folder) && path.len() > folder.len() { folder.len() } else { 0 }
}

unsafe extern "C" fn visit_ftw(path: *const c_char, stat: Buffer, flag: c_int) -> c_int {
    let local = 0_u8;
    let frame = (&raw const local).addr();
    let visit = visit(frame);
    if visit.is_null() {
        return 0;
    }
    // SAFETY: the program's function has this type, and libc's own arguments.
    unsafe {
        let visit = core::mem::transmute::<Buffer, unsafe extern "C" fn(*const c_char, Buffer, c_int) -> c_int>(visit);
        let result = visit(path.add(prefix_len(path)), stat, flag);
        forget_left(frame);
        result
    }
}

/// `struct FTW` of `<ftw.h>`.
#[repr(C)]
struct Ftw {
    /// Offset of the file's own name in the path.
    base: c_int,
    level: c_int,
}

type VisitNftw = unsafe extern "C" fn(*const c_char, Buffer, c_int, *mut Ftw) -> c_int;

unsafe extern "C" fn visit_nftw(path: *const c_char, stat: Buffer, flag: c_int, ftw: *mut Ftw) -> c_int {
    let local = 0_u8;
    let frame = (&raw const local).addr();
    let visit = visit(frame);
    if visit.is_null() {
        return 0;
    }
    // SAFETY: as above; `ftw` is libc's.
    unsafe {
        let visit = core::mem::transmute::<Buffer, VisitNftw>(visit);
        let prefix = prefix_len(path);
        let base = c_int::try_from(prefix).unwrap_or(0);
        let mut shown = Ftw { base: (*ftw).base - base, level: (*ftw).level };
        let result = visit(path.add(prefix), stat, flag, &raw mut shown);
        forget_left(frame);
        result
    }
}

/// The beginning of `FTS` of `<fts.h>`.
#[repr(C)]
pub(super) struct Fts {
    current: *mut Entry,
    child: *mut Entry,
    array: Buffer,
    device: libc::dev_t,
    /// Holds the path of the current entry.
    path: *mut c_char,
}

/// The beginning of `FTSENT` of `<fts.h>`.
#[repr(C)]
pub(super) struct Entry {
    cycle: *mut Self,
    parent: *mut Self,
    link: *mut Self,
    number: c_long,
    pointer: Buffer,
    access_path: *mut c_char,
    path: *mut c_char,
    errno: c_int,
    symlink_fd: c_int,
    path_len: c_ushort,
}

/// Calls `then` with the paths at which the trees really are.
///
/// # Safety
/// `paths` is a list of C strings that ends with null.
unsafe fn with_paths(paths: *const *mut c_char, then: impl FnOnce(*const *mut c_char) -> Buffer) -> Buffer {
    if folder().is_none() || paths.is_null() {
        return then(paths);
    }
    // SAFETY: the caller's promise, and room for as many. What is not the program's own is given back: libc keeps copies.
    unsafe {
        let mut count = 0;
        while !(*paths.add(count)).is_null() {
            count += 1;
        }
        let list = libc::calloc(count + 1, size_of::<*mut c_char>()).cast::<*mut c_char>();
        if list.is_null() {
            return core::ptr::null_mut();
        }
        for index in 0..count {
            let path = *paths.add(index);
            let located = locate(CWD, path);
            let copy = located.map_or(core::ptr::null_mut(), |located| {
                working_directory_changed(None);
                libc::strdup(located.as_ptr())
            });
            *list.add(index) = if copy.is_null() { path } else { copy };
        }
        let stream = then(list);
        for index in 0..count {
            if *list.add(index) != *paths.add(index) {
                libc::free((*list.add(index)).cast());
            }
        }
        libc::free(list.cast());
        stream
    }
}

/// Shows the current entry as the program knows it.
///
/// # Safety
/// `stream` is what `fts_open` returned.
unsafe fn show(stream: *mut Fts, entry: *mut Entry) {
    // SAFETY: the caller's promise; libc's own structures. The path stays in the buffer, only its beginning is passed over.
    unsafe {
        if folder().is_none() || entry.is_null() || (*entry).path != (*stream).path {
            return;
        }
        let prefix = prefix_len((*entry).path);
        let short = c_ushort::try_from(prefix).unwrap_or(0);
        if prefix == 0 || (*entry).path_len < short {
            return;
        }
        if (*entry).access_path == (*entry).path {
            (*entry).access_path = (*entry).access_path.add(prefix);
        }
        (*entry).path = (*entry).path.add(prefix);
        (*entry).path_len -= short;
    }
}

/// Gives libc the current entry back as it was.
///
/// # Safety
/// As [`show`].
unsafe fn unshow(stream: *mut Fts) {
    let Some(folder) = folder() else { return };
    // SAFETY: as above. Only what `show` has moved lies there.
    unsafe {
        if stream.is_null() || (*stream).current.is_null() {
            return;
        }
        let entry = (*stream).current;
        let shown = (*stream).path.wrapping_add(folder.len());
        if (*entry).path != shown {
            return;
        }
        if (*entry).access_path == shown {
            (*entry).access_path = (*stream).path;
        }
        (*entry).path = (*stream).path;
        (*entry).path_len += c_ushort::try_from(folder.len()).unwrap_or(0);
    }
}

/// # Safety
/// As [`show`].
unsafe fn entry(stream: *mut Fts, then: impl FnOnce(*mut Fts) -> *mut Entry) -> *mut Entry {
    // SAFETY: the caller's promise.
    unsafe {
        unshow(stream);
        let entry = then(stream);
        show(stream, entry);
        entry
    }
}

/// # Safety
/// As [`show`].
unsafe fn children(stream: *mut Fts, then: impl FnOnce(*mut Fts) -> *mut Entry) -> *mut Entry {
    // SAFETY: the caller's promise. Before the first entry there is none.
    unsafe {
        unshow(stream);
        let children = then(stream);
        if !stream.is_null() {
            show(stream, (*stream).current);
        }
        children
    }
}
