//! Interfaces of the sanitizers' runtimes: functions that a program brings which was built with one.

use std::ffi::{CStr, c_char, c_int, c_void};

/// Address of a function in the program or a library that it was linked with.
fn function(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a name.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!address.is_null()).then_some(address)
}

type IsPoisoned = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;
type Report = unsafe extern "C" fn(usize, usize);

/// AddressSanitizer (`<sanitizer/asan_interface.h>`, and `__asan_report_load_n` that compilers call).
pub(super) struct AddressChecks {
    is_poisoned: IsPoisoned,
    report_load: Report,
    report_store: Report,
}

impl AddressChecks {
    pub(super) fn find() -> Option<Self> {
        let is_poisoned = function(c"__asan_region_is_poisoned")?;
        let (load, store) = (function(c"__asan_report_load_n")?, function(c"__asan_report_store_n")?);
        // SAFETY: the functions of these names have these types.
        unsafe {
            Some(Self {
                is_poisoned: std::mem::transmute::<*mut c_void, IsPoisoned>(is_poisoned),
                report_load: std::mem::transmute::<*mut c_void, Report>(load),
                report_store: std::mem::transmute::<*mut c_void, Report>(store),
            })
        }
    }

    pub(super) fn read(&self, from: u64, length: usize) {
        self.check(from, length, self.report_load);
    }

    pub(super) fn write(&self, to: u64, length: usize) {
        self.check(to, length, self.report_store);
    }

    fn check(&self, at: u64, length: usize, report: Report) {
        let Ok(at) = usize::try_from(at) else { return };
        // SAFETY: asks about addresses, which may be any.
        let poisoned = unsafe { (self.is_poisoned)(std::ptr::without_provenance_mut(at), length) };
        if length > 0 && !poisoned.is_null() {
            // SAFETY: describes an access of this thread. Ends the process, unless the program asked for going on.
            unsafe { report(at, length) };
        }
    }
}

type Unpoison = unsafe extern "C" fn(*const c_void, usize);
type Switch = unsafe extern "C" fn();

/// MemorySanitizer (`<sanitizer/msan_interface.h>`).
pub(super) struct MemoryState {
    unpoison: Unpoison,
    disable: Switch,
    enable: Switch,
}

impl MemoryState {
    pub(super) fn find() -> Option<Self> {
        let unpoison = function(c"__msan_unpoison")?;
        let disable = function(c"__msan_scoped_disable_interceptor_checks")?;
        let enable = function(c"__msan_scoped_enable_interceptor_checks")?;
        // SAFETY: the functions of these names have these types.
        unsafe {
            Some(Self {
                unpoison: std::mem::transmute::<*mut c_void, Unpoison>(unpoison),
                disable: std::mem::transmute::<*mut c_void, Switch>(disable),
                enable: std::mem::transmute::<*mut c_void, Switch>(enable),
            })
        }
    }

    pub(super) fn initialized(&self, at: u64, length: usize) {
        let Ok(at) = usize::try_from(at) else { return };
        // SAFETY: memory that was written to just now.
        unsafe { (self.unpoison)(std::ptr::without_provenance(at), length) };
    }

    /// Functions of libc that this thread calls check their arguments no more, or again.
    pub(super) fn ignore(&self, begin: bool) {
        // SAFETY: counters of the thread, which are raised and lowered in pairs.
        unsafe { if begin { (self.disable)() } else { (self.enable)() } };
    }
}

type Annotation = unsafe extern "C" fn(*const c_char, c_int);
type Order = unsafe extern "C" fn(*mut c_void);

/// ThreadSanitizer (`<sanitizer/tsan_interface.h>`, and its dynamic annotations).
pub(super) struct ThreadOrder {
    acquire: Order,
    release: Order,
    /// Begins and ends ignoring reads, then writes.
    ignore: [[Annotation; 2]; 2],
}

impl ThreadOrder {
    pub(super) fn find() -> Option<Self> {
        // Others define annotations that do nothing.
        function(c"__tsan_init")?;
        let annotation = |name: &CStr| {
            // SAFETY: the functions of these names have this type.
            function(name).map(|address| unsafe { std::mem::transmute::<*mut c_void, Annotation>(address) })
        };
        let order = |name: &CStr| {
            // SAFETY: as above.
            function(name).map(|address| unsafe { std::mem::transmute::<*mut c_void, Order>(address) })
        };
        let reads = [annotation(c"AnnotateIgnoreReadsBegin")?, annotation(c"AnnotateIgnoreReadsEnd")?];
        let writes = [annotation(c"AnnotateIgnoreWritesBegin")?, annotation(c"AnnotateIgnoreWritesEnd")?];
        Some(Self { acquire: order(c"__tsan_acquire")?, release: order(c"__tsan_release")?, ignore: [reads, writes] })
    }

    /// Accesses of this thread, by functions of libc, are seen no more, or again.
    pub(super) fn ignore(&self, begin: bool) {
        let file = concat!(file!(), "\0").as_ptr().cast();
        for [start, end] in self.ignore {
            // SAFETY: counters of the thread, which are raised and lowered in pairs; the name of a file.
            unsafe { if begin { start(file, 0) } else { end(file, 0) } };
        }
    }

    pub(super) fn acquire(&self, address: *mut u8) {
        // SAFETY: any address.
        unsafe { (self.acquire)(address.cast()) };
    }

    pub(super) fn release(&self, address: *mut u8) {
        // SAFETY: any address.
        unsafe { (self.release)(address.cast()) };
    }
}
