//! Error counters of a device, derived from the engine's events.

use std::sync::atomic::{AtomicU64, Ordering};

use urxe_engine::event::{Nak, RetryReason};
use urxe_engine::{DropReason, Event, WcStatus};
use urxe_wire::NakCode;

urxe_net::counters! {
    /// Counters of a device in one process. Names are those of the kernel's rxe where it has the like
    /// (`drivers/infiniband/sw/rxe/rxe_hw_counters.c`).
    pub struct Counters {
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
        /// NAKs "invalid request" received.
        rcvd_nak_invalid_request,
        /// NAKs "remote access error" received.
        rcvd_nak_remote_access,
        /// NAKs "remote operational error" received.
        rcvd_nak_remote_operational,
        /// Sequence NAKs sent.
        sent_nak_sequence,
        /// NAKs "invalid request" sent.
        sent_nak_invalid_request,
        /// NAKs "remote access error" sent.
        sent_nak_remote_access,
        /// NAKs "remote operational error" sent.
        sent_nak_remote_operational,
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
        /// Packets to a queue pair that does not receive in its state.
        drop_state,
        /// Packets of another transport than the queue pair's.
        drop_transport,
        /// Datagrams and UC messages without a receive.
        drop_no_receive,
        /// Datagrams and UC messages that cannot be carried out.
        drop_refused,
        /// Packets from another address than the connected peer's.
        drop_stranger,
        /// Duplicates whose answer is not kept any more.
        drop_stale_duplicate,
        /// Requests for an XRC SRQ whose process did not answer in time.
        drop_no_answer,
        /// Acknowledgements of what is not outstanding.
        drop_ghost_ack,
        /// Responses out of turn.
        drop_unexpected_response,
        /// Packets to QP0 or QP1 that are no management datagrams, or of a class or method that is not for there.
        mad_malformed,
        /// Management datagrams that no agent of this host takes.
        mad_no_agent,
        /// Responses to no request that waits for one, or of another than was asked.
        mad_no_request,
        /// Management datagrams that break the rules of RMPP, or for whose message there is no room.
        mad_rmpp_refused,
        /// Messages for agents whose program reads too slowly.
        mad_queue_full,
        /// Requests about performance counters that came while too many waited.
        mad_perf_dropped,
        /// Packets of subnet management whose directed route or LID leads nowhere.
        smp_no_way,
        /// Packets of subnet management with a wrong M_Key, requests to subnet administration with a wrong SM_Key.
        smp_bad_key,
        /// Datagrams of a virtual subnet for which there is no room: hosts, groups, questions.
        subnet_full,
        /// Announcements of a LID or GUID that is not their sender's, or another host's as well.
        subnet_lies,
        /// CNPs sent, under mlx5's names as the three below.
        np_cnp_sent,
        /// Packets that arrived with marks of congestion.
        np_ecn_marked_roce_packets,
        /// CNPs received that slowed a requester.
        rp_cnp_handled,
        /// CNPs received that changed nothing.
        rp_cnp_ignored,
        /// Queue pairs that agreed with their peer on selective repeat.
        sack_connections,
        /// Requests behind a gap that were kept.
        sack_kept,
        /// Selective acknowledgements sent.
        sack_sent,
        /// Selective acknowledgements received.
        sack_received,
        /// Selective acknowledgements that changed nothing: of what was never sent.
        sack_invalid,
        /// Packets that were found lost while others arrived.
        sack_lost,
        /// Packets sent again alone.
        sack_retransmitted,
        /// Packets of these that had not been lost.
        sack_spurious,
        /// Times that one of several paths was left because it lost far more than the others.
        paths_left,
        /// Queue pairs that went on over their alternate path.
        paths_migrated,
        /// Requests given up after the last retry.
        retry_exceeded_err,
        /// Requests given up after the last RNR NAK.
        retry_rnr_exceeded_err,
        /// Times the interface went down.
        link_downed,
        /// Requests carried out at the memory of a peer on this host, without packets.
        direct_requests,
        /// Bytes of these requests.
        direct_bytes,
        /// Requests that peers on this host have carried out at this process's memory.
        direct_served,
        /// Bytes of these requests.
        direct_served_bytes,
        /// Raw frames without a receive.
        raw_rx_no_receive,
        /// Raw frames that found no room in the receive ring, or behind it.
        raw_rx_lost,
        /// Raw frames longer than 64 KiB, and those of several segments that are neither TCP nor UDP over IP, or inside of a tunnel.
        raw_rx_too_long,
        /// Raw frames that the interface has not sent.
        raw_tx_lost,
    }
}

