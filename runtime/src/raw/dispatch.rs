//! From the receive ring to the queues.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use urxe_engine::Clock as _;
use urxe_engine::flow::segment::{self, Protocol};
use urxe_engine::flow::{FlowTable, Headers, Rule, checksum};
use urxe_net::raw::{Checksum, Missing, RawFrame, RawRx};

use super::recv_queue::FrameInfo;
use super::{Destination, Target};
use crate::clock::LazyInstant;
use crate::counters::bump;
use crate::device::{Device, TxContext};
use crate::{lock, try_lock};

/// Frames taken at once: others are to get their turn.
const BUDGET: usize = 256;

/// Attributes of a frame besides its bytes.
#[derive(Clone, Copy)]
struct Arrival {
    is_sent: bool,
    is_taken: bool,
    /// The transport checksum is right.
    is_trusted: bool,
}

impl Device {
    /// Whether there are frames to take, or to send.
    pub(crate) fn has_raw_work(&self) -> bool {
        self.net().has_raw_event()
            || try_lock(&self.raw().rx).is_some_and(|rx| rx.as_ref().is_some_and(RawRx::has_frames))
    }

    /// Takes frames out of the receive ring, and sends what found no room. Returns how many frames were taken.
    pub(crate) fn receive_raw(&self, work: &mut TxContext, clock: &LazyInstant) -> usize {
        let is_ready = self.net().take_raw_event();
        if is_ready {
            for qp in self.raw().take_blocked() {
                qp.go_on(work);
            }
        }
        let mut rx = lock(&self.raw().rx);
        let Some(rx) = &mut *rx else { return 0 };
        if !rx.has_frames() {
            if is_ready {
                rx.clear_error();
            }
            return 0;
        }
        let flows = self.raw().flows.read().unwrap_or_else(PoisonError::into_inner);
        let taken = rx.receive(BUDGET, |frame| self.dispatch(work, clock, &flows, frame));
        drop(flows);
        let lost = rx.take_lost();
        if lost > 0 {
            self.counters().raw_rx_lost.fetch_add(lost, Ordering::Relaxed);
        }
        taken
    }

    fn dispatch(&self, work: &mut TxContext, clock: &LazyInstant, flows: &FlowTable<Destination>, frame: RawFrame<'_>) {
        let RawFrame { bytes, missing, segments, is_sent, is_taken, checksum: state } = frame;
        let counters = self.counters();
        match (missing, segments) {
            (Some(Missing::TooLong), _) => bump(&counters.raw_rx_too_long),
            (Some(Missing::NoRoom), _) => bump(&counters.raw_rx_lost),
            // As on a cable: the kernel cuts what leaves by one, and has put together what came by one. Sums are filled in.
            (None, Some(segments)) => {
                let protocol = if segments.is_tcp { Protocol::Tcp } else { Protocol::Udp };
                let arrival = Arrival { is_sent, is_taken, is_trusted: true };
                let is_cut = segment::cut(bytes, protocol, segments.size, |segment| {
                    self.classify(work, clock, flows, segment, arrival);
                });
                if !is_cut {
                    bump(&counters.raw_rx_too_long);
                }
            }
            (None, None) => {
                let is_trusted = match state {
                    Checksum::Unknown => false,
                    Checksum::Valid => true,
                    Checksum::Partial => {
                        checksum::complete(bytes);
                        true
                    }
                    Checksum::MaybePartial => checksum::complete_begun(bytes),
                };
                self.classify(work, clock, flows, bytes, Arrival { is_sent, is_taken, is_trusted });
            }
        }
    }

    /// Gives a frame to the queues that rules name.
    fn classify(
        &self,
        work: &mut TxContext,
        clock: &LazyInstant,
        flows: &FlowTable<Destination>,
        frame: &[u8],
        arrival: Arrival,
    ) {
        let Arrival { is_sent, is_taken, is_trusted } = arrival;
        let headers = Headers::parse(frame);
        let mut csum_ok = None;
        let mut deliver = |rule: &Rule<Destination>| {
            if let Some(counters) = &rule.target.counters {
                counters.count(headers.frame());
            }
            if rule.actions.drop {
                return;
            }
            let queue = match &rule.target.target {
                Target::Queue(queue) => queue,
                Target::Rss(rss) => rss.queue(&headers),
                Target::Datagrams(qp) => {
                    if let Some(qp) = qp.upgrade().filter(|_| !is_sent) {
                        self.deliver_datagram(work, clock, &qp, &headers, is_taken);
                    }
                    return;
                }
            };
            let csum_ok = *csum_ok.get_or_insert_with(|| checksum::is_right(&headers, is_trusted));
            let info = FrameInfo { csum_ok, flow_tag: rule.actions.tag.unwrap_or(0), at: clock.now() };
            if !queue.deliver(work, headers.frame(), info) {
                bump(&self.counters().raw_rx_no_receive);
            }
        };
        if is_sent {
            flows.classify_sent(&mut deliver);
        } else {
            flows.classify(&headers, &mut deliver);
        }
    }
}
