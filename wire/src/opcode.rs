//! The opcode table: everything a packet's opcode implies, as data.
//!
//! An opcode byte is a transport (3 bits) and an operation (5 bits). [`Operation::info`] holds one row an
//! operation, total by construction; [`Opcode`] can only be a pair that the InfiniBand specification defines
//! for RC, UC, UD, XRC, or the RoCE congestion notification packet, or one of urxe's own among those that it leaves to
//! manufacturers. RD is not spoken by any RoCE device.
//!
//! Sources: IBA 9.2.1 table "OpCode field", annexes A14 (XRC), A17 (RoCE v2, CNP), A19 (FLUSH, ATOMIC WRITE);
//! `include/rdma/ib_pack.h`.

use core::fmt;

use crate::{Bitmap, Mtu};

/// The transport service of an opcode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Congestion notification packet (IBA annex A17.9.3).
    Cnp,
    /// Extended reliable connection (IBA annex A14).
    Xrc,
    /// Selective repeat between two urxe ([`crate::selective`]), beside RC; a manufacturer's opcodes (IBA 9.2.1).
    Urxe,
}

impl Transport {
    /// Transports, in the order of their numbers.
    pub const ALL: [Self; 6] = [Self::Rc, Self::Uc, Self::Ud, Self::Cnp, Self::Xrc, Self::Urxe];

    /// The upper three bits of the opcode byte.
    const fn bits(self) -> u8 {
        match self {
            Self::Rc => 0x00,
            Self::Uc => 0x20,
            Self::Ud => 0x60,
            Self::Cnp => 0x80,
            Self::Xrc => 0xA0,
            Self::Urxe => 0xC0,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::Cnp => "CNP",
            Self::Xrc => "XRC",
            Self::Urxe => "urxe",
        }
    }
}

/// A set of transports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TransportSet(u8);

impl TransportSet {
    const fn of(transports: &[Transport]) -> Self {
        let mut bits = 0;
        let mut at = 0;
        while at < transports.len() {
            bits |= 1 << (transports[at] as u8);
            at += 1;
        }
        Self(bits)
    }

    /// Whether `transport` is in the set.
    #[must_use]
    pub const fn contains(self, transport: Transport) -> bool {
        self.0 & 1 << (transport as u8) != 0
    }
}

/// The lower five bits of an opcode: the operation, its place in the message, and its extras.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[expect(missing_docs, reason = "the names are the specification's, and the table below explains each")]
pub enum Operation {
    SendFirst,
    SendMiddle,
    SendLast,
    SendLastWithImmediate,
    SendOnly,
    SendOnlyWithImmediate,
    WriteFirst,
    WriteMiddle,
    WriteLast,
    WriteLastWithImmediate,
    WriteOnly,
    WriteOnlyWithImmediate,
    ReadRequest,
    ReadResponseFirst,
    ReadResponseMiddle,
    ReadResponseLast,
    ReadResponseOnly,
    Acknowledge,
    AtomicAcknowledge,
    CompareSwap,
    FetchAdd,
    SendLastWithInvalidate,
    SendOnlyWithInvalidate,
    Flush,
    AtomicWrite,
    CongestionNotification,
    SelectiveOffer,
    SelectiveAcknowledge,
}

/// Half of a queue pair that a packet is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Packet for the responder.
    Request,
    /// Packet for the requester (its completer).
    Response,
    /// Packet for neither: congestion control, selective repeat.
    Notification,
}

/// Kind of operation, whatever the packet's place in the message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[expect(missing_docs, reason = "the names are the specification's")]
pub enum Kind {
    Send,
    Write,
    Read,
    ReadResponse,
    Acknowledge,
    AtomicAcknowledge,
    CompareSwap,
    FetchAdd,
    Flush,
    AtomicWrite,
    CongestionNotification,
    SelectiveOffer,
    SelectiveAcknowledge,
}

/// A packet's place in its message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Position {
    /// The first of several.
    First,
    /// Neither first nor last.
    Middle,
    /// The last of several.
    Last,
    /// The only one.
    Only,
}

