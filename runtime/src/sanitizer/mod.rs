//! Tells sanitizers and valgrind what they cannot see in this library.
//!
//! The library is not instrumented, its locks are futexes and its copies are assembly. Without help AddressSanitizer overlooks
//! a registered buffer that is used after free, MemorySanitizer takes received data for uninitialized, and ThreadSanitizer and
//! helgrind report races between accesses that a lock or a completion orders.
//!
//! The runtimes of sanitizers are found by their public interface (`<sanitizer/asan_interface.h>` and others) in the process;
//! a process without any pays for one load of an [`AtomicBool`] a verb and a copy.

mod runtimes;
mod valgrind;

use std::marker::PhantomData;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use runtimes::{AddressChecks, MemoryState, ThreadOrder};

/// Runtimes in this process.
struct Runtimes {
    address: Option<AddressChecks>,
    memory: Option<MemoryState>,
    thread: Option<ThreadOrder>,
    valgrind: bool,
}

static IS_WATCHED: AtomicBool = AtomicBool::new(false);
static RUNTIMES: OnceLock<Runtimes> = OnceLock::new();

/// Address that stands for the order of posting and completion: who polls a completion has seen all that was done before
/// any request was posted. Coarser than the order of a queue pair, so a clean program is never reported.
static ORDER: AtomicU8 = AtomicU8::new(0);

/// Looks for the runtimes. To be called once, when the library is loaded. `cfg(urxe_instrumented)` says that the library is
/// built with a sanitizer itself, and needs none of this.
pub fn find() {
    if cfg!(urxe_instrumented) {
        return;
    }
    let found = Runtimes {
        address: AddressChecks::find(),
        memory: MemoryState::find(),
        thread: ThreadOrder::find(),
        valgrind: valgrind::is_running(),
    };
    // What was not found is no error that the program asks for.
    // SAFETY: clears the thread's message.
    unsafe { libc::dlerror() };
    let is_watched = found.address.is_some() || found.memory.is_some() || found.thread.is_some() || found.valgrind;
    if is_watched && RUNTIMES.set(found).is_ok() {
        IS_WATCHED.store(true, Ordering::Release);
    }
}

/// Whether a sanitizer or valgrind watches this process.
pub fn is_watched() -> bool {
    runtimes().is_some()
}

#[inline]
fn runtimes() -> Option<&'static Runtimes> {
    if IS_WATCHED.load(Ordering::Relaxed) { RUNTIMES.get() } else { None }
}

/// Guard: while it lives, sanitizers neither check nor report what the library reads and writes in this thread.
#[derive(Debug)]
#[must_use]
pub struct Unchecked {
    is_watched: bool,
    /// The runtimes count for each thread: the value is to be dropped where it was made.
    _of_thread: PhantomData<*const ()>,
}

impl Unchecked {
    /// Stops checks of this thread until the value is dropped; nests.
    #[inline]
    pub fn begin() -> Self {
        let runtimes = runtimes();
        if let Some(runtimes) = runtimes {
            switch(runtimes, true);
        }
        Self { is_watched: runtimes.is_some(), _of_thread: PhantomData }
    }
}

impl Drop for Unchecked {
    #[inline]
    fn drop(&mut self) {
        if self.is_watched
            && let Some(runtimes) = RUNTIMES.get()
        {
            switch(runtimes, false);
        }
    }
}

#[cold]
fn switch(runtimes: &Runtimes, begin: bool) {
    if let Some(thread) = &runtimes.thread {
        thread.ignore(begin);
    }
    if let Some(memory) = &runtimes.memory {
        memory.ignore(begin);
    }
}

/// Orders what the application has done until now, as it posts, before every later completion.
#[inline]
pub fn posting() {
    if let Some(runtimes) = runtimes() {
        release(runtimes);
    }
}

/// Orders what was done before requests were posted before what the application does next, as it gets a completion.
#[inline]
pub fn completed() {
    if let Some(runtimes) = runtimes() {
        acquire(runtimes);
    }
}

#[cold]
fn release(runtimes: &Runtimes) {
    if let Some(thread) = &runtimes.thread {
        thread.release(ORDER.as_ptr());
    }
    if runtimes.valgrind {
        valgrind::happens_before(ORDER.as_ptr());
    }
}

#[cold]
fn acquire(runtimes: &Runtimes) {
    if let Some(thread) = &runtimes.thread {
        thread.acquire(ORDER.as_ptr());
    }
    if runtimes.valgrind {
        valgrind::happens_after(ORDER.as_ptr());
    }
}

/// `length` bytes of the application's at `from` are going to be read: a report if they are freed, or were never its own.
#[inline]
pub(crate) fn reading(from: u64, length: usize) {
    if let Some(runtimes) = runtimes() {
        check(runtimes, from, length, AddressChecks::read);
    }
}

/// `length` bytes of the application's at `to` are going to be written.
#[inline]
pub(crate) fn writing(to: u64, length: usize) {
    if let Some(runtimes) = runtimes() {
        check(runtimes, to, length, AddressChecks::write);
    }
}

#[cold]
fn check(runtimes: &Runtimes, at: u64, length: usize, check: fn(&AddressChecks, u64, usize)) {
    if let Some(address) = &runtimes.address {
        check(address, at, length);
    }
    // Of helgrind alone: the copy itself is none of ThreadSanitizer's accesses.
    if runtimes.valgrind {
        valgrind::happens_after(ORDER.as_ptr());
    }
}

/// Ends an access that [`reading`] has announced.
#[inline]
pub(crate) fn read() {
    if let Some(runtimes) = runtimes() {
        accessed(runtimes);
    }
}

/// `length` bytes of the application's at `at` have been written: they are initialized.
#[inline]
pub fn written(at: u64, length: usize) {
    if let Some(runtimes) = runtimes() {
        note_written(runtimes, at, length);
    }
}

#[cold]
fn note_written(runtimes: &Runtimes, at: u64, length: usize) {
    if let Some(memory) = &runtimes.memory {
        memory.initialized(at, length);
    }
    accessed(runtimes);
}

/// Orders a copy before what another thread does with the memory after its completion.
#[cold]
fn accessed(runtimes: &Runtimes) {
    if runtimes.valgrind {
        valgrind::happens_before(ORDER.as_ptr());
    }
}
