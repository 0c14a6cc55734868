//! Communication management: the messages by which queue pairs get connected (IBA 12.6).
//!
//! A message is the 232 bytes behind the [`Mad`] header of a datagram to QP1; [`CmMad`] is both together. How it
//! goes: REQ, REP, RTU connect; DREQ, DREP disconnect; REJ refuses, MRA asks for patience; SIDR_REQ and SIDR_REP look
//! a datagram service up; LAP and APR would load alternate paths.

mod connect;
mod ip;
mod other;
mod service;

pub use connect::{Path, Rep, Req, TransportService};
pub use ip::{IpHeader, IpPair, ServiceId};
pub use other::{Apr, Dreq, Lap, Mra, Rej, RejReason, Rejected};
pub use service::{SidrRep, SidrReq, SidrStatus};

use core::fmt;

use crate::mad::{MAD_LEN, Mad};

/// Bytes of a message.
pub const MESSAGE_LEN: usize = MAD_LEN - Mad::LEN;

/// A communication id: one end's name for a connection (IBA 12.6.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, PartialOrd, Ord)]
pub struct CommId(pub u32);

/// Both ends' names for a connection, the sender's first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ids {
    /// The sender's.
    pub local: CommId,
    /// The receiver's; zero if it has not told one.
    pub remote: CommId,
}

/// Body of RTU and DREP: both ids and private data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plain {
    /// The connection.
    pub ids: Ids,
    /// The consumer's.
    pub private_data: [u8; 224],
}

/// A message (IBA 12.6.4: its attribute id says which).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    /// Request for communication.
    Req(Req),
    /// Message receipt acknowledgement.
    Mra(Mra),
    /// Reject.
    Rej(Rej),
    /// Reply.
    Rep(Rep),
    /// Ready to use.
    Rtu(Plain),
    /// Request for communication release.
    Dreq(Dreq),
    /// Reply to it.
    Drep(Plain),
    /// Service id resolution request.
    SidrReq(SidrReq),
    /// Response to a SIDR_REQ.
    SidrRep(SidrRep),
    /// Load alternate path.
    Lap(Lap),
    /// Alternate path response.
    Apr(Apr),
}

/// Why a datagram is not a message of communication management.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MalformedCm {
    /// Not 256 bytes.
    Length,
    /// Another version, class or method.
    Header,
    /// No such message.
    Attribute(u16),
    /// A field holds a reserved value.
    Field,
}

impl fmt::Display for MalformedCm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length => write!(f, "not {MAD_LEN} bytes long"),
            Self::Header => f.write_str("version, class or method is not that of communication management"),
            Self::Attribute(id) => write!(f, "unknown attribute {id:#06x}"),
            Self::Field => f.write_str("a field holds a reserved value"),
        }
    }
}

impl core::error::Error for MalformedCm {}

impl Message {
    /// Attribute id of the message (IBA 16.7.2).
    #[must_use]
    pub const fn attribute_id(&self) -> u16 {
        match self {
            Self::Req(_) => 0x10,
            Self::Mra(_) => 0x11,
            Self::Rej(_) => 0x12,
            Self::Rep(_) => 0x13,
            Self::Rtu(_) => 0x14,
            Self::Dreq(_) => 0x15,
            Self::Drep(_) => 0x16,
            Self::SidrReq(_) => 0x17,
            Self::SidrRep(_) => 0x18,
            Self::Lap(_) => 0x19,
            Self::Apr(_) => 0x1A,
        }
    }

    /// The name under which its receiver knows what it is about; `None` for a request that begins something.
    #[must_use]
    pub const fn receiver_id(&self) -> Option<CommId> {
        let ids = match self {
            Self::Req(_) | Self::SidrReq(_) => return None,
            Self::SidrRep(rep) => return Some(rep.request_id),
            Self::Mra(mra) => mra.ids,
            Self::Rej(rej) => rej.ids,
            Self::Rep(rep) => rep.ids,
            Self::Rtu(plain) | Self::Drep(plain) => plain.ids,
            Self::Dreq(dreq) => dreq.ids,
            Self::Lap(lap) => lap.ids,
            Self::Apr(apr) => apr.ids,
        };
        Some(ids.remote)
    }

    /// Reads the message of an attribute.
    ///
    /// # Errors
    /// [`MalformedCm::Attribute`], [`MalformedCm::Field`].
    pub fn parse(attribute_id: u16, b: &[u8; MESSAGE_LEN]) -> Result<Self, MalformedCm> {
        Ok(match attribute_id {
            0x10 => Self::Req(Req::parse(b).ok_or(MalformedCm::Field)?),
            0x11 => Self::Mra(Mra::parse(b).ok_or(MalformedCm::Field)?),
            0x12 => Self::Rej(Rej::parse(b).ok_or(MalformedCm::Field)?),
            0x13 => Self::Rep(Rep::parse(b)),
            0x14 => Self::Rtu(Plain::parse(b)),
            0x15 => Self::Dreq(Dreq::parse(b)),
            0x16 => Self::Drep(Plain::parse(b)),
            0x17 => Self::SidrReq(SidrReq::parse(b)),
            0x18 => Self::SidrRep(SidrRep::parse(b)),
            0x19 => Self::Lap(Lap::parse(b)),
            0x1A => Self::Apr(Apr::parse(b)),
            other => return Err(MalformedCm::Attribute(other)),
        })
    }

