//! Transmit contexts of a device, lent to the threads that send.
//!
//! A context is large, so it is lent where it is. Each thread has a place of its own, as long as there are not more threads than
//! places: threads that send at a time share nothing. A thread that ends leaves its place to the next that begins, so programs
//! that start a thread for each request make no more contexts than they have threads at a time.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use urxe_engine::Key;

use super::TxContext;
use crate::memory::faultable_copy;
use crate::memory::kept::Kept;
use crate::memory::regions::Keepers;
use crate::per_thread::PerThread;
use crate::try_lock::TryLock;
use crate::{found_taken, lock};

/// Places, one for each bit of [`TAKEN`].
const PLACES: usize = u32::BITS as usize;

/// Places that are threads' own, of all devices.
static TAKEN: AtomicU32 = AtomicU32::new(0);

/// A context in cache lines of its own (processors fetch them in pairs).
#[derive(Debug)]
#[repr(align(128))]
struct Place<T> {
    context: TryLock<Option<T>>,
    /// The region that the context keeps.
    kept: Arc<Kept>,
}

impl<T> Default for Place<T> {
    fn default() -> Self {
        Self { context: TryLock::new(None), kept: Arc::new(Kept::none()) }
    }
}

/// The contexts.
#[derive(Debug)]
pub(super) struct Contexts<T = TxContext> {
    /// Contexts that stay where they are; each is made by the first packet.
    places: [Place<T>; PLACES],
    /// Contexts for threads that find their place taken.
    spare: Mutex<Vec<Box<T>>>,
}

impl<T> Default for Contexts<T> {
    fn default() -> Self {
        Self { places: Default::default(), spare: Mutex::default() }
    }
}

/// A place that is a thread's own until the thread ends.
#[derive(Debug)]
struct OwnPlace(usize);

impl OwnPlace {
    /// Takes the first free place.
    fn take() -> Option<Self> {
        let take_first = |taken: u32| (taken != u32::MAX).then(|| taken | (taken + 1));
        let before = TAKEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take_first).ok()?;
        Some(Self(before.trailing_ones() as usize))
    }
}

impl Drop for OwnPlace {
    fn drop(&mut self) {
        TAKEN.fetch_and(!(1 << self.0), Ordering::Relaxed);
    }
}

thread_local! {
    /// Place that the calling thread uses, plus one; 0: not known yet.
    static PLACE: Cell<usize> = const { Cell::new(0) };
}

/// Holds the place if no other thread uses it.
static OWN: PerThread<Cell<Option<OwnPlace>>> = PerThread::new();

/// Place of the calling thread.
#[inline]
fn place() -> usize {
    match PLACE.get() {
        0 => new_place(),
        number => number - 1,
    }
}

#[cold]
fn new_place() -> usize {
    // Contexts keep regions, at which they copy with no more ado.
    faultable_copy::admit();
    static SHARED: AtomicUsize = AtomicUsize::new(0);
    let own = OWN.with(|own| {
        let place = OwnPlace::take()?;
        let number = place.0;
        own.set(Some(place));
        Some(number)
    });
    let place = own.flatten().unwrap_or_else(|| SHARED.fetch_add(1, Ordering::Relaxed) % PLACES);
    PLACE.set(place + 1);
    place
}

/// Frees the places of threads that the child of a fork(2) does not have.
pub(crate) fn in_child() {
    let own = OWN.with(|cell| {
        let own = cell.take();
        let bit = own.as_ref().map_or(0, |own| 1 << own.0);
        cell.set(own);
        bit
    });
    TAKEN.store(own.unwrap_or(0), Ordering::Relaxed);
}

impl<T> Contexts<T> {
    /// Lends a context, which `make` makes if there is none. One that has a lock of its own may keep a region.
    #[inline]
    pub(super) fn lend<R>(&self, make: impl FnOnce(Option<&Arc<Kept>>) -> T, then: impl FnOnce(&mut T) -> R) -> R {
        let place = self.places.get(place());
        let mut own = place.and_then(|place| Some((place.context.try_lock().or_else(found_taken)?, &place.kept)));
        let mut spare = None;
        let context = match &mut own {
            Some((own, kept)) => own.get_or_insert_with(|| make(Some(*kept))),
            None => &mut **spare.insert(self.take_spare(make)),
        };
        // Called at one place, so that it becomes a part of the caller.
        let result = then(context);
        if let Some(spare) = spare {
            lock(&self.spare).push(spare);
        }
        result
    }

