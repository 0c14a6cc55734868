//! REQ and REP (IBA 12.6.5, 12.6.8).

use super::{CommId, Ids, MESSAGE_LEN, at, join, put, put_word, split, word};
use crate::{Gid, Lid, Mtu, PKey, Psn, QKey, Qpn};

/// The service a connection is to give (IBA 12.6.5, with the extension of annex A14).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the names are the specification's")]
pub enum TransportService {
    Rc,
    Uc,
    Rd,
    Xrc,
}

impl TransportService {
    const fn from_bits(kind: u8, extended: u8) -> Option<Self> {
        Some(match (kind, extended) {
            (0, _) => Self::Rc,
            (1, _) => Self::Uc,
            (2, _) => Self::Rd,
            (3, 1) => Self::Xrc,
            _ => return None,
        })
    }

    const fn bits(self) -> (u8, u8) {
        match self {
            Self::Rc => (0, 0),
            Self::Uc => (1, 0),
            Self::Rd => (2, 0),
            Self::Xrc => (3, 1),
        }
    }
}

/// A way between two ports, as its sender sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Path {
    /// The sender's LID; 0xFFFF on RoCE.
    pub local_lid: Lid,
    /// The receiver's.
    pub remote_lid: Lid,
    /// The sender's GID.
    pub local_gid: Gid,
    /// The receiver's.
    pub remote_gid: Gid,
    /// 20 bits.
    pub flow_label: u32,
    /// The rate's code, 6 bits.
    pub packet_rate: u8,
    /// Traffic class of the GRH.
    pub traffic_class: u8,
    /// Hop limit of the GRH.
    pub hop_limit: u8,
    /// Service level, 4 bits.
    pub sl: u8,
    /// No router is between.
    pub subnet_local: bool,
    /// Exponent of the ACK timeout to be used, 5 bits.
    pub ack_timeout: u8,
}

impl Path {
    fn parse(b: &[u8; MESSAGE_LEN], start: usize) -> Self {
        let flow = word(b, start + 36);
        Self {
            local_lid: Lid(u16::from_be_bytes(at(b, start))),
            remote_lid: Lid(u16::from_be_bytes(at(b, start + 2))),
            local_gid: Gid::new(at(b, start + 4)),
            remote_gid: Gid::new(at(b, start + 20)),
            flow_label: flow >> 12,
            packet_rate: flow.to_be_bytes()[3] & 0x3F,
            traffic_class: b[start + 40],
            hop_limit: b[start + 41],
            sl: b[start + 42] >> 4,
            subnet_local: b[start + 42] & 8 != 0,
            ack_timeout: b[start + 43] >> 3,
        }
    }

    fn emit(&self, b: &mut [u8; MESSAGE_LEN], start: usize) {
        put(b, start, &self.local_lid.0.to_be_bytes());
        put(b, start + 2, &self.remote_lid.0.to_be_bytes());
        put(b, start + 4, &self.local_gid.octets());
        put(b, start + 20, &self.remote_gid.octets());
        put_word(b, start + 36, (self.flow_label & 0xF_FFFF) << 12 | u32::from(self.packet_rate & 0x3F));
        let last = [
            self.traffic_class,
            self.hop_limit,
            self.sl << 4 | u8::from(self.subnet_local) << 3,
            self.ack_timeout << 3,
        ];
        put(b, start + 40, &last);
    }
}

/// Request for communication.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Req {
    /// The sender's id.
    pub local_id: CommId,
    /// ECE: whose options the MAD header's modifier holds (24 bits); 0 for none.
    pub vendor_id: u32,
    /// Service id that the connection is for.
    pub service_id: u64,
    /// The sender's node.
    pub ca_guid: u64,
    /// Q_Key, for datagram transports.
    pub q_key: QKey,
    /// The sender's QP.
    pub qpn: Qpn,
    /// READs and atomics it accepts at once.
    pub responder_resources: u8,
    /// READs and atomics it wants to have outstanding.
    pub initiator_depth: u8,
    /// End-to-end context (RD).
    pub eecn: u32,
    /// End-to-end context of the receiver (RD).
    pub remote_eecn: u32,
    /// Exponent of the time within which the receiver is to answer.
    pub remote_response_timeout: u8,
    /// The service.
    pub service: TransportService,
    /// The sender's receive queue gives credits.
    pub flow_control: bool,
    /// The PSN with which the receiver of this message is to begin.
    pub starting_psn: Psn,
    /// Exponent of the time within which it will answer.
    pub local_response_timeout: u8,
    /// Retry count for the receiver's QP.
    pub retry_count: u8,
    /// The partition.
    pub p_key: PKey,
    /// The path's MTU.
    pub path_mtu: Mtu,
    /// A receive datagram context exists (RD).
    pub rdc_exists: bool,
    /// RNR retry count for the receiver's QP.
    pub rnr_retry_count: u8,
    /// Number of times that a message may be sent again.
    pub max_cm_retries: u8,
    /// The sender's QP has a shared receive queue.
    pub srq: bool,
    /// The way.
    pub primary: Path,
    /// Another way; zero for none.
    pub alternate: Path,
    /// The consumer's, behind a [`super::IpHeader`] if the service id says so.
    pub private_data: [u8; 92],
}

