//! The send queue: a ring of WQEs that stay where they are.
//!
//! Posting a request is for the most part moving it, so it is moved only once: it is written into the place behind the
//! youngest, and belongs to the queue from when it was found good.

use alloc::vec::Vec;

/// An element of a send queue.
pub(in crate::qp) trait Entry: Default {
    /// Frees what is on the heap.
    fn clear(&mut self);
}

/// Places that a ring begins with.
const FIRST: usize = 4;

/// The WQEs of a queue pair, oldest first.
#[derive(Debug)]
pub(in crate::qp) struct SendQueue<W> {
    /// A power of two of WQEs, or none. Those that are not in the queue hold nothing on the heap, but for the one
    /// that is being written.
    ring: Vec<W>,
    /// Where the oldest is.
    front: usize,
    len: usize,
}

impl<W> Default for SendQueue<W> {
    fn default() -> Self {
        Self { ring: Vec::new(), front: 0, len: 0 }
    }
}

impl<W: Entry> SendQueue<W> {
    #[inline]
    pub(in crate::qp) const fn len(&self) -> usize {
        self.len
    }

    /// The WQE that comes `nth`, the oldest being the 0th.
    #[inline]
    pub(in crate::qp) fn get(&self, nth: usize) -> Option<&W> {
        if nth < self.len { self.ring.get(self.place(nth)) } else { None }
    }

    /// The WQE that comes `nth`, to be changed.
    #[inline]
    pub(in crate::qp) fn get_mut(&mut self, nth: usize) -> Option<&mut W> {
        let place = self.place(nth);
        if nth < self.len { self.ring.get_mut(place) } else { None }
    }

    /// The oldest.
    #[inline]
    pub(in crate::qp) fn front(&self) -> Option<&W> {
        self.get(0)
    }

    /// The oldest, to be changed.
    #[inline]
    pub(in crate::qp) fn front_mut(&mut self) -> Option<&mut W> {
        self.get_mut(0)
    }

    /// The youngest.
    pub(in crate::qp) fn back(&self) -> Option<&W> {
        self.get(self.len.wrapping_sub(1))
    }

    /// Number of the oldest WQEs for which `is_before` holds. It holds for none that is younger than one for which it does not.
    pub(in crate::qp) fn partition_point(&self, is_before: impl Fn(&W) -> bool) -> usize {
        let (mut first, mut end) = (0, self.len);
        while first < end {
            let middle = usize::midpoint(first, end);
            match self.get(middle) {
                Some(wqe) if is_before(wqe) => first = middle + 1,
                _ => end = middle,
            }
        }
        first
    }

    /// All, oldest first.
    pub(in crate::qp) fn iter(&self) -> impl Iterator<Item = &W> {
        (0..self.len).filter_map(|nth| self.get(nth))
    }

    /// The place behind the youngest. What was written there is still there, if it has not been posted.
    #[inline]
    pub(in crate::qp) fn vacant(&mut self) -> &mut W {
        if self.len == self.ring.len() {
            self.grow();
        }
        let place = self.place(self.len);
        &mut self.ring[place]
    }

    /// Takes what was written in [`vacant`](Self::vacant) in.
    #[inline]
    pub(in crate::qp) const fn push(&mut self) {
        self.len += 1;
    }

    /// Lets go of the oldest.
    #[inline]
    pub(in crate::qp) fn pop(&mut self) {
        let (front, next) = (self.front, self.place(1));
        if self.len > 0
            && let Some(wqe) = self.ring.get_mut(front)
        {
            wqe.clear();
            (self.front, self.len) = (next, self.len - 1);
        }
    }

    #[inline]
    const fn place(&self, nth: usize) -> usize {
        self.front.wrapping_add(nth) & self.ring.len().wrapping_sub(1)
    }

    #[cold]
    fn grow(&mut self) {
        let room = (2 * self.ring.len()).max(FIRST);
        self.ring.rotate_left(self.front);
        self.front = 0;
        self.ring.resize_with(room, W::default);
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::qp::send::wqe::SendWqe;
    use crate::work::Data;

    fn push(queue: &mut SendQueue<SendWqe>, wr_id: u64) {
        let wqe = queue.vacant();
        wqe.wr.wr_id = wr_id;
        wqe.wr.data = Data::Inline(vec![1; 8].into());
        queue.push();
    }

    fn ids(queue: &SendQueue<SendWqe>) -> Vec<u64> {
        let all: Vec<_> = queue.iter().map(|wqe| wqe.wr.wr_id).collect();
        assert_eq!(all.len(), queue.len());
        assert_eq!(all.first().copied(), queue.front().map(|wqe| wqe.wr.wr_id));
        assert_eq!(all.last().copied(), queue.back().map(|wqe| wqe.wr.wr_id));
        for (nth, id) in all.iter().enumerate() {
            assert_eq!(queue.get(nth).map(|wqe| wqe.wr.wr_id), Some(*id));
        }
        assert!(queue.get(all.len()).is_none());
        for (nth, id) in all.iter().enumerate() {
            assert_eq!(queue.partition_point(|wqe| wqe.wr.wr_id < *id), nth);
        }
        assert_eq!(queue.partition_point(|_| true), all.len());
        all
    }

    #[test]
    fn order_outlives_wrapping_and_growing() {
        let mut queue = SendQueue::<SendWqe>::default();
        assert!(ids(&queue).is_empty());
        queue.pop();
        let (mut oldest, mut next) = (0, 0);
        for outstanding in [1, 3, 4, 2, 5, 4, 9, 1, 33, 7] {
            while next - oldest < outstanding {
                push(&mut queue, next);
                next += 1;
            }
            while next - oldest > outstanding {
                queue.pop();
                oldest += 1;
            }
            for _ in 0..3 {
                assert_eq!(ids(&queue), (oldest..next).collect::<Vec<_>>());
                queue.pop();
                push(&mut queue, next);
                (oldest, next) = (oldest + 1, next + 1);
            }
        }
    }

    #[test]
    fn a_written_wqe_counts_only_when_pushed() {
        let mut queue = SendQueue::<SendWqe>::default();
        queue.vacant().wr.wr_id = 1;
        assert!(ids(&queue).is_empty());
        push(&mut queue, 2);
        assert_eq!(ids(&queue), [2]);
    }

    #[test]
    fn popped_wqes_hold_no_memory() {
        let mut queue = SendQueue::<SendWqe>::default();
        for round in 0..10 {
            push(&mut queue, round);
            queue.pop();
        }
        assert!(queue.ring.iter().all(|wqe| wqe.wr.data.length() == 0));
    }
}
