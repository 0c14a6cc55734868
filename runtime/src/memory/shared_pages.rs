//! Registered pages that peers of this user and host reach themselves (`urxe_net::direct`).
//!
//! Private anonymous pages become pages of the process's shared file, in place: they are copied into the file, which is then mapped
//! over them. When the last registration of them ends, they become private again, by a copy the other way. Pages of files, of
//! shared mappings, huge pages, the main thread's stack and other mappings that grow (`MAP_GROWSDOWN`) stay what they are, and so
//! does a range that overlaps one that is shared and is not within it.
//!
//! An application may have moved shared pages by mremap(2), or made the mapping larger. So the end of a sharing looks for the pages in
//! all mappings, and behind them in the file there is as much room as they take, which nobody else has ([`room_for`]).
//!
//! # Writes meanwhile
//!
//! Another thread of the application may write to a page while it is copied. So writes are held up by userfaultfd(2), which stops a
//! thread in the page fault and lets it go on when the page is mapped anew. A process without CAP_SYS_PTRACE cannot hold up the kernel:
//! a system call that would write there fails with EFAULT, so only pages are shared that are registered whole, and nobody else's
//! data. Where there is no userfaultfd, pages stay private.
//!
//! # Fork
//!
//! A child of fork(2) would share the pages with its parent. It gets private copies before the program goes on in it, and the
//! parent waits for that: until then, both would write to the same pages.

mod child;
mod frozen;
mod private;

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use urxe_net::cancellation::CancelGuard;
use urxe_net::direct::SharedFile;

use super::mapping::Mapping;
use super::maps;
use crate::fork_safe_mutex::ForkSafeMutex;
use crate::limits::page;
use frozen::Frozen;
use private::is_private;

pub(crate) use child::{after_fork, before_fork, in_child};

/// The largest registration whose pages are shared: that much is copied while the application waits.
const MOST: u64 = 4 << 30;

/// Pages that are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    start: u64,
    end: u64,
    /// Offset of the first in the file.
    at: u64,
    /// Bytes of the file that are theirs.
    room: u64,
    /// Registrations. None: they could not become private yet.
    users: u32,
}

impl Extent {
    const fn contains(&self, start: u64, end: u64) -> bool {
        self.start <= start && end <= self.end
    }

    const fn overlaps(&self, start: u64, end: u64) -> bool {
        start < self.end && self.start < end
    }
}

/// The shared file, and what of the application's memory is in there.
struct State {
    file: Arc<SharedFile>,
    inode: u64,
    extents: Vec<Extent>,
}

static STATE: ForkSafeMutex<Option<State>> = ForkSafeMutex::new(None);

/// The shared file of this process, made by the first call.
///
/// # Errors
/// The error of the system call.
pub(crate) fn file() -> io::Result<Arc<SharedFile>> {
    let _guard = CancelGuard::new();
    STATE.with(|state| {
        if let Some(State { file, .. }) = state
            && file.file().is_ok()
        {
            return Ok(Arc::clone(file));
        }
        let file = Arc::new(SharedFile::create()?);
        *state = Some(State { inode: file.inode(), file: Arc::clone(&file), extents: Vec::new() });
        Ok(file)
    })
}

/// Shares `[start, start + length)` once more, if that can be done. Returns the offset of its first byte in the file.
pub(crate) fn share(start: u64, length: u64) -> Option<u64> {
    if length == 0 || length > MOST {
        return None;
    }
    let last = start.checked_add(length)?;
    let (first, end) = (start - start % page(), last.checked_next_multiple_of(page())?);
    let is_whole = (first, end) == (start, last);
    let _guard = CancelGuard::new();
    STATE.with(|state| {
        let State { file, inode, extents } = state.as_mut()?;
        let (into, start, length) = (start - first, first, end - first);
        end_unused(file, *inode, extents);
        if let Some(extent) = extents.iter_mut().find(|extent| extent.contains(start, end)) {
            // Unless the application has unmapped it, and has other memory there now.
            let at = extent.at + (start - extent.start);
            return maps::is_shared(start, length, *inode, at).then(|| {
                extent.users += 1;
                at + into
            });
        }
        if extents.iter().any(|extent| extent.overlaps(start, end)) || !is_private(start, length) {
            return None;
        }
        let room = room_for(length);
        let at = file.take(room)?;
        extents.reserve(1);
        if move_in(file, start, length, at, is_whole).is_none() {
            file.give_back(at, room);
            return None;
        }
        extents.push(Extent { start, end, at, room, users: 1 });
        Some(at + into)
    })
}

