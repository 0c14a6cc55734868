//! Libraries whose calls are diverted, and the files of theirs that are answered for.

use std::ffi::{CStr, c_void};
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use urxe_net::identity::Identity;
use urxe_runtime::fork::Generation;
use urxe_runtime::fork_safe_mutex::{ForkSafeMutex, without_fork};

use super::Errno;
use super::plt::{Exporter, Object, exporters, loads};

/// A library whose calls are diverted in every copy that is loaded, whatever its file is called: bundles bring copies.
pub(super) struct HookedLibrary {
    /// Function that copies are known by.
    exported: &'static CStr,
    /// Fills the slots of a copy.
    divert: fn(&Object),
    /// Addresses in the copies whose calls are diverted.
    installed: ForkSafeMutex<Vec<usize>>,
    /// [`loads`] when copies were looked for last.
    loads: AtomicU64,
}

impl HookedLibrary {
    /// The library that exports this function.
    pub(super) const fn new(exported: &'static CStr, divert: fn(&Object)) -> Self {
        Self { exported, divert, installed: ForkSafeMutex::new(Vec::new()), loads: AtomicU64::new(0) }
    }

    /// Diverts the calls of copies that were loaded since. Again does no harm.
    pub(super) fn install_if_loaded(&self) {
        let loads = without_fork(loads);
        if self.loads.load(Ordering::Acquire) == loads {
            return;
        }
        for copy in without_fork(|| exporters(&[self.exported])) {
            if !self.installed.with(|installed| installed.contains(&copy.function)) {
                self.install(&copy);
            }
        }
        self.loads.store(loads, Ordering::Release);
    }

    fn install(&self, copy: &Exporter) {
        // The reference is kept: our hooks are in there for good.
        // SAFETY: the loader's name of the copy, with a slash, so that it reads no cache; nothing is loaded.
        if unsafe { libc::dlopen(copy.path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) }.is_null() {
            return;
        }
        if let Ok(object) = without_fork(|| Object::containing(copy.function as *const c_void)) {
            (self.divert)(&object);
            self.installed.with(|installed| installed.push(copy.function));
        }
    }
}

/// An open file that calls are answered for.
pub(super) struct OpenFile<T> {
    fd: RawFd,
    /// Identity of what is under the number, of files that programs close behind the library's back (`closefrom(3)`,
    /// dup2(2)).
    identity: Option<Identity>,
    generation: Generation,
    file: Arc<T>,
}

impl<T> Clone for OpenFile<T> {
    fn clone(&self) -> Self {
        Self { file: Arc::clone(&self.file), ..*self }
    }
}

impl<T> OpenFile<T> {
    /// Whether a file still is under its number, as far as that can be told.
    fn is_there(&self) -> bool {
        self.identity.is_none_or(|identity| identity.is_under(self.fd))
    }

    fn is_own(&self) -> bool {
        self.generation == Generation::now()
    }

    /// The file; EIO in a child that inherited it.
    pub(super) fn file(self) -> Result<Arc<T>, Errno> {
        self.own().ok_or(Errno(libc::EIO))
    }

    /// The file, unless it is the parent's.
    fn own(self) -> Option<Arc<T>> {
        self.is_own().then_some(self.file)
    }
}

/// Open files of a library, by descriptor.
pub(super) struct OpenFiles<T> {
    all: ForkSafeMutex<Vec<OpenFile<T>>>,
    /// Ends a file that is closed.
    end: fn(Arc<T>),
}

impl<T> OpenFiles<T> {
    pub(super) const fn new(end: fn(Arc<T>)) -> Self {
        Self { all: ForkSafeMutex::new(Vec::new()), end }
    }

    /// Adds a file. The one that had the number before ends.
    pub(super) fn insert(&self, fd: RawFd, file: Arc<T>) {
        let open = OpenFile { fd, identity: Identity::of(fd).ok(), generation: Generation::now(), file };
        let replaced = self.all.with(|all| {
            let at = all.iter().position(|open| open.fd == fd);
            let replaced = at.map(|at| all.swap_remove(at));
            all.push(open);
            replaced
        });
        if let Some(replaced) = replaced {
            self.end(replaced);
        }
    }

    /// The file under a number. One that the program has closed some other way ends.
    pub(super) fn find(&self, fd: RawFd) -> Option<OpenFile<T>> {
        let found = self.all.with(|all| all.iter().find(|open| open.fd == fd).cloned())?;
        if found.is_there() {
            return Some(found);
        }
        if let Some(gone) = self.take(&found) {
            self.end(gone);
        }
        None
    }

    /// Takes out this file, unless another one has come under its number since.
    pub(super) fn take(&self, gone: &OpenFile<T>) -> Option<OpenFile<T>> {
        self.all.with(|all| {
            let at = all.iter().position(|open| Arc::ptr_eq(&open.file, &gone.file))?;
            Some(all.swap_remove(at))
        })
    }

    /// Ends a file that was taken out, unless it is the parent's.
    pub(super) fn end(&self, gone: OpenFile<T>) {
        if let Some(file) = gone.own() {
            // A panic in there has nobody to go to.
            let _ = catch_unwind(AssertUnwindSafe(|| (self.end)(file)));
        }
    }
}
