//! Connecting queue pairs of two nodes.

use urxe_engine::attr::QpAttr;
use urxe_engine::congestion::CongestionSettings;
use urxe_engine::endpoint::{QpSetup, Route, to_rts};
use urxe_engine::{Access, QpCap, QpState, QpType};
use urxe_wire::{Mtu, Psn, Qpn, RnrTimer};

use crate::fabric::Fabric;
use crate::memory::DEFAULT_PD;
use crate::node::NodeId;

/// Properties of two connected queue pairs.
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    /// Attributes of both; `dest_qpn`, `rq_psn` and `sq_psn` are filled in.
    pub attr: QpAttr,
    /// The first PSN that each sends.
    pub psns: [Psn; 2],
    /// Sizes of both.
    pub cap: QpCap,
    /// Every send completes with a CQE.
    pub sq_sig_all: bool,
    /// Most packets in flight.
    pub window: u32,
    /// Congestion control of both.
    pub congestion: CongestionSettings,
    /// Paths of selective repeat of each; 0 goes back.
    pub selective_paths: [u8; 2],
    /// Capacity of each of the four CQs.
    pub cq_capacity: usize,
}

impl Default for Connection {
    fn default() -> Self {
        Self {
            attr: QpAttr {
                access: Access::LOCAL_WRITE
                    | Access::REMOTE_READ
                    | Access::REMOTE_WRITE
                    | Access::REMOTE_ATOMIC
                    | Access::FLUSH_GLOBAL,
                path_mtu: Mtu::Mtu1024,
                timeout: 12,
                retry_cnt: 7,
                rnr_retry: 7,
                min_rnr_timer: RnrTimer::new(12),
                max_rd_atomic: 4,
                max_dest_rd_atomic: 4,
                ..QpAttr::default()
            },
            psns: [Psn::new(0xFF_FFF0), Psn::new(0x12_3456)],
            cap: QpCap { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 1024 },
            sq_sig_all: false,
            window: 128,
            congestion: CongestionSettings::NONE,
            selective_paths: [0; 2],
            cq_capacity: 1024,
        }
    }
}

impl Fabric {
    /// Makes a queue pair on each node, with CQs of their own, and connects them.
    pub fn connect(&mut self, a: NodeId, b: NodeId, connection: &Connection) -> (Qpn, Qpn) {
        let [there, back] = connection.selective_paths;
        let setups = [(a, there), (b, back)].map(|(id, selective_paths)| {
            let mut verbs = self.nodes[id.0].verbs();
            let (send_cq, recv_cq) = (verbs.create_cq(connection.cq_capacity), verbs.create_cq(connection.cq_capacity));
            QpSetup {
                cap: connection.cap,
                sq_sig_all: connection.sq_sig_all,
                window: connection.window,
                congestion: connection.congestion,
                selective_paths,
                ..QpSetup::new(QpType::Rc, DEFAULT_PD, send_cq, recv_cq)
            }
        });
        let [qp_a, qp_b] = self.connect_made([a, b], setups, connection);
        (qp_a, qp_b)
    }

    /// Makes queue pairs of these properties on both nodes and connects them.
    pub(crate) fn connect_made(
        &mut self,
        [a, b]: [NodeId; 2],
        [setup_a, setup_b]: [QpSetup; 2],
        connection: &Connection,
    ) -> [Qpn; 2] {
        let (qp_a, qp_b) = (self.nodes[a.0].create_qp(&setup_a), self.nodes[b.0].create_qp(&setup_b));
        let [psn_a, psn_b] = connection.psns;
        self.establish(a, qp_a, psn_a, b, qp_b, psn_b, connection);
        self.establish(b, qp_b, psn_b, a, qp_a, psn_a, connection);
        [qp_a, qp_b]
    }

    #[expect(clippy::too_many_arguments, reason = "both ends of a connection, three values each")]
    fn establish(
        &mut self,
        id: NodeId,
        qpn: Qpn,
        psn: Psn,
        peer: NodeId,
        peer_qpn: Qpn,
        peer_psn: Psn,
        c: &Connection,
    ) {
        let attr = QpAttr { dest_qpn: peer_qpn, rq_psn: peer_psn, sq_psn: psn, ..c.attr };
        let source_port = 0xC000 | u16::try_from(qpn.get() & 0x3FFF).unwrap_or(0);
        let route = Route { to: self.nodes[peer.0].address(), source_port };
        let now = self.now;
        for (to, mask) in to_rts(QpType::Rc) {
            let route = (to == QpState::Rtr).then_some(route);
            self.nodes[id.0].modify(now, qpn, to, mask, &attr, route).expect("the attributes are all there");
        }
        self.collect(id);
    }
}
