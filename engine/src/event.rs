//! Events of queue pairs, with reasons: for counters, traces, tests, and people.

use urxe_wire::{NakCode, Opcode, Psn, RnrTimer};

use crate::cq::WcStatus;
use crate::fault::ResponderFault;
use crate::qp::state::QpState;
use crate::work::SendOp;

/// Why a packet was thrown away without an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DropReason {
    /// The QP's state does not receive (IBA 10.3.1).
    State(QpState),
    /// The opcode's transport is not the QP's (IBA 9.6.1.1).
    Transport,
    /// The P_Key is of another partition (IBA 9.6.1.1.3).
    PKey,
    /// The Q_Key is not the QP's (IBA 9.6.1.3.1).
    QKey,
    /// No receive WQE was posted, and there is no way to say so (UC, UD).
    NoReceive,
    /// The message cannot be carried out, and there is no way to say so (UC, UD); a fault event says why.
    Refused,
    /// The source address is not the connected peer's.
    Stranger,
    /// A request behind a gap; the gap has been reported already (IBA 9.7.5.2.8).
    OutOfSequence,
    /// A duplicate whose answer is not kept any more (IBA 9.7.5.1.5).
    StaleDuplicate,
    /// The XRC SRQ belongs to a process that does not answer now.
    NoAnswer,
    /// An acknowledgement of something not outstanding, a "ghost" (IBA 9.7.5.1.4).
    GhostAck,
    /// A READ or ATOMIC response out of turn.
    UnexpectedResponse,
    /// A selective acknowledgement of what was never sent, or of a part of a READ.
    InvalidSelectiveAck,
}

/// Why requests are sent again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RetryReason {
    /// No answer came in time (IBA 9.7.6.1.3).
    AckTimeout,
    /// The peer misses a request.
    SequenceNak,
    /// A later acknowledgement shows that a response was lost (IBA 9.7.5.1.2).
    ImpliedNak,
    /// The peer had no receive WQE.
    Rnr,
    /// No answer came for several round trips: the oldest packet probes what the peer misses.
    TailLossProbe,
    /// Packets take another path (IBA 17.2.8).
    PathMigration,
}

/// Why a queue pair goes on over its alternate path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MigrationCause {
    /// Tries ran out.
    Retries,
    /// The peer did.
    Peer,
    /// The consumer asked for it.
    Consumer,
    /// The primary path is known to be down.
    PathDown,
}

/// A NAK, sent or received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Nak {
    /// Receiver not ready.
    Rnr(RnrTimer),
    /// NAK of another kind.
    Code(NakCode),
}

/// Event of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The state changed.
    State {
        /// State before.
        from: QpState,
        /// State after.
        to: QpState,
    },
    /// A packet was thrown away.
    Dropped {
        /// Opcode of the packet.
        opcode: Opcode,
        /// PSN of the packet.
        psn: Psn,
        /// Reason why the packet was dropped.
        reason: DropReason,
    },
    /// A request came behind a gap, from a peer with selective repeat.
    OutOfOrder {
        /// Opcode of the packet.
        opcode: Opcode,
        /// PSN of the packet.
        psn: Psn,
        /// Whether the packet is kept until the gap is filled; otherwise there is no room.
        kept: bool,
    },
    /// The peer turned out to have selective repeat.
    SelectiveRepeat {
        /// Packets behind a gap that it keeps.
        window: u16,
    },
    /// A path lost far more than the others, and is not used for a while, or until nothing arrives on those.
    LeftPath {
        /// The path, from 0.
        path: u8,
    },
    /// A selective acknowledgement was sent.
    SentSelectiveAck,
    /// A selective acknowledgement was received.
    ReceivedSelectiveAck,
    /// Packets were found lost while others behind them arrived.
    Lost {
        /// Number of packets found lost.
        packets: u32,
    },
    /// A packet that was lost was sent again, alone.
    SentAgain {
        /// PSN of the packet.
        psn: Psn,
    },
    /// Packets were sent again that had not been lost.
    SentInVain {
        /// Number of packets sent again.
        packets: u32,
    },
    /// A duplicate request was answered again.
    Duplicate {
        /// Opcode of the packet.
        opcode: Opcode,
        /// PSN of the packet.
        psn: Psn,
    },
    /// The last bytes of a WRITE, which were stored before the others, changed while these were kept back
    /// ([`crate::quirks`]): somebody took them for the end of it.
    WriteOvertaken {
        /// First address.
        va: u64,
        /// A PSN of the WRITE.
        psn: Psn,
    },
    /// The responder refused a request.
    SentNak {
        /// The NAK that was sent.
        nak: Nak,
        /// The PSN it names.
        psn: Psn,
    },
    /// The responder met an error.
    ResponderFault {
        /// Kind of error.
        fault: ResponderFault,
        /// The request's PSN.
        psn: Psn,
    },
    /// A send request cannot be carried out for a reason on this side. It completes when those before it have.
    SendRefused {
        /// The consumer's number for it.
        wr_id: u64,
        /// Status with which it will complete.
        status: WcStatus,
    },
    /// A datagram is longer than the port's MTU: nothing is sent, and its request completes well (IBA C10-93.1.1).
    DatagramTooLong {
        /// The consumer's number for it.
        wr_id: u64,
        /// Bytes of the message.
        length: u32,
    },
    /// A send request completes with an error of its own (not flushed).
    SendFailed {
        /// The consumer's number for it.
        wr_id: u64,
        /// Operation of the request.
        op: SendOp,
        /// Bytes of the message.
        length: u32,
        /// Status with which it completes.
        status: WcStatus,
    },
    /// The peer refused a request.
    ReceivedNak {
        /// The NAK that was received.
        nak: Nak,
        /// The PSN it names.
        psn: Psn,
    },
    /// The requester goes back.
    Retry {
        /// Reason for going back.
        reason: RetryReason,
        /// PSN to go back to.
        psn: Psn,
        /// Number of tries left; `None` if they are not counted.
        left: Option<u8>,
    },
    /// The alternate path is the primary one now (IBA 17.2.8).
    Migrated {
        /// Cause of the migration.
        cause: MigrationCause,
    },
    /// Packets arrived with marks of congestion.
    Marked {
        /// Number of marked packets.
        packets: u32,
    },
    /// A CNP was sent.
    SentCnp,
    /// A CNP was received (IBA annex A17.9.3).
    ReceivedCnp {
        /// Whether the CNP slowed the requester; otherwise it changed nothing.
        handled: bool,
    },
}
