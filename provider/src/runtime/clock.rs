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

/// What CLOCK_REALTIME was at `at`, in nanoseconds since 1970, by the clocks of now.
pub(crate) fn wall_clock(at: Instant) -> u64 {
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let ago = now().as_nanos().saturating_sub(at.as_nanos());
    u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX).saturating_sub(ago)
}
