//! Plain-language texts for the comments of captures and for explanations.

use std::fmt::{self, Display};

use urxe_engine::event::{MigrationCause, Nak, RetryReason};
use urxe_engine::fault::ResponderFault;
use urxe_engine::{
    Access, AccessDenied, Accessor, BindError, DropReason, Event, QpState, Refusal, Region, RegionKind, SendOp,
};
use urxe_wire::NakCode;

/// The name of a state, as in `verbs.h` without `IBV_QPS_`.
pub const fn state(state: QpState) -> &'static str {
    match state {
        QpState::Reset => "RESET",
        QpState::Init => "INIT",
        QpState::Rtr => "RTR",
        QpState::Rts => "RTS",
        QpState::Sqd => "SQD",
        QpState::Sqe => "SQE",
        QpState::Err => "ERR",
    }
}

/// Names of access flags, as in `verbs.h`.
pub struct Rights(pub Access);

const RIGHTS: [(Access, &str); 10] = [
    (Access::LOCAL_WRITE, "IBV_ACCESS_LOCAL_WRITE"),
    (Access::REMOTE_WRITE, "IBV_ACCESS_REMOTE_WRITE"),
    (Access::REMOTE_READ, "IBV_ACCESS_REMOTE_READ"),
    (Access::REMOTE_ATOMIC, "IBV_ACCESS_REMOTE_ATOMIC"),
    (Access::MW_BIND, "IBV_ACCESS_MW_BIND"),
    (Access::ZERO_BASED, "IBV_ACCESS_ZERO_BASED"),
    (Access::ON_DEMAND, "IBV_ACCESS_ON_DEMAND"),
    (Access::HUGETLB, "IBV_ACCESS_HUGETLB"),
    (Access::FLUSH_GLOBAL, "IBV_ACCESS_FLUSH_GLOBAL"),
    (Access::FLUSH_PERSISTENT, "IBV_ACCESS_FLUSH_PERSISTENT"),
];

impl Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names = RIGHTS.iter().filter(|(right, _)| self.0.contains(*right)).map(|(_, name)| *name);
        match names.next() {
            None => f.write_str("local reading only"),
            Some(first) => {
                f.write_str(first)?;
                names.try_for_each(|name| write!(f, "|{name}"))
            }
        }
    }
}

/// A range of addresses.
pub struct Range(pub u64, pub u64);

impl Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{:#x}, +{})", self.0, self.1)
    }
}

/// An access that was refused, and what the region of the key is like.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    /// The access, and why it was refused.
    pub(crate) denied: AccessDenied,
    /// The region of the key, if there is one.
    pub(crate) region: Option<Region>,
}

impl Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AccessDenied { by, key, access, va, length, refusal } = self.denied;
        let name = if matches!(by, Accessor::Local(_)) { "L_Key" } else { "R_Key" };
        write!(f, "{name} {:#x} ", key.0)?;
        let asked = Range(va, length);
        match (refusal, &self.region) {
            (Refusal::OutOfBounds, Some(region)) => {
                write!(f, "allows {}, the request asks for {asked}", Range(region.iova, region.length))
            }
            (Refusal::OutOfBounds, None) => write!(f, "does not reach {asked}"),
            (Refusal::Access, Some(region)) => {
                write!(f, "allows {}, the request needs {}", Rights(region.access), Rights(access))
            }
            (Refusal::Access, None) => write!(f, "does not allow {}", Rights(access)),
            (Refusal::OtherPd, Some(Region { kind: RegionKind::Window(Some(qpn)), .. })) => {
                write!(f, "is a type 2 memory window of QP {qpn}, and of no other queue pair")
            }
            (Refusal::OtherPd, _) => f.write_str("is of another protection domain than the queue pair"),
            (Refusal::NoSuchKey, Some(_)) if name == "L_Key" => {
                f.write_str("is a memory window's, which only peers can use")
            }
            (Refusal::NoSuchKey, _) => f.write_str("is no key of this device: never registered, or deregistered since"),
            (Refusal::Misaligned, _) => {
                f.write_str("begins at an address that is no multiple of 8, so it has no words")
            }
            (Refusal::Vanished | Refusal::Silent, _) => {
                f.write_str("is of another process' XRC SRQ, and that process is gone or does not answer")
            }
            (Refusal::Unmapped, _) => write!(
                f,
                "is good, but the memory at {asked} is not: unmapped, protected or truncated since it was registered"
            ),
        }
    }
}

