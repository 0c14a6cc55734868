//! Behaviour that the specification allows and devices rarely show (`URXE_CHAOS`): [`urxe_engine::quirks`] decides, by
//! the seed and by how many objects of a kind this process has made before.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use urxe_engine::quirks::WritePolicy;
use urxe_engine::rng::Rng;
use urxe_engine::{CompletionQueue, QuirkSet, SharedReceiveQueue};
use urxe_ffi::verbs as v;

use super::settings;
use urxe_runtime::quirks;

/// Order and pace of WRITEs in strict mode. The gap is long enough for a program that spins on memory to go on.
#[cfg(not(urxe_unobserved))]
const WRITE_ORDER: WritePolicy = WritePolicy { seed: 1, gap: Duration::from_millis(1) };

/// Whether the environment asks for any quirk.
pub(crate) fn is_on() -> bool {
    !super::UNOBSERVED && (chaos().is_some() || is_strict_about_writes())
}

/// Whether strict mode is to find those who rely on the order of a WRITE's bytes.
fn is_strict_about_writes() -> bool {
    let strict = settings::get().as_ref().ok().and_then(|settings| settings.strict);
    strict.is_some_and(|strictness| strictness.write_order)
}

fn chaos() -> Option<QuirkSet> {
    settings::get().as_ref().ok().and_then(|settings| settings.chaos)
}

/// The number of this call, from 0.
fn count(calls: &AtomicU64) -> u64 {
    calls.fetch_add(1, Ordering::Relaxed)
}

/// How another queue pair behaves.
#[cfg(not(urxe_unobserved))]
pub(crate) fn queue_pair() -> quirks::Qp {
    static MADE: AtomicU64 = AtomicU64::new(0);
    let quirks = chaos().map_or_else(quirks::Qp::default, |chaos| chaos.queue_pair(count(&MADE)));
    let writes = quirks.writes.or_else(|| is_strict_about_writes().then_some(WRITE_ORDER));
    quirks::Qp { writes, ..quirks }
}

#[cfg(urxe_unobserved)]
pub(crate) fn queue_pair() -> quirks::Qp {}

/// Another completion queue.
#[cfg(not(urxe_unobserved))]
pub(crate) fn completion_queue(capacity: usize) -> CompletionQueue<quirks::Cq> {
    static MADE: AtomicU64 = AtomicU64::new(0);
    let Some(chaos) = chaos() else { return CompletionQueue::with_quirks(capacity, None) };
    let nth = count(&MADE);
    let mut queue = CompletionQueue::with_quirks(capacity, chaos.cq_delay(nth));
    // Nobody waits for an event of a new queue that it could be late for.
    let _ = queue.moderate(chaos.moderation(nth));
    queue
}

#[cfg(urxe_unobserved)]
pub(crate) fn completion_queue(capacity: usize) -> CompletionQueue<quirks::Cq> {
    CompletionQueue::new(capacity)
}

/// Another shared receive queue.
#[cfg(not(urxe_unobserved))]
pub(crate) fn shared_receive_queue(max_wr: u32, max_sge: u32) -> SharedReceiveQueue<quirks::Srq> {
    static MADE: AtomicU64 = AtomicU64::new(0);
    let order = chaos().and_then(|chaos| chaos.srq_order(count(&MADE)));
    SharedReceiveQueue::with_quirks(max_wr, max_sge, order)
}

#[cfg(urxe_unobserved)]
pub(crate) fn shared_receive_queue(max_wr: u32, max_sge: u32) -> SharedReceiveQueue<quirks::Srq> {
    SharedReceiveQueue::new(max_wr, max_sge)
}

/// Fills in what has no meaning in a completion with an error: all but `wr_id`, `status`, `qp_num` and `vendor_err`
/// (`ibv_poll_cq(3)`).
#[cold]
pub(crate) fn garble(wc: &mut v::ibv_wc) {
    static MADE: AtomicU64 = AtomicU64::new(0);
    if let Some(garbage) = chaos().and_then(|chaos| chaos.garbage(count(&MADE))) {
        fill(wc, garbage);
    }
}

fn fill(wc: &mut v::ibv_wc, mut garbage: Rng) {
    let mut word = || {
        let [a, b, c, d, ..] = garbage.next_u64().to_ne_bytes();
        u32::from_ne_bytes([a, b, c, d])
    };
    (wc.opcode, wc.byte_len, wc.src_qp, wc.wc_flags) = (word(), word(), word(), word());
    wc.__bindgen_anon_1.imm_data = word();
    let [a, b, c, d] = word().to_ne_bytes();
    (wc.pkey_index, wc.slid) = (u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d]));
    [wc.sl, wc.dlid_path_bits, ..] = word().to_ne_bytes();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_a_meaning_stays() {
        // SAFETY: all-zero is a value of this plain C struct.
        let mut wc = unsafe { std::mem::zeroed::<v::ibv_wc>() };
        (wc.wr_id, wc.status, wc.qp_num) = (7, v::IBV_WC_WR_FLUSH_ERR, 9);
        fill(&mut wc, Rng::new(1));
        assert_eq!((wc.wr_id, wc.status, wc.qp_num, wc.vendor_err), (7, v::IBV_WC_WR_FLUSH_ERR, 9, 0));
        assert!(wc.opcode != 0 && wc.byte_len != 0 && wc.src_qp != 0 && wc.wc_flags != 0);
    }
}
