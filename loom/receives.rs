//! The words of `urxe-net` by which a target shows receive WQEs and a requester says that it has filled one ([`receives`]).

#[allow(dead_code, reason = "a requester's and a target's needs are more than a model's")]
#[path = "../net/src/direct/receives.rs"]
mod receives;

use super::explore;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use receives::{Message, ReceiveWords, SharedReceive};

/// Receive WQEs: as many as use each slot twice.
const COUNT: u64 = 2 * receives::SLOTS as u64;

struct Shared {
    words: ReceiveWords,
    /// A buffer for each slot.
    buffers: [UnsafeCell<u64>; receives::SLOTS],
}

fn receive(index: u64) -> SharedReceive {
    SharedReceive { at: 10 + index, length: 20, key: 30, version: 40 + index }
}

fn message(nth: u64) -> Message {
    Message { length: 7, imm: Some(u32::try_from(nth).unwrap()), solicited: nth % 2 == 0 }
}

/// Each receive WQE is filled once, by its own message, and what is in the buffer is there when the message is seen. A slot is used
/// again when its message was taken.
#[test]
fn messages_are_seen_with_what_is_in_their_buffers() {
    explore(|| {
        let shared = Arc::new(Shared {
            words: ReceiveWords::new(),
            buffers: std::array::from_fn(|_| UnsafeCell::new(0)),
        });
        let requester = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                for index in 0..COUNT {
                    let shown = loop {
                        match shared.words.receive(index) {
                            Some(shown) => break shown,
                            None => thread::yield_now(),
                        }
                    };
                    assert_eq!(shown, receive(index), "torn");
                    let buffer = &shared.buffers[usize::try_from(index).unwrap() % receives::SLOTS];
                    // SAFETY: loom fails the model if anybody else is at it.
                    buffer.with_mut(|buffer| unsafe { *buffer = 100 + index });
                    shared.words.put(index, &message(index));
                }
            })
        };
        for nth in 0..COUNT {
            shared.words.show(nth, &receive(nth));
            let seen = loop {
                match shared.words.message(nth) {
                    Some(seen) => break seen,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(seen, message(nth), "torn");
            let buffer = &shared.buffers[usize::try_from(nth).unwrap() % receives::SLOTS];
            // SAFETY: as above.
            assert_eq!(buffer.with(|buffer| unsafe { *buffer }), 100 + nth);
        }
        requester.join().unwrap();
    });
}