impl Refused {
    /// Returns the remedy for a refused access.
    pub(crate) const fn remedy(&self) -> &'static str {
        let local = matches!(self.denied.by, Accessor::Local(_));
        match (self.denied.refusal, local) {
            (Refusal::NoSuchKey, true) => "use mr->lkey of a live MR; do not deregister before the completion",
            (Refusal::NoSuchKey, false) => {
                "tell the peer mr->rkey of a live MR (in its byte order); do not deregister while it works with it"
            }
            (Refusal::OtherPd, _) => "register the MR with the protection domain of the queue pair",
            (Refusal::Access, true) => "register with IBV_ACCESS_LOCAL_WRITE what receives, READs and atomics write to",
            (Refusal::Access, false) => "register the MR with the right that the peer needs",
            (Refusal::OutOfBounds, _) => "keep addr and length within the MR",
            (Refusal::Unmapped, _) => "keep memory mapped until ibv_dereg_mr",
            (Refusal::Misaligned, _) => "register memory that begins at a multiple of 8",
            (Refusal::Vanished | Refusal::Silent, _) => "keep the process that owns the XRC SRQ running",
        }
    }
}

/// Describes a responder's fault; `refused` is the access behind it.
pub(crate) fn fault(fault: ResponderFault, refused: Option<&Refused>) -> String {
    let because = |what: &str| match refused {
        Some(refused) => format!("{what}: {refused}"),
        None => what.to_owned(),
    };
    match fault {
        ResponderFault::OpcodeSequence => "First, Middle, Last and Only packets came in an impossible order".to_owned(),
        ResponderFault::Unsupported => "the operation is not one that this queue pair carries out".to_owned(),
        ResponderFault::Length => {
            "the payload's length is not what its opcode and RETH demand: do both ends have the same path_mtu?"
                .to_owned()
        }
        ResponderFault::NoSuchSrq => "the XRC domain has no SRQ of that number, or has it no more".to_owned(),
        ResponderFault::NoAnswer => "the process that has the XRC SRQ does not answer".to_owned(),
        ResponderFault::QpAccess => "qp_access_flags of this queue pair do not allow the operation".to_owned(),
        ResponderFault::Misaligned => "the address of an atomic must be a multiple of 8".to_owned(),
        ResponderFault::TooManyReads => {
            "more READs and atomics at once than max_dest_rd_atomic of this queue pair".to_owned()
        }
        ResponderFault::RemoteAccess(_) => because("remote access"),
        ResponderFault::RecvTooShort => "the message is longer than the receive that it came to".to_owned(),
        ResponderFault::RecvProtection(_) => because("the receive's own buffer"),
        ResponderFault::Invalidate(_) => "the key of SEND with invalidate is none that may be invalidated".to_owned(),
    }
}

/// Returns the remedy for a responder's fault.
pub(crate) fn fault_remedy(fault: ResponderFault, refused: Option<&Refused>) -> &'static str {
    match fault {
        ResponderFault::OpcodeSequence | ResponderFault::Unsupported => {
            "the peer's transport is at fault: capture the exchange (URXE_PCAP)"
        }
        ResponderFault::Length => "set the same path_mtu at both ends",
        ResponderFault::NoSuchSrq => {
            "tell the peer the number that ibv_get_srq_num gives; of another process, it must be of the same user, have \
             opened the same file, and be running"
        }
        ResponderFault::NoAnswer => "let the process that has the XRC SRQ run",
        ResponderFault::QpAccess => "add the right to qp_access_flags on the way to INIT",
        ResponderFault::Misaligned => "align it",
        ResponderFault::TooManyReads => "set max_dest_rd_atomic here to at least what the peer has as max_rd_atomic",
        ResponderFault::RecvTooShort => "post receives as long as the longest message (on UD, 40 bytes more)",
        ResponderFault::Invalidate(_) => "invalidate type 2 windows that were bound by this queue pair",
        ResponderFault::RemoteAccess(_) | ResponderFault::RecvProtection(_) => match refused {
            Some(refused) => refused.remedy(),
            None => "check addr, length and key",
        },
    }
}

