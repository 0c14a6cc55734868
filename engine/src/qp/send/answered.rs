//! Requests that a response of their own answers.

use urxe_wire::{AtomicEth, Ext, Operation, Psn, Reth};

use super::packets::{REFUSED, Unsent, send_request};
use super::reliable::Reliable;
use super::wqe::Span;
use crate::host::{Host, Io};
use crate::qp::attr::QpAttr;
use crate::qp::sge::copy_payload;
use crate::qp::{QpConfig, Route};
use crate::work::SendOp;

/// Responses of a chunk from which on one leaves whole.
const RUN: u32 = 16;

impl Reliable {
    /// The last PSN that the response to the request to send at `psn` takes: a long READ is asked for in chunks.
    /// One if the request `is_pilot`. `None` if it must wait.
    pub(super) fn chunk(&mut self, span: Span, psn: Psn, in_flight: u32, attr: &QpAttr, is_pilot: bool) -> Option<Psn> {
        if let Some(asked) = self.reads.iter().find(|chunk| chunk.contains(psn)) {
            //= spec/requester.md#req-016
            //# A READ that is asked for again MUST stay within the PSNs of the request that it repeats.
            return Some(asked.last);
        }
        //= spec/requester.md#req-005
        //# READs and atomics outstanding MUST NOT be more than max_rd_atomic.
        if self.reads_outstanding() >= usize::from(attr.max_rd_atomic) {
            return None;
        }
        let remaining = span.last.advance_from(psn) + 1;
        let window = self.congestion.packets();
        // Several chunks at once keep the responder busy while the next is asked for; small ones would not pay.
        let share = (window / u32::from(attr.max_rd_atomic.clamp(1, 4))).max(1);
        // As many of about that size as there are, of one length: each request may be lost, and stop all answers.
        let wanted = remaining.div_ceil(((remaining + share / 2) / share).max(1)).min(window);
        let room = window.saturating_sub(in_flight);
        if room >= wanted {
            return Some(psn.add(wanted - 1));
        }
        // Where packets are lost the window may be small, and a quarter of a chunk too much of it to leave empty.
        let is_worth_it = self.selective.board().is_some() && wanted < RUN && room >= wanted.div_ceil(4);
        if is_worth_it { Some(psn.add(room - 1)) } else { is_pilot.then_some(psn) }
    }

    /// A request for responses from `psn` to `last` was sent.
    pub(in crate::qp) fn asked(&mut self, psn: Psn, last: Psn) {
        match self.reads.iter().position(|chunk| chunk.contains(psn)) {
            None => self.reads.push_back(Span { first: psn, last }),
            // Going back is going to the oldest PSN, so no other begins in its middle.
            Some(0) => self.resumed_at = Some(psn),
            Some(_) => {}
        }
    }

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
