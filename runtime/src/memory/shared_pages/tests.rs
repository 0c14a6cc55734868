use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread;

use super::*;

const LENGTH: usize = 64 * 4096;
/// Bytes before and behind the pages that are nobody's: pages next to the stack of whoever shares them stay private.
const MARGIN: usize = 512 << 10;

/// Private pages of a test.
struct Pages(*mut u8);

// SAFETY: a pointer to memory that lives until the end of the test.
unsafe impl Send for Pages {}
// SAFETY: as above; it is accessed by atomics.
unsafe impl Sync for Pages {}

impl Pages {
    fn new() -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping.
        let all = unsafe { libc::mmap(ptr::null_mut(), LENGTH + 2 * MARGIN, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(all, libc::MAP_FAILED);
        // SAFETY: within the new mapping.
        let pages = unsafe { all.byte_add(MARGIN) };
        // SAFETY: as above.
        assert_eq!(unsafe { libc::mprotect(pages, LENGTH, libc::PROT_READ | libc::PROT_WRITE) }, 0);
        Self(pages.cast())
    }

    fn start(&self) -> u64 {
        self.0 as u64
    }

    fn word(&self, nth: usize) -> &AtomicU64 {
        assert!(nth < LENGTH / 8);
        // SAFETY: within the pages, and aligned.
        unsafe { &*self.0.cast::<AtomicU64>().add(nth) }
    }

    fn fill(&self) {
        // The second half is left as it is: nothing is there.
        for nth in 0..LENGTH / 16 {
            self.word(nth).store(nth as u64 + 1, Ordering::Relaxed);
        }
    }

    fn is_filled(&self) -> bool {
        (0..LENGTH / 16).all(|nth| self.word(nth).load(Ordering::Relaxed) == nth as u64 + 1)
            && (LENGTH / 16..LENGTH / 8).all(|nth| self.word(nth).load(Ordering::Relaxed) == 0)
    }

    fn share(&self) -> Option<u64> {
        share(self.start(), LENGTH as u64)
    }

    fn unshare(&self, at: u64) {
        unshare(self.start(), LENGTH as u64, at);
    }

    fn is_private(&self) -> bool {
        is_private(self.start(), LENGTH as u64)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: pages of a test.
        unsafe { libc::munmap(self.0.byte_sub(MARGIN).cast(), LENGTH + 2 * MARGIN) };
    }
}

/// Ends the threads that look at it, also when a test fails.
struct Stop(AtomicBool);

impl Stop {
    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Sets a [`Stop`] when it is dropped.
struct Stopping<'a>(&'a Stop);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}

/// Taken by each test that shares pages or has a child. Forks of one test would wait for the pages of another; and while a child has a
/// copy of the descriptor that freezes pages, they stay frozen, and cannot be shared again.
pub(crate) static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    let guard = crate::lock(&ALONE);
    file().unwrap();
    guard
}

#[test]
fn pages_keep_what_is_in_them() {
    let _alone = alone();
    let pages = Pages::new();
    pages.fill();
    let at = pages.share().unwrap();
    assert!(pages.is_filled() && !pages.is_private());
    // What a peer writes into the file is seen.
    let file = file().unwrap();
    rustix_pwrite(&file, 4242, at + 8);
    assert_eq!(pages.word(1).load(Ordering::Relaxed), 4242);
    pages.word(1).store(2, Ordering::Relaxed);
    pages.unshare(at);
    assert!(pages.is_filled() && pages.is_private());
}

fn rustix_pwrite(file: &SharedFile, word: u64, at: u64) {
    let (fd, bytes) = (file.file().unwrap().as_raw_fd(), word.to_ne_bytes());
    // SAFETY: eight bytes.
    assert_eq!(unsafe { libc::pwrite(fd, bytes.as_ptr().cast(), 8, i64::try_from(at).unwrap()) }, 8);
}

#[test]
fn pages_stay_shared_until_the_last_registration_ends() {
    let _alone = alone();
    let pages = Pages::new();
    let at = pages.share().unwrap();
    let within = share(pages.start() + 4096, 4096).unwrap();
    assert_eq!(within, at + 4096);
    pages.unshare(at);
    assert!(!pages.is_private());
    unshare(pages.start() + 4096, 4096, within);
    assert!(pages.is_private());
}

