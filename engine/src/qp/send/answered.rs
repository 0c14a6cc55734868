//! Requests that a response of their own answers.

use urxe_wire::{AtomicEth, Ext, Operation, Psn, Reth};

use super::packets::{REFUSED, Unsent, send_request};
use super::reliable::Reliable;
use crate::host::{Host, Io};
use crate::qp::attr::QpAttr;
use crate::qp::sge::copy_payload;
use crate::qp::{QpConfig, Route};
use crate::work::SendOp;

impl Reliable {
    /// Sends the `nth` request, which a response of its own answers: a READ, an atomic, an ATOMIC WRITE or a FLUSH. Its response
    /// takes the PSNs up to `last`. Returns its length.
    #[expect(clippy::too_many_arguments, reason = "a request's parts, and the surroundings")]
    pub(in crate::qp) fn send_answered<H: Host>(
        &mut self,
        config: &QpConfig<H>,
        attr: &QpAttr,
        route: &Route<H>,
        io: &mut Io<'_, H>,
        nth: usize,
        psn: Psn,
        last: Psn,
    ) -> Result<usize, Unsent> {
        let wqe = self.queue.get(nth).ok_or(Unsent::NoRoom)?;
        let mut bytes = [0; 8];
        let (operation, ext, payload): (_, _, &[u8]) = match wqe.wr.op {
            SendOp::Read(remote) => {
                let first = wqe.sent.map_or(psn, |span| span.first);
                let offset = u64::from(psn.advance_from(first)) * attr.path_mtu.bytes() as u64;
                let packets = last.advance_from(psn) + 1;
                let rest = u64::from(wqe.length) - offset;
                let dma_len = rest.min(u64::from(packets) * attr.path_mtu.bytes() as u64);
                let reth = Reth {
                    va: remote.addr.wrapping_add(offset),
                    r_key: remote.r_key,
                    dma_len: u32::try_from(dma_len).map_err(|_| REFUSED)?,
                };
                (Operation::ReadRequest, Ext::Reth(reth), &[])
            }
            SendOp::CompareSwap { remote, compare, swap } => {
                let eth = AtomicEth { va: remote.addr, r_key: remote.r_key, swap_add: swap, compare };
                (Operation::CompareSwap, Ext::AtomicEth(eth), &[])
            }
            SendOp::FetchAdd { remote, add } => {
                let eth = AtomicEth { va: remote.addr, r_key: remote.r_key, swap_add: add, compare: 0 };
                (Operation::FetchAdd, Ext::AtomicEth(eth), &[])
            }
            SendOp::AtomicWrite(remote) => {
                copy_payload(io.memory, config.pd, &wqe.wr.data, 0, &mut bytes).map_err(|_| REFUSED)?;
                let reth = Reth { va: remote.addr, r_key: remote.r_key, dma_len: 8 };
                (Operation::AtomicWrite, Ext::Reth(reth), &bytes)
            }
            SendOp::Flush { remote, length, how } => {
                let reth = Reth { va: remote.addr, r_key: remote.r_key, dma_len: length };
                (Operation::Flush, Ext::FethReth(how, reth), &[])
            }
            _ => return Err(REFUSED),
        };
        let length = send_request(config, attr, route, io, &wqe.wr, operation, psn, ext, payload)?;
        self.asked(psn, last);
        self.ask = false;
        Ok(length)
    }
}
