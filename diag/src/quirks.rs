//! Behaviour that the specification allows and devices rarely show (`URXE_QUIRKS`): [`urxe_engine::quirks`] decides, by
//! the seed and by how many objects of a kind this process has made before.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use urxe_engine::quirks::WritePolicy;
use urxe_engine::rng::Rng;
use urxe_engine::{CompletionQueue, QuirkSet, SharedReceiveQueue};

use super::settings;
use urxe_runtime::quirks;

/// Order and pace of WRITEs in strict mode. The gap is long enough for a program that spins on memory to go on.
#[cfg(not(urxe_unobserved))]
const WRITE_ORDER: WritePolicy = WritePolicy { seed: 1, gap: Duration::from_millis(1) };

/// Whether the environment asks for any quirk.
pub fn is_on() -> bool {
    !super::UNOBSERVED && (seeded().is_some() || is_strict_about_writes())
}

/// Whether strict mode is to find those who rely on the order of a WRITE's bytes.
fn is_strict_about_writes() -> bool {
    let strict = settings::get().as_ref().ok().and_then(|settings| settings.strict);
    strict.is_some_and(|strictness| strictness.write_order)
}

fn seeded() -> Option<QuirkSet> {
    settings::get().as_ref().ok().and_then(|settings| settings.quirks)
}

/// The number of this call, from 0.
fn count(calls: &AtomicU64) -> u64 {
    calls.fetch_add(1, Ordering::Relaxed)
}

/// Quirks of the next queue pair.
#[cfg(not(urxe_unobserved))]
pub fn queue_pair() -> quirks::Qp {
    static MADE: AtomicU64 = AtomicU64::new(0);
    let quirks = seeded().map_or_else(quirks::Qp::default, |set| set.queue_pair(count(&MADE)));
    let writes = quirks.writes.or_else(|| is_strict_about_writes().then_some(WRITE_ORDER));
    quirks::Qp { writes, ..quirks }
}

#[cfg(urxe_unobserved)]
pub fn queue_pair() -> quirks::Qp {}

/// Makes a completion queue. Its quirks depend on the seed, and on how many were made before.
#[cfg(not(urxe_unobserved))]
pub fn completion_queue(capacity: usize) -> CompletionQueue<quirks::Cq> {
    static MADE: AtomicU64 = AtomicU64::new(0);
    let Some(set) = seeded() else { return CompletionQueue::with_quirks(capacity, None) };
    let nth = count(&MADE);
    let mut queue = CompletionQueue::with_quirks(capacity, set.cq_delay(nth));
    // Nobody waits for an event of a new queue that it could be late for.
    let _ = queue.moderate(set.moderation(nth));
    queue
}

#[cfg(urxe_unobserved)]
pub fn completion_queue(capacity: usize) -> CompletionQueue<quirks::Cq> {
    CompletionQueue::new(capacity)
}

/// Makes a shared receive queue. Its quirks depend on the seed, and on how many were made before.
#[cfg(not(urxe_unobserved))]
pub fn shared_receive_queue(max_wr: u32, max_sge: u32) -> SharedReceiveQueue<quirks::Srq> {
    static MADE: AtomicU64 = AtomicU64::new(0);
    let order = seeded().and_then(|set| set.srq_order(count(&MADE)));
    SharedReceiveQueue::with_quirks(max_wr, max_sge, order)
}

#[cfg(urxe_unobserved)]
pub fn shared_receive_queue(max_wr: u32, max_sge: u32) -> SharedReceiveQueue<quirks::Srq> {
    SharedReceiveQueue::new(max_wr, max_sge)
}

/// Returns garbage for the fields of another completion that have no meaning, if such are to be filled in.
#[cold]
pub fn garbage() -> Option<Rng> {
    static MADE: AtomicU64 = AtomicU64::new(0);
    seeded().and_then(|set| set.garbage(count(&MADE)))
}
