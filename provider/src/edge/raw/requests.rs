//! Requests to send frames, by `ibv_post_send(3)` and `ibv_wr_*`.

use urxe_engine::Data;
use urxe_ffi::verbs as v;
use urxe_runtime::raw::{RawSend, Tso};

use crate::edge::batch;

/// Header and segment size of a request for segmentation.
pub(super) type Segmentation = (Box<[u8]>, u16);

/// A request to send a frame, or with `tso` several.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) wr_id: u64,
    pub(super) wr_flags: u32,
    pub(super) data: Data,
    pub(super) tso: Option<Segmentation>,
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

impl batch::Request for Request {
    fn set_data(&mut self, data: Data) {
        self.data = data;
    }

    fn takes_inline(&self) -> bool {
        true
    }
}
