//! One-sided requests that the host carries out without packets ([`crate::direct`]).

use urxe_wire::Psn;

use super::reliable::Reliable;
use super::wqe::{SendWqe, succeed};
use crate::direct::{DirectOutcome, DirectRequest};
use crate::host::{Host, Io};
use crate::memory::Memory as _;
use crate::qp::QpConfig;
use crate::qp::attr::QpAttr;

/// Bytes that one call of `transmit` carries out at the peer's memory. Longer messages go by packets, which take turns.
pub(super) const DIRECT_BURST: u32 = 64 << 20;

/// Decision of a requester whose packets are outstanding to begin no more of them, so that its host can carry requests out.
///
/// A stream of one-sided requests that has begun by packets, before the peer's memory was within reach, would go on so: something
/// is always outstanding. Waiting costs a round trip, so it is tried after so many requests of such a stream, and after twice as
/// many where the host did not carry out what was waited for.
#[derive(Debug)]
pub(super) struct Drain {
    /// One-sided requests in a row that have begun by packets.
    streak: u32,
    /// Length of such a row after which the next request waits.
    patience: u32,
}

impl Drain {
    const PATIENCE: u32 = 8;
    const MOST: u32 = 4096;

    /// Takes note of a request that begins by packets.
    #[inline]
    pub(super) fn begun(&mut self, is_one_sided: bool) {
        self.streak = if is_one_sided { self.streak.saturating_add(1) } else { 0 };
    }

    /// Whether the next one-sided request waits until nothing is outstanding.
    #[inline]
    const fn waits(&self) -> bool {
        self.streak >= self.patience
    }

    /// Takes note of the host's answer for a request before which nothing is outstanding.
    fn answered(&mut self, is_carried_out: bool) {
        if is_carried_out {
            *self = Self::default();
        } else if self.waits() {
            self.patience = (self.patience * 2).min(Self::MOST);
            self.streak = 0;
        }
    }
}

impl Default for Drain {
    fn default() -> Self {
        Self { streak: 0, patience: Self::PATIENCE }
    }
}

/// Asks the host to carry out a request of which nothing is sent, whose first packet would have the PSN `psn`.
#[cold]
pub(super) fn ask_host<H: Host>(
    config: &QpConfig<H>,
    attr: &QpAttr,
    io: &Io<'_, H>,
    wqe: &SendWqe,
    psn: Psn,
) -> DirectOutcome {
    let length = wqe.length;
    let (pd, dest_qpn, packets) = (config.pd, attr.dest_qpn, attr.path_mtu.packets(length));
    io.memory.carry_out(&DirectRequest { pd, dest_qpn, op: &wqe.wr.op, data: &wqe.wr.data, length, psn, packets })
}

impl Reliable {
    /// Has the host carry out the requests that come next, as long as nothing is outstanding. False: that has taken its time,
    /// and others may want a turn.
    #[cold]
    pub(super) fn carry_out<H: Host>(&mut self, config: &QpConfig<H>, attr: &QpAttr, io: &mut Io<'_, H>) -> bool {
        let mut left = DIRECT_BURST;
        while self.snd_una == self.snd_max
            && self.seg_wqe == 0
            && let Some(wqe) = self.queue.front_mut()
            && wqe.sent.is_none()
            && wqe.failed.is_none()
            && wqe.wr.op.is_one_sided()
            && (attr.max_rd_atomic > 0 || !wqe.wr.op.takes_responder_resource())
            && self.congestion.limiter().is_none()
        {
            let length = wqe.length;
            if length > DIRECT_BURST {
                return true;
            }
            if length > left {
                return false;
            }
            let outcome = ask_host(config, attr, io, wqe, self.snd_max);
            self.drain.answered(outcome != DirectOutcome::ByPackets);
            match outcome {
                DirectOutcome::ByPackets => return true,
                outcome => {
                    left -= length;
                    self.snd_max = self.snd_max.add(attr.path_mtu.packets(length));
                    (self.snd_una, self.snd_nxt) = (self.snd_max, self.snd_max);
                    if let DirectOutcome::Failed(status) = outcome {
                        wqe.failed = Some(status);
                        return true;
                    }
                }
            }
            succeed(config, io, wqe);
            self.queue.pop();
        }
        true
    }

    /// Whether the request that would begin next waits until nothing is outstanding, so that the host can carry it out.
    #[cold]
    pub(super) fn awaits_host(&mut self, attr: &QpAttr) -> bool {
        let Some(wqe) = self.queue.get_mut(self.seg_wqe).filter(|wqe| wqe.sent.is_none()) else { return false };
        let is_one_sided = wqe.wr.op.is_one_sided()
            && wqe.length <= DIRECT_BURST
            && (attr.max_rd_atomic > 0 || !wqe.wr.op.takes_responder_resource());
        let waits = is_one_sided && self.snd_una != self.snd_max && self.drain.waits();
        if !waits {
            self.drain.begun(is_one_sided);
        }
        waits
    }
}
