//! Queue pairs that a thread gives their turns next.

use std::collections::VecDeque;
use std::sync::Arc;

/// Queue pairs whose turn is next, first come first served, each once.
#[derive(Debug)]
pub(super) struct Due<T: ?Sized>(VecDeque<Arc<T>>);

impl<T: ?Sized> Default for Due<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T: ?Sized> Due<T> {
    /// Queue pairs that get turns before the rest is left to who receives. Each is compared with all.
    const MOST: usize = 64;

    /// Adds a queue pair, unless it is there.
    ///
    /// # Errors
    /// No room is left for it.
    pub(super) fn add(&mut self, qp: Arc<T>) -> Result<(), Arc<T>> {
        if self.0.iter().any(|other| std::ptr::addr_eq(Arc::as_ptr(other), Arc::as_ptr(&qp))) {
            return Ok(());
        }
        if self.0.len() == Self::MOST {
            return Err(qp);
        }
        self.0.push_back(qp);
        Ok(())
    }

    /// Takes the first.
    pub(super) fn take(&mut self) -> Option<Arc<T>> {
        self.0.pop_front()
    }

    /// Whether the queue is empty.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
