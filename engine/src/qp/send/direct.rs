//! One-sided requests that the host carries out without packets ([`crate::direct`]).

use urxe_wire::Psn;

use super::reliable::Reliable;
use super::send_queue::Entry as _;
use super::wqe::{SendWqe, succeed};
use crate::direct::{DirectOutcome, DirectRequest};
use crate::host::{Host, Io};
use crate::memory::Memory;
use crate::qp::QpConfig;
use crate::qp::attr::QpAttr;
use crate::work::SendWr;

/// Bytes that one call of `transmit` carries out at the peer's memory. Longer messages go by packets, which take turns.
pub(super) const DIRECT_BURST: u32 = 64 << 20;

/// Bytes of the longest request that is carried out while others are posted: who posts long ones takes turns.
const AT_ONCE: u32 = 16 << 10;

/// Whether a request is one that the host may carry out.
#[inline]
fn is_for_host(memory: &impl Memory, wqe: &SendWqe, attr: &QpAttr) -> bool {
    let op = &wqe.wr.op;
    let has_resources = attr.max_rd_atomic > 0 || !op.takes_responder_resource();
    (op.is_one_sided() && has_resources) || (op.is_plain_send() && memory.reaches_receives())
}

/// Asks the host to carry out a request of which nothing is sent, whose first packet would have the PSN `psn`.
#[inline]
pub(super) fn ask_host<H: Host>(
    config: &QpConfig<H>,
    attr: &QpAttr,
    io: &Io<'_, H>,
    wqe: &SendWqe,
    psn: Psn,
) -> DirectOutcome {
    let length = wqe.length;
    let (pd, dest_qpn, packets) = (config.pd, attr.dest_qpn, attr.path_mtu.packets(length));
    let SendWr { op, data, flags, .. } = &wqe.wr;
    io.memory.carry_out(&DirectRequest { pd, dest_qpn, op, data, length, solicited: flags.solicited, psn, packets })
}

impl Reliable {
    /// Whether the host may be asked to carry out the request that would come next, if it is one-sided: nothing is outstanding, and no
    /// rate is to be kept.
    #[inline]
    fn is_next_of_host(&mut self) -> bool {
        self.snd_una.get() == self.snd_max.get() && self.congestion.limiter().is_none()
    }

    /// Has the host carry out the request that was written in the vacant place, as if it had been queued and sent. False: it is to be
    /// queued, as others are, or because the host does not do it, or it has failed.
    #[inline]
    pub(in crate::qp) fn carry_out_posted<H: Host>(
        &mut self,
        config: &QpConfig<H>,
        attr: &QpAttr,
        io: &mut Io<'_, H>,
    ) -> bool {
        if self.queue.len() > 0 || !self.is_next_of_host() {
            return false;
        }
        let psn = self.snd_max;
        let wqe = self.queue.vacant();
        if wqe.length > AT_ONCE || !is_for_host(io.memory, wqe, attr) {
            return false;
        }
        match ask_host(config, attr, io, wqe, psn) {
            DirectOutcome::ByPackets => {
                wqe.by_packets = true;
                self.drain.answered(false);
                return false;
            }
            DirectOutcome::Failed(status) => wqe.failed = Some(status),
            DirectOutcome::Done => {
                succeed(config, io, wqe);
                wqe.clear();
            }
        }
        let (is_done, packets) = (wqe.failed.is_none(), attr.path_mtu.packets(wqe.length));
        self.drain.answered(true);
        self.skip(packets);
        self.posted += u32::from(is_done);
        is_done
    }

    /// Whether nothing is queued, outstanding or kept back: a request that is posted now would leave at once.
    #[inline]
    pub(in crate::qp) fn is_idle(&mut self) -> bool {
        self.queue.len() == 0 && self.is_next_of_host() && !self.selective.has_output()
    }

    /// So many packets need not be sent.
    #[inline]
    fn skip(&mut self, packets: u32) {
        self.snd_max = self.snd_max.add(packets);
        (self.snd_una, self.snd_nxt) = (self.snd_max, self.snd_max);
    }

    /// Has the host carry out the requests that come next, as long as nothing is outstanding. False: that has taken its time,
    /// and others may want a turn.
    #[cold]
    pub(super) fn carry_out<H: Host>(&mut self, config: &QpConfig<H>, attr: &QpAttr, io: &mut Io<'_, H>) -> bool {
        let is_over = self.carry_out_queued(config, attr, io);
        io.memory.leave_peer();
        is_over
    }

    fn carry_out_queued<H: Host>(&mut self, config: &QpConfig<H>, attr: &QpAttr, io: &mut Io<'_, H>) -> bool {
        let mut left = DIRECT_BURST;
        while self.is_next_of_host()
            && self.seg_wqe == 0
            && let Some(wqe) = self.queue.front_mut()
            && wqe.sent.is_none()
            && wqe.failed.is_none()
            && !wqe.by_packets
            && is_for_host(io.memory, wqe, attr)
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
                DirectOutcome::Failed(status) => {
                    wqe.failed = Some(status);
                    self.skip(attr.path_mtu.packets(length));
                    return true;
                }
                DirectOutcome::Done => {}
            }
            left -= length;
            succeed(config, io, wqe);
            self.queue.pop();
            self.skip(attr.path_mtu.packets(length));
        }
        true
    }

    /// Whether the request that would begin next waits until nothing is outstanding, so that the host can carry it out.
    #[cold]
    pub(super) fn awaits_host(&mut self, memory: &impl Memory, attr: &QpAttr) -> bool {
        let Some(wqe) = self.queue.get_mut(self.seg_wqe).filter(|wqe| wqe.sent.is_none()) else { return false };
        let is_for_host = wqe.length <= DIRECT_BURST && is_for_host(memory, wqe, attr);
        let waits = is_for_host && self.snd_una != self.snd_max && self.drain.waits();
        if !waits {
            self.drain.begun(is_for_host);
        }
        waits
    }
}