/// Names of all counters of a device, those of its sockets first.
pub fn names() -> impl Iterator<Item = &'static str> {
    named().copied()
}

/// Names of all counters, by reference to their static storage.
pub(crate) fn named() -> impl Iterator<Item = &'static &'static str> {
    urxe_net::Counters::NAMES.iter().chain(Counters::NAMES)
}

impl Counters {
    /// Counts an event of the engine.
    pub fn count(&self, event: Event) {
        let counter = match event {
            Event::Duplicate { .. } => &self.duplicate_request,
            Event::Dropped { reason, .. } => self.dropped(reason),
            Event::ReceivedNak { nak: Nak::Rnr(_), .. } => &self.rcvd_rnr_err,
            Event::SentNak { nak: Nak::Rnr(_), .. } => &self.send_rnr_err,
            Event::ReceivedNak { nak: Nak::Code(code), .. } => match code {
                NakCode::PsnSequenceError => &self.rcvd_seq_err,
                NakCode::InvalidRequest | NakCode::InvalidRdRequest => &self.rcvd_nak_invalid_request,
                NakCode::RemoteAccessError => &self.rcvd_nak_remote_access,
                NakCode::RemoteOperationalError => &self.rcvd_nak_remote_operational,
            },
            Event::SentNak { nak: Nak::Code(code), .. } => match code {
                NakCode::PsnSequenceError => &self.sent_nak_sequence,
                NakCode::InvalidRequest | NakCode::InvalidRdRequest => &self.sent_nak_invalid_request,
                NakCode::RemoteAccessError => &self.sent_nak_remote_access,
                NakCode::RemoteOperationalError => &self.sent_nak_remote_operational,
            },
            Event::Retry { reason: RetryReason::AckTimeout, .. } => &self.ack_timeout,
            Event::Retry { .. } => &self.completer_retry_err,
            Event::SendFailed { status: WcStatus::RetryExceededError, .. } => &self.retry_exceeded_err,
            Event::SendFailed { status: WcStatus::RnrRetryExceededError, .. } => &self.retry_rnr_exceeded_err,
            Event::OutOfOrder { kept, .. } => return self.count_out_of_order(1, kept.into()),
            Event::SelectiveRepeat { .. } => &self.sack_connections,
            Event::LeftPath { .. } => &self.paths_left,
            Event::Migrated { .. } => &self.paths_migrated,
            Event::SentSelectiveAck => &self.sack_sent,
            Event::ReceivedSelectiveAck => &self.sack_received,
            Event::SentAgain { .. } => &self.sack_retransmitted,
            Event::Lost { packets } => {
                self.sack_lost.fetch_add(packets.into(), Ordering::Relaxed);
                return;
            }
            Event::SentInVain { packets } => {
                self.sack_spurious.fetch_add(packets.into(), Ordering::Relaxed);
                return;
            }
            Event::SentCnp => &self.np_cnp_sent,
            Event::ReceivedCnp { handled: true } => &self.rp_cnp_handled,
            Event::ReceivedCnp { handled: false } => &self.rp_cnp_ignored,
            Event::Marked { packets } => {
                self.np_ecn_marked_roce_packets.fetch_add(packets.into(), Ordering::Relaxed);
                return;
            }
            Event::State { .. }
            | Event::ResponderFault { .. }
            | Event::SendRefused { .. }
            | Event::DatagramTooLong { .. }
            | Event::WriteOvertaken { .. }
            | Event::SendFailed { .. } => return,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts requests that came out of order, and those of them that were kept.
    pub fn count_out_of_order(&self, requests: u64, kept: u64) {
        self.out_of_seq_request.fetch_add(requests, Ordering::Relaxed);
        self.sack_kept.fetch_add(kept, Ordering::Relaxed);
    }

    const fn dropped(&self, reason: DropReason) -> &AtomicU64 {
        match reason {
            DropReason::OutOfSequence => &self.out_of_seq_request,
            DropReason::PKey => &self.bad_pkey,
            DropReason::QKey => &self.bad_qkey,
            DropReason::State(_) => &self.drop_state,
            DropReason::Transport => &self.drop_transport,
            DropReason::NoReceive => &self.drop_no_receive,
            DropReason::Refused => &self.drop_refused,
            DropReason::Stranger => &self.drop_stranger,
            DropReason::StaleDuplicate => &self.drop_stale_duplicate,
            DropReason::NoAnswer => &self.drop_no_answer,
            DropReason::GhostAck => &self.drop_ghost_ack,
            DropReason::UnexpectedResponse => &self.drop_unexpected_response,
            DropReason::InvalidSelectiveAck => &self.sack_invalid,
        }
    }
}
