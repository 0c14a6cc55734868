//! Errors that show after the call: completions, asynchronous events.

use std::time::Duration;

use urxe_engine::{AsyncEvent, Cqe, SendOp, WcOpcode, WcStatus};
use urxe_wire::Qpn;

use super::Format;
use super::line::Line;
use crate::fmt::{self, Request};
use crate::peers::QpRecord;
use crate::{Observer, packet_context};
use urxe_runtime::lock;

/// Explains a completion with an error; flushed ones once for each way to ERR, and not if that was explained itself.
pub(crate) fn completion(observer: &Observer, format: Format, cqe: &Cqe) {
    let receive = matches!(cqe.opcode, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm);
    let explained = lock(&observer.peers).explain(cqe.qpn);
    if explained && cqe.status == WcStatus::WrFlushError {
        return;
    }
    let Some(entry) = urxe_explain::wc::TABLE.by_number(cqe.status as u32) else { return };
    let failed =
        packet_context::with(|context| context.failed.take().filter(|(.., status)| *status == cqe.status && !receive));
    let (to, (why, remedy)) = {
        let peers = lock(&observer.peers);
        let known = peers.get(cqe.qpn);
        let to = known.map_or(String::new(), |known| format!(" to {}", Who(known)));
        let told = if receive { receiving(cqe) } else { sending(observer, cqe, failed.as_ref(), known) };
        (to, told.unwrap_or_else(|| (entry.cause.to_owned(), entry.remedy.to_owned())))
    };
    let asked_for = packet_context::with(|context| context.asked_for.take_if(|qpn| *qpn == cqe.qpn).is_some())
        || lock(&observer.peers).get(cqe.qpn).is_some_and(|known| known.is_asked_for);
    let (why, remedy) = match asked_for {
        true => ("URXE_FAULTS asks for it".to_owned(), "see how the program takes it".to_owned()),
        false => (why, remedy),
    };
    let request = match (&failed, receive) {
        (Some((op, length, _)), _) => format!(", {}", Request(op, *length)),
        (None, true) => ", receive".to_owned(),
        (None, false) => String::new(),
    };
    let what = format!("{} for wr_id {} on QP {}{to}{request}", entry.name, cqe.wr_id, cqe.qpn);
    Line {
        kind: "completion",
        device: &observer.device,
        code: entry.name,
        qp: Some(cqe.qpn.get()),
        wr_id: Some(cqe.wr_id),
        what: &what,
        why: &why,
        remedy: &remedy,
        site: None,
    }
    .print(format);
}

/// The peer of a queue pair.
struct Who<'a>(&'a QpRecord);

impl std::fmt::Display for Who<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let peer = &self.0.peer;
        match peer.address {
            Some(address) => write!(f, "QP {} at {address}", peer.qpn),
            None => write!(f, "QP {}", peer.qpn),
        }
    }
}

/// Explains the error status of a receive: why, and the remedy.
fn receiving(cqe: &Cqe) -> Option<(String, String)> {
    if cqe.status == WcStatus::WrFlushError {
        return Some(flushed());
    }
    let (fault, refused) = packet_context::with(|context| Some((context.fault.clone()?, context.refused.clone())))?;
    let (fault, why) = fault;
    Some((why, fmt::fault_remedy(fault, refused.as_ref()).to_owned()))
}

fn flushed() -> (String, String) {
    (
        "the queue pair was moved to ERR without an error of its own: by the application, or by disconnecting"
            .to_owned(),
        "nothing if that was meant; to use the queue pair again, go through RESET".to_owned(),
    )
}

/// Explains the error status of a send request: why, and the remedy.
fn sending(
    observer: &Observer,
    cqe: &Cqe,
    failed: Option<&(SendOp, u32, WcStatus)>,
    known: Option<&QpRecord>,
) -> Option<(String, String)> {
    let told = |why: String, remedy: &str| Some((why, remedy.to_owned()));
    match cqe.status {
        WcStatus::RemoteInvalidRequestError | WcStatus::RemoteAccessError | WcStatus::RemoteOperationError => {
            let note = known?.note.as_ref()?;
            told(format!("at the peer: {}", note.why), &format!("there: {}", note.remedy))
        }
        WcStatus::WrFlushError => Some(flushed()),
        WcStatus::LocalProtectionError => {
            let earlier = known.and_then(|known| known.refused.as_ref()).filter(|(wr_id, _)| *wr_id == cqe.wr_id);
            let refused = match earlier {
                Some((_, refused)) => refused.clone(),
                None => packet_context::with(|context| context.refused.clone())?,
            };
            told(refused.to_string(), refused.remedy())
        }
        WcStatus::LocalQpOperationError if matches!(failed, Some((SendOp::LocalInvalidate(_), ..))) => told(
            "the key is no type 2 memory window of this queue pair that is bound".to_owned(),
            "invalidate what was bound here, once",
        ),
        WcStatus::LocalQpOperationError => told(
            "max_rd_atomic of this queue pair is 0: it may have no READ or atomic outstanding".to_owned(),
            "set max_rd_atomic with IBV_QP_MAX_QP_RD_ATOMIC on the way to RTS, and the peer's max_dest_rd_atomic",
        ),
        WcStatus::MwBindError => {
            let error = packet_context::with(|context| context.unbound.take())?;
            told(fmt::bind(error).to_owned(), "see ibv_bind_mw(3)")
        }
        WcStatus::RetryExceededError => Some(unanswered(observer, failed.map_or(0, |(_, length, _)| *length), known?)),
        WcStatus::RnrRetryExceededError => {
            let known = known?;
            told(
                format!(
                    "{} had no receive posted, and rnr_retry {} allows no more tries",
                    Who(known),
                    known.peer.rnr_retry
                ),
                "post receives there before sending, or set rnr_retry to 7 (for ever)",
            )
        }
        _ => None,
    }
}