impl Position {
    /// Whether a message starts here.
    #[must_use]
    pub const fn starts(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Whether a message ends here.
    #[must_use]
    pub const fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// Extended headers that follow the BTH, in this order: XRCETH (by transport, not in the set), DETH, FETH,
/// RETH, AtomicETH, AETH, AtomicAckETH, ImmDt, IETH, CNP's reserved bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeaderSet {
    /// BTH alone.
    None,
    /// RETH.
    Reth,
    /// RETH and ImmDt.
    RethImmDt,
    /// ImmDt.
    ImmDt,
    /// IETH.
    Ieth,
    /// AtomicETH.
    AtomicEth,
    /// AETH.
    Aeth,
    /// AETH and AtomicAckETH.
    AethAtomicAckEth,
    /// FETH and RETH.
    FethReth,
    /// The 16 reserved bytes of a CNP.
    CnpReserved,
    /// Offer of selective repeat.
    SelectiveOffer,
    /// Header of a selective acknowledgement.
    SelectiveAck,
}

/// Bytes of payload that an operation's packet carries (IBA 9.7.4.1.6 and C9-92), before padding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PayloadRule {
    /// No payload.
    None,
    /// Exactly the path MTU: First and Middle.
    Full,
    /// Payload that is not empty and has the path MTU at most: Last.
    OneToMtu,
    /// Payload that has the path MTU at most: Only.
    ZeroToMtu,
    /// Eight bytes: ATOMIC WRITE (IBA annex A19).
    Eight,
    /// A bitmap of a selective acknowledgement.
    Bitmap,
}

impl PayloadRule {
    /// Whether `len` bytes are legal on a path with this MTU.
    #[must_use]
    pub const fn allows(self, len: usize, mtu: Mtu) -> bool {
        match self {
            Self::None => len == 0,
            Self::Full => len == mtu.bytes(),
            Self::OneToMtu => len >= 1 && len <= mtu.bytes(),
            Self::ZeroToMtu => len <= mtu.bytes(),
            Self::Eight => len == 8,
            Self::Bitmap => len <= Bitmap::MOST && len.is_multiple_of(4),
        }
    }
}

/// One row of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpcodeInfo {
    /// The operation's name as Wireshark spells it.
    pub name: &'static str,
    /// The lower five bits of the opcode byte.
    pub code: u8,
    /// The transports that have it.
    pub transports: TransportSet,
    /// Responder or requester.
    pub role: Role,
    /// Kind of operation.
    pub kind: Kind,
    /// Position in the message.
    pub position: Position,
    /// Headers after the BTH (and the DETH of UD, the XRCETH of XRC requests).
    pub headers: HeaderSet,
    /// Bytes of payload.
    pub payload: PayloadRule,
    /// Needs a receive WQE, taken at the start of a SEND and at the end of a WRITE with immediate.
    pub consumes_recv: bool,
    /// Completes that receive WQE.
    pub completes_recv: bool,
}

const CONNECTED: TransportSet = TransportSet::of(&[Transport::Rc, Transport::Uc, Transport::Xrc]);
const RELIABLE: TransportSet = TransportSet::of(&[Transport::Rc, Transport::Xrc]);
const SEND_ONLY: TransportSet = TransportSet::of(&[Transport::Rc, Transport::Uc, Transport::Ud, Transport::Xrc]);
const CNP: TransportSet = TransportSet::of(&[Transport::Cnp]);
const URXE: TransportSet = TransportSet::of(&[Transport::Urxe]);

impl Operation {
    /// Operations, in the order of the opcode table.
    pub const ALL: [Self; 28] = [
        Self::SendFirst,
        Self::SendMiddle,
        Self::SendLast,
        Self::SendLastWithImmediate,
        Self::SendOnly,
        Self::SendOnlyWithImmediate,
        Self::WriteFirst,
        Self::WriteMiddle,
        Self::WriteLast,
        Self::WriteLastWithImmediate,
        Self::WriteOnly,
        Self::WriteOnlyWithImmediate,
        Self::ReadRequest,
        Self::ReadResponseFirst,
        Self::ReadResponseMiddle,
        Self::ReadResponseLast,
        Self::ReadResponseOnly,
        Self::Acknowledge,
        Self::AtomicAcknowledge,
        Self::CompareSwap,
        Self::FetchAdd,
        Self::SendLastWithInvalidate,
        Self::SendOnlyWithInvalidate,
        Self::Flush,
        Self::AtomicWrite,
        Self::CongestionNotification,
        Self::SelectiveOffer,
        Self::SelectiveAcknowledge,
    ];

