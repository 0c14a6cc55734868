//! Packets that are dropped without an answer and cost a connection or a message: datagrams, and requests whose PSNs the two
//! ends do not agree on. Each cause is told once for each queue pair, at the end that drops and, on the same host, at the
//! end that has sent.

use urxe_engine::fault::ResponderFault;
use urxe_engine::{DropReason, QpType};
use urxe_wire::{Psn, Qpn};

use super::Format;
use super::line::Line;
use crate::arrived::Arrived;
use crate::notes::Note;
use crate::peers::{Once, QpRecord};
use crate::{Observer, packet_context};
use urxe_runtime::lock;

/// Bytes before a datagram's message in its receive buffer.
const GRH: usize = 40;

/// Cause and remedy of a dropped datagram.
fn datagram(known: &QpRecord, reason: DropReason, arrived: &Arrived) -> Option<(Once, String, &'static str)> {
    let (_, q_key, length) = arrived.datagram?;
    let fault = packet_context::with(|context| context.fault.as_ref().map(|(fault, _)| *fault));
    Some(match (reason, fault) {
        (DropReason::QKey, _) => (
            Once::QKey,
            format!("Q_Key {:#x} is not that of the queue pair, {:#x}", q_key.0, known.peer.q_key.0),
            "give wr.ud.remote_qkey the qkey that the receiver has set with IBV_QP_QKEY",
        ),
        (DropReason::NoReceive, _) => (
            Once::NoReceive,
            "no receive is posted, and UD sends nothing again".to_owned(),
            "post receives before the peer sends, and more of them",
        ),
        (DropReason::Refused, Some(ResponderFault::RecvTooShort)) => (
            Once::TooShort,
            format!(
                "the receive is shorter than {} bytes: {GRH} for the GRH and {length} of the message",
                GRH + length
            ),
            "post receives on UD 40 bytes longer than the longest message; it begins at byte 40",
        ),
        (DropReason::Refused, Some(ResponderFault::Length)) => (
            Once::TooLong,
            format!("the message has {length} bytes, the port's MTU is {}", known.peer.path_mtu),
            "send at most active_mtu bytes (ibv_query_port) in a datagram",
        ),
        _ => return None,
    })
}

/// Explains a packet that `qpn` drops: a datagram, or a request with a PSN of another sequence, which is `request`.
pub(crate) fn dropped(observer: &Observer, format: Format, qpn: Qpn, reason: DropReason, request: Option<Psn>) {
    let Some(arrived) = packet_context::with(|context| context.arrived) else { return };
    let told = {
        let mut peers = lock(&observer.peers);
        let Some(known) = peers.get_mut(qpn) else { return };
        let told = match (known.peer.qp_type, reason) {
            (QpType::Ud, _) => datagram(known, reason, &arrived),
            (_, DropReason::OutOfSequence | DropReason::StaleDuplicate) => {
                request.and_then(|psn| out_of_window(known, psn))
            }
            _ => None,
        };
        told.filter(|(once, ..)| known.first(*once)).map(|told| (told, known.peer.qpn))
    };
    let Some(((once, why, remedy), peer)) = told else { return };
    let from = arrived.datagram.map_or(peer, |(src_qp, ..)| src_qp);
    let what = format!("dropped by QP {qpn}, sent by QP {from} at {}", arrived.from.ip());
    print(observer, format, qpn, &what, &why, remedy);
    let is_drop = once != Once::PsnMismatch;
    let note = Note { to: from, from: qpn, address: arrived.to, is_drop, why, remedy: remedy.to_owned() };
    observer.notes.send(arrived.from, &note);
}

/// Cause and remedy if the peer sends from another PSN than is expected here.
fn out_of_window(known: &mut QpRecord, psn: Psn) -> Option<(Once, String, &'static str)> {
    let expected = known.peer.rq_psn;
    known.is_out_of_window(psn).then(|| {
        (
            Once::PsnMismatch,
            format!("rq_psn is {expected}, but the peer sends from {psn}"),
            "set rq_psn here to the peer's sq_psn, and the other way round: exchange the PSNs when connecting",
        )
    })
}

/// Explains a datagram or request to a queue pair that there has not been lately.
pub(crate) fn unknown_qp(observer: &Observer, format: Format, arrived: &Arrived) {
    let dest = arrived.dest;
    if !lock(&observer.peers).is_unknown(dest) {
        return;
    }
    let why = format!("there is no QP {dest} at {}", arrived.to);
    let remedy = "tell the sender the qp_num of a queue pair that is there, and its GID";
    let from = arrived.from.ip();
    let Some((src_qp, ..)) = arrived.datagram else {
        // It does not say which queue pair has sent it.
        return print(observer, format, dest, &format!("a request from {from} is dropped"), &why, remedy);
    };
    let what = format!("a datagram of QP {src_qp} at {from} is dropped");
    print(observer, format, dest, &what, &why, remedy);
    let note = Note { to: src_qp, from: dest, address: arrived.to, is_drop: true, why, remedy: remedy.to_owned() };
    observer.notes.send(arrived.from, &note);
}

/// Explains a datagram that is not sent because no packet holds it.
pub(crate) fn too_long(observer: &Observer, format: Format, qpn: Qpn, wr_id: u64, length: u32) {
    let mtu = {
        let mut peers = lock(&observer.peers);
        let Some(known) = peers.get_mut(qpn) else { return };
        if !known.first(Once::SentTooLong) {
            return;
        }
        known.peer.path_mtu
    };
    let why = format!("a datagram of {length} bytes is not sent: the port's MTU is {mtu}");
    let what = format!("wr_id {wr_id} on QP {qpn} completes with IBV_WC_SUCCESS all the same");
    print(observer, format, qpn, &what, &why, "send at most active_mtu bytes (ibv_query_port) in a datagram");
}

/// Explains what peers on this host have dropped, by their notes.
pub(crate) fn noted(observer: &Observer, format: Format, note: &Note) {
    let first = {
        let mut peers = lock(&observer.peers);
        let known = peers.get_mut(note.to).filter(|known| known.peer.qp_type == QpType::Ud);
        known.is_some_and(|known| known.first(Once::PeerDropped))
    };
    if first {
        let Note { to, from, address, why, remedy, .. } = note;
        let what = format!("a datagram of QP {to} is dropped by {address}, to QP {from}");
        print(observer, format, *to, &what, &format!("at the peer: {why}"), remedy);
    }
}

fn print(observer: &Observer, format: Format, qpn: Qpn, what: &str, why: &str, remedy: &str) {
    let (kind, device) = ("dropped", observer.device());
    Line { kind, device, code: "dropped", qp: Some(qpn.get()), what, why, remedy, ..Line::default() }.print(format);
}
