//! Polls that find the receive token taken.
//!
//! The holder of the token receives for all threads. Where threads are more than processors it may have no processor, and a thread
//! that polls on takes it one. So each thread yields now and then when it polls in vain.

use std::cell::Cell;

use super::tuning::TUNING;

thread_local! {
    /// Polls of this thread that found the token taken, since it yielded last.
    static IN_VAIN: Cell<u32> = const { Cell::new(0) };
}

/// Counts a poll of the calling thread that found the receive token taken. True: the thread is to yield.
pub(crate) fn is_to_yield() -> bool {
    let polls = IN_VAIN.get() + 1;
    let yields = polls >= TUNING.polls_in_vain;
    IN_VAIN.set(if yields { 0 } else { polls });
    yields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_yields_now_and_then() {
        let yields = || (0..3 * TUNING.polls_in_vain).filter(|_| is_to_yield()).count();
        assert_eq!(yields(), 3);
        (1..TUNING.polls_in_vain).for_each(|_| assert!(!is_to_yield()));
        let other = std::thread::spawn(move || (1..TUNING.polls_in_vain).any(|_| is_to_yield()));
        assert!(!other.join().unwrap(), "another thread's polls are its own");
        assert!(is_to_yield());
    }
}