#[test]
fn only_private_pages_are_shared() {
    let _alone = alone();
    let pages = Pages::new();
    assert_eq!(share(pages.start(), 0), None);
    assert_eq!(share(0x10000, 4096), None, "nothing is there");
    let on_stack = [0_u8; 3 * 4096];
    let page = (on_stack.as_ptr() as u64).next_multiple_of(4096);
    assert_eq!(share(page, 4096), None, "a stack");
    // SAFETY: pages of this test.
    assert_eq!(unsafe { libc::mprotect(pages.0.cast(), LENGTH, libc::PROT_READ) }, 0);
    assert_eq!(pages.share(), None, "read-only");
}

/// Parts of pages take whole pages along, if nothing can go wrong for who has the rest.
#[test]
fn parts_of_pages() {
    let _alone = alone();
    let pages = Pages::new();
    pages.fill();
    if let Some(at) = share(pages.start() + 4000, 1000) {
        assert_eq!(at % 4096, 4000);
        assert!(pages.is_filled());
        assert_eq!(share(pages.start() + 100, 8192), None, "it overlaps, and is not within");
        let within = share(pages.start() + 200, 8).unwrap();
        assert_eq!(within + 3800, at);
        unshare(pages.start() + 200, 8, within);
        unshare(pages.start() + 4000, 1000, at);
    }
    assert!(pages.is_filled() && pages.is_private());
}

/// Pages are within reach until their sharing ends, whatever the application does to its mapping.
#[test]
fn shared_pages_are_reached_by_the_file() {
    let _alone = alone();
    let pages = Pages::new();
    pages.fill();
    let at = pages.share().unwrap();
    let start = pages.start();
    let add_one = |word: u64| {
        // SAFETY: eight bytes of pages of this test.
        reach(start + word, 8, at + word, |there| unsafe { crate::memory::faultable_copy::fetch_add(there, 1) })
    };
    // SAFETY: pages of this test.
    assert_eq!(unsafe { libc::mprotect(pages.0.cast(), LENGTH, libc::PROT_NONE) }, 0);
    assert_eq!(add_one(8), Some(Ok(2)));
    assert_eq!(add_one(4096 + 16), Some(Ok(515)), "another page");
    assert_eq!(reach(start + 8, 8, at, |_| ()), None, "another place of the file");
    assert_eq!(reach(start + LENGTH as u64 - 4, 8, at + LENGTH as u64 - 4, |_| ()), None, "behind the end");
    // SAFETY: as above.
    assert_eq!(unsafe { libc::mprotect(pages.0.cast(), LENGTH, libc::PROT_READ | libc::PROT_WRITE) }, 0);
    assert_eq!((pages.word(1).load(Ordering::Relaxed), pages.word(514).load(Ordering::Relaxed)), (3, 516));
    pages.unshare(at);
    assert_eq!(add_one(8), None, "they are private");
}

/// Memory that was unmapped may be somebody else's when its registration ends.
#[test]
fn unmapped_pages_are_left_alone() {
    let _alone = alone();
    let pages = Pages::new();
    pages.fill();
    let at = pages.share().unwrap();
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
    // SAFETY: pages of this test.
    unsafe { libc::mmap(pages.0.cast(), LENGTH / 2, protection, flags, -1, 0) };
    pages.word(0).store(77, Ordering::Relaxed);
    assert_eq!(pages.share(), None, "it is not what was shared");
    pages.unshare(at);
    assert_eq!(pages.word(0).load(Ordering::Relaxed), 77);
    assert_eq!(pages.word(1).load(Ordering::Relaxed), 0);
    assert!(pages.is_private());
}

/// Moves pages, and makes the mapping as long as `length` says. Returns where they are.
fn moved(pages: Pages, length: usize) -> Pages {
    // SAFETY: pages of this test.
    let new =
        unsafe { libc::mremap(pages.0.cast(), LENGTH, length, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, spot()) };
    assert_ne!(new, libc::MAP_FAILED);
    // Where they were may be somebody else's by now.
    std::mem::forget(pages);
    Pages(new.cast())
}

