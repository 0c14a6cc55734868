//! Queue pairs by number, as packets look them up.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use urxe_wire::Qpn;

use super::qp::Qp;

/// Queue pairs by their numbers.
pub(super) type QueuePairs = HashMap<Qpn, Arc<Qp>, BuildHasherDefault<Spread>>;

/// Hashes a queue pair number. Those of a process are of its own choice ([`urxe_net::Port::alloc_qpn`]), so nobody else can
/// make many meet in one place, and the hash need not be a secret.
#[derive(Default)]
pub(super) struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        // Fibonacci hashing (Knuth 6.4); the table takes the place from the lower bits, and a tag from the upper ones.
        let product = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ product >> 32;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::BuildHasher;

    use super::*;

    #[test]
    fn numbers_of_a_block_are_spread() {
        let hash = |low: u32| BuildHasherDefault::<Spread>::default().hash_one(Qpn::new(0x12_3400 | low));
        let hashes: Vec<u64> = (0..256).map(hash).collect();
        let count = |part: &dyn Fn(&u64) -> u64| hashes.iter().map(part).collect::<HashSet<_>>().len();
        assert_eq!(count(&|hash| *hash), 256);
        assert!(count(&|hash| hash & 0xff) > 128, "places in a small table");
        assert!(count(&|hash| hash >> 57) > 64, "tags");
    }
}
