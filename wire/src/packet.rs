//! A whole RoCE v2 packet: the checked view for receiving, and the legal-only header for sending.

pub use crate::malformed::Malformed;
use crate::opcode::{HeaderSet, Role};
use crate::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, ICRC_LEN, Ieth, ImmDt, Opcode, Reth, SelectiveAck, SelectiveOffer,
    Transport, XrcEth,
};

/// The extended headers of a packet: one variant for each combination that exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "named after the headers they hold")]
pub enum Ext {
    None,
    Reth(Reth),
    RethImmDt(Reth, ImmDt),
    ImmDt(ImmDt),
    Ieth(Ieth),
    AtomicEth(AtomicEth),
    Aeth(Aeth),
    AethAtomicAckEth(Aeth, AtomicAckEth),
    FethReth(Feth, Reth),
    CnpReserved,
    SelectiveOffer(SelectiveOffer),
    SelectiveAck(SelectiveAck),
}

impl Ext {
    const fn set(&self) -> HeaderSet {
        match self {
            Self::None => HeaderSet::None,
            Self::Reth(_) => HeaderSet::Reth,
            Self::RethImmDt(..) => HeaderSet::RethImmDt,
            Self::ImmDt(_) => HeaderSet::ImmDt,
            Self::Ieth(_) => HeaderSet::Ieth,
            Self::AtomicEth(_) => HeaderSet::AtomicEth,
            Self::Aeth(_) => HeaderSet::Aeth,
            Self::AethAtomicAckEth(..) => HeaderSet::AethAtomicAckEth,
            Self::FethReth(..) => HeaderSet::FethReth,
            Self::CnpReserved => HeaderSet::CnpReserved,
            Self::SelectiveOffer(_) => HeaderSet::SelectiveOffer,
            Self::SelectiveAck(_) => HeaderSet::SelectiveAck,
        }
    }
}

/// Bytes of a CNP's reserved field.
const CNP_RESERVED_LEN: usize = 16;

impl HeaderSet {
    /// Bytes on the wire.
    #[must_use]
    pub const fn len(self) -> usize {
        match self {
            Self::None => 0,
            Self::Reth => Reth::LEN,
            Self::RethImmDt => Reth::LEN + ImmDt::LEN,
            Self::ImmDt => ImmDt::LEN,
            Self::Ieth => Ieth::LEN,
            Self::AtomicEth => AtomicEth::LEN,
            Self::Aeth => Aeth::LEN,
            Self::AethAtomicAckEth => Aeth::LEN + AtomicAckEth::LEN,
            Self::FethReth => Feth::LEN + Reth::LEN,
            Self::CnpReserved => CNP_RESERVED_LEN,
            Self::SelectiveOffer => SelectiveOffer::LEN,
            Self::SelectiveAck => SelectiveAck::LEN,
        }
    }

    /// Whether no header follows the BTH.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }
}

/// Headers between the BTH and the operation's own, by transport.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Service {
    /// RC and UC, XRC responses, CNP, selective repeat: nothing.
    Connected,
    /// UD: a DETH.
    Datagram(Deth),
    /// XRC requests: an XRCETH.
    Xrc(XrcEth),
}

/// [`Service`] without its contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ServiceKind {
    Connected,
    Datagram,
    Xrc,
}

impl ServiceKind {
    /// Kind of service header of packets with this opcode.
    #[inline]
    const fn of(opcode: Opcode) -> Self {
        match (opcode.transport(), opcode.info().role) {
            (Transport::Ud, _) => Self::Datagram,
            (Transport::Xrc, Role::Request) => Self::Xrc,
            (Transport::Rc | Transport::Uc | Transport::Cnp | Transport::Urxe, _)
            | (Transport::Xrc, Role::Response | Role::Notification) => Self::Connected,
        }
    }

    const fn len(self) -> usize {
        match self {
            Self::Connected => 0,
            Self::Datagram => Deth::LEN,
            Self::Xrc => XrcEth::LEN,
        }
    }
}