/// Addresses that nobody has, with room for twice as many pages behind them.
fn spot() -> *mut libc::c_void {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping.
    let all = unsafe { libc::mmap(ptr::null_mut(), 2 * LENGTH + 2 * MARGIN, libc::PROT_NONE, flags, -1, 0) };
    assert_ne!(all, libc::MAP_FAILED);
    // SAFETY: within the new mapping.
    unsafe { all.byte_add(MARGIN) }
}

/// mremap(2) moves memory, registered or not; what is in there goes with it.
#[test]
fn moved_pages_keep_what_is_in_them() {
    let _alone = alone();
    let pages = Pages::new();
    pages.fill();
    let (start, at) = (pages.start(), pages.share().unwrap());
    let pages = moved(pages, LENGTH);
    unshare(start, LENGTH as u64, at);
    assert!(pages.is_filled() && pages.is_private());
    let others = Pages::new();
    let of_others = others.share().unwrap();
    others.word(0).store(4711, Ordering::Relaxed);
    assert!(pages.is_filled(), "they are the next registration's");
    others.unshare(of_others);
}

/// A mapping that has become larger, as realloc(3) has it, has memory of its own behind what was registered.
#[test]
fn a_larger_mapping_has_its_own_memory() {
    let _alone = alone();
    let pages = Pages::new();
    pages.fill();
    let (start, at) = (pages.start(), pages.share().unwrap());
    let pages = moved(pages, 2 * LENGTH);
    let others = Pages::new();
    let of_others = others.share().unwrap();
    others.word(0).store(4711, Ordering::Relaxed);
    let tail = Pages(pages.0.wrapping_add(LENGTH));
    assert_eq!(tail.word(0).load(Ordering::Relaxed), 0, "the next registration's memory");
    tail.fill();
    assert_eq!(others.word(0).load(Ordering::Relaxed), 4711);
    unshare(start, LENGTH as u64, at);
    assert!(pages.is_filled() && tail.is_filled() && pages.is_private() && tail.is_private());
    std::mem::forget(tail);
    others.unshare(of_others);
}

/// Pages that cannot become private now do so with the next registration or its end.
#[test]
fn pages_that_stay_shared_are_tried_again() {
    let _alone = alone();
    let pages = Pages::new();
    pages.fill();
    let at = pages.share().unwrap();
    // One registration of a range with userfaultfd(2) excludes another.
    let holder = Frozen::shared(pages.start(), LENGTH as u64).unwrap();
    pages.unshare(at);
    assert!(!pages.is_private());
    drop(holder);
    let others = Pages::new();
    let of_others = others.share().unwrap();
    assert!(pages.is_private() && pages.is_filled());
    others.unshare(of_others);
}

/// Runs `body` in a child, which ends with its number.
fn in_child(body: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child calls `body`, and ends by a system call.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let number = body();
        // SAFETY: ends the child.
        unsafe { libc::_exit(number) };
    }
    let mut status = 0;
    // SAFETY: our child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "status {status:#x}");
    libc::WEXITSTATUS(status)
}

/// A process without descriptors learns nothing about its kernel, and asks again later.
#[test]
fn a_lack_of_descriptors_says_nothing_of_the_kernel() {
    let _alone = alone();
    let number = in_child(|| {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a limit to read and to write.
        unsafe {
            libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
            let none = libc::rlimit { rlim_cur: 0, ..limit };
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const none);
        }
        let without = frozen::has_features(0);
        // SAFETY: a limit to write.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
        if (without, frozen::has_features(0)) == (None, Some(true)) { 7 } else { 3 }
    });
    assert_eq!(number, 7);
}

/// A limit to the size of files that was set after the file was made: to write behind it would end the process.
#[test]
fn a_limit_to_files_is_kept() {
    let _alone = alone();
    crate::fork::notice();
    let pages = Pages::new();
    pages.fill();
    let number = in_child(|| {
        if file().is_err() {
            return 2;
        }
        let Some(at) = pages.share() else { return 4 };
        pages.unshare(at);
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a limit to read and to write.
        unsafe {
            libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit);
            limit.rlim_cur = 4096;
            libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit);
        }
        if pages.share().is_none() && pages.is_filled() { 7 } else { 3 }
    });
    assert_eq!(number, 7);
}

