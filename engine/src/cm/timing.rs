//! Times and tries of CM messages.

use core::time::Duration;

/// Time after which no packet of a connection arrives, and its names may be used again (IBA 12.9.8.4).
pub(super) const TIME_WAIT: Duration = Duration::from_secs(1);
/// The first wait for an answer. It doubles until [`SLOWEST`]: a peer on the same host answers at once or never.
pub(super) const FIRST_TRY: Duration = Duration::from_millis(100);
/// The longest wait, which is the kernel's for each try: 4.096 µs · 2^20 (`CMA_CM_RESPONSE_TIMEOUT`).
pub const SLOWEST: Duration = Duration::from_nanos(4096 << 20);
/// The exponent of it, as messages carry it.
pub const RESPONSE_TIMEOUT: u8 = 20;
/// Number of times that a message is sent again (`CMA_MAX_CM_RETRIES`).
//= spec/connections.md#cm-003
//# A message without an answer MUST be sent again 15 times, a DREQ 4 times, and the connection then be given up.
pub const MAX_RETRIES: u8 = 15;
/// Number of times that a DREQ is sent again: three seconds in all. A kernel answers it for a process that is gone; here nobody may be left to,
/// and whoever ends a connection waits for the answer (qperf does so after each test).
pub(super) const DREQ_RETRIES: u8 = 4;
/// Exponent of the time that a MRA asks for (`CMA_CM_MRA_SETTING`).
pub(super) const MRA_TIMEOUT: u8 = 24;
