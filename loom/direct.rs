//! The words of `urxe-net` by which a target hides memory and a requester says that it is at it ([`words`]).

#[allow(dead_code, reason = "a requester's and a target's needs are more than a model's")]
#[path = "../net/src/direct/words.rs"]
mod words;

use super::explore;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use words::{QpWords, RegionWords, SharedQp, SharedRegion, Taken};

const KEY: u32 = 7;
const REGION: SharedRegion = SharedRegion { name: 7, rights: 1, iova: 0, length: 8, at: 0 };

/// State that both sides share, and the memory that is registered.
struct Shared {
    qp: QpWords,
    region: RegionWords,
    memory: UnsafeCell<u64>,
}

impl Shared {
    fn new() -> Arc<Self> {
        let shared = Self { qp: QpWords::new(), region: RegionWords::new(), memory: UnsafeCell::new(0) };
        assert!(shared.qp.show(&SharedQp::default(), 0).is_some());
        shared.region.show(&REGION);
        Arc::new(shared)
    }

    /// A WRITE, if the target allows it.
    fn write(&self, taken: u64) -> bool {
        let (Some((qp, _)), Some((region, shown))) = (self.qp.read(), self.region.read()) else { return false };
        assert_eq!(shown, REGION, "torn");
        let is_in = self.qp.enter(qp, &self.region, region, KEY);
        if is_in {
            // SAFETY: loom fails the model if anybody else is at it.
            self.memory.with_mut(|memory| unsafe { *memory += 1 });
            self.qp.set_taken(&Taken { psns: taken, messages: taken, bytes: 8 * taken, receives: 0 });
            self.qp.leave();
        }
        is_in
    }

    /// So many WRITEs in one visit: as long as nothing is hidden, the requester stays in, and tells the target of all at the end.
    fn write_several(&self, most: u64) -> u64 {
        let (Some((qp, _)), Some((region, _))) = (self.qp.read(), self.region.read()) else { return 0 };
        if !self.qp.enter(qp, &self.region, region, KEY) {
            return 0;
        }
        let mut written = 0;
        while written < most && self.qp.is(qp) && self.region.is(region) {
            // SAFETY: as above.
            self.memory.with_mut(|memory| unsafe { *memory += 1 });
            written += 1;
        }
        self.qp.set_taken(&Taken { psns: written, messages: written, bytes: 8 * written, receives: 0 });
        self.qp.leave();
        written
    }

    /// The memory is the target's own.
    fn look(&self) -> u64 {
        // SAFETY: as above.
        self.memory.with_mut(|memory| unsafe { *memory })
    }
}

/// When a region was hidden and nobody is at it, its memory is the target's, with all that was written.
#[test]
fn a_hidden_region_is_left_alone() {
    explore(|| {
        let shared = Shared::new();
        let requester = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || u64::from(shared.write(1)) + u64::from(shared.write(2)))
        };
        shared.region.hide();
        while shared.qp.copying().is_some_and(|copy| QpWords::is_at(copy, KEY)) {
            thread::yield_now();
        }
        let seen = shared.look();
        let written = requester.join().unwrap();
        assert_eq!(shared.look(), written);
        assert_eq!(seen, written, "written after that");
    });
}

/// When a queue pair was hidden and its peer is at no region, the responder knows of every request that was carried out.
#[test]
fn a_hidden_queue_pair_has_told_all() {
    explore(|| {
        let shared = Shared::new();
        let requester = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || u64::from(shared.write(1)))
        };
        shared.qp.hide();
        while shared.qp.copying().is_some() {
            thread::yield_now();
        }
        let (told, seen) = (shared.qp.taken().psns, shared.look());
        let written = requester.join().unwrap();
        assert_eq!((told, seen), (written, written));
    });
}

/// A requester that stays in for several requests has left, and told of all, before the memory is the target's.
#[test]
fn a_visit_ends_before_the_memory_is_the_targets() {
    for hides_region in [true, false] {
        explore(move || {
            let shared = Shared::new();
            let requester = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || shared.write_several(3))
            };
            if hides_region {
                shared.region.hide();
            } else {
                shared.qp.hide();
            }
            while shared.qp.copying().is_some_and(|copy| QpWords::is_at(copy, KEY)) {
                thread::yield_now();
            }
            let (told, seen) = (shared.qp.taken().psns, shared.look());
            let written = requester.join().unwrap();
            assert_eq!((told, seen), (written, written));
        });
    }
}

/// A region that is shown under the same key again is another one: nobody enters it by what was seen of the first.
#[test]
fn a_region_shown_again_is_another() {
    explore(|| {
        let shared = Shared::new();
        let seen = (shared.qp.read(), shared.region.read());
        let (Some((qp, _)), Some((region, _))) = seen else { panic!("both are shown") };
        let requester = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                if shared.qp.enter(qp, &shared.region, region, KEY) {
                    // SAFETY: as above.
                    shared.memory.with_mut(|memory| unsafe { *memory += 1 });
                    shared.qp.leave();
                }
            })
        };
        shared.region.hide();
        while shared.qp.copying().is_some_and(|copy| QpWords::is_at(copy, KEY)) {
            thread::yield_now();
        }
        let before = shared.look();
        // Other memory under the key.
        shared.region.show(&REGION);
        requester.join().unwrap();
        assert_eq!(shared.look(), before);
    });
}

/// A target that does not wait for a peer that is stopped in the middle of a copy, and shows the queue pair again: either it is not
/// shown, or the peer has left, and changes nothing of the new connection when it goes on.
#[test]
fn a_queue_pair_shown_again_is_the_new_peers_alone() {
    explore(|| {
        let shared = Shared::new();
        let seen = (shared.qp.read(), shared.region.read());
        let (Some((qp, _)), Some((region, _))) = seen else { panic!("both are shown") };
        let old = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                if shared.qp.enter(qp, &shared.region, region, KEY) {
                    // SAFETY: as above.
                    shared.memory.with_mut(|memory| unsafe { *memory += 1 });
                    if shared.qp.is(qp) && shared.region.is(region) {
                        shared.qp.set_taken(&Taken { psns: 1, messages: 1, bytes: 8, receives: 0 });
                    }
                    shared.qp.leave();
                }
            })
        };
        shared.qp.hide();
        if let Some(again) = shared.qp.show(&SharedQp::default(), 0) {
            // The old peer has left, or stays out.
            let before = shared.look();
            let is_in = shared.qp.enter(again, &shared.region, region, KEY + 1);
            if is_in {
                assert!(shared.qp.copying().is_some_and(|copy| QpWords::is_at(copy, KEY + 1)), "somebody else's");
            }
            assert_eq!((shared.qp.taken(), shared.look()), (Taken::default(), before));
            old.join().unwrap();
            let is_there = shared.qp.copying().is_some_and(|copy| QpWords::is_at(copy, KEY + 1));
            assert_eq!(is_there, is_in, "the old peer has ended the new one's copy");
            assert_eq!((shared.qp.taken(), shared.look()), (Taken::default(), before));
        } else {
            assert!(shared.qp.read().is_none());
            old.join().unwrap();
            assert!(shared.qp.copying().is_none());
        }
    });
}
