//! The sender's part against silly windows (RFC 9293, section 3.8.6.2.1): a full window is not filled up a packet at a time.
//!
//! The last packet that the window lets out asks for an acknowledgement, which then makes room for as few packets as had left: once small, turns
//! of a requester stay so, with an acknowledgement and a system call for each. Losses make them small.

use super::reliable::Reliable;
use crate::qp::attr::QpAttr;

/// Part of the window that has to be free before more is sent, and the most packets that this may be.
const PART: u32 = 8;
const MOST: u32 = 32;

impl Reliable {
    /// Whether the requester is to wait until more of the window, `room` packets in all, is free: there is more to send than there is room
    /// for, and an acknowledgement is under way, or a timer is.
    #[inline]
    pub(super) fn avoids_silly_window(&mut self, attr: &QpAttr, room: u32) -> bool {
        let in_flight = self.in_flight();
        let free = room.saturating_sub(in_flight);
        free < (room / PART).min(MOST) && free > 0 && in_flight > 0 && self.has_more_than(attr, free)
    }

    #[cold]
    fn has_more_than(&mut self, attr: &QpAttr, packets: u32) -> bool {
        // What is not asked for yet, or is sent at a limited rate, has another clock than acknowledgements. Without a timer only what is
        // sent next would tell that the last ones, or their acknowledgements, were lost.
        let is_untimed = self.ack_deadline.is_none();
        if self.unasked > 0 || self.ask || is_untimed || self.selective.wants_pilot() || self.is_limited() {
            return false;
        }
        let waiting = self.queue.len().saturating_sub(self.seg_wqe);
        let Some(wqe) = self.queue.get(self.seg_wqe) else { return false };
        if wqe.wr.op.is_local() || wqe.wr.op.takes_responder_resource() {
            return false;
        }
        let left = wqe
            .sent
            .map_or_else(|| attr.path_mtu.packets(wqe.length), |span| span.last.next().advance_from(self.snd_nxt));
        waiting > packets as usize || left > packets
    }
}
