//! Shared receive queues (IBA 10.2.9).

use alloc::collections::VecDeque;

use crate::quirks::Quirks;
use crate::work::{PostError, RecvWr};

/// An XRC domain, by number: XRC SRQs and the target QPs that may deliver to them (IBA annex A14).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct XrcDomain(pub u32);

/// A receive queue for several QPs: bounded, with a low watermark.
#[derive(Debug)]
pub struct SharedReceiveQueue<Q = ()> {
    queue: VecDeque<RecvWr>,
    max_wr: u32,
    max_sge: u32,
    limit: u32,
    quirks: Q,
}

/// A receive WQE taken from an SRQ.
#[derive(Debug)]
pub struct Taken {
    /// The WQE.
    pub wr: RecvWr,
    /// The queue is below its limit now: raise `IBV_EVENT_SRQ_LIMIT_REACHED`. The limit is disarmed.
    pub limit_reached: bool,
}

/// Why `ibv_modify_srq(3)` is refused (EINVAL).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModifySrqError {
    /// More WQEs are posted than the new size holds.
    #[error("{0} requests are posted, more than the new size holds")]
    Posted(u32),
    /// The limit is beyond the size.
    #[error("the limit exceeds the size")]
    Limit,
}

impl SharedReceiveQueue {
    /// A queue of `max_wr` WQEs of up to `max_sge` elements; no limit is armed.
    #[must_use]
    pub const fn new(max_wr: u32, max_sge: u32) -> Self {
        Self::with_quirks(max_wr, max_sge, ())
    }
}

impl<Q: Quirks> SharedReceiveQueue<Q> {
    /// A queue as [`new`](SharedReceiveQueue::new), whose order is decided by `quirks`.
    #[must_use]
    pub const fn with_quirks(max_wr: u32, max_sge: u32, quirks: Q) -> Self {
        Self { queue: VecDeque::new(), max_wr, max_sge, limit: 0, quirks }
    }

    /// Posts a receive request (`ibv_post_srq_recv(3)`).
    ///
    /// # Errors
    /// [`PostError::QueueFull`] or [`PostError::TooManySge`]; the request is not queued then.
    pub fn post(&mut self, wr: RecvWr) -> Result<(), PostError> {
        if self.queue.len() >= self.max_wr as usize {
            return Err(PostError::QueueFull);
        }
        if wr.buffers.as_slice().len() > self.max_sge as usize {
            return Err(PostError::TooManySge);
        }
        self.queue.push_back(wr);
        Ok(())
    }

    /// Puts a WQE that was taken and not used back to where it was.
    pub fn give_back(&mut self, wr: RecvWr) {
        self.queue.push_front(wr);
    }

    /// Takes the oldest WQE, unless told otherwise. Going below the limit disarms it (IBA 11.6.3.1 "SRQ limit reached"); as on the kernel's
    /// rxe, only taking does, not arming a limit that the queue is below already.
    pub fn take(&mut self) -> Option<Taken> {
        let wr = match self.quirks.next_recv(self.queue.len()) {
            0 => self.queue.pop_front()?,
            nth => self.queue.remove(nth)?,
        };
        let limit_reached = self.queue.len() < self.limit as usize;
        if limit_reached {
            self.limit = 0;
        }
        Some(Taken { wr, limit_reached })
    }

    /// Changes the size, arms the limit (0 disarms it), or both.
    ///
    /// # Errors
    /// Says what is wrong; nothing is changed then.
    pub fn modify(&mut self, max_wr: Option<u32>, limit: Option<u32>) -> Result<(), ModifySrqError> {
        let (size, watermark) = (max_wr.unwrap_or(self.max_wr), limit.unwrap_or(self.limit));
        if watermark > size {
            return Err(ModifySrqError::Limit);
        }
        if self.queue.len() > size as usize {
            return Err(ModifySrqError::Posted(u32::try_from(self.queue.len()).unwrap_or(u32::MAX)));
        }
        (self.max_wr, self.limit) = (size, watermark);
        Ok(())
    }

