//! A completion queue that several threads may use.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use urxe_engine::{CompletionQueue, Cqe, Instant, Moderation, Pushed};
use urxe_wire::Qpn;

use super::{lock, quirks};
use crate::direct::CompletesDirect;
use crate::event::{EventSink, EventType};

/// Messages that come to a queue pair without packets: polls look for them.
pub(crate) trait Arrivals: fmt::Debug + Send + Sync {
    /// Whether there is a message that was not completed.
    fn any(&self) -> bool;

    /// Queue pair that completes them, unless it has ended.
    fn qp(&self) -> Option<Arc<dyn CompletesDirect>>;
}

/// Queue pairs whose messages polls of one queue look for.
const MOST_ARRIVALS: usize = 8;

/// Checks of one poll for such messages: to look for packets afterwards takes as long as several.
const CHECKS: usize = 8;

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    queue: Mutex<CompletionQueue<quirks::Cq>>,
    /// Set while there is something to poll, or a completion was lost: a program that spins asks this, and not the queue. Only
    /// changed with the queue locked.
    stirs: AtomicBool,
    /// Set when times of completions are wanted.
    wants_time: AtomicBool,
    channel: Option<Arc<dyn EventSink>>,
    /// Where the context's asynchronous events go.
    async_file: Arc<dyn EventSink>,
    /// The `ibv_cq` by which the application knows it; 0 until it has been told, and again when it is destroyed.
    handle: AtomicU64,
    /// Completion events raised and not taken back.
    reported: AtomicU32,
    /// Asynchronous events raised and not taken back.
    async_reported: AtomicU32,
    /// The application has asked for an event and not got it: it is going to sleep rather than to poll.
    armed: AtomicBool,
    arrivals: Mutex<Vec<Arc<dyn Arrivals>>>,
    /// Length of `arrivals`, readable without its lock.
    arrivals_count: AtomicUsize,
}

/// Follow-up that [`Cq::push`] leaves to its caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Added {
    /// No follow-up.
    Done,
    /// Look at the queue at this time, by `Cq::handle_timeout`.
    LookAt(Instant),
    /// Report that the queue just overran.
    Overrun,
}

impl Cq {
    /// An empty one.
    pub fn new(
        queue: CompletionQueue<quirks::Cq>,
        channel: Option<Arc<dyn EventSink>>,
        async_file: Arc<dyn EventSink>,
    ) -> Self {
        Self {
            wants_time: AtomicBool::new(queue.wants_time()),
            queue: Mutex::new(queue),
            stirs: AtomicBool::new(false),
            channel,
            async_file,
            handle: AtomicU64::new(0),
            reported: AtomicU32::new(0),
            async_reported: AtomicU32::new(0),
            armed: AtomicBool::new(false),
            arrivals: Mutex::default(),
            arrivals_count: AtomicUsize::new(0),
        }
    }

    /// Sets the address of the `ibv_cq` by which the application knows the queue.
    pub fn set_handle(&self, handle: u64) {
        self.handle.store(handle, Ordering::Release);
    }

    /// Returns the address of the `ibv_cq`; 0 before it is set, and once the queue is destroyed.
    pub fn handle(&self) -> u64 {
        self.handle.load(Ordering::Acquire)
    }

    /// Adds a completion.
    #[must_use]
    #[inline]
    pub fn push(&self, cqe: &Cqe) -> Added {
        let mut queue = lock(&self.queue);
        let pushed = queue.push(*cqe);
        self.note(&queue);
        match pushed {
            Pushed::Quietly | Pushed::Overrun { first: false } => Added::Done,
            Pushed::RaiseEvent => {
                self.raise_event();
                Added::Done
            }
            Pushed::LookAt(at) => Added::LookAt(at),
            Pushed::Overrun { first: true } => Added::Overrun,
        }
    }

