//! Panics of this library, which go no further than its entries.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::kernel::Errno;
use urxe_runtime::port_events;

/// Errno of a verb that panicked.
const BROKEN: Errno = Errno(libc::EIO);

/// Runs `act`. A panic makes every device fatal, and is [`BROKEN`].
#[inline]
pub(super) fn caught<T>(act: impl FnOnce() -> T) -> Result<T, Errno> {
    catch_unwind(AssertUnwindSafe(act)).map_err(|_| {
        // What there is to tell, and to whom, is not what panicked; if it panics as well, there is nobody to tell.
        let _ = catch_unwind(port_events::devices_failed);
        BROKEN
    })
}

/// Held by each test that panics or looks at which devices have failed: a panic fails those of the whole process.
#[cfg(test)]
pub(super) static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