impl Service {
    const fn kind(&self) -> ServiceKind {
        match self {
            Self::Connected => ServiceKind::Connected,
            Self::Datagram(_) => ServiceKind::Datagram,
            Self::Xrc(_) => ServiceKind::Xrc,
        }
    }
}

/// All headers of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Base transport header.
    pub bth: Bth,
    /// DETH or XRCETH.
    pub service: Service,
    /// The operation's extended headers. Must be those of the opcode's row.
    pub ext: Ext,
}

impl Header {
    /// A connected-service header.
    #[must_use]
    pub const fn new(bth: Bth, ext: Ext) -> Self {
        Self { bth, service: Service::Connected, ext }
    }

    /// Bytes on the wire.
    #[must_use]
    pub const fn len(&self) -> usize {
        Bth::LEN + self.service.kind().len() + self.ext.set().len()
    }

    /// Never: a header has at least a BTH.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Writes the headers to the start of `bytes` and returns how many bytes they took.
    ///
    /// # Panics
    /// If `bytes` is shorter than [`Header::len`]; in debug builds also if `service` or `ext` does not fit the
    /// opcode.
    //= spec/packets.md#pkt-011
    //# What is emitted MUST be what would be parsed, byte for byte.
    // Inline: most of it is known where it is called.
    #[inline(always)]
    pub fn emit(&self, bytes: &mut [u8]) -> usize {
        debug_assert_eq!(self.ext.set(), self.bth.opcode.info().headers, "{:?}", self.bth.opcode);
        debug_assert_eq!(self.service.kind(), ServiceKind::of(self.bth.opcode), "{:?}", self.bth.opcode);
        let room = bytes.len();
        let mut rest = bytes;
        self.bth.emit(take(&mut rest));
        match &self.service {
            Service::Connected => {}
            Service::Datagram(deth) => deth.emit(take(&mut rest)),
            Service::Xrc(xrceth) => xrceth.emit(take(&mut rest)),
        }
        match &self.ext {
            Ext::None => {}
            Ext::Reth(reth) => reth.emit(take(&mut rest)),
            Ext::RethImmDt(reth, imm_dt) => {
                reth.emit(take(&mut rest));
                imm_dt.emit(take(&mut rest));
            }
            Ext::ImmDt(imm_dt) => imm_dt.emit(take(&mut rest)),
            Ext::Ieth(ieth) => ieth.emit(take(&mut rest)),
            Ext::AtomicEth(atomic) => atomic.emit(take(&mut rest)),
            Ext::Aeth(aeth) => aeth.emit(take(&mut rest)),
            Ext::AethAtomicAckEth(aeth, ack) => {
                aeth.emit(take(&mut rest));
                ack.emit(take(&mut rest));
            }
            Ext::FethReth(feth, reth) => {
                feth.emit(take(&mut rest));
                reth.emit(take(&mut rest));
            }
            Ext::CnpReserved => *take::<CNP_RESERVED_LEN>(&mut rest) = [0; CNP_RESERVED_LEN],
            Ext::SelectiveOffer(offer) => offer.emit(take(&mut rest)),
            Ext::SelectiveAck(ack) => ack.emit(take(&mut rest)),
        }
        room - rest.len()
    }
}

/// Cuts `N` bytes off the front.
fn take<'a, const N: usize>(rest: &mut &'a mut [u8]) -> &'a mut [u8; N] {
    let (head, tail) = core::mem::take(rest).split_first_chunk_mut().expect("the buffer holds Header::len bytes");
    *rest = tail;
    head
}

/// Cuts `N` bytes off the front of a received packet.
//= spec/packets.md#pkt-005
//# A packet that is shorter than the headers of its opcode and the ICRC MUST be refused.
fn read<'a, const N: usize>(rest: &mut &'a [u8]) -> Result<&'a [u8; N], Malformed> {
    let (head, tail) = rest.split_first_chunk().ok_or(Malformed::TooShort)?;
    *rest = tail;
    Ok(head)
}

