//! The engine's time: CLOCK_MONOTONIC.

use std::mem::MaybeUninit;

use urxe_engine::Instant;

/// Now.
pub(crate) fn now() -> Instant {
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: with this clock and a valid pointer the call cannot fail (clock_gettime(2)).
    let time = unsafe {
        libc::clock_gettime(libc::CLOCK_MONOTONIC, time.as_mut_ptr());
        time.assume_init()
    };
    Instant::from_nanos(time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned())
}
