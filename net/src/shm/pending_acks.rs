//! The last ACK of each queue pair, where the receiver of a ring finds it when the ring's sender ends.
//!
//! A responder writes into the ring's memory what it has received of its peer before its application sees the message: a
//! word for each queue pair of the receiver's block. It is written over by the next one, and stays when its ACK has been sent:
//! an ACK may be lost with the socket of the process that sent it. A receiver whose ring ends takes the words for ACKs.
//! Most of them say what has been heard before.

use core::sync::atomic::{AtomicU64, Ordering};

use urxe_wire::{Psn, Qpn};

/// Words of a ring: one for each queue pair of a block.
pub(super) const COUNT: usize = 256;
/// Set in a word that holds an ACK.
const VALID: u64 = 1 << 63;
/// Bits of a QPN or PSN.
const MASK: u32 = 0xFF_FFFF;

/// Last ACK of a queue pair whose process has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingAck {
    /// Queue pair that received.
    pub from: Qpn,
    /// Peer that sent, a queue pair of this process.
    pub to: Qpn,
    /// PSN up to which all is acknowledged.
    pub psn: Psn,
}

/// Memory that both ends of a ring see.
pub(super) trait PendingAcks {
    /// The word of a queue pair.
    fn word(&self, of: usize) -> &AtomicU64;

    /// Leaves the last ACK of a queue pair.
    #[inline]
    fn leave(&self, ack: PendingAck) {
        let word = VALID | u64::from(ack.from.get()) << 24 | u64::from(ack.psn.get());
        // Read when this process has ended, or by nobody.
        self.word(index(ack.to)).store(word, Ordering::Relaxed);
    }

    /// Takes back the last ACK of `from` for `to`, which is its peer no more. The ACK of another queue pair, whose peer `to` has
    /// become, stays.
    fn take_back(&self, from: Qpn, to: Qpn) {
        let word = self.word(index(to));
        let left = word.load(Ordering::Relaxed);
        if left & VALID != 0 && part(left, 24) == from.get() {
            // Once, unless it is another's by then: the other process may change it without end.
            let _ = word.compare_exchange(left, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// The ACKs that the other end has left for the queue pairs of this block.
    //= spec/hosts.md#net-021
    //# What another process writes into shared memory MUST do no more than packets can.
    fn take(&self, block: u16) -> Vec<PendingAck> {
        let take = |low| {
            let word = self.word(usize::from(low)).swap(0, Ordering::Relaxed);
            let to = Qpn::new(u32::from(block) << 8 | u32::from(low));
            (word & VALID != 0).then(|| PendingAck { from: Qpn::new(part(word, 24)), to, psn: Psn::new(part(word, 0)) })
        };
        (0..=u8::MAX).filter_map(take).collect()
    }
}

/// The QPN or PSN in a word.
fn part(word: u64, shift: u32) -> u32 {
    u32::try_from(word >> shift & u64::from(MASK)).unwrap_or(0)
}

fn index(of: Qpn) -> usize {
    let [.., low] = of.get().to_be_bytes();
    usize::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Words(Vec<AtomicU64>);

    impl Words {
        fn new() -> Self {
            Self((0..COUNT).map(|_| AtomicU64::new(0)).collect())
        }
    }

    impl PendingAcks for Words {
        fn word(&self, of: usize) -> &AtomicU64 {
            &self.0[of]
        }
    }

    const OWNER: Qpn = Qpn::new(0xFE_DCBA);

    fn ack(to: u32, psn: u32) -> PendingAck {
        PendingAck { from: OWNER, to: Qpn::new(to), psn: Psn::new(psn) }
    }

    #[test]
    fn last_pending_ack_is_taken_once() {
        let words = Words::new();
        words.leave(ack(0x43_2107, 0xFF_FFFD));
        words.leave(ack(0x43_2107, 0xFF_FFFE));
        words.leave(ack(0x43_21FF, 0));
        assert_eq!(words.take(0x4321), [ack(0x43_2107, 0xFF_FFFE), ack(0x43_21FF, 0)]);
        assert_eq!(words.take(0x4321), []);
    }

    #[test]
    fn withdrawn_acks_are_gone() {
        let words = Words::new();
        words.leave(ack(0x43_2107, 1));
        words.leave(ack(0x43_2108, 2));
        words.take_back(OWNER, Qpn::new(0x43_2107));
        words.take_back(OWNER, Qpn::new(0x43_2109));
        assert_eq!(words.take(0x4321), [ack(0x43_2108, 2)]);
    }

    //= spec/hosts.md#net-034
    //= type=test
    //# A message MUST be acknowledged, though its receiver ends as soon as it has polled it: before it can be polled, or by
    //# what the peer's process finds.
    /// The peer has gone over to another queue pair of this process, and then the first one is destroyed.
    #[test]
    fn one_queue_pair_does_not_take_back_the_ack_of_another() {
        let (words, other) = (Words::new(), Qpn::new(0xFE_DCBB));
        let peer = ack(0x43_2107, 1).to;
        words.leave(ack(0x43_2107, 1));
        words.leave(PendingAck { from: other, ..ack(0x43_2107, 9) });
        words.take_back(OWNER, peer);
        assert_eq!(words.take(0x4321), [PendingAck { from: other, ..ack(0x43_2107, 9) }]);
        words.leave(PendingAck { from: other, ..ack(0x43_2107, 9) });
        words.take_back(other, peer);
        assert_eq!(words.take(0x4321), []);
    }

    //= spec/hosts.md#net-021
    //= type=test
    //# What another process writes into shared memory MUST do no more than packets can.
    #[test]
    fn any_word_is_an_ack_for_the_block_or_none() {
        let words = Words::new();
        for (low, word) in [u64::MAX, VALID, 1, !VALID].into_iter().enumerate() {
            words.0[low].store(word, Ordering::Relaxed);
        }
        let taken = words.take(7);
        assert_eq!(taken.len(), 2);
        assert!(taken.iter().all(|ack| ack.to.get() >> 8 == 7));
    }
}