/// A received packet, taken apart: every field is there and legal in itself.
///
/// Whether the ICRC is right ([`crate::icrc`]), and whether the packet fits the queue pair it names, is not
/// this type's to say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet<'a> {
    /// The headers.
    pub header: Header,
    /// The payload without pad bytes.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Takes the payload of a UDP 4791 datagram apart, from the BTH to the ICRC.
    ///
    /// # Errors
    /// Says what is wrong; never panics, whatever the bytes.
    //= spec/packets.md#pkt-001
    //# Any bytes MUST be taken for a packet or refused with a reason, and nothing else may happen.
    // Inline: to hand the result over takes as long as to make it.
    #[inline(always)]
    pub fn parse(datagram: &'a [u8]) -> Result<Self, Malformed> {
        let (mut rest, _icrc) = datagram.split_last_chunk::<ICRC_LEN>().ok_or(Malformed::TooShort)?;
        let bytes = read(&mut rest)?;
        let bth = Bth::parse_behind(Bth::parse_opcode(bytes)?, bytes);
        let service = match ServiceKind::of(bth.opcode) {
            ServiceKind::Datagram => Service::Datagram(Deth::parse(read(&mut rest)?)),
            ServiceKind::Xrc => Service::Xrc(XrcEth::parse(read(&mut rest)?)),
            ServiceKind::Connected => Service::Connected,
        };
        let ext = match bth.opcode.info().headers {
            HeaderSet::None => Ext::None,
            HeaderSet::Reth => Ext::Reth(Reth::parse(read(&mut rest)?)),
            HeaderSet::RethImmDt => Ext::RethImmDt(Reth::parse(read(&mut rest)?), ImmDt::parse(read(&mut rest)?)),
            HeaderSet::ImmDt => Ext::ImmDt(ImmDt::parse(read(&mut rest)?)),
            HeaderSet::Ieth => Ext::Ieth(Ieth::parse(read(&mut rest)?)),
            HeaderSet::AtomicEth => Ext::AtomicEth(AtomicEth::parse(read(&mut rest)?)),
            //= spec/packets.md#pkt-007
            //# A reserved AETH syndrome MUST NOT be taken for an acknowledgement of any kind.
            HeaderSet::Aeth => Ext::Aeth(Aeth::parse(read(&mut rest)?)?),
            HeaderSet::AethAtomicAckEth => {
                Ext::AethAtomicAckEth(Aeth::parse(read(&mut rest)?)?, AtomicAckEth::parse(read(&mut rest)?))
            }
            HeaderSet::FethReth => Ext::FethReth(Feth::parse(read(&mut rest)?)?, Reth::parse(read(&mut rest)?)),
            HeaderSet::CnpReserved => {
                read::<CNP_RESERVED_LEN>(&mut rest)?;
                Ext::CnpReserved
            }
            HeaderSet::SelectiveOffer => Ext::SelectiveOffer(SelectiveOffer::parse(read(&mut rest)?)?),
            HeaderSet::SelectiveAck => Ext::SelectiveAck(SelectiveAck::parse(read(&mut rest)?)),
        };
        if rest.len() % 4 != 0 {
            //= spec/packets.md#pkt-006
            //# Payload and pad bytes together MUST be a multiple of four bytes long.
            return Err(Malformed::Unaligned);
        }
        //= spec/packets.md#pkt-004
        //# A packet MUST NOT have more pad bytes than payload.
        let payload_len = rest.len().checked_sub(usize::from(bth.pad_count)).ok_or(Malformed::PadCount)?;
        let payload = rest.get(..payload_len).ok_or(Malformed::PadCount)?;
        Ok(Self { header: Header { bth, service, ext }, payload })
    }

    /// The base transport header.
    #[must_use]
    pub const fn bth(&self) -> &Bth {
        &self.header.bth
    }

    /// The extended headers.
    #[must_use]
    pub const fn ext(&self) -> &Ext {
        &self.header.ext
    }
}

/// Number of pad bytes that a payload of `len` bytes needs (IBA 9.2 "PadCnt").
#[must_use]
pub const fn pad_count(len: usize) -> u8 {
    match len % 4 {
        0 => 0,
        1 => 3,
        2 => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests;
