//! Messages between processes that share an XRC domain. Both are on one host, so integers have the processor's byte
//! order; they may be of different releases, so every field is checked.

mod fields;

use urxe_engine::{Access, AccessRequest, Cqe, FrameCompletion, Instant, Key, MemoryOp, Refusal, WcOpcode, WcStatus};
use urxe_wire::{ImmDt, Lid, Qpn, RKey};

use fields::{HEAD, Parts, Rest};

/// The longest payload: a packet's.
pub(super) const MOST: usize = 4096;
/// Room for any message.
pub(super) const LENGTH: usize = HEAD + MOST;

/// Identity of a file: device and inode number.
pub type Inode = (u64, u64);

/// A receive WQE that the owner of an SRQ has handed out, by a number that means something on one connection only.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Wqe(pub(super) u32);

/// Request to the process that owns an SRQ. The last two are not answered.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Request<'a> {
    /// Enter the domain of the file that comes along, on the interface of this index. The first on every connection.
    /// It is not answered, but refused by the end of the connection.
    Join { interface: u32 },
    /// Whether the domain has this SRQ.
    Find { srq: Qpn },
    /// A receive WQE.
    Take { srq: Qpn },
    /// Copy `data` to where the WQE receives, from `offset` on.
    Scatter { wqe: Wqe, offset: u64, data: &'a [u8] },
    /// Access memory that the peer of the queue pair `qpn` names, in the SRQ's protection domain.
    Access { srq: Qpn, qpn: Qpn, range: Range, act: Act<'a> },
    /// Unbind a memory window, likewise.
    Invalidate { srq: Qpn, qpn: Qpn, key: Key },
    /// A message is complete.
    Complete { wqe: Wqe, cqe: Cqe },
    /// The WQE was not used.
    GiveBack { wqe: Wqe },
}

/// Memory, as a peer names it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Range {
    pub(super) key: Key,
    pub(super) access: Access,
    pub(super) va: u64,
    pub(super) length: u64,
}

/// A [`MemoryOp`] as it travels: what is read comes with the answer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Act<'a> {
    Look,
    Read,
    Write(&'a [u8]),
    WriteWord([u8; 8]),
    CompareSwap { compare: u64, swap: u64 },
    FetchAdd(u64),
    Flush { persistent: bool, whole: bool },
}

/// Answer of the SRQ's owner.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Answer<'a> {
    /// Yes, or done; with the original value of an atomic.
    Done(u64),
    /// Bytes read.
    Data(&'a [u8]),
    /// A WQE with room for so many bytes.
    Taken { wqe: Wqe, room: u32 },
    /// No WQE is left.
    Empty,
    /// The SRQ or the WQE does not exist.
    NotThere,
    /// The access is refused.
    Refused(Refusal),
}

impl From<&AccessRequest> for Range {
    fn from(request: &AccessRequest) -> Self {
        let AccessRequest { by: _, key, access, va, length } = *request;
        Self { key, access, va, length }
    }
}

impl<'a> Act<'a> {
    /// Splits `touch` into the part that is sent and the buffer for bytes that are read.
    pub(super) fn of(op: &'a mut MemoryOp<'_>) -> (Self, Option<&'a mut [u8]>) {
        let act = match op {
            MemoryOp::Read(to) => return (Self::Read, Some(to)),
            MemoryOp::Look => Self::Look,
            MemoryOp::Write(data) => Self::Write(data),
            MemoryOp::WriteWord(word) => Self::WriteWord(*word),
            MemoryOp::CompareSwap { compare, swap } => Self::CompareSwap { compare: *compare, swap: *swap },
            MemoryOp::FetchAdd(add) => Self::FetchAdd(*add),
            MemoryOp::Flush { persistent, whole } => Self::Flush { persistent: *persistent, whole: *whole },
        };
        (act, None)
    }
}

impl<'a> Request<'a> {
    pub(super) fn emit(&self) -> Parts<'a> {
        match *self {
            Self::Join { interface } => Parts::new(0).u32(interface),
            Self::Find { srq } => Parts::new(1).u32(srq.get()),
            Self::Take { srq } => Parts::new(2).u32(srq.get()),
            Self::Scatter { wqe, offset, data } => Parts::new(3).u32(wqe.0).u64(offset).with(data),
            Self::Access { srq, qpn, range: Range { key, access, va, length }, act } => {
                let head = Parts::new(4).u32(srq.get()).u32(qpn.get()).u32(key.0).u32(access.bits());
                act.emit(head.u64(va).u64(length))
            }
            Self::Invalidate { srq, qpn, key } => Parts::new(5).u32(srq.get()).u32(qpn.get()).u32(key.0),
            Self::Complete { wqe, cqe } => {
                let head = Parts::new(6).u32(wqe.0).u32(cqe.status as u32).u32(cqe.qpn.get()).u32(cqe.byte_len);
                let head = head.flag(cqe.opcode == WcOpcode::RecvRdmaWithImm).u32(cqe.src_qp.get()).flag(cqe.solicited);
                let head = head.flag(cqe.imm.is_some()).put(cqe.imm.map_or([0; 4], |imm| imm.0));
                head.flag(cqe.invalidated.is_some()).u32(cqe.invalidated.map_or(0, |key| key.0))
            }
            Self::GiveBack { wqe } => Parts::new(7).u32(wqe.0),
        }
    }

    /// `None` if it makes no sense.
    pub(super) fn parse(message: &'a [u8], now: Instant) -> Option<Self> {
        let mut rest = Rest(message);
        let request = match rest.u8()? {
            0 => Self::Join { interface: rest.u32()? },
            1 => Self::Find { srq: rest.qpn()? },
            2 => Self::Take { srq: rest.qpn()? },
            3 => Self::Scatter { wqe: Wqe(rest.u32()?), offset: rest.u64()?, data: rest.payload()? },
            4 => {
                let (srq, qpn, key) = (rest.qpn()?, rest.qpn()?, Key(rest.u32()?));
                let access = Access::from_bits(rest.u32()?);
                let range = Range { key, access, va: rest.u64()?, length: rest.u64()? };
                Self::Access { srq, qpn, range, act: Act::parse(&mut rest, &range)? }
            }
            5 => Self::Invalidate { srq: rest.qpn()?, qpn: rest.qpn()?, key: Key(rest.u32()?) },
            6 => Self::Complete { wqe: Wqe(rest.u32()?), cqe: completion(&mut rest, now)? },
            7 => Self::GiveBack { wqe: Wqe(rest.u32()?) },
            _ => return None,
        };
        rest.0.is_empty().then_some(request)
    }
}

