//! What went wrong, and how often: derived from the engine's events.

use std::sync::atomic::{AtomicU64, Ordering};

use urxe_engine::event::{Nak, RetryReason};
use urxe_engine::{DropReason, Event};
use urxe_wire::NakCode;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of a device in this process. Names are those of the kernel's rxe where it has the like
        /// (`drivers/infiniband/sw/rxe/rxe_hw_counters.c`).
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $($(#[$doc])* pub(crate) $name: AtomicU64,)*
        }
    };
}

counters! {
    /// Duplicate requests answered again.
    duplicate_request,
    /// Requests behind a gap.
    out_of_seq_request,
    /// RNR NAKs received.
    rcvd_rnr_err,
    /// RNR NAKs sent.
    send_rnr_err,
    /// Sequence NAKs received.
    rcvd_seq_err,
    /// Other NAKs received.
    rcvd_nak_err,
    /// NAKs sent, but for RNR.
    sent_nak,
    /// Times the requester went back.
    completer_retry_err,
    /// ACK timeouts.
    ack_timeout,
    /// Packets with a wrong ICRC.
    icrc_err,
    /// Packets that are not RoCE v2.
    malformed,
    /// Packets to queue pairs that are not there.
    unknown_qp,
    /// Packets with another partition's P_Key.
    bad_pkey,
    /// Datagrams with another Q_Key than the queue pair's.
    bad_qkey,
    /// Packets thrown away by a queue pair.
    dropped,
}

impl Counters {
    /// Counts what the engine reports.
    pub(crate) fn count(&self, event: Event) {
        let counter = match event {
            Event::Duplicate { .. } => &self.duplicate_request,
            Event::Dropped { reason: DropReason::OutOfSequence, .. } => &self.out_of_seq_request,
            Event::Dropped { reason: DropReason::PKey, .. } => &self.bad_pkey,
            Event::Dropped { reason: DropReason::QKey, .. } => &self.bad_qkey,
            Event::Dropped { .. } => &self.dropped,
            Event::ReceivedNak { nak: Nak::Rnr(_), .. } => &self.rcvd_rnr_err,
            Event::ReceivedNak { nak: Nak::Code(NakCode::PsnSequenceError), .. } => &self.rcvd_seq_err,
            Event::ReceivedNak { .. } => &self.rcvd_nak_err,
            Event::SentNak { nak: Nak::Rnr(_), .. } => &self.send_rnr_err,
            Event::SentNak { .. } => &self.sent_nak,
            Event::Retry { reason: RetryReason::AckTimeout, .. } => &self.ack_timeout,
            Event::Retry { .. } => &self.completer_retry_err,
            Event::State { .. }
            | Event::ResponderFault { .. }
            | Event::SendRefused { .. }
            | Event::SendFailed { .. } => return,
        };
        bump(counter);
    }
}

/// Adds one.
pub(crate) fn bump(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
