//! End-to-end flow control: how many messages the peer has receive WQEs for (IBA 9.7.7.2).
//!
//! Counted in messages that consume a receive WQE, not in SSNs as the specification does: that is what the
//! limit is about, and it does not change when READs are asked for in chunks.

/// The requester's side.
#[derive(Debug, Default)]
pub(in crate::qp) struct Credit {
    /// Messages begun that consume a receive WQE.
    begun: u32,
    /// Messages acknowledged that consume a receive WQE.
    acknowledged: u32,
    /// `begun` may grow up to here; `None` is without limit.
    limit: Option<u32>,
}

impl Credit {
    /// Takes what one more message needs, if there is any. Beyond the limit one may go ahead to find out, when
    /// nothing is outstanding (IBA 9.7.7.2.5).
    //= spec/requester.md#req-015
    //# Messages that consume receive WQEs MUST NOT exceed the credits, but for one that finds out.
    pub(in crate::qp) fn take(&mut self, idle: bool) -> bool {
        let next = self.begun.wrapping_add(1);
        let beyond = |limit: u32| limit.wrapping_sub(next).cast_signed() < 0;
        if self.limit.is_some_and(beyond) && !idle {
            return false;
        }
        self.begun = next;
        true
    }

    /// A message was acknowledged as a whole.
    pub(in crate::qp) const fn acknowledge(&mut self) {
        self.acknowledged = self.acknowledged.wrapping_add(1);
    }

    /// The peer has `wqes` receive WQEs beyond those of the messages acknowledged, and of one that is
    /// acknowledged in part and has its WQE already. `None` is a peer that does not count.
    pub(in crate::qp) fn promise(&mut self, wqes: Option<u32>, partial: bool) {
        let base = self.acknowledged.wrapping_add(u32::from(partial));
        self.limit = wqes.map(|wqes| base.wrapping_add(wqes));
    }
}