    /// The queue, which is locked, has changed.
    fn note(&self, queue: &CompletionQueue<quirks::Cq>) {
        self.stirs.store(!queue.is_empty() || queue.has_overrun(), Ordering::Release);
    }

    /// Tells the application, which has asked for it. The queue is locked.
    fn raise_event(&self) {
        self.armed.store(false, Ordering::Relaxed);
        let handle = self.handle();
        if let (Some(channel), 1..) = (&self.channel, handle) {
            self.reported.fetch_add(1, Ordering::Relaxed);
            channel.completion(handle);
        }
    }

    /// Has completions carry the time at which they are made ([`Cqe::at`]).
    pub fn want_time(&self) {
        self.wants_time.store(true, Ordering::Relaxed);
    }

    /// Whether completions carry the time they were made.
    pub fn wants_time(&self) -> bool {
        self.wants_time.load(Ordering::Relaxed)
    }

    /// Moderates the events of the queue (`ibv_modify_cq(3)`). `None` ends the moderation.
    pub fn moderate(&self, moderation: Option<Moderation>) {
        if moderation.is_some() {
            self.want_time();
        }
        let mut queue = lock(&self.queue);
        if queue.moderate(moderation) {
            self.raise_event();
        }
    }

    /// Adds completions whose delay or moderation period is over. Returns the next such time.
    pub(super) fn handle_timeout(&self, now: Instant) -> Option<Instant> {
        let mut queue = lock(&self.queue);
        let due = queue.handle_timeout(now);
        self.note(&queue);
        if due.raise_event {
            self.raise_event();
        }
        due.look_at
    }

    /// Has polls look for messages there from now on. False: they are too many, or the application may sleep instead of polling.
    pub(crate) fn look_at(&self, arrivals: Arc<dyn Arrivals>) -> bool {
        let mut all = lock(&self.arrivals);
        let has_room = !self.has_channel() && all.len() < MOST_ARRIVALS;
        if has_room {
            all.push(arrivals);
            self.arrivals_count.store(all.len(), Ordering::Relaxed);
        }
        has_room
    }

    /// Has polls not look there any more.
    pub(crate) fn look_away(&self, arrivals: &Arc<dyn Arrivals>) {
        let mut all = lock(&self.arrivals);
        all.retain(|other| !Arc::ptr_eq(other, arrivals));
        self.arrivals_count.store(all.len(), Ordering::Relaxed);
    }

    /// Completes messages that have come without packets.
    #[inline(never)]
    fn complete_arrivals(&self) {
        let mut from = 0;
        loop {
            let next = {
                let all = lock(&self.arrivals);
                let find = |_| all.iter().enumerate().skip(from).find(|(_, arrivals)| arrivals.any());
                let next = (0..if from == 0 { CHECKS } else { 1 }).find_map(find);
                next.map(|(place, arrivals)| (place, arrivals.qp()))
            };
            // Not with the list locked: queue pairs change it.
            let Some((place, qp)) = next else { return };
            if let Some(qp) = qp {
                qp.complete_direct();
            }
            from = place + 1;
            if from >= self.arrivals_count.load(Ordering::Relaxed) {
                return;
            }
        }
    }

    /// Whether there are completions to poll.
    pub fn has_unpolled(&self) -> bool {
        self.stirs.load(Ordering::Acquire)
    }

    /// Takes completions, oldest first, and hands them to `each` until it has had `most`. Returns how many.
    #[inline]
    pub fn poll(&self, most: usize, each: impl FnMut(&Cqe)) -> usize {
        if self.arrivals_count.load(Ordering::Relaxed) > 0 {
            self.complete_arrivals();
        }
        // What was added before the application had reason to expect it is seen: it asked for an event under the lock, or
        // has read one.
        if self.stirs.load(Ordering::Acquire) { self.take(most, each) } else { 0 }
    }