/// A signal that comes while the parent waits for its child's copies does not end the wait.
#[test]
fn a_signal_does_not_end_the_wait_for_a_child() {
    use std::time::Duration;
    extern "C" fn ignore(_: libc::c_int) {}
    let _alone = alone();
    let mut ends = [-1; 2];
    // SAFETY: room for two descriptors, and a handler that does nothing.
    unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = ignore as extern "C" fn(libc::c_int) as usize;
        libc::sigaction(libc::SIGUSR2, &raw const action, ptr::null_mut());
    }
    // SAFETY: a question.
    let waiter = unsafe { libc::pthread_self() };
    let stop = Stop(AtomicBool::new(false));
    let [reads, writes] = ends;
    thread::scope(|scope| {
        let _stopping = Stopping(&stop);
        scope.spawn(|| {
            while !stop.is_set() {
                // SAFETY: a thread that waits for this one.
                unsafe { libc::pthread_kill(waiter, libc::SIGUSR2) };
                thread::yield_now();
            }
        });
        assert!(child::is_interrupted(reads, Duration::from_secs(3600)), "nothing was to be seen");
        // SAFETY: the writing end, once.
        unsafe { libc::close(writes) };
        while child::is_interrupted(reads, Duration::from_secs(3600)) {}
    });
    assert!(!child::is_interrupted(reads, Duration::ZERO));
    // SAFETY: the other end, once.
    unsafe { libc::close(reads) };
}

/// Every write of another thread is kept, whenever it comes.
#[test]
fn writers_lose_nothing() {
    let _alone = alone();
    let (pages, stop) = (Pages::new(), Stop(AtomicBool::new(false)));
    let written: Vec<AtomicU64> = (0..4).map(|_| AtomicU64::new(0)).collect();
    thread::scope(|scope| {
        let _stopping = Stopping(&stop);
        for (nth, written) in written.iter().enumerate() {
            let (pages, stop) = (&pages, &stop);
            scope.spawn(move || {
                while !stop.is_set() {
                    // Two pages, one of which was there before.
                    pages.word(nth).fetch_add(1, Ordering::Relaxed);
                    pages.word(512 * 40 + nth).fetch_add(1, Ordering::Relaxed);
                    written.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let all = || written.iter().map(|written| written.load(Ordering::Relaxed));
        for _ in 0..50 {
            let before: Vec<_> = all().collect();
            let at = pages.share().unwrap();
            pages.unshare(at);
            // Whoever was held up goes on.
            while all().zip(&before).any(|(now, before)| now == *before) {
                thread::yield_now();
            }
        }
    });
    for (nth, written) in written.iter().enumerate() {
        let written = written.load(Ordering::Relaxed);
        assert!(written > 0);
        assert_eq!(pages.word(nth).load(Ordering::Relaxed), written);
        assert_eq!(pages.word(512 * 40 + nth).load(Ordering::Relaxed), written);
    }
}

/// A child has the pages as they were, and what it writes is its own.
#[test]
fn a_forked_child_has_copies() {
    let _alone = alone();
    crate::fork::notice();
    let pages = Pages::new();
    pages.fill();
    let at = pages.share().unwrap();
    // SAFETY: the child makes system calls and looks at memory, and ends by one.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_whole = pages.is_filled() && pages.is_private();
        pages.word(0).store(99, Ordering::Relaxed);
        // SAFETY: ends the child.
        unsafe { libc::_exit(if is_whole { 7 } else { 8 }) };
    }
    // Not seen by the child, which has its copies by now.
    pages.word(3).store(4711, Ordering::Relaxed);
    let mut status = 0;
    // SAFETY: our child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "status {status:#x}");
    assert_eq!(pages.word(0).load(Ordering::Relaxed), 1, "the child's write");
    pages.word(3).store(4, Ordering::Relaxed);
    pages.unshare(at);
    assert!(pages.is_filled());
}
