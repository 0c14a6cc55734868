//! `ibv_destroy_*` waits until the application has acknowledged every event it was given.

/// Waits until `completed` reaches `delivered`.
///
/// # Safety
/// The mutex and condition variable are the object's own, initialised, and libibverbs signals them when it counts up
/// `completed` (`ibv_ack_cq_events`, `ibv_ack_async_event`).
pub(super) unsafe fn acknowledged(
    mutex: *mut libc::pthread_mutex_t,
    cond: *mut libc::pthread_cond_t,
    completed: *const u32,
    delivered: u32,
) {
    // SAFETY: the caller's promise; `completed` changes only under the mutex.
    unsafe {
        libc::pthread_mutex_lock(mutex);
        while completed.read_volatile() != delivered {
            libc::pthread_cond_wait(cond, mutex);
        }
        libc::pthread_mutex_unlock(mutex);
    }
}