impl<'a> Act<'a> {
    fn emit(self, head: Parts<'a>) -> Parts<'a> {
        match self {
            Self::Look => head.put([0]),
            Self::Read => head.put([1]),
            Self::Write(data) => head.put([2]).with(data),
            Self::WriteWord(word) => head.put([3]).put(word),
            Self::CompareSwap { compare, swap } => head.put([4]).u64(compare).u64(swap),
            Self::FetchAdd(add) => head.put([5]).u64(add),
            Self::Flush { persistent, whole } => head.put([6]).flag(persistent).flag(whole),
        }
    }

    /// Parses a message; what has a length is as long as `range` says.
    fn parse(rest: &mut Rest<'a>, range: &Range) -> Option<Self> {
        let act = match rest.u8()? {
            0 => Self::Look,
            1 if range.length <= MOST as u64 => Self::Read,
            2 => Self::Write(rest.payload().filter(|data| data.len() as u64 == range.length)?),
            3 if range.length == 8 => Self::WriteWord(rest.get()?),
            4 if range.length == 8 => Self::CompareSwap { compare: rest.u64()?, swap: rest.u64()? },
            5 if range.length == 8 => Self::FetchAdd(rest.u64()?),
            6 => Self::Flush { persistent: rest.flag()?, whole: rest.flag()? },
            _ => return None,
        };
        // What is done is what rights are asked for, whoever asks.
        range.access.contains(act.needs()).then_some(act)
    }

    /// The least rights for it.
    const fn needs(self) -> Access {
        match self {
            Self::Look => Access::NONE,
            Self::Read => Access::REMOTE_READ,
            Self::Write(_) | Self::WriteWord(_) => Access::REMOTE_WRITE,
            Self::CompareSwap { .. } | Self::FetchAdd(_) => Access::REMOTE_ATOMIC,
            Self::Flush { persistent: true, .. } => Access::FLUSH_PERSISTENT,
            Self::Flush { .. } => Access::FLUSH_GLOBAL,
        }
    }
}

/// A completion of a WQE whose number the owner knows.
fn completion(rest: &mut Rest<'_>, now: Instant) -> Option<Cqe> {
    let (status, qpn, byte_len) = (WcStatus::from_u32(rest.u32()?)?, rest.qpn()?, rest.u32()?);
    let opcode = if rest.flag()? { WcOpcode::RecvRdmaWithImm } else { WcOpcode::Recv };
    let (src_qp, solicited) = (rest.qpn()?, rest.flag()?);
    let imm = (rest.flag()?, ImmDt(rest.get()?));
    let invalidated = (rest.flag()?, RKey(rest.u32()?));
    Some(Cqe {
        wr_id: 0,
        status,
        opcode,
        qpn,
        byte_len,
        imm: imm.0.then_some(imm.1),
        invalidated: invalidated.0.then_some(invalidated.1),
        at: now,
        src_qp,
        solicited,
        grh: None,
        slid: Lid::NONE,
        frame: FrameCompletion::default(),
        refusal: None,
    })
}

/// Every refusal, in the order of their numbers.
const REFUSALS: [Refusal; 7] = [
    Refusal::NoSuchKey,
    Refusal::OtherPd,
    Refusal::Access,
    Refusal::OutOfBounds,
    Refusal::Unmapped,
    Refusal::Misaligned,
    Refusal::Vanished,
];

impl<'a> Answer<'a> {
    pub(super) fn emit(&self) -> Parts<'a> {
        match *self {
            Self::Done(found) => Parts::new(0).u64(found),
            Self::Data(data) => Parts::new(1).with(data),
            Self::Taken { wqe, room } => Parts::new(2).u32(wqe.0).u32(room),
            Self::Empty => Parts::new(3),
            Self::NotThere => Parts::new(4),
            Self::Refused(refusal) => {
                let number =
                    (0_u8..).zip(REFUSALS).find(|(_, known)| *known == refusal).map_or(0, |(number, _)| number);
                Parts::new(5).put([number])
            }
        }
    }

    /// `None` if it makes no sense.
    pub(super) fn parse(message: &'a [u8]) -> Option<Self> {
        let mut rest = Rest(message);
        let answer = match rest.u8()? {
            0 => Self::Done(rest.u64()?),
            1 => Self::Data(rest.payload()?),
            2 => Self::Taken { wqe: Wqe(rest.u32()?), room: rest.u32()? },
            3 => Self::Empty,
            4 => Self::NotThere,
            5 => Self::Refused(*REFUSALS.get(usize::from(rest.u8()?))?),
            _ => return None,
        };
        rest.0.is_empty().then_some(answer)
    }
}

#[cfg(test)]
mod tests;
