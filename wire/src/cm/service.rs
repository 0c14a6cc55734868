//! SIDR_REQ and SIDR_REP: looking a datagram service up (IBA 12.11).

use super::{MESSAGE_LEN, at, join, put, put_word, split, word};
use crate::cm::CommId;
use crate::{PKey, QKey, Qpn};

/// Service id resolution request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SidrReq {
    /// The sender's name for this exchange.
    pub request_id: CommId,
    /// The partition.
    pub p_key: PKey,
    /// Service id that is looked for.
    pub service_id: u64,
    /// The consumer's, behind a [`super::IpHeader`] if the service id says so.
    pub private_data: [u8; 216],
}

impl SidrReq {
    pub(super) fn parse(b: &[u8; MESSAGE_LEN]) -> Self {
        Self {
            request_id: CommId(word(b, 0)),
            p_key: PKey(u16::from_be_bytes(at(b, 4))),
            service_id: u64::from_be_bytes(at(b, 8)),
            private_data: at(b, 16),
        }
    }

    pub(super) fn emit(&self, b: &mut [u8; MESSAGE_LEN]) {
        put_word(b, 0, self.request_id.0);
        put(b, 4, &self.p_key.0.to_be_bytes());
        put(b, 8, &self.service_id.to_be_bytes());
        put(b, 16, &self.private_data);
    }
}

/// Outcome (IBA 12.11.2.2): any number; those that are used here have names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SidrStatus(pub u8);

impl SidrStatus {
    /// The QPN and Q_Key are valid.
    pub const SUCCESS: Self = Self(0);
    /// No listener serves this service id.
    pub const UNSUPPORTED: Self = Self(1);
    /// The consumer does not want it.
    pub const REJECT: Self = Self(2);
    /// No QP could be had.
    pub const NO_QP: Self = Self(3);
}

/// Response to a SIDR_REQ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SidrRep {
    /// Id of the request.
    pub request_id: CommId,
    /// Outcome.
    pub status: SidrStatus,
    /// Bytes of `info` that mean something.
    pub info_len: u8,
    /// ECE vendor id: kept as it is.
    pub reserved: u16,
    /// The QP that serves.
    pub qpn: Qpn,
    /// Service id that was looked for.
    pub service_id: u64,
    /// Q_Key of the queue pair.
    pub q_key: QKey,
    /// Additional information.
    pub info: [u8; 72],
    /// The consumer's.
    pub private_data: [u8; 136],
}

impl SidrRep {
    pub(super) fn parse(b: &[u8; MESSAGE_LEN]) -> Self {
        Self {
            request_id: CommId(word(b, 0)),
            status: SidrStatus(b[4]),
            info_len: b[5],
            reserved: u16::from_be_bytes(at(b, 6)),
            qpn: Qpn::new(split(b, 8).0),
            service_id: u64::from_be_bytes(at(b, 12)),
            q_key: QKey(word(b, 20)),
            info: at(b, 24),
            private_data: at(b, 96),
        }
    }

    pub(super) fn emit(&self, b: &mut [u8; MESSAGE_LEN]) {
        put_word(b, 0, self.request_id.0);
        b[4] = self.status.0;
        b[5] = self.info_len;
        put(b, 6, &self.reserved.to_be_bytes());
        join(b, 8, self.qpn.get(), 0);
        put(b, 12, &self.service_id.to_be_bytes());
        put_word(b, 20, self.q_key.0);
        put(b, 24, &self.info);
        put(b, 96, &self.private_data);
    }
}
