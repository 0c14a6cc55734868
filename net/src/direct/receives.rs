//! The words by which a target shows the receive WQEs of a queue pair, and its peer says that it has put a message into one.
//!
//! The target shows its receive WQEs in the order in which they were posted: each is in the *slot* of its index, modulo the number of
//! slots. The peer takes them in that order. For each message that it has put into the buffers itself it writes a *record*, likewise.
//! Slots and records say their number, so who reads one that is not the one looked for, or not written to its end, sees that.
//!
//! A slot is used again when the target has taken the record of the message that took it before, or a packet has. The peer has read it
//! by then.

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU64, Ordering};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};

/// Receive WQEs shown at a time.
#[cfg(not(loom))]
pub(crate) const SLOTS: usize = 64;
/// Receive WQEs shown at a time in a model.
#[cfg(loom)]
pub(crate) const SLOTS: usize = 1;

/// Receive WQE as its peer needs to know it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedReceive {
    /// Offset of the buffer in the shared file.
    pub at: u64,
    /// Bytes of the buffer.
    pub length: u32,
    /// Key of the region that the buffer is in.
    pub key: u32,
    /// Version of that region's words.
    pub version: u64,
}

/// Message that was put into a receive WQE's buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// Bytes.
    pub length: u32,
    /// Immediate data.
    pub imm: Option<u32>,
    /// Set if the message asks for a solicited event.
    pub solicited: bool,
}

/// Words of a queue pair's receive WQEs. Slots are written by its own process, records by the peer's.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct ReceiveWords {
    /// Receive WQEs: offset, length and key, version, and the number, which is one more than the index, last.
    slots: [[AtomicU64; 4]; SLOTS],
    /// Messages: length, flags and a part of the number; immediate data and a part of the number.
    records: [[AtomicU64; 2]; SLOTS],
}

const HAS_IMM: u64 = 1 << 32;
const SOLICITED: u64 = 1 << 33;
/// Bits of a record's number that its first word has, and where.
const PART: u64 = (1 << 30) - 1;
const PART_AT: u32 = 34;

#[expect(clippy::cast_possible_truncation, reason = "modulo the number of slots, and halves of words")]
impl ReceiveWords {
    #[cfg(any(test, loom))]
    pub(crate) fn new() -> Self {
        Self {
            slots: core::array::from_fn(|_| core::array::from_fn(|_| AtomicU64::new(0))),
            records: core::array::from_fn(|_| core::array::from_fn(|_| AtomicU64::new(0))),
        }
    }

    /// Forgets receive WQEs and messages, of which the next peer is to see none.
    pub(crate) fn clear(&self) {
        self.slots
            .iter()
            .flatten()
            .chain(self.records.iter().flatten())
            .for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// Shows the receive WQE of an index. The one that its slot had before was taken.
    pub(crate) fn show(&self, index: u64, receive: &SharedReceive) {
        let [at, length_and_key, version, number] = &self.slots[index as usize % SLOTS];
        at.store(receive.at, Ordering::Relaxed);
        length_and_key.store(u64::from(receive.length) | u64::from(receive.key) << 32, Ordering::Relaxed);
        version.store(receive.version, Ordering::Relaxed);
        number.store(index.wrapping_add(1), Ordering::Release);
    }

    /// The receive WQE of an index, if it is shown.
    #[inline]
    pub(crate) fn receive(&self, index: u64) -> Option<SharedReceive> {
        let [at, length_and_key, version, number] = &self.slots[index as usize % SLOTS];
        if number.load(Ordering::Acquire) != index.wrapping_add(1) {
            return None;
        }
        let length_and_key = length_and_key.load(Ordering::Relaxed);
        Some(SharedReceive {
            at: at.load(Ordering::Relaxed),
            length: length_and_key as u32,
            key: (length_and_key >> 32) as u32,
            version: version.load(Ordering::Relaxed),
        })
    }

    /// Says that a message is in its buffer, the `nth` that came so, counted from 0.
    #[inline]
    pub(crate) fn put(&self, nth: u64, message: &Message) {
        let [first, second] = &self.records[nth as usize % SLOTS];
        let number = nth.wrapping_add(1);
        let flags = if message.imm.is_some() { HAS_IMM } else { 0 } | if message.solicited { SOLICITED } else { 0 };
        second.store(u64::from(message.imm.unwrap_or(0)) | (number & 0xFFFF_FFFF) << 32, Ordering::Relaxed);
        first.store(u64::from(message.length) | flags | (number & PART) << PART_AT, Ordering::Release);
    }

    /// Whether the `nth` message is in its buffer.
    #[inline]
    pub(crate) fn has(&self, nth: u64) -> bool {
        self.records[nth as usize % SLOTS][0].load(Ordering::Relaxed) >> PART_AT == nth.wrapping_add(1) & PART
    }

    /// The `nth` message, if it is in its buffer.
    #[inline]
    pub(crate) fn message(&self, nth: u64) -> Option<Message> {
        let [first, second] = &self.records[nth as usize % SLOTS];
        let first = first.load(Ordering::Acquire);
        let second = second.load(Ordering::Relaxed);
        let number = nth.wrapping_add(1);
        let is_it = first >> PART_AT == number & PART && second >> 32 == number & 0xFFFF_FFFF;
        is_it.then_some(Message {
            length: first as u32,
            imm: (first & HAS_IMM != 0).then_some(second as u32),
            solicited: first & SOLICITED != 0,
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn receives_and_messages_are_those_of_their_number() {
        let words = ReceiveWords::new();
        assert!(words.receive(0).is_none() && words.message(0).is_none() && !words.has(0));
        for nth in 0..3 * SLOTS as u64 {
            let receive = SharedReceive { at: nth << 40, length: u32::MAX, key: 7, version: 3 };
            let imm = (nth % 2 == 0).then_some(u32::MAX);
            let message = Message { length: 1 << 31, imm, solicited: nth % 3 == 0 };
            words.show(nth, &receive);
            assert_eq!(words.receive(nth), Some(receive));
            assert!(words.receive(nth + SLOTS as u64).is_none());
            words.put(nth, &message);
            assert!(words.has(nth) && !words.has(nth + 1) && !words.has(nth + SLOTS as u64));
            assert_eq!(words.message(nth), Some(message));
            assert!(words.message(nth + SLOTS as u64).is_none());
        }
        words.clear();
        let last = 3 * SLOTS as u64 - 1;
        assert!(words.receive(last).is_none() && words.message(last).is_none());
    }
}
