//! Random numbers for QPNs and source ports, which outsiders must not guess.

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// State of the numbers of a seed; 0 while they are random.
static SEEDED: AtomicU64 = AtomicU64::new(0);

/// Makes all numbers follow from a seed, for fuzz targets: anybody can guess them.
pub fn make_predictable(seed: u64) {
    SEEDED.store(seed.wrapping_mul(2) | 1, Ordering::Release);
}

/// The next number of the seed (SplitMix64).
fn of_seed() -> Option<u32> {
    const STEP: u64 = 0x9E37_79B9_7F4A_7C16;
    if SEEDED.load(Ordering::Acquire) == 0 {
        return None;
    }
    // An even step: the state stays odd, and never is 0.
    let mut bits = SEEDED.fetch_add(STEP, Ordering::AcqRel);
    bits = (bits ^ bits >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    Some(((bits ^ bits >> 31) >> 32) as u32)
}

/// A random 32-bit number from the kernel: a peer cannot guess it.
#[must_use]
pub fn random_u32() -> u32 {
    if let Some(number) = of_seed() {
        return number;
    }
    let mut bytes = [0u8; 4];
    loop {
        // A request of up to 256 bytes is never cut short once the pool is initialised (getrandom(2)); before that it
        // can be interrupted.
        match getrandom(&mut bytes, GetRandomFlags::empty()) {
            Ok(4) => return u32::from_ne_bytes(bytes),
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return fallback(),
        }
    }
}

/// A random 16-bit number from the kernel.
pub(crate) fn random_u16() -> u16 {
    let [a, b, ..] = random_u32().to_ne_bytes();
    u16::from_ne_bytes([a, b])
}

/// A random number below `bound`, which is not 0.
pub(crate) fn random_below(bound: u32) -> u32 {
    // The bias is below bound / 2^32, and nothing here needs less.
    ((u64::from(random_u32()) * u64::from(bound)) >> 32) as u32
}

/// Kernels or sandboxes without getrandom: std's hash keys are the next best source of the process.
fn fallback() -> u32 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    let hash = RandomState::new().build_hasher().finish();
    (hash >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn below_its_bound_and_not_constant() {
        let drawn: Vec<u32> = (0..64).map(|_| random_below(1000)).collect();
        assert!(drawn.iter().all(|&n| n < 1000));
        assert!(drawn.iter().any(|&n| n != drawn[0]));
        assert_eq!(random_below(1), 0);
    }
}
