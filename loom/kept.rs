//! Regions that a context keeps cached between turns ([`kept`]).

#[path = "../runtime/src/memory/kept.rs"]
mod kept;

use super::explore;
use kept::{Generation, Kept};
use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex, RwLock};
use loom::thread;

const KEY: u32 = 7;

struct Shared {
    /// Whether the region is in the table.
    table: RwLock<bool>,
    generation: Generation,
    kept: Kept,
    /// Generation of the table that had the region that the context keeps.
    context: Mutex<Option<u64>>,
    memory: UnsafeCell<u64>,
}

impl Shared {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            table: RwLock::new(true),
            generation: Generation::first(),
            kept: Kept::none(),
            context: Mutex::new(None),
            memory: UnsafeCell::new(0),
        })
    }

    /// A turn that writes to the region, if there is one.
    fn turn(&self) -> u64 {
        let mut context = self.context.lock().unwrap();
        if context.is_none_or(|generation| generation != self.generation.now()) {
            self.kept.set(KEY);
            let table = self.table.read().unwrap();
            *context = table.then(|| self.generation.now());
        }
        if context.is_some() {
            // SAFETY: loom fails the model if anybody else is at it.
            self.memory.with_mut(|memory| unsafe { *memory += 1 });
        }
        u64::from(context.is_some())
    }

    fn deregister(&self) {
        {
            let mut table = self.table.write().unwrap();
            *table = false;
            self.generation.advance();
        }
        while self.kept.is(KEY) && self.context.try_lock().is_err() {
            thread::yield_now();
        }
    }
}

/// When a region was deregistered, its memory is the application's, with all that was written.
#[test]
fn a_deregistered_region_is_kept_by_nobody() {
    explore(|| {
        let shared = Shared::new();
        let thread = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.turn() + shared.turn())
        };
        shared.deregister();
        // SAFETY: as above.
        let seen = shared.memory.with_mut(|memory| unsafe { *memory });
        assert_eq!(thread.join().unwrap(), seen, "written after that");
    });
}

/// A context that keeps the region when it is deregistered sees that it is gone.
#[test]
fn kept_region_is_not_used_after_deregistration() {
    explore(|| {
        let shared = Shared::new();
        assert_eq!(shared.turn(), 1);
        let thread = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.turn())
        };
        shared.deregister();
        // SAFETY: as above.
        let seen = shared.memory.with_mut(|memory| unsafe { *memory });
        assert_eq!(1 + thread.join().unwrap(), seen, "written after that");
        assert_eq!(shared.turn(), 0);
    });
}
