//! Which headers the packets of a message have.

use urxe_wire::{Ext, Ieth, Operation, Reth};

use crate::work::{Remote, SendOp};

/// The operation and extended headers of one packet of a SEND or WRITE.
pub(in crate::qp) fn data_packet(op: &SendOp, length: u32, first: bool, last: bool) -> (Operation, Ext) {
    use Operation as O;
    let reth = |remote: &Remote| Reth { va: remote.addr, r_key: remote.r_key, dma_len: length };
    match (op, first, last) {
        (SendOp::SendWithImmediate(imm), true, true) => (O::SendOnlyWithImmediate, Ext::ImmDt(*imm)),
        (SendOp::SendWithImmediate(imm), false, true) => (O::SendLastWithImmediate, Ext::ImmDt(*imm)),
        (SendOp::SendWithInvalidate(r_key), true, true) => {
            (O::SendOnlyWithInvalidate, Ext::Ieth(Ieth { r_key: *r_key }))
        }
        (SendOp::SendWithInvalidate(r_key), false, true) => {
            (O::SendLastWithInvalidate, Ext::Ieth(Ieth { r_key: *r_key }))
        }
        (SendOp::Write(remote), true, true) => (O::WriteOnly, Ext::Reth(reth(remote))),
        (SendOp::WriteWithImmediate(remote, imm), true, true) => {
            (O::WriteOnlyWithImmediate, Ext::RethImmDt(reth(remote), *imm))
        }
        (SendOp::Write(remote) | SendOp::WriteWithImmediate(remote, _), true, false) => {
            (O::WriteFirst, Ext::Reth(reth(remote)))
        }
        (SendOp::Write(_) | SendOp::WriteWithImmediate(..), false, false) => (O::WriteMiddle, Ext::None),
        (SendOp::Write(_), false, true) => (O::WriteLast, Ext::None),
        (SendOp::WriteWithImmediate(_, imm), false, true) => (O::WriteLastWithImmediate, Ext::ImmDt(*imm)),
        (_, true, true) => (O::SendOnly, Ext::None),
        (_, true, false) => (O::SendFirst, Ext::None),
        (_, false, false) => (O::SendMiddle, Ext::None),
        (_, false, true) => (O::SendLast, Ext::None),
    }
}
