//! Requests of `ibv_wr_*` between `wr_start` and `wr_complete`.

use std::cell::UnsafeCell;

use urxe_engine::Data;
use urxe_ffi::verbs as v;
use urxe_runtime::raw::{RawSend, Tso};

use crate::edge::poll_session_lock::PollSessionLock;
use crate::kernel::Errno;

/// Requests being built, of one queue pair.
#[derive(Debug, Default)]
pub(super) struct Builder {
    /// Held from `wr_start` to `wr_complete` or `wr_abort`.
    pub(super) gate: PollSessionLock,
    pub(super) batch: UnsafeCell<Batch>,
}

#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) requests: Vec<Request>,
    /// The first thing that was wrong.
    pub(super) error: Option<Errno>,
}

#[derive(Debug)]
pub(super) struct Request {
    pub(super) wr_id: u64,
    pub(super) wr_flags: u32,
    pub(super) data: Data,
    /// Header and segment size of `wr_send_tso`.
    pub(super) tso: Option<(Box<[u8]>, u16)>,
}

impl Request {
    /// Returns the request as it is posted.
    pub(super) fn as_send(&self) -> RawSend<'_> {
        RawSend {
            wr_id: self.wr_id,
            data: &self.data,
            is_signaled: self.wr_flags & v::IBV_SEND_SIGNALED != 0,
            fills_checksums: self.wr_flags & v::IBV_SEND_IP_CSUM != 0,
            tso: self.tso.as_ref().map(|(header, mss)| Tso { header, mss: *mss }),
        }
    }
}

impl Batch {
    pub(super) fn set_data(&mut self, data: Result<Data, Errno>) {
        match (data, self.requests.last_mut()) {
            (Ok(data), Some(request)) => request.data = data,
            (Ok(_), None) => self.fail(Errno(libc::EINVAL)),
            (Err(errno), _) => self.fail(errno),
        }
    }

    pub(super) fn fail(&mut self, errno: Errno) {
        self.error.get_or_insert(errno);
    }
}
