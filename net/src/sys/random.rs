//! Random numbers for QPNs and source ports, which outsiders must not guess.

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// A random 32-bit number from the kernel.
pub(crate) fn random_u32() -> u32 {
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
