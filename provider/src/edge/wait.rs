//! `ibv_destroy_*` waits until the application has acknowledged every event it was given.

/// Seconds after which somebody may want to know why nothing happens.
const TIMEOUT: libc::time_t = 1;

/// Waits until `completed` reaches `delivered`. Now and then, if it takes long, `complain` is told how many are missing.
///
/// # Safety
/// The mutex and condition variable are the object's own, initialised, and libibverbs signals them when it counts up
/// `completed` (`ibv_ack_cq_events`, `ibv_ack_async_event`). No lock is held that `complain` takes.
pub(super) unsafe fn acknowledged(
    mutex: *mut libc::pthread_mutex_t,
    cond: *mut libc::pthread_cond_t,
    completed: *const u32,
    delivered: u32,
    complain: impl Fn(u32),
) {
    // SAFETY: the caller's promise; `completed` changes only under the mutex.
    unsafe {
        libc::pthread_mutex_lock(mutex);
        while completed.read_volatile() != delivered {
            let mut until = std::mem::zeroed::<libc::timespec>();
            libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut until);
            until.tv_sec += TIMEOUT;
            if libc::pthread_cond_timedwait(cond, mutex, &raw const until) == libc::ETIMEDOUT {
                let missing = delivered.wrapping_sub(completed.read_volatile());
                if missing > 0 {
                    complain(missing);
                }
            }
        }
        libc::pthread_mutex_unlock(mutex);
    }
}