    /// The operation's row.
    #[must_use]
    #[rustfmt::skip]
    pub const fn info(self) -> &'static OpcodeInfo {
        use {HeaderSet as H, Kind as K, PayloadRule as P, Position as At, Role::*};
        macro_rules! row {
            ($name:literal, $code:literal, $transports:expr, $role:expr, $kind:expr, $at:expr, $headers:expr, $payload:expr, $consumes:literal, $completes:literal) => {
                &OpcodeInfo {
                    name: $name, code: $code, transports: $transports, role: $role, kind: $kind, position: $at,
                    headers: $headers, payload: $payload, consumes_recv: $consumes, completes_recv: $completes,
                }
            };
        }
        match self {
            //                                      name                            code  transports role     kind        position   headers         payload       receive WQE: consumes, completes
            Self::SendFirst              => row!("SEND First",                       0, CONNECTED, Request,  K::Send,    At::First,  H::None,        P::Full,      true,  false),
            Self::SendMiddle             => row!("SEND Middle",                      1, CONNECTED, Request,  K::Send,    At::Middle, H::None,        P::Full,      false, false),
            Self::SendLast               => row!("SEND Last",                        2, CONNECTED, Request,  K::Send,    At::Last,   H::None,        P::OneToMtu,  false, true),
            Self::SendLastWithImmediate  => row!("SEND Last with Immediate",         3, CONNECTED, Request,  K::Send,    At::Last,   H::ImmDt,       P::OneToMtu,  false, true),
            Self::SendOnly               => row!("SEND Only",                        4, SEND_ONLY, Request,  K::Send,    At::Only,   H::None,        P::ZeroToMtu, true,  true),
            Self::SendOnlyWithImmediate  => row!("SEND Only with Immediate",         5, SEND_ONLY, Request,  K::Send,    At::Only,   H::ImmDt,       P::ZeroToMtu, true,  true),
            Self::WriteFirst             => row!("RDMA WRITE First",                 6, CONNECTED, Request,  K::Write,   At::First,  H::Reth,        P::Full,      false, false),
            Self::WriteMiddle            => row!("RDMA WRITE Middle",                7, CONNECTED, Request,  K::Write,   At::Middle, H::None,        P::Full,      false, false),
            Self::WriteLast              => row!("RDMA WRITE Last",                  8, CONNECTED, Request,  K::Write,   At::Last,   H::None,        P::OneToMtu,  false, false),
            Self::WriteLastWithImmediate => row!("RDMA WRITE Last with Immediate",   9, CONNECTED, Request,  K::Write,   At::Last,   H::ImmDt,       P::OneToMtu,  true,  true),
            Self::WriteOnly              => row!("RDMA WRITE Only",                 10, CONNECTED, Request,  K::Write,   At::Only,   H::Reth,        P::ZeroToMtu, false, false),
            Self::WriteOnlyWithImmediate => row!("RDMA WRITE Only with Immediate",  11, CONNECTED, Request,  K::Write,   At::Only,   H::RethImmDt,   P::ZeroToMtu, true,  true),
            Self::ReadRequest            => row!("RDMA READ Request",               12, RELIABLE,  Request,  K::Read,    At::Only,   H::Reth,        P::None,      false, false),
            Self::ReadResponseFirst      => row!("RDMA READ response First",        13, RELIABLE,  Response, K::ReadResponse, At::First,  H::Aeth,   P::Full,      false, false),
            Self::ReadResponseMiddle     => row!("RDMA READ response Middle",       14, RELIABLE,  Response, K::ReadResponse, At::Middle, H::None,   P::Full,      false, false),
            Self::ReadResponseLast       => row!("RDMA READ response Last",         15, RELIABLE,  Response, K::ReadResponse, At::Last,   H::Aeth,   P::OneToMtu,  false, false),
            Self::ReadResponseOnly       => row!("RDMA READ response Only",         16, RELIABLE,  Response, K::ReadResponse, At::Only,   H::Aeth,   P::ZeroToMtu, false, false),
            Self::Acknowledge            => row!("Acknowledge",                     17, RELIABLE,  Response, K::Acknowledge,  At::Only,   H::Aeth,   P::None,      false, false),
            Self::AtomicAcknowledge      => row!("ATOMIC Acknowledge",              18, RELIABLE,  Response, K::AtomicAcknowledge, At::Only, H::AethAtomicAckEth, P::None, false, false),
            Self::CompareSwap            => row!("CmpSwap",                         19, RELIABLE,  Request,  K::CompareSwap, At::Only, H::AtomicEth,  P::None,      false, false),
            Self::FetchAdd               => row!("FetchAdd",                        20, RELIABLE,  Request,  K::FetchAdd, At::Only,  H::AtomicEth,   P::None,      false, false),
            Self::SendLastWithInvalidate => row!("SEND Last with Invalidate",       22, RELIABLE,  Request,  K::Send,    At::Last,   H::Ieth,        P::OneToMtu,  false, true),
            Self::SendOnlyWithInvalidate => row!("SEND Only with Invalidate",       23, RELIABLE,  Request,  K::Send,    At::Only,   H::Ieth,        P::ZeroToMtu, true,  true),
            Self::Flush                  => row!("FLUSH",                           28, RELIABLE,  Request,  K::Flush,   At::Only,   H::FethReth,    P::None,      false, false),
            Self::AtomicWrite            => row!("ATOMIC WRITE",                    29, RELIABLE,  Request,  K::AtomicWrite, At::Only, H::Reth,      P::Eight,     false, false),
            Self::CongestionNotification => row!("CNP",                              1, CNP,       Notification, K::CongestionNotification, At::Only, H::CnpReserved, P::None, false, false),
            Self::SelectiveOffer         => row!("Selective Repeat Offer",           0, URXE,      Notification, K::SelectiveOffer, At::Only, H::SelectiveOffer, P::None, false, false),
            Self::SelectiveAcknowledge   => row!("Selective Acknowledge",            1, URXE,      Notification, K::SelectiveAcknowledge, At::Only, H::SelectiveAck, P::Bitmap, false, false),
        }
    }
}

