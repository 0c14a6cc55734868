//! Copies that peers were at when what they copy from or to was hidden.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::mapping::Mapping;
use super::words::QpWords;
use crate::mutex::lock;
use crate::sys::cancellation::CancelGuard;
use crate::sys::process::Process;

/// So long a peer that is stopped in the middle of a copy is waited for.
const TIMEOUT: Duration = Duration::from_secs(1);
/// So long it is waited for where packets are executed: as long as a copy takes that nothing stops.
const BRIEFLY: Duration = Duration::from_micros(100);
/// Looks for the end of a copy before the processor is given to others.
const SPINS: u32 = 200;

/// The process at the other end.
pub(super) trait Peer: core::fmt::Debug + Send + Sync {
    /// Whether the target is known to have ended. A target that has closed its device learns nothing of that any more.
    fn is_gone(&self) -> bool;

    /// Returns the number of the process, if it can be seen from here.
    fn pid(&self) -> Option<u32>;
}

/// A copy that a peer was at.
#[derive(Debug)]
struct Copy {
    /// The table, and the queue pair's place in there.
    table: Arc<Mapping>,
    place: usize,
    /// The queue pair's word.
    copy: u64,
    peer: Arc<dyn Peer>,
    /// The peer's process, whatever becomes of the connection to it.
    process: Option<Process>,
    /// End of the wait.
    until: Instant,
}

impl Copy {
    fn words(&self) -> &QpWords {
        let place = self.place;
        &self.table.table(0).0[place % super::QPS]
    }

    fn goes_on(&self) -> bool {
        let words = self.words();
        if words.copying() != Some(self.copy) {
            return false;
        }
        let is_ended = self.peer.is_gone() || self.process.as_ref().is_some_and(Process::has_ended);
        if is_ended {
            // A peer that has ended copies nothing.
            words.abandon(self.copy);
        }
        !is_ended
    }
}

/// Copies from and to a shared file that had not ended when they were looked at last. As long as there is one, no part of the file is
/// given out again.
#[derive(Debug, Default)]
pub(super) struct Copies(Mutex<Vec<Copy>>);

impl Copies {
    /// Takes note of the copy that the peer of a queue pair is at, if it is at one, or, for a `key`, at that region.
    pub(super) fn note(&self, table: &Arc<Mapping>, place: usize, key: Option<u32>, peer: Arc<dyn Peer>) {
        let Some(copy) = table.table(0).0[place % super::QPS].copying() else { return };
        if key.is_some_and(|key| !QpWords::is_at(copy, key)) {
            return;
        }
        let is_this = |known: &Copy| Arc::ptr_eq(&known.table, table) && (known.place, known.copy) == (place, copy);
        let mut all = lock(&self.0);
        if !all.iter().any(is_this) {
            // The connection is there still, and tells if the number is another process's by now.
            let process = peer.pid().and_then(Process::of);
            all.push(Copy { table: Arc::clone(table), place, copy, peer, process, until: Instant::now() + TIMEOUT });
        }
    }

    /// Whether all have ended.
    pub(super) fn are_over(&self) -> bool {
        let mut all = lock(&self.0);
        all.retain(Copy::goes_on);
        all.is_empty()
    }

    /// Waits until all have ended, but for those of peers that seem to be stopped.
    pub(super) fn wait(&self) {
        self.wait_until(Instant::now() + TIMEOUT);
    }

    /// Waits as long as a copy takes.
    pub(super) fn wait_briefly(&self) {
        self.wait_until(Instant::now() + BRIEFLY);
    }

    fn wait_until(&self, until: Instant) {
        for round in 0.. {
            let waits = {
                let mut all = lock(&self.0);
                if all.is_empty() {
                    return;
                }
                all.retain(Copy::goes_on);
                let now = Instant::now();
                now < until && all.iter().any(|copy| now < copy.until)
            };
            if !waits {
                return;
            }
            if round < SPINS {
                core::hint::spin_loop();
            } else {
                // A verb that posts or polls may be what waits.
                let _guard = CancelGuard::new();
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::file::SharedFile;
    use super::super::mapping::TABLE;
    use super::super::words::{RegionWords, SharedQp, SharedRegion};
    use super::*;
    use crate::sys::cancellation;
    use crate::sys::process::tests::Child;

    /// A peer whose connection tells nothing: the target has closed its device.
    #[derive(Debug)]
    struct Unknown(u32);

    impl Peer for Unknown {
        fn is_gone(&self) -> bool {
            false
        }

        fn pid(&self) -> Option<u32> {
            Some(self.0)
        }
    }

    /// A table whose queue pair at place 3 was hidden while its peer copied.
    fn hidden_in_a_copy() -> Arc<Mapping> {
        let file = SharedFile::create().unwrap();
        let table = Arc::new(Mapping::new(file.file().unwrap(), 0, TABLE).unwrap());
        let (words, region) = (&table.table(0).0[3], RegionWords::new());
        region.show(&SharedRegion::default());
        let version = words.show(&SharedQp::default(), 0).unwrap();
        assert!(words.enter(version, &region, region.read().unwrap().0, 7));
        words.hide();
        table
    }

    #[test]
    fn a_copy_ends_with_its_peer_after_the_device() {
        let table = hidden_in_a_copy();
        let mut child = Child::start();
        let copies = Copies::default();
        copies.note(&table, 3, None, Arc::new(Unknown(child.id())));
        let were_over = copies.are_over();
        child.end();
        assert!(!were_over, "it was there");
        assert!(copies.are_over() && table.table(0).0[3].copying().is_none(), "it has ended");
    }

    /// Verbs that post and poll wait here, and are none (pthreads(7)): a thread that is to be cancelled goes on.
    #[test]
    fn a_wait_is_no_cancellation_point() {
        let table = hidden_in_a_copy();
        let child = Child::start();
        let copies = Copies::default();
        copies.note(&table, 3, None, Arc::new(Unknown(child.id())));
        let waiting = std::thread::spawn(move || {
            // SAFETY: this thread.
            unsafe { libc::pthread_cancel(libc::pthread_self()) };
            // Until it sleeps.
            copies.wait_until(Instant::now() + Duration::from_millis(20));
            let goes_on = !copies.are_over();
            cancellation::disable();
            goes_on
        });
        assert!(waiting.join().unwrap(), "the peer is there still");
        drop(child);
    }
}
