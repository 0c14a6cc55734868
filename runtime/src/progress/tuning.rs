//! Durations and counts by which a device waits, in one place.
//!
//! Times of microseconds are those of an ordinary machine: `time_scale::scaled` makes them longer on slow
//! ones.

use std::time::Duration;

/// Durations and counts by which the `ProgressPolicy` decides, and the device tries again or gives up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tuning {
    /// Longest delay of an ACK that waits for the next request to go with.
    pub delayed_ack_timeout: Duration,
    /// Longest delay of an ACK where the application's thread has lost its processor: longer than ten others' time slices. It answers when it has
    /// a processor again, and a peer that is told of the ACK alone would leave its next packets to its progress thread, which has to be woken for
    /// each.
    pub delayed_ack_timeout_contended: Duration,
    /// An answer within this time is a prompt one. Longer than an ACK waits: the application may have to wait for the
    /// processor of the thread that received.
    pub prompt_answer: Duration,
    /// Prompt answers before ACKs of a queue pair are delayed.
    pub prompt_answers: u8,
    /// Prompt answers that count at most: an application that ceases to answer loses its delayed ACKs after
    /// log2(this / `prompt_answers`) + 1 messages.
    pub prompt_answers_most: u8,

    /// First period of the poll watchdog, after a thread that ceased to poll at once.
    pub watchdog_first: Duration,
    /// Longest period, after a thread that polled for long.
    pub watchdog_last: Duration,
    /// Exchanges whose answer came with the ACK before a missing answer restarts the watchdog.
    pub watchdog_pairs: u32,

    /// Empty polls go on for this time before one yields: longer than a ping-pong waits for its answer.
    pub yield_after: Duration,
    /// `yield_after` where the last yield let another thread run: over UDP an answer takes half as long.
    pub yield_after_contended: Duration,
    /// A yield that takes longer has let another thread run.
    pub yield_alone: Duration,
    /// Contended yields in a row before polls park.
    pub contended_yields: u32,
    /// Polls that park before the next yield asks whether the processor is still contended.
    pub parks: u32,
    /// Time between two looks whether a thread loses its processor to others.
    pub contention_period: Duration,
    /// Time for which a thread that has lost its processor counts as one that does.
    pub contention_lasts: Duration,
    /// Time between two polls, or of a park, beyond which the thread may have waited for a processor.
    pub contention_gap: Duration,
    /// Polls in vain after which an application polls on: many poll until nothing is there, and go on to something else.
    pub vain_polls: u32,
    /// Longest time for which a poll parks: the application may have other things to look at.
    pub park: Duration,

    /// Polls of a thread that find the receive token taken, of which the last one yields.
    pub polls_in_vain: u32,

    /// Polls of a spinning thread between two that read the clock.
    pub clock_skips: u32,
    /// A poll within this time after the previous one counts as spinning.
    pub spin_gap: Duration,
    /// Spinning polls in a row before the clock is read less often.
    pub spins: u32,

    /// A poll this recent says that the application still polls.
    pub polling: Duration,
    /// A poll in vain this recent says so where the application's thread loses its processor: longer than ten others' time slices.
    pub polling_contended: Duration,
    /// A polling application polls more often than this, even where a waking thread takes its processor: interrupting a busy
    /// processor of a virtual machine takes 20 µs and more.
    pub busy_polling: Duration,
    /// A poll this recent says that the application will fetch raw frames itself: they wait in a ring of thousands, as in the queue of a
    /// NIC, and a program that forwards them handles hundreds between two polls.
    pub polling_frames: Duration,
    /// Packets at once that are a burst, which others follow.
    pub burst: usize,
    /// Spinning before sleep, after a burst: a sender takes 25 µs for two long runs, and more when it is told of a
    /// completion and posts the next message between them.
    pub spin_before_sleep: Duration,
    /// A sleep this short costs more than spinning; waking up is part of it.
    pub short_sleep: Duration,
    /// Short sleeps in a row before the thread spins first.
    pub short_sleeps: u32,
    /// Scheduler slice that the progress thread asks for: short, so that it runs at once when it wakes, beside a
    /// spinning program too.
    pub scheduler_slice: Duration,

    /// Time between two attempts to send into a ring that was full, if nobody looks at the sockets.
    pub full_ring_retry: Duration,
    /// Time between two looks at a queue pair whose timer is due while another thread is at work on it: that of the shortest probe.
    pub busy_retry: Duration,
    /// Count of such looks in a row after which that thread is waited for.
    pub busy_looks: u8,
    /// Time between two looks whether all that has come is read, while an ACK timeout waits for that.
    pub unread_retry: Duration,
    /// Longest time for which an ACK timeout waits for that, whoever sends more than can be read, or for a peer of this host to read.
    pub unread_most: Duration,
    /// Time between two attempts of a process that exits to receive, while another thread does.
    pub exit_retry: Duration,
    /// Longest wait for an answer about an XRC SRQ of another process: within what a requester waits for an ACK in all, usually half
    /// a second, since meanwhile no message for any other process is received here. A process that runs answers in microseconds.
    pub xrc_answer: Duration,
}

impl Tuning {
    /// Values measured on machines where a system call takes 100 ns.
    pub const DEFAULT: Self = Self {
        delayed_ack_timeout: Duration::from_micros(20),
        delayed_ack_timeout_contended: Duration::from_millis(50),
        prompt_answer: Duration::from_micros(50),
        prompt_answers: 4,
        prompt_answers_most: 32,
        watchdog_first: Duration::from_micros(20),
        watchdog_last: Duration::from_millis(4),
        watchdog_pairs: 4,
        yield_after: Duration::from_micros(40),
        yield_after_contended: Duration::from_micros(20),
        yield_alone: Duration::from_micros(3),
        contended_yields: 2,
        parks: 16,
        contention_period: Duration::from_millis(5),
        contention_lasts: Duration::from_millis(100),
        contention_gap: Duration::from_millis(1),
        vain_polls: 3,
        park: Duration::from_micros(500),
        polls_in_vain: 16,
        clock_skips: 7,
        spin_gap: Duration::from_micros(1),
        spins: 16,
        polling: Duration::from_micros(250),
        polling_contended: Duration::from_millis(60),
        busy_polling: Duration::from_micros(60),
        polling_frames: Duration::from_millis(10),
        burst: 16,
        spin_before_sleep: Duration::from_micros(60),
        short_sleep: Duration::from_micros(40),
        short_sleeps: 4,
        scheduler_slice: Duration::from_micros(100),
        full_ring_retry: Duration::from_micros(100),
        busy_retry: Duration::from_micros(100),
        busy_looks: 8,
        unread_retry: Duration::from_millis(10),
        unread_most: Duration::from_secs(1),
        exit_retry: Duration::from_micros(10),
        xrc_answer: Duration::from_millis(250),
    };
}

/// Tuning of every device. A constant: comparisons with it cost no load.
pub(crate) const TUNING: Tuning = Tuning::DEFAULT;
