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
            match ask_host(config, attr, io, wqe, self.snd_max) {
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
}
