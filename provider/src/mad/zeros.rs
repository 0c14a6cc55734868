//! Values at which performance counters show 0, as the last `Set()` of any process has left them.
//!
//! Under `urxe run` they are in its folder, beside the final counters: the process that answers for the port changes, and
//! `perfquery -R` ends with its reset. Elsewhere each process has its own.

use urxe_engine::mad::perf::Performance;
use urxe_wire::mad::perf::COUNTERS;

use crate::status::final_counters;

/// Reads the values of a device; those of `own` if there is no file.
pub(super) fn read(device: &str, own: &Performance) -> Performance {
    let words = final_counters::read_words(device, COUNTERS);
    words.and_then(|words| Some(Performance::starting_at(words.try_into().ok()?))).unwrap_or(*own)
}

/// Writes the values of a device. Without a folder they stay in this process.
pub(super) fn write(device: &str, performance: &Performance) {
    final_counters::write_words(device, performance.zero());
}
