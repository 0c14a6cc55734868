//! MRA, REJ, DREQ, LAP and APR (IBA 12.6.6, 12.6.7, 12.6.10, 12.8).

use super::{Ids, MESSAGE_LEN, at, join, put, split, word};
use crate::Qpn;
use crate::cm::put_word;

/// Message that a MRA or REJ is about. A REJ may also be about [`Rejected::None`] of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the names are the messages'")]
pub enum Rejected {
    Req,
    Rep,
    /// The alternate path (MRA); no message (REJ).
    None,
}

impl Rejected {
    const fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            0 => Self::Req,
            1 => Self::Rep,
            2 => Self::None,
            _ => return None,
        })
    }

    const fn bits(self) -> u8 {
        match self {
            Self::Req => 0,
            Self::Rep => 1,
            Self::None => 2,
        }
    }
}

/// Message receipt acknowledgement: an answer will take longer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mra {
    /// The connection.
    pub ids: Ids,
    /// Message that has been received.
    pub message: Rejected,
    /// Exponent of how long the answer may take.
    pub service_timeout: u8,
    /// The consumer's.
    pub private_data: [u8; 222],
}

impl Mra {
    pub(super) fn parse(b: &[u8; MESSAGE_LEN]) -> Option<Self> {
        Some(Self {
            ids: Ids::parse(b),
            message: Rejected::from_bits(b[8] >> 6)?,
            service_timeout: b[9] >> 3,
            private_data: at(b, 10),
        })
    }

    pub(super) fn emit(&self, b: &mut [u8; MESSAGE_LEN]) {
        self.ids.emit(b);
        b[8] = self.message.bits() << 6;
        b[9] = self.service_timeout << 3;
        put(b, 10, &self.private_data);
    }
}

/// Why a message is rejected (IBA 12.6.7.2): any number; those that are used here have names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RejReason(pub u16);

impl RejReason {
    /// No answer came in time.
    pub const TIMEOUT: Self = Self(4);
    /// No connection has this communication id.
    pub const INVALID_COMM_ID: Self = Self(6);
    /// No listener serves this service id.
    pub const INVALID_SERVICE_ID: Self = Self(8);
    /// The connection is not known, or not any more.
    pub const STALE_CONNECTION: Self = Self(10);
    /// The consumer does not want it.
    pub const CONSUMER_DEFINED: Self = Self(28);
}

/// Reject.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rej {
    /// The connection; the sender's id is zero if it has not told one.
    pub ids: Ids,
    /// Message that is rejected.
    pub message: Rejected,
    /// Bytes of `info` that mean something.
    pub info_len: u8,
    /// Reason of the rejection.
    pub reason: RejReason,
    /// Additional reject information.
    pub info: [u8; 72],
    /// The consumer's.
    pub private_data: [u8; 148],
}

impl Rej {
    pub(super) fn parse(b: &[u8; MESSAGE_LEN]) -> Option<Self> {
        Some(Self {
            ids: Ids::parse(b),
            message: Rejected::from_bits(b[8] >> 6)?,
            info_len: b[9] >> 1,
            reason: RejReason(u16::from_be_bytes(at(b, 10))),
            info: at(b, 12),
            private_data: at(b, 84),
        })
    }

    pub(super) fn emit(&self, b: &mut [u8; MESSAGE_LEN]) {
        self.ids.emit(b);
        b[8] = self.message.bits() << 6;
        b[9] = self.info_len << 1;
        put(b, 10, &self.reason.0.to_be_bytes());
        put(b, 12, &self.info);
        put(b, 84, &self.private_data);
    }
}

/// Request for communication release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dreq {
    /// The connection.
    pub ids: Ids,
    /// The receiver's QP.
    pub remote_qpn: Qpn,
    /// The consumer's.
    pub private_data: [u8; 220],
}

impl Dreq {
    pub(super) fn parse(b: &[u8; MESSAGE_LEN]) -> Self {
        Self { ids: Ids::parse(b), remote_qpn: Qpn::new(split(b, 8).0), private_data: at(b, 12) }
    }

    pub(super) fn emit(&self, b: &mut [u8; MESSAGE_LEN]) {
        self.ids.emit(b);
        join(b, 8, self.remote_qpn.get(), 0);
        put(b, 12, &self.private_data);
    }
}

/// Load alternate path: only what is needed to refuse it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lap {
    /// The connection.
    pub ids: Ids,
    /// The path, and the consumer's.
    pub rest: [u8; 224],
}

impl Lap {
    pub(super) fn parse(b: &[u8; MESSAGE_LEN]) -> Self {
        Self { ids: Ids::parse(b), rest: at(b, 8) }
    }

    pub(super) fn emit(&self, b: &mut [u8; MESSAGE_LEN]) {
        self.ids.emit(b);
        put(b, 8, &self.rest);
    }
}

/// Alternate path response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Apr {
    /// The connection.
    pub ids: Ids,
    /// Bytes of `info` that mean something.
    pub info_len: u8,
    /// Outcome (IBA 12.8.2); 0 is success.
    pub status: u8,
    /// Vendor id (ECE), 16 of 24 bits and more: kept as it is.
    pub reserved: u16,
    /// Additional information.
    pub info: [u8; 72],
    /// The consumer's.
    pub private_data: [u8; 148],
}

impl Apr {
    /// Status where the connection is unknown.
    pub const INVALID_COMM_ID: u8 = 1;
    /// Status of a responder without alternate paths.
    pub const NOT_SUPPORTED: u8 = 2;

    pub(super) fn parse(b: &[u8; MESSAGE_LEN]) -> Self {
        let [info_len, status, ..] = word(b, 8).to_be_bytes();
        Self {
            ids: Ids::parse(b),
            info_len,
            status,
            reserved: u16::from_be_bytes(at(b, 10)),
            info: at(b, 12),
            private_data: at(b, 84),
        }
    }

    pub(super) fn emit(&self, b: &mut [u8; MESSAGE_LEN]) {
        let [high, low] = self.reserved.to_be_bytes();
        self.ids.emit(b);
        put_word(b, 8, u32::from_be_bytes([self.info_len, self.status, high, low]));
        put(b, 12, &self.info);
        put(b, 84, &self.private_data);
    }
}
