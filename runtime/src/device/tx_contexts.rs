//! Transmit contexts of a device, lent to the threads that send.
//!
//! A context is large, so it is lent where it is. Each thread has a place of its own, as long as there are not more threads than
//! places: threads that send at a time share nothing. A thread that ends leaves its place to the next that begins, so programs
//! that start a thread for each request make no more contexts than they have threads at a time.

use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::TxContext;
use crate::{lock, try_lock};

/// Places, one for each bit of [`TAKEN`].
const PLACES: usize = u32::BITS as usize;

/// Places that are threads' own, of all devices.
static TAKEN: AtomicU32 = AtomicU32::new(0);

/// A context in cache lines of its own (processors fetch them in pairs).
#[derive(Debug)]
#[repr(align(128))]
struct Place<T>(Mutex<Option<T>>);

impl<T> Default for Place<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

/// The contexts.
#[derive(Debug)]
pub(super) struct Contexts<T = TxContext> {
    /// Contexts that stay where they are; each is made by the first packet.
    places: [Place<T>; PLACES],
    /// Contexts for threads that find their place taken.
    spare: Mutex<Vec<T>>,
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
    /// Holds the place if no other thread uses it.
    static OWN: Cell<Option<OwnPlace>> = const { Cell::new(None) };
}

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
    static SHARED: AtomicUsize = AtomicUsize::new(0);
    // A thread that is about to end keeps none: it shares one.
    let own = OWN.try_with(|own| {
        let place = OwnPlace::take()?;
        let number = place.0;
        own.set(Some(place));
        Some(number)
    });
    let place = own.ok().flatten().unwrap_or_else(|| SHARED.fetch_add(1, Ordering::Relaxed) % PLACES);
    PLACE.set(place + 1);
    place
}

/// In the child of a fork(2): the places of threads that are not there are free.
pub(crate) fn in_child() {
    let own = OWN.try_with(|cell| {
        let own = cell.take();
        let bit = own.as_ref().map_or(0, |own| 1 << own.0);
        cell.set(own);
        bit
    });
    TAKEN.store(own.unwrap_or(0), Ordering::Relaxed);
}

impl<T> Contexts<T> {
    /// Lends a context, which `make` makes if there is none.
    #[inline]
    pub(super) fn lend<R>(&self, make: impl FnOnce() -> T, then: impl FnOnce(&mut T) -> R) -> R {
        match self.places.get(place()).and_then(|place| try_lock(&place.0)) {
            Some(mut own) => then(own.get_or_insert_with(make)),
            None => self.lend_spare(make, then),
        }
    }

    #[cold]
    fn lend_spare<R>(&self, make: impl FnOnce() -> T, then: impl FnOnce(&mut T) -> R) -> R {
        let another = lock(&self.spare).pop();
        let mut spare = another.unwrap_or_else(make);
        let result = then(&mut spare);
        lock(&self.spare).push(spare);
        result
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    /// Taken by each test that has many threads.
    static ALONE: Mutex<()> = Mutex::new(());

    /// Lends a context to each of `count` new threads, which live until all have had one, and counts those made. When it returns the
    /// threads have ended, and given back their places: the end of a scope waits for their closures alone.
    fn threads(contexts: &Contexts<()>, count: usize, made: &AtomicUsize) {
        let all_there = Barrier::new(count);
        thread::scope(|scope| {
            let start = |_| {
                scope.spawn(|| {
                    contexts.lend(|| _ = made.fetch_add(1, Ordering::Relaxed), |()| ());
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

    /// A destructor of a thread-local value may send, when the thread's place has been given back.
    #[test]
    fn a_thread_that_ends_gets_a_context() {
        struct AtEnd<'a>(&'a Contexts<u32>);
        impl Drop for AtEnd<'_> {
            fn drop(&mut self) {
                self.0.lend(|| 0, |count| *count += 1);
            }
        }
        thread_local! {
            static AT_END: Cell<Option<AtEnd<'static>>> = const { Cell::new(None) };
        }
        let contexts: &'static Contexts<u32> = Box::leak(Box::default());
        let thread = thread::spawn(|| {
            AT_END.set(Some(AtEnd(contexts)));
            contexts.lend(|| 0, |count| *count += 1);
        });
        thread.join().unwrap();
        let lent = |place: &Place<u32>| lock(&place.0).unwrap_or(0);
        assert_eq!(contexts.places.iter().map(lent).sum::<u32>(), 2);
    }
}