/// Why a packet was thrown away.
pub(crate) fn dropped(reason: DropReason) -> String {
    match reason {
        DropReason::State(QpState::Reset | QpState::Init) => {
            "the queue pair does not receive yet: move it to RTR before the peer sends".to_owned()
        }
        DropReason::State(at) => format!("the queue pair is in {}", state(at)),
        DropReason::Transport => "the queue pair is of another transport than the packet".to_owned(),
        DropReason::PKey => "the P_Key is of another partition".to_owned(),
        DropReason::QKey => "the Q_Key is not the queue pair's".to_owned(),
        DropReason::NoReceive => "no receive is posted".to_owned(),
        DropReason::Refused => "it cannot be carried out".to_owned(),
        DropReason::Stranger => "it came from another address than the connected peer's".to_owned(),
        DropReason::OutOfSequence => "packets before it are missing".to_owned(),
        DropReason::StaleDuplicate => "a duplicate whose answer is not kept any more".to_owned(),
        DropReason::NoAnswer => "the process that has the XRC SRQ does not answer".to_owned(),
        DropReason::GhostAck => "it acknowledges nothing that is outstanding".to_owned(),
        DropReason::UnexpectedResponse => "no response is due with this PSN".to_owned(),
        DropReason::InvalidSelectiveAck => "it acknowledges packets that were never sent".to_owned(),
    }
}

/// Returns the name of a NAK.
pub(crate) fn nak(nak: Nak) -> String {
    match nak {
        Nak::Rnr(timer) => format!("RNR NAK, wait {timer}"),
        Nak::Code(code) => format!("NAK {code}"),
    }
}

/// Why a queue pair goes on over its alternate path.
const fn migration(cause: MigrationCause) -> &'static str {
    match cause {
        MigrationCause::Retries => "no answer came on the other after the last retry",
        MigrationCause::Peer => "the peer takes it",
        MigrationCause::Consumer => "the application asked for it",
        MigrationCause::PathDown => "the interface of the other is down",
    }
}

/// Why requests are sent again.
pub(crate) const fn retry(reason: RetryReason) -> &'static str {
    match reason {
        RetryReason::AckTimeout => "no answer within the ACK timeout",
        RetryReason::SequenceNak => "the peer misses it",
        RetryReason::ImpliedNak => "a response to it was lost",
        RetryReason::Rnr => "the peer had no receive posted",
        RetryReason::TailLossProbe => "nothing came back for several round trips",
        RetryReason::PathMigration => "packets take another path now",
    }
}

/// Describes an event of the packet being handled; `None` for an event about another packet.
pub(crate) fn event(event: &Event, refused: Option<&Refused>) -> Option<String> {
    Some(match event {
        Event::State { from, to } => format!("the queue pair goes from {} to {}", state(*from), state(*to)),
        Event::Dropped { reason, .. } => format!("dropped: {}", dropped(*reason)),
        Event::Duplicate { .. } => "a duplicate: answered again, not executed again".to_owned(),
        Event::SentNak { nak: Nak::Rnr(_), .. } => "no receive is posted: answered by an RNR NAK".to_owned(),
        Event::SentNak { nak: Nak::Code(NakCode::PsnSequenceError), psn } => {
            format!("packets are missing: answered by a NAK that asks for PSN {psn}")
        }
        Event::ReceivedCnp { handled: true } => {
            "a congestion notification: the queue pair sends more slowly".to_owned()
        }
        Event::ReceivedCnp { handled: false } => "a congestion notification, which changes nothing here".to_owned(),
        Event::OutOfOrder { kept: true, .. } => "packets before it are missing: it is kept until they come".to_owned(),
        Event::OutOfOrder { kept: false, .. } => {
            "packets before it are missing, and there is no room to keep it".to_owned()
        }
        Event::SelectiveRepeat { window } => format!("the peer has selective repeat, and keeps {window} packets"),
        Event::LeftPath { path } => format!("path {path} loses more than the others, and is left for a while"),
        Event::SentSelectiveAck => "answered by a selective acknowledgement".to_owned(),
        Event::ReceivedSelectiveAck => "it says which packets have arrived".to_owned(),
        Event::Lost { packets } => format!("{packets} packets are found lost"),
        Event::SentAgain { psn } => format!("PSN {psn} alone is sent again"),
        Event::SentInVain { packets } => format!("{packets} packets were sent again and had not been lost"),
        Event::Migrated { cause } => format!("the alternate path is the primary one now: {}", migration(*cause)),
        Event::Marked { .. } => "it met congestion on the way".to_owned(),
        Event::SentCnp => "answered by a congestion notification".to_owned(),
        // The fault before it says more.
        Event::SentNak { .. }
        | Event::SendRefused { .. }
        | Event::DatagramTooLong { .. }
        | Event::WriteOvertaken { .. } => return None,
        Event::ResponderFault { fault: found, .. } => format!("refused: {}", fault(*found, refused)),
        Event::ReceivedNak { nak: what, .. } => nak(*what),
        Event::Retry { reason, psn, left } => {
            format!("going back to PSN {psn}: {}{}", retry(*reason), Left(*left))
        }
        Event::SendFailed { wr_id, status, .. } => format!("work request {wr_id} fails: {status:?}"),
    })
}

