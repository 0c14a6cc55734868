//! Configuration of a queue pair.

use alloc::vec::Vec;

use urxe_wire::{Mtu, Qpn};

use super::qp_type::QpType;
use super::{AckTimer, Counter, Cq, Srq};
use crate::congestion::CongestionSettings;
use crate::counter::CountedOps;
use crate::host::{Consumer, Host, Io};
use crate::mr::{Accessor, Pd};
use crate::selective::SelectiveRepeat;
use crate::srq::XrcDomain;

/// Sizes of a queue pair (`struct ibv_qp_cap`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the names are libibverbs'")]
pub struct QpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// Configuration of a queue pair; fixed for its life, but for the counters.
pub struct QpConfig<H: Host> {
    /// Number.
    pub qpn: Qpn,
    /// Service.
    pub qp_type: QpType,
    /// Protection domain.
    pub pd: Pd,
    /// Sizes of the queues.
    pub cap: QpCap,
    /// Every send request gives a completion.
    pub sq_sig_all: bool,
    /// Completion queue of sends; an XRC target has none.
    pub send_cq: Option<Cq<H>>,
    /// Completion queue of receives; XRC QPs have none.
    pub recv_cq: Option<Cq<H>>,
    /// Shared receive queue, if receives come from one.
    pub srq: Option<Srq<H>>,
    /// An XRC target's domain: receives come from the SRQs in there.
    pub xrcd: Option<XrcDomain>,
    /// Packets a receiver's buffer is thought to hold: the bound of the in-flight window.
    pub window: u32,
    /// Congestion control.
    pub congestion: CongestionSettings,
    /// Course of ACK timeouts.
    pub ack_timer: AckTimer,
    /// Selective repeat; `None` goes back.
    pub selective: Option<SelectiveRepeat>,
    /// The largest payload of a UD packet.
    pub port_mtu: Mtu,
    /// Choices where the specification leaves any.
    pub quirks: H::Quirks,
    /// Completion counters and what each counts; no operation twice. They come with
    /// [`attach_counter`](super::QueuePair::attach_counter).
    pub counters: Vec<(CountedOps, Counter<H>)>,
}

impl<H: Host> QpConfig<H> {
    /// Whether the queue pair has a receive queue of its own.
    pub(super) const fn has_recv_queue(&self) -> bool {
        self.srq.is_none() && matches!(self.qp_type, QpType::Rc | QpType::Uc | QpType::Ud)
    }

    /// UDP source ports over which packets are spread.
    pub fn paths(&self) -> u8 {
        self.selective.as_ref().filter(|_| self.qp_type == QpType::Rc).map_or(1, |selective| selective.paths)
    }

    /// Whether one of the operations is counted.
    pub(super) fn is_counted(&self, ops: CountedOps) -> bool {
        self.counters.iter().any(|(counted, _)| counted.overlaps(ops))
    }

    /// Counts the end of an operation.
    #[inline]
    pub(super) fn count(&self, io: &mut Io<'_, H>, op: CountedOps, succeeded: bool) {
        for (counted, counter) in &self.counters {
            if counted.overlaps(op) {
                io.consumer.count(counter, succeeded);
            }
        }
    }

    /// The peer, as one who asks for access to the memory of `pd`.
    pub(super) const fn peer_in(&self, pd: Pd) -> Accessor {
        Accessor::Remote(pd, self.qpn)
    }
}

/// Whether `transmit` could send everything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// No packet is to be sent now.
    Idle,
    /// More is to be sent than one call may: call again soon.
    More,
    /// The network had no room: call again when it has.
    Blocked,
}
