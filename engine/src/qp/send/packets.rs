//! The packets of each kind of request.

use urxe_wire::packet::{Service, pad_count};
use urxe_wire::{Ext, Header, Operation, Psn, XrcEth};

use super::segment::data_packet;
use super::wqe::{SendWqe, Span};
use crate::cq::WcStatus;
use crate::host::{Host, Io, Network};
use crate::qp::attr::QpAttr;
use crate::qp::sge::copy_payload;
use crate::qp::{QpConfig, Route, opcode};
use crate::work::{Recipient, SendWr};

/// Sends the packet with `psn` of a SEND or WRITE whose packets have the PSNs of `span`; returns its length.
//= spec/requester.md#req-002
//# A message MUST be cut into packets of one path MTU, all full but the last.
#[expect(clippy::too_many_arguments, reason = "a packet's parts, and the surroundings")]
// Called for each packet of a message: handing over what it needs would cost as much as it does.
#[inline(always)]
pub(in crate::qp) fn send_data<H: Host>(
    config: &QpConfig<H>,
    attr: &QpAttr,
    route: &Route<H>,
    io: &mut Io<'_, H>,
    wqe: &SendWqe,
    span: Span,
    psn: Psn,
    ack_req: bool,
) -> Result<usize, Unsent> {
    let mtu = attr.path_mtu.bytes();
    let length = wqe.length as usize;
    let offset = psn.advance_from(span.first) as usize * mtu;
    let (first, last) = (psn == span.first, psn == span.last);
    let payload_len = if last { length.saturating_sub(offset) } else { mtu };
    let (operation, ext) = data_packet(&wqe.wr.op, wqe.length, first, last);

    let mut bth = attr.bth(opcode(config.qp_type, operation), psn);
    bth.pad_count = pad_count(payload_len);
    //= spec/requester.md#req-003
    //# Only the last packet of a message that consumes a receive WQE MAY ask for a solicited event.
    bth.solicited_event = last && wqe.wr.flags.solicited && wqe.wr.op.consumes_recv();
    bth.ack_req = ack_req;

    let header = Header { bth, service: service(wqe.wr.to), ext };
    let header_len = header.len();
    let packet_len = header_len + payload_len + usize::from(bth.pad_count);
    let packet = io.network.packet(route, packet_len).ok_or(Unsent::NoRoom)?;
    header.emit(packet);
    let (payload, pad) = packet.get_mut(header_len..).unwrap_or_default().split_at_mut(payload_len);
    if !pad.is_empty() {
        pad.fill(0);
    }
    copy_payload(io.memory, config.pd, &wqe.wr.data, offset, payload).map_err(|_| REFUSED)?;
    io.network.commit();
    Ok(packet_len)
}

/// Why a packet was not sent.
#[derive(Clone, Copy, Debug)]
pub(in crate::qp) enum Unsent {
    NoRoom,
    Refused(WcStatus),
}

/// A local buffer is not what the L_Key says (IBA 11.6.2 "local protection error").
//= spec/requester.md#req-017
//# A request whose local buffers no L_Key gives MUST fail in its turn with IBV_WC_LOC_PROT_ERR.
pub(super) const REFUSED: Unsent = Unsent::Refused(WcStatus::LocalProtectionError);

/// The headers that say for whom a request is.
const fn service(to: Recipient) -> Service {
    match to {
        Recipient::Peer => Service::Connected,
        Recipient::XrcSrq(xrc_srq) => Service::Xrc(XrcEth { xrc_srq }),
    }
}

/// Sends a request that is one packet; these always ask for an answer. `payload` needs no padding. Returns the packet's
/// length.
#[expect(clippy::too_many_arguments, reason = "a request's parts, and the surroundings")]
pub(super) fn send_request<H: Host>(
    config: &QpConfig<H>,
    attr: &QpAttr,
    route: &Route<H>,
    io: &mut Io<'_, H>,
    wr: &SendWr,
    operation: Operation,
    psn: Psn,
    ext: Ext,
    payload: &[u8],
) -> Result<usize, Unsent> {
    let mut bth = attr.bth(opcode(config.qp_type, operation), psn);
    bth.ack_req = true;
    let header = Header { bth, service: service(wr.to), ext };
    let packet_len = header.len() + payload.len();
    let packet = io.network.packet(route, packet_len).ok_or(Unsent::NoRoom)?;
    header.emit(packet);
    packet.get_mut(header.len()..).unwrap_or_default().copy_from_slice(payload);
    io.network.commit();
    Ok(packet_len)
}