/// A legal pair of transport and operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Opcode {
    transport: Transport,
    operation: Operation,
}

impl Opcode {
    /// The opcode of `operation` on `transport`, if there is one.
    #[inline]
    #[must_use]
    pub const fn new(transport: Transport, operation: Operation) -> Option<Self> {
        if operation.info().transports.contains(transport) { Some(Self { transport, operation }) } else { None }
    }

    /// The congestion notification packet.
    pub const CNP: Self = Self { transport: Transport::Cnp, operation: Operation::CongestionNotification };

    /// Offer of selective repeat, or the answer to one.
    pub const SELECTIVE_OFFER: Self = Self { transport: Transport::Urxe, operation: Operation::SelectiveOffer };

    /// Acknowledgement of packets that came out of order.
    pub const SELECTIVE_ACK: Self = Self { transport: Transport::Urxe, operation: Operation::SelectiveAcknowledge };

    /// Parses the opcode byte.
    #[must_use]
    #[inline]
    pub const fn from_u8(byte: u8) -> Option<Self> {
        BY_BYTE[byte as usize]
    }

    /// The opcode byte.
    #[must_use]
    #[inline]
    pub const fn to_u8(self) -> u8 {
        self.transport.bits() | self.operation.info().code
    }

    /// The transport.
    #[must_use]
    pub const fn transport(self) -> Transport {
        self.transport
    }

    /// The operation.
    #[must_use]
    pub const fn operation(self) -> Operation {
        self.operation
    }

    /// The operation's row of the table.
    #[must_use]
    #[inline]
    pub const fn info(self) -> &'static OpcodeInfo {
        self.operation.info()
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.transport {
            Transport::Cnp => f.write_str(self.info().name),
            transport => write!(f, "{} {}", transport.name(), self.info().name),
        }
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The inverse of [`Opcode::to_u8`], made from it.
static BY_BYTE: [Option<Opcode>; 256] = {
    let mut table = [None; 256];
    let mut t = 0;
    while t < Transport::ALL.len() {
        let mut o = 0;
        while o < Operation::ALL.len() {
            if let Some(opcode) = Opcode::new(Transport::ALL[t], Operation::ALL[o]) {
                table[opcode.to_u8() as usize] = Some(opcode);
            }
            o += 1;
        }
        t += 1;
    }
    table
};