    #[cold]
    fn take_spare(&self, make: impl FnOnce(Option<&Arc<Kept>>) -> T) -> Box<T> {
        let another = lock(&self.spare).pop();
        another.unwrap_or_else(|| Box::new(make(None)))
    }
}

impl<T: fmt::Debug + Send> Keepers for Contexts<T> {
    fn wait(&self, key: Key) {
        for Place { context, kept } in &self.places {
            // Its lock alone: whoever else has it may have changed the key, and wait for this caller's.
            while kept.is(key.0) && context.try_lock().is_none() {
                thread::yield_now();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;
    use crate::contended_locks;

    /// Taken by each test that has many threads.
    static ALONE: Mutex<()> = Mutex::new(());

    /// Lends a context to each of `count` new threads, which live until all have had one, and counts those made. When it returns the
    /// threads have ended, and given back their places: the end of a scope waits for their closures alone.
    fn threads(contexts: &Contexts<()>, count: usize, made: &AtomicUsize) {
        let all_there = Barrier::new(count);
        thread::scope(|scope| {
            let start = |_| {
                scope.spawn(|| {
                    contexts.lend(|_| _ = made.fetch_add(1, Ordering::Relaxed), |()| ());
                    all_there.wait();
                })
            };
            let threads: Vec<_> = (0..count).map(start).collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }

    #[test]
    fn short_threads_use_contexts_again() {
        let _alone = lock(&ALONE);
        let (contexts, made) = (Contexts::default(), AtomicUsize::new(0));
        for _ in 0..2_500 {
            threads(&contexts, 4, &made);
        }
        // Other tests have threads, too.
        let made = made.into_inner();
        assert!((1..PLACES / 2).contains(&made), "{made} contexts for four threads at a time");
    }

    #[test]
    fn more_threads_than_places_share_them() {
        let _alone = lock(&ALONE);
        let (contexts, made) = (Contexts::default(), AtomicUsize::new(0));
        for _ in 0..20 {
            threads(&contexts, 2 * PLACES, &made);
        }
        let made = made.into_inner();
        assert!((1..=3 * PLACES).contains(&made), "{made}");
    }

    /// Deregistration waits for the turn of a context that keeps the region, and for no other.
    #[test]
    fn a_context_that_keeps_a_region_is_waited_for() {
        let _alone = lock(&ALONE);
        let (contexts, is_over) = (Contexts::<Arc<Kept>>::default(), AtomicUsize::new(0));
        let (begun, goes_on) = (Barrier::new(2), Barrier::new(2));
        thread::scope(|scope| {
            scope.spawn(|| {
                contexts.lend(
                    |kept| kept.map(Arc::clone).unwrap(),
                    |kept| {
                        kept.set(7);
                        begun.wait();
                        goes_on.wait();
                        is_over.store(1, Ordering::Relaxed);
                    },
                );
            });
            begun.wait();
            contexts.wait(Key(8));
            assert_eq!(is_over.load(Ordering::Relaxed), 0);
            goes_on.wait();
            contexts.wait(Key(7));
            assert_eq!(is_over.load(Ordering::Relaxed), 1);
        });
    }

    #[test]
    fn a_context_that_is_lent_already_is_counted_as_a_lock_found_taken() {
        let _alone = lock(&ALONE);
        let contexts = Contexts::<u32>::default();
        let before = contended_locks();
        contexts.lend(|_| 0, |_| contexts.lend(|_| 0, |_| ()));
        assert!(contended_locks() > before);
    }

    /// A destructor of a thread-local value may send, when the thread's place has been given back.
    #[test]
    fn a_thread_that_ends_gets_a_context() {
        struct AtEnd<'a>(&'a Contexts<u32>);
        impl Drop for AtEnd<'_> {
            fn drop(&mut self) {
                self.0.lend(|_| 0, |count| *count += 1);
            }
        }
        thread_local! {
            static AT_END: Cell<Option<AtEnd<'static>>> = const { Cell::new(None) };
        }
        let contexts: &'static Contexts<u32> = Box::leak(Box::default());
        let thread = thread::spawn(|| {
            AT_END.set(Some(AtEnd(contexts)));
            contexts.lend(|_| 0, |count| *count += 1);
        });
        thread.join().unwrap();
        let lent = |place: &Place<u32>| place.context.try_lock().and_then(|lent| *lent).unwrap_or(0);
        assert_eq!(contexts.places.iter().map(lent).sum::<u32>(), 2);
    }
}