impl Req {
    pub(super) fn parse(b: &[u8; MESSAGE_LEN]) -> Option<Self> {
        let (qpn, responder_resources) = split(b, 32);
        let (eecn, initiator_depth) = split(b, 36);
        let (remote_eecn, bits40) = split(b, 40);
        let (psn, bits44) = split(b, 44);
        let (bits50, bits51) = (b[50], b[51]);
        Some(Self {
            local_id: CommId(word(b, 0)),
            vendor_id: word(b, 4) & 0x00FF_FFFF,
            service_id: u64::from_be_bytes(at(b, 8)),
            ca_guid: u64::from_be_bytes(at(b, 16)),
            q_key: QKey(word(b, 28)),
            qpn: Qpn::new(qpn),
            responder_resources,
            initiator_depth,
            eecn,
            remote_eecn,
            remote_response_timeout: bits40 >> 3,
            service: TransportService::from_bits(bits40 >> 1 & 3, bits51 & 7)?,
            flow_control: bits40 & 1 != 0,
            starting_psn: Psn::new(psn),
            local_response_timeout: bits44 >> 3,
            retry_count: bits44 & 7,
            p_key: PKey(u16::from_be_bytes(at(b, 48))),
            path_mtu: Mtu::from_code(bits50 >> 4)?,
            rdc_exists: bits50 & 8 != 0,
            rnr_retry_count: bits50 & 7,
            max_cm_retries: bits51 >> 4,
            srq: bits51 & 8 != 0,
            primary: Path::parse(b, 52),
            alternate: Path::parse(b, 96),
            private_data: at(b, 140),
        })
    }

    pub(super) fn emit(&self, b: &mut [u8; MESSAGE_LEN]) {
        let (kind, extended) = self.service.bits();
        put_word(b, 0, self.local_id.0);
        put_word(b, 4, self.vendor_id & 0x00FF_FFFF);
        put(b, 8, &self.service_id.to_be_bytes());
        put(b, 16, &self.ca_guid.to_be_bytes());
        put_word(b, 28, self.q_key.0);
        join(b, 32, self.qpn.get(), self.responder_resources);
        join(b, 36, self.eecn, self.initiator_depth);
        join(b, 40, self.remote_eecn, self.remote_response_timeout << 3 | kind << 1 | u8::from(self.flow_control));
        join(b, 44, self.starting_psn.get(), self.local_response_timeout << 3 | self.retry_count & 7);
        put(b, 48, &self.p_key.0.to_be_bytes());
        b[50] = self.path_mtu.code() << 4 | u8::from(self.rdc_exists) << 3 | self.rnr_retry_count & 7;
        b[51] = self.max_cm_retries << 4 | u8::from(self.srq) << 3 | extended;
        self.primary.emit(b, 52);
        self.alternate.emit(b, 96);
        put(b, 140, &self.private_data);
    }
}

/// Reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rep {
    /// The connection.
    pub ids: Ids,
    /// Q_Key, for datagram transports.
    pub q_key: QKey,
    /// The sender's QP.
    pub qpn: Qpn,
    /// End-to-end context (RD).
    pub eecn: u32,
    /// The PSN with which the receiver of this message is to begin.
    pub starting_psn: Psn,
    /// ECE: whose options the MAD header's modifier holds (24 bits); 0 for none.
    pub vendor_id: u32,
    /// READs and atomics it accepts at once.
    pub responder_resources: u8,
    /// READs and atomics it will have outstanding.
    pub initiator_depth: u8,
    /// Exponent of the time its port takes to acknowledge.
    pub target_ack_delay: u8,
    /// Outcome for the alternate path, 2 bits.
    pub failover_accepted: u8,
    /// Set if the receive queue gives credits.
    pub flow_control: bool,
    /// RNR retry count for the receiver's QP.
    pub rnr_retry_count: u8,
    /// Set if the QP has a shared receive queue.
    pub srq: bool,
    /// GUID of the node.
    pub ca_guid: u64,
    /// The consumer's.
    pub private_data: [u8; 196],
}

impl Rep {
    pub(super) fn parse(b: &[u8; MESSAGE_LEN]) -> Self {
        let (qpn, vendor_low) = split(b, 12);
        let (eecn, vendor_middle) = split(b, 16);
        let (psn, vendor_high) = split(b, 20);
        Self {
            ids: Ids::parse(b),
            q_key: QKey(word(b, 8)),
            qpn: Qpn::new(qpn),
            eecn,
            starting_psn: Psn::new(psn),
            vendor_id: u32::from_be_bytes([0, vendor_high, vendor_middle, vendor_low]),
            responder_resources: b[24],
            initiator_depth: b[25],
            target_ack_delay: b[26] >> 3,
            failover_accepted: b[26] >> 1 & 3,
            flow_control: b[26] & 1 != 0,
            rnr_retry_count: b[27] >> 5,
            srq: b[27] & 0x10 != 0,
            ca_guid: u64::from_be_bytes(at(b, 28)),
            private_data: at(b, 36),
        }
    }

    pub(super) fn emit(&self, b: &mut [u8; MESSAGE_LEN]) {
        let [_, vendor_high, vendor_middle, vendor_low] = self.vendor_id.to_be_bytes();
        self.ids.emit(b);
        put_word(b, 8, self.q_key.0);
        join(b, 12, self.qpn.get(), vendor_low);
        join(b, 16, self.eecn, vendor_middle);
        join(b, 20, self.starting_psn.get(), vendor_high);
        let bits26 = self.target_ack_delay << 3 | (self.failover_accepted & 3) << 1 | u8::from(self.flow_control);
        let bits27 = self.rnr_retry_count << 5 | u8::from(self.srq) << 4;
        put(b, 24, &[self.responder_resources, self.initiator_depth, bits26, bits27]);
        put(b, 28, &self.ca_guid.to_be_bytes());
        put(b, 36, &self.private_data);
    }
}