/// Explains that the peer did not acknowledge a message of `length` bytes, however often it was sent.
fn unanswered(observer: &Observer, length: u32, known: &QpRecord) -> (String, String) {
    let (tries, peer) = (known.peer.retry_cnt, Who(known));
    let timeout = known.peer.timeout.map_or_else(String::new, |timeout| format!(" x {}", Millis(timeout)));
    if known.spoilt > 0 {
        let why = format!(
            "URXE_FAULTS has lost, damaged or held back {} packets of the queue pair: {tries} retries{timeout} to {peer}",
            known.spoilt
        );
        return (why, "see how the program takes it".to_owned());
    }
    let (netdev, mtu, path_mtu) =
        (observer.interface.name(), observer.interface.mtu(), usize::from(observer.interface.path_mtu()));
    if known.peer.path_mtu > path_mtu && length as usize > path_mtu {
        let why = format!(
            "path_mtu {} does not fit through {netdev}, whose MTU is {mtu}: packets with more than {path_mtu} bytes never leave",
            known.peer.path_mtu
        );
        return (why, "set path_mtu at both ends to active_mtu (ibv_query_port) of the smaller one".to_owned());
    }
    if let Some(note) = &known.note {
        return (format!("at the peer: {}", note.why), format!("there: {}", note.remedy));
    }
    if let Some(expected) = known.expected_elsewhere() {
        let why = format!(
            "sq_psn is {}, but {peer} answers for PSN {expected}: its rq_psn is another number",
            known.peer.sq_psn
        );
        let remedy = "set rq_psn there to sq_psn here, and the other way round: exchange the PSNs when connecting";
        return (why, remedy.to_owned());
    }
    if known.heard {
        return (
            format!("{tries} retries{timeout} to {peer} without progress, though it has answered before"),
            "has the peer's process ended, or its queue pair been destroyed or gone to ERR? Else packets are lost: look at the \
             counters, or raise timeout and retry_cnt"
                .to_owned(),
        );
    }
    let rtr = format!("is QP {} in RTR there, with this end's GID, number and PSN?", known.peer.qpn);
    match known.peer.address {
        Some(address) if address.is_loopback() => (
            format!(
                "no answer at all in {tries} retries{timeout} to {peer}, which is this host: {} is on lo",
                observer.device()
            ),
            format!(
                "if the peer is on another host, start both ends with --netdev (URXE_NETDEV=eth0, or auto); else {rtr}"
            ),
        ),
        _ => {
            (format!("{tries} retries{timeout} to {peer}, no answer at all"), format!("{rtr} Does UDP port 4791 pass?"))
        }
    }
}

/// A time in milliseconds.
struct Millis(Duration);

impl std::fmt::Display for Millis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let micros = self.0.as_micros();
        if micros < 10_000 {
            write!(f, "{}.{} ms", micros / 1000, micros % 1000 / 100)
        } else {
            write!(f, "{} ms", micros / 1000)
        }
    }
}

/// Explains an asynchronous event that says what no completion can.
pub(crate) fn async_event(observer: &Observer, format: Format, qpn: Qpn, event: AsyncEvent) {
    let name = match event {
        AsyncEvent::QpFatal => "IBV_EVENT_QP_FATAL",
        AsyncEvent::QpRequestError => "IBV_EVENT_QP_REQ_ERR",
        AsyncEvent::QpAccessError => "IBV_EVENT_QP_ACCESS_ERR",
        AsyncEvent::PathMigrationError => "IBV_EVENT_PATH_MIG_ERR",
        // These are no errors.
        AsyncEvent::CommunicationEstablished
        | AsyncEvent::SqDrained
        | AsyncEvent::LastWqeReached
        | AsyncEvent::PathMigrated => return,
    };
    let Some(entry) = urxe_explain::event::TABLE.by_name(name) else { return };
    let found = packet_context::with(|context| {
        let (fault, why) = context.fault.clone()?;
        Some((why, fmt::fault_remedy(fault, context.refused.as_ref()).to_owned()))
    });
    let asked_for = lock(&observer.peers).get(qpn).is_some_and(|known| known.is_asked_for);
    let (why, remedy) = match found {
        _ if asked_for => ("URXE_FAULTS asks for it".to_owned(), "see how the program takes it".to_owned()),
        Some(found) => found,
        None => (entry.cause.to_owned(), entry.remedy.to_owned()),
    };
    let to = {
        let mut peers = lock(&observer.peers);
        peers.explain(qpn);
        peers.get(qpn).map_or(String::new(), |known| format!(": a request of {}", Who(known)))
    };
    let what = format!("{name} on QP {qpn}{to}");
    Line {
        kind: "event",
        device: &observer.device,
        code: name,
        qp: Some(qpn.get()),
        what: &what,
        why: &why,
        remedy: &remedy,
        ..Line::default()
    }
    .print(format);
}

/// Explains that a completion queue was too small.
pub(crate) fn overrun(observer: &Observer, format: Format, cqe: &Cqe, capacity: usize) {
    lock(&observer.peers).explain(cqe.qpn);
    let what = format!("IBV_EVENT_CQ_ERR: the completion of wr_id {} on QP {} is lost", cqe.wr_id, cqe.qpn);
    let why = format!("{capacity} completions were in the queue already, which is its size");
    Line {
        kind: "event",
        device: &observer.device,
        code: "IBV_EVENT_CQ_ERR",
        qp: Some(cqe.qpn.get()),
        wr_id: Some(cqe.wr_id),
        what: &what,
        why: &why,
        remedy: "make the CQ as large as all queues that complete there together, or poll before posting more",
        site: None,
    }
    .print(format);
}