/// Bytes of the file that so many bytes of pages have: a mapping that becomes larger shows what is behind them in the file, and may
/// do so up to twice its size.
const fn room_for(length: u64) -> u64 {
    length + if length < LEAST_GROWTH { LEAST_GROWTH } else { length }
}

const LEAST_GROWTH: u64 = 1 << 20;

/// Lets `act` at `[start, start + length)`, which is within pages that were [shared](share) and still are, `at` the first byte's
/// offset in the file: whatever the application has done to its mapping of them. `None`: they are not shared, or cannot be mapped.
///
/// Nobody ends the sharing meanwhile.
pub(crate) fn reach<T>(start: u64, length: u64, at: u64, act: impl FnOnce(u64) -> T) -> Option<T> {
    let end = start.checked_add(length)?;
    let _guard = CancelGuard::new();
    STATE.with(|state| {
        let State { file, extents, .. } = state.as_ref()?;
        let is_this = |extent: &Extent| extent.contains(start, end) && extent.at + (start - extent.start) == at;
        extents.iter().find(|extent| is_this(extent))?;
        let (first, bytes) = (at - at % page(), usize::try_from(at % page() + length).ok()?);
        let fd = file.file().ok()?.as_raw_fd();
        let mapping = Mapping::shared(fd, i64::try_from(first).ok()?, bytes, true).ok()?;
        Some(act(mapping.address() + at % page()))
    })
}

/// Ends a sharing of `[start, start + length)`, which was at `at`. After the last the pages are private.
pub(crate) fn unshare(start: u64, length: u64, at: u64) {
    let _guard = CancelGuard::new();
    STATE.with(|state| {
        let Some(State { file, inode, extents }) = state else { return };
        let is_this = |extent: &&mut Extent| {
            extent.contains(start, start.saturating_add(length)) && extent.at + (start - extent.start) == at
        };
        if let Some(extent) = extents.iter_mut().find(is_this) {
            extent.users = extent.users.saturating_sub(1);
        }
        end_unused(file, *inode, extents);
    });
}

/// Makes pages private that nobody has registered. What cannot be made so is tried again by the next call.
fn end_unused(file: &SharedFile, inode: u64, extents: &mut Vec<Extent>) {
    extents.retain(|extent| {
        let is_private = extent.users == 0 && move_out(file, inode, extent).is_some();
        if is_private {
            file.give_back(extent.at, extent.room);
        }
        !is_private
    });
}

/// Makes private pages shared ones, all of which are registered if they are `whole`.
// Nothing is allocated while the pages are frozen: they may be the allocator's.
fn move_in(file: &SharedFile, start: u64, length: u64, at: u64, whole: bool) -> Option<()> {
    let fd = file.file().ok()?;
    // Without the one they would never become private again; without the other the process would get SIGXFSZ.
    if !frozen::can_freeze_shared() || !file.may_be_written(at + length) {
        return None;
    }
    let frozen = Frozen::private(start, length, whole)?;
    frozen.copy_to_file(fd, at)?;
    let (address, bytes) = (start as *mut libc::c_void, usize::try_from(length).ok()?);
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
    let offset = i64::try_from(at).ok()?;
    // SAFETY: takes the place of private memory of no file, whose bytes are the file's at this offset by now.
    let mapped = unsafe { libc::mmap(address, bytes, protection, flags, fd.as_raw_fd(), offset) };
    (mapped == address).then_some(())
}

/// Makes shared pages private ones, wherever they are mapped by now. `None`: some are shared still.
fn move_out(file: &SharedFile, inode: u64, extent: &Extent) -> Option<()> {
    let fd = file.file().ok()?;
    let parts = || maps::parts_of_file(inode, extent.at, extent.at + extent.room, &urxe_net::direct::is_import);
    for part in parts() {
        let length = part.end - part.start;
        let copy = frozen::private_copy(length)?;
        let _frozen = Frozen::shared(part.start, length)?;
        // The application may have put something else there since the look. Allocates nothing.
        if !maps::is_shared(part.start, length, inode, part.offset) {
            continue;
        }
        copy.fill_from(fd, part.offset)?;
        copy.put_at(part.start, part.protection)?;
    }
    parts().is_empty().then_some(())
}

#[cfg(test)]
pub(crate) mod tests;
