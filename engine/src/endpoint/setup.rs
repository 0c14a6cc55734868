//! Queue pairs as an endpoint creates them, and the attributes that connect two.

use urxe_wire::{Mtu, Psn, Qpn, RnrTimer};

use super::queues::{CqId, SrqId};
use crate::access::Access;
use crate::congestion::CongestionSettings;
use crate::mr::Pd;
use crate::qp::attr::{AttrMask, QpAttr};
use crate::qp::state::QpState;
use crate::qp::{AckTimer, QpCap, QpType, transition};
use crate::srq::XrcDomain;

/// The properties of a new queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpSetup {
    /// Service.
    pub qp_type: QpType,
    /// Protection domain.
    pub pd: Pd,
    /// Sizes of the queues.
    pub cap: QpCap,
    /// Every send request gives a completion.
    pub sq_sig_all: bool,
    /// Completion queue of sends.
    pub send_cq: CqId,
    /// Completion queue of receives.
    pub recv_cq: CqId,
    /// The shared receive queue, if the queue pair has none of its own.
    pub srq: Option<SrqId>,
    /// The domain of an XRC target.
    pub xrcd: Option<XrcDomain>,
    /// Bound of the congestion window, in packets.
    pub window: u32,
    /// Congestion control.
    pub congestion: CongestionSettings,
    /// Course of ACK timeouts.
    pub ack_timer: AckTimer,
    /// Selective repeat, with peers that have it too; on so many paths. 0 goes back.
    pub selective_paths: u8,
    /// Largest payload of a UD packet.
    pub port_mtu: Mtu,
}

impl QpSetup {
    /// A queue pair of `pd` with 64 WQEs of 4 elements on either side, and a window of 128 packets.
    #[must_use]
    pub const fn new(qp_type: QpType, pd: Pd, send_cq: CqId, recv_cq: CqId) -> Self {
        Self {
            qp_type,
            pd,
            cap: QpCap { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 1024 },
            sq_sig_all: false,
            send_cq,
            recv_cq,
            srq: None,
            xrcd: None,
            window: 128,
            congestion: CongestionSettings::NONE,
            ack_timer: AckTimer::Specified,
            selective_paths: 0,
            port_mtu: Mtu::Mtu1024,
        }
    }
}

/// Attributes for a connection with `dest_qpn`: MTU 1024, PSNs from 0, one READ or atomic at a time, an ACK timeout of
/// 67 ms and 7 tries; peers may read, write and do atomics.
#[must_use]
pub fn connected_attr(dest_qpn: Qpn) -> QpAttr {
    QpAttr {
        access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
        path_mtu: Mtu::Mtu1024,
        dest_qpn,
        rq_psn: Psn::new(0),
        sq_psn: Psn::new(0),
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        min_rnr_timer: RnrTimer::new(12),
        max_rd_atomic: 1,
        max_dest_rd_atomic: 1,
        ..QpAttr::default()
    }
}

/// The transitions from RESET to RTS, and the attributes that each requires of a queue pair of this type (IBA 11.2.5.2).
#[must_use]
pub fn to_rts(qp_type: QpType) -> [(QpState, AttrMask); 3] {
    [(QpState::Reset, QpState::Init), (QpState::Init, QpState::Rtr), (QpState::Rtr, QpState::Rts)].map(|(from, to)| {
        let required = transition(qp_type, from, to).map_or(AttrMask::NONE, |row| row.required);
        (to, required.with(AttrMask::STATE))
    })
}