    /// WQEs it can hold.
    #[must_use]
    pub const fn max_wr(&self) -> u32 {
        self.max_wr
    }

    /// Scatter/gather elements a WQE may have.
    #[must_use]
    pub const fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// The limit armed; 0 if there is none.
    #[must_use]
    pub const fn limit(&self) -> u32 {
        self.limit
    }

    /// WQEs it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether there is nothing to take.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use crate::work::{Sge, SgeList};

    fn wr(wr_id: u64) -> RecvWr {
        RecvWr { wr_id, buffers: SgeList::new(&[]) }
    }

    fn filled(max_wr: u32, posted: u64) -> SharedReceiveQueue {
        let mut srq = SharedReceiveQueue::new(max_wr, 1);
        fill(&mut srq, posted);
        srq
    }

    fn fill<Q: Quirks>(srq: &mut SharedReceiveQueue<Q>, posted: u64) {
        for wr_id in 0..posted {
            srq.post(wr(wr_id)).unwrap();
        }
    }

    fn take<Q: Quirks>(srq: &mut SharedReceiveQueue<Q>) -> (u64, bool) {
        let Taken { wr, limit_reached } = srq.take().unwrap();
        (wr.wr_id, limit_reached)
    }

    #[test]
    fn is_bounded_and_in_order() {
        let mut srq = filled(2, 2);
        assert_eq!(srq.post(wr(2)), Err(PostError::QueueFull));
        assert_eq!((take(&mut srq).0, take(&mut srq).0), (0, 1));
        assert!(srq.take().is_none());
        let two = SgeList::new(&[Sge::default(); 2]);
        assert_eq!(srq.post(RecvWr { wr_id: 3, buffers: two }), Err(PostError::TooManySge));
        assert!(srq.is_empty());
    }

    #[derive(Debug)]
    struct Shuffled(Rng);

    impl Quirks for Shuffled {
        fn next_recv(&mut self, posted: usize) -> usize {
            usize::try_from(self.0.below(posted as u64)).unwrap()
        }
    }

    #[test]
    fn any_order_gives_each_once() {
        let mut srq = SharedReceiveQueue::with_quirks(100, 1, Shuffled(Rng::new(3)));
        fill(&mut srq, 100);
        let mut taken: alloc::vec::Vec<_> = (0..100).map(|_| take(&mut srq).0).collect();
        assert!(srq.take().is_none() && !taken.is_sorted());
        taken.sort_unstable();
        assert!(taken.into_iter().eq(0..100));
    }

    #[test]
    fn the_limit_fires_once_when_the_queue_drops_below_it() {
        let mut srq = filled(4, 4);
        srq.modify(None, Some(3)).unwrap();
        assert_eq!(take(&mut srq), (0, false), "three are not below three");
        assert_eq!(take(&mut srq), (1, true));
        assert_eq!(srq.limit(), 0, "armed once");
        assert_eq!(take(&mut srq), (2, false));
        srq.modify(None, Some(1)).unwrap();
        assert_eq!(take(&mut srq), (3, true));
    }

    #[test]
    fn resizing_keeps_what_is_posted() {
        let mut srq = filled(4, 3);
        srq.modify(None, Some(3)).unwrap();
        assert_eq!(srq.modify(Some(2), Some(1)), Err(ModifySrqError::Posted(3)));
        assert_eq!(srq.modify(Some(2), None), Err(ModifySrqError::Limit));
        assert_eq!(srq.modify(None, Some(5)), Err(ModifySrqError::Limit));
        assert_eq!((srq.max_wr(), srq.limit(), srq.len()), (4, 3, 3), "nothing was changed");
        srq.modify(Some(8), Some(6)).unwrap();
        assert_eq!((srq.max_wr(), srq.limit(), take(&mut srq)), (8, 6, (0, true)));
    }
}
