//! Requests of a queue pair between `wr_start` and `wr_complete` (`ibv_wr_post(3)`).

use std::cell::UnsafeCell;
use std::sync::Arc;

use urxe_engine::{Data, PostError, SendWr, UdRecipient};
use urxe_net::Route;

use super::buffers::copy;
use super::poll_session_lock::PollSessionLock;
use crate::kernel::Errno;

/// Requests between `wr_start` and `wr_complete`.
#[derive(Debug, Default)]
pub(super) struct Builder {
    /// Held from `wr_start` to `wr_complete` or `wr_abort`.
    pub(super) gate: PollSessionLock,
    pub(super) batch: UnsafeCell<Batch>,
}

/// Requests being built, and what is wrong with them.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// On UD, with whom each is for.
    pub(super) requests: Vec<(SendWr, Option<UdRecipient<Arc<Route>>>)>,
    /// The first thing that was wrong.
    pub(super) error: Option<Errno>,
    pub(super) max_inline: u32,
}

impl Batch {
    pub(super) fn set(&mut self, change: impl FnOnce(&mut SendWr)) {
        match self.requests.last_mut() {
            Some((request, _)) => change(request),
            None => self.fail(Errno(libc::EINVAL)),
        }
    }

    pub(super) fn set_data(&mut self, data: Result<Data, Errno>) {
        match data {
            Ok(data) => self.set(|request| request.data = data),
            Err(errno) => self.fail(errno),
        }
    }

    pub(super) fn fail(&mut self, errno: Errno) {
        self.error.get_or_insert(errno);
    }

    pub(super) fn set_inline(&mut self, parts: &[(u64, usize)]) {
        // Together they may be longer than a number says.
        let length = parts.iter().fold(0, |sum: u64, &(_, length)| sum.saturating_add(length as u64));
        let takes = self.requests.last().is_none_or(|(request, _)| !request.op.is_response_bearing());
        let data = if !takes {
            Err(Errno::from(PostError::Operation))
        } else if length > u64::from(self.max_inline) {
            Err(Errno::from(PostError::InlineTooLong))
        } else {
            copy(parts.iter().copied()).map(Data::Inline)
        };
        self.set_data(data);
    }
}