    /// Takes completions as [`poll`](Self::poll) does, but none while the queue is locked. For signal handlers: the lock may be held
    /// by the thread that the handler interrupts.
    pub fn try_poll(&self, most: usize, each: impl FnMut(&Cqe)) -> usize {
        self.queue.try_lock().map_or(0, |queue| self.take_from(queue, most, each))
    }

    // Apart: polls in vain are many.
    #[inline(never)]
    fn take(&self, most: usize, each: impl FnMut(&Cqe)) -> usize {
        self.take_from(lock(&self.queue), most, each)
    }

    #[inline]
    fn take_from(
        &self,
        mut queue: MutexGuard<'_, CompletionQueue<quirks::Cq>>,
        most: usize,
        mut each: impl FnMut(&Cqe),
    ) -> usize {
        let mut taken = 0;
        while taken < most && queue.poll_with(&mut each) {
            taken += 1;
        }
        self.note(&queue);
        taken
    }

    /// Arms the queue (`ibv_req_notify_cq(3)`): the next completion raises an event, with `solicited_only` the next solicited or
    /// failed one.
    pub fn arm(&self, solicited_only: bool) {
        let mut queue = lock(&self.queue);
        self.armed.store(true, Ordering::Relaxed);
        if queue.arm(solicited_only) {
            self.raise_event();
        }
    }

    /// Arms the queue some time after the application has asked for that. A completion that is in the queue raises the event at once:
    /// it may have come since.
    pub fn arm_late(&self, solicited_only: bool) {
        let mut queue = lock(&self.queue);
        self.armed.store(true, Ordering::Relaxed);
        if queue.arm(solicited_only) || !queue.is_empty() {
            self.raise_event();
        }
    }

    /// Whether the queue has a completion channel.
    pub const fn has_channel(&self) -> bool {
        self.channel.is_some()
    }

    /// Whether the queue is armed and has not raised the event yet.
    pub fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed)
    }

    /// Whether a completion was lost.
    pub fn has_overrun(&self) -> bool {
        self.stirs.load(Ordering::Acquire) && lock(&self.queue).has_overrun()
    }

    /// Number of completions that the queue can hold.
    pub fn capacity(&self) -> usize {
        lock(&self.queue).capacity()
    }

    /// Changes the capacity, unless it holds more.
    ///
    /// # Errors
    /// The number of elements it holds, if that is more (`ibv_resize_cq(3)`: EINVAL).
    pub fn resize(&self, capacity: usize) -> Result<(), usize> {
        lock(&self.queue).resize(capacity)
    }

    /// Removes a queue pair's completions.
    pub fn forget(&self, qpn: Qpn) {
        let mut queue = lock(&self.queue);
        queue.forget(qpn);
        self.note(&queue);
    }

    /// Notes that the application has read an event of the channel: there may be room for more.
    pub fn event_read(&self) {
        if let Some(channel) = &self.channel {
            channel.refill();
        }
    }

    /// Tells the application that a completion was lost.
    pub(super) fn raise_error(&self) {
        let queue = lock(&self.queue);
        let handle = self.handle();
        if handle != 0 {
            self.async_reported.fetch_add(1, Ordering::Relaxed);
            self.async_file.async_event(handle, EventType::CqError);
        }
        drop(queue);
    }

    /// Ends the events of the queue, and discards those not read yet. Returns how many completion events and asynchronous events the
    /// application has read, each of which it must acknowledge.
    pub fn retire(&self) -> (u32, u32) {
        // Under the lock, so that none is raised meanwhile.
        let queue = lock(&self.queue);
        let handle = self.handle.swap(0, Ordering::AcqRel);
        let unread = self.channel.as_ref().map_or(0, |channel| channel.discard(handle));
        let async_unread = self.async_file.discard(handle);
        drop(queue);
        let read = |reported: &AtomicU32, unread: usize| {
            reported.load(Ordering::Relaxed).wrapping_sub(u32::try_from(unread).unwrap_or(u32::MAX))
        };
        (read(&self.reported, unread), read(&self.async_reported, async_unread))
    }
}