/// Number of tries left.
pub(crate) struct Left(pub(crate) Option<u8>);

impl Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(1) => f.write_str("; 1 try left"),
            Some(left) => write!(f, "; {left} tries left"),
            None => Ok(()),
        }
    }
}

/// The name of an operation.
pub(crate) const fn operation(op: &SendOp) -> &'static str {
    match op {
        SendOp::Send => "SEND",
        SendOp::SendWithImmediate(_) => "SEND with immediate",
        SendOp::SendWithInvalidate(_) => "SEND with invalidate",
        SendOp::Write(_) => "RDMA WRITE",
        SendOp::WriteWithImmediate(..) => "RDMA WRITE with immediate",
        SendOp::Read(_) => "RDMA READ",
        SendOp::CompareSwap { .. } => "CMP_SWP",
        SendOp::FetchAdd { .. } => "FETCH_ADD",
        SendOp::AtomicWrite(_) => "ATOMIC WRITE",
        SendOp::Flush { .. } => "FLUSH",
        SendOp::LocalInvalidate(_) => "LOCAL_INV",
        SendOp::BindWindow(_) => "BIND_MW",
    }
}

/// The operation, its length and what it is about.
pub(crate) struct Request<'a>(pub(crate) &'a SendOp, pub(crate) u32);

impl Display for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(op, length) = self;
        f.write_str(operation(op))?;
        match op {
            SendOp::Send | SendOp::SendWithImmediate(_) | SendOp::SendWithInvalidate(_) => {
                write!(f, " of {length} bytes")
            }
            SendOp::Write(remote)
            | SendOp::WriteWithImmediate(remote, _)
            | SendOp::Read(remote)
            | SendOp::CompareSwap { remote, .. }
            | SendOp::FetchAdd { remote, .. }
            | SendOp::AtomicWrite(remote)
            | SendOp::Flush { remote, .. } => {
                write!(f, " at {}, R_Key {:#x}", Range(remote.addr, u64::from(*length)), remote.r_key.0)
            }
            SendOp::LocalInvalidate(key) => write!(f, " of key {:#x}", key.0),
            SendOp::BindWindow(bind) => {
                write!(f, " of {} to L_Key {:#x}", Range(bind.addr, bind.length), bind.region.0)
            }
        }
    }
}

/// Why a memory window cannot be bound.
pub(crate) const fn bind(error: BindError) -> &'static str {
    match error {
        BindError::NoSuchWindow => "the window's R_Key is no memory window's (any more)",
        BindError::OtherPd => "window, MR and queue pair are not of one protection domain",
        BindError::Bound => "a type 2 window must be invalidated before it is bound anew",
        BindError::NewKey => "the new R_Key must be that of the window, but for the low eight bits",
        BindError::NoSuchRegion => "bind_info.mr is no registered MR",
        BindError::Access => {
            "the MR needs IBV_ACCESS_MW_BIND, IBV_ACCESS_LOCAL_WRITE for remote changes, and must not be zero-based; nor must a type 1 window"
        }
        BindError::OutOfBounds => "the window must lie in the MR, and a type 2 window has bytes",
    }
}