    /// Writes the message; reserved fields become zero.
    pub fn emit(&self, b: &mut [u8; MESSAGE_LEN]) {
        b.fill(0);
        match self {
            Self::Req(req) => req.emit(b),
            Self::Mra(mra) => mra.emit(b),
            Self::Rej(rej) => rej.emit(b),
            Self::Rep(rep) => rep.emit(b),
            Self::Rtu(plain) | Self::Drep(plain) => plain.emit(b),
            Self::Dreq(dreq) => dreq.emit(b),
            Self::SidrReq(req) => req.emit(b),
            Self::SidrRep(rep) => rep.emit(b),
            Self::Lap(lap) => lap.emit(b),
            Self::Apr(apr) => apr.emit(b),
        }
    }
}

/// A message with what its MAD header says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CmMad {
    /// Chosen by who began the exchange; its answers repeat it.
    pub transaction_id: u64,
    /// The consumer's ECE options, with REQ and REP; else 0.
    pub attribute_modifier: u32,
    /// The message.
    pub message: Message,
}

impl CmMad {
    /// Reads the payload of a datagram to QP1.
    ///
    /// # Errors
    /// Why it is not a message of communication management.
    //= spec/connections.md#cm-001
    //# Any bytes MUST be taken for a management datagram or refused.
    pub fn parse(payload: &[u8]) -> Result<Self, MalformedCm> {
        let payload: &[u8; MAD_LEN] = payload.try_into().map_err(|_| MalformedCm::Length)?;
        let (header, rest) = payload.split_first_chunk::<{ Mad::LEN }>().ok_or(MalformedCm::Length)?;
        let body: &[u8; MESSAGE_LEN] = rest.try_into().map_err(|_| MalformedCm::Length)?;
        let header = Mad::parse(header).ok_or(MalformedCm::Header)?;
        if (header.class, header.class_version, header.method) != (Mad::CLASS_CM, Mad::CM_VERSION, Mad::METHOD_SEND) {
            return Err(MalformedCm::Header);
        }
        Ok(Self {
            transaction_id: header.transaction_id,
            attribute_modifier: header.attribute_modifier,
            message: Message::parse(header.attribute_id, body)?,
        })
    }

    /// Writes header and message.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; MAD_LEN] {
        let mut bytes = [0; MAD_LEN];
        let header = Mad {
            transaction_id: self.transaction_id,
            attribute_modifier: self.attribute_modifier,
            ..Mad::new(Mad::CLASS_CM, Mad::CM_VERSION, Mad::METHOD_SEND, self.message.attribute_id())
        };
        if let Some((head, rest)) = bytes.split_first_chunk_mut::<{ Mad::LEN }>() {
            header.emit(head);
            if let Ok(body) = rest.try_into() {
                self.message.emit(body);
            }
        }
        bytes
    }
}

/// `N` bytes at a fixed place in a message.
fn at<const N: usize>(b: &[u8; MESSAGE_LEN], offset: usize) -> [u8; N] {
    core::array::from_fn(|i| b[offset + i])
}

fn put(b: &mut [u8; MESSAGE_LEN], offset: usize, bytes: &[u8]) {
    b[offset..offset + bytes.len()].copy_from_slice(bytes);
}

/// A 32-bit word at a fixed place.
fn word(b: &[u8; MESSAGE_LEN], offset: usize) -> u32 {
    u32::from_be_bytes(at(b, offset))
}

fn put_word(b: &mut [u8; MESSAGE_LEN], offset: usize, value: u32) {
    put(b, offset, &value.to_be_bytes());
}

/// A word of 24 bits and 8 bits.
fn split(b: &[u8; MESSAGE_LEN], offset: usize) -> (u32, u8) {
    let word = word(b, offset);
    let [.., low] = word.to_be_bytes();
    (word >> 8, low)
}

fn join(b: &mut [u8; MESSAGE_LEN], offset: usize, high: u32, low: u8) {
    put_word(b, offset, high << 8 | u32::from(low));
}

impl Ids {
    fn parse(b: &[u8; MESSAGE_LEN]) -> Self {
        Self { local: CommId(word(b, 0)), remote: CommId(word(b, 4)) }
    }

    fn emit(self, b: &mut [u8; MESSAGE_LEN]) {
        put_word(b, 0, self.local.0);
        put_word(b, 4, self.remote.0);
    }
}

impl Plain {
    fn parse(b: &[u8; MESSAGE_LEN]) -> Self {
        Self { ids: Ids::parse(b), private_data: at(b, 8) }
    }

    fn emit(&self, b: &mut [u8; MESSAGE_LEN]) {
        self.ids.emit(b);
        put(b, 8, &self.private_data);
    }
}

#[cfg(test)]
mod tests;
