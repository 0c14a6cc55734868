//! Shards of a device ([`Device::open_shard`]) and their threads, opened when completion queues want them.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, available_parallelism};

use urxe_options::{MOST_SHARDS, Sharding};
use urxe_runtime::device::Device;
use urxe_runtime::{fork, lock, progress, threads};

/// Network namespace and user of the calling thread. Sockets of another one are no part of the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Place {
    namespace: Option<u64>,
    user: u32,
    /// System calls of the thread are filtered (seccomp(2)).
    is_filtered: bool,
}

impl Place {
    fn here() -> Self {
        let namespace = std::fs::metadata("/proc/thread-self/ns/net").ok().map(|file| file.ino());
        // SAFETY: it takes nothing, and cannot fail.
        Self { namespace, user: unsafe { libc::geteuid() }, is_filtered: is_filtered() }
    }

    /// Whether the calling thread is there, and may do what could be done when the device was opened. A filter of system calls that has been
    /// installed since may end the process where it asks for a socket or a thread.
    fn is_here(&self) -> bool {
        self.namespace.is_some() && is_filtered() == self.is_filtered && Self::here() == *self
    }
}

fn is_filtered() -> bool {
    // SAFETY: plain numbers.
    unsafe { libc::prctl(libc::PR_GET_SECCOMP) != 0 }
}

/// Number of a thread that creates queue pairs, or of a thread domain.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ThreadNumber(usize);

impl ThreadNumber {
    /// A number that no thread of this process has.
    pub(crate) fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Number of the calling thread.
    pub(crate) fn current() -> Self {
        thread_local! {
            static NUMBER: Cell<Option<ThreadNumber>> = const { Cell::new(None) };
        }
        NUMBER.get().unwrap_or_else(|| {
            let number = Self::new();
            NUMBER.set(Some(number));
            number
        })
    }
}

/// Shards of a device.
pub(super) struct Shards {
    sharding: Sharding,
    /// How many there may be, the device itself included.
    most: usize,
    /// Packets are to tell of congestion marks.
    ecn: bool,
    opened_at: Place,
    open: Mutex<Open>,
}

/// Threads of which a device remembers where their queue pairs are. Programs may start any number of threads, one after the other.
const MOST_THREADS: usize = 4096;

/// Places of threads or completion queues, in the order in which they ask.
#[derive(Default)]
struct Places {
    given: usize,
    of_threads: HashMap<ThreadNumber, usize>,
}

impl Places {
    /// Gives the next place.
    const fn next(&mut self) -> usize {
        let place = self.given;
        self.given = place.wrapping_add(1);
        place
    }

    /// Returns the place of a thread, the next one for a thread that asks for the first time.
    fn of(&mut self, thread: ThreadNumber) -> usize {
        if let Some(place) = self.of_threads.get(&thread) {
            return *place;
        }
        if self.of_threads.len() >= MOST_THREADS {
            self.of_threads.clear();
        }
        let place = self.next();
        self.of_threads.insert(thread, place);
        place
    }
}

#[derive(Default)]
struct Open {
    places: Places,
    /// Shards by number. One that the system has refused is missing.
    shards: BTreeMap<usize, Shard>,
}

struct Shard {
    device: Arc<Device>,
    thread: JoinHandle<()>,
}

impl Shards {
    pub(super) fn new(sharding: Sharding, ecn: bool, device: &Device) -> Self {
        let most = match sharding {
            Sharding::Threads => available_parallelism().map_or(1, Into::into).min(MOST_SHARDS.into()),
            Sharding::Queues(most) => most.into(),
        };
        // Whoever looks at packets looks at one device; LIDs are one port's.
        let may = most > 1 && device.interceptor().is_none() && !device.net().interface().link_layer().is_infiniband();
        let (most, opened_at) = if may { (most, Place::here()) } else { (1, Place::default()) };
        Self { sharding, most, ecn, opened_at, open: Mutex::default() }
    }

    /// The shard of another completion queue, which a thread uses. `None`: the device itself, also where no shard can be opened. Threads of
    /// shards run where the device's `background` thread may.
    pub(super) fn next(
        &self,
        device: &Arc<Device>,
        background: Option<&JoinHandle<()>>,
        thread: ThreadNumber,
    ) -> Option<Arc<Device>> {
        if self.most < 2 {
            return None;
        }
        // In a child of fork(2) one that is half open would stay so.
        let _no_fork = fork::put_off();
        let mut open = lock(&self.open);
        let Open { places, shards } = &mut *open;
        let place = match self.sharding {
            Sharding::Threads => places.of(thread),
            Sharding::Queues(_) => places.next(),
        };
        let number = place % self.most;
        if number == 0 {
            return None;
        }
        if let Some(shard) = shards.get(&number) {
            return Some(Arc::clone(&shard.device));
        }
        if !self.opened_at.is_here() {
            return None;
        }
        let shard = device.open_shard(self.most).ok()?;
        if self.ecn {
            shard.net().report_marks();
        }
        fork::remember(&shard);
        match progress::start(Arc::clone(&shard)) {
            Ok(thread) => {
                if let Some(background) = background {
                    threads::run_like(&thread, background);
                }
                device.add_shard(&shard);
                shards.insert(number, Shard { device: Arc::clone(&shard), thread });
                Some(shard)
            }
            Err(_) => {
                fork::close(&shard);
                None
            }
        }
    }

    /// Closes the shards, before the device.
    pub(super) fn close(&self) {
        for Shard { device, thread } in std::mem::take(&mut lock(&self.open).shards).into_values() {
            let is_lost = device.has_lost_descriptors();
            if device.request_stop() {
                // One that panicked has nothing left to end.
                let _ = thread.join();
            }
            if !is_lost {
                device.pass_on();
            }
            fork::close(&device);
        }
    }

    /// Forgets the shards of a parent process: their threads are not here, and their locks may be held for ever.
    pub(super) fn forget(&mut self) {
        std::mem::forget(self.open.get_mut().map(std::mem::take));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_get_places_in_the_order_in_which_they_ask() {
        let (mut places, mut others) = (Places::default(), Places::default());
        let threads: Vec<ThreadNumber> = (0..6).map(|_| ThreadNumber::new()).collect();
        // Some never ask, or ask at another device.
        assert_eq!([4, 1, 3, 1, 4].map(|nth| places.of(threads[nth])), [0, 1, 2, 1, 0]);
        assert_eq!([2, 3, 0].map(|nth| others.of(threads[nth])), [0, 1, 2]);
    }

    #[test]
    fn any_number_of_threads_may_come_and_go() {
        let mut places = Places::default();
        for place in 0..3 * MOST_THREADS {
            assert_eq!(places.of(ThreadNumber::new()), place);
        }
        assert!(places.of_threads.len() <= MOST_THREADS);
    }
}
