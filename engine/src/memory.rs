//! Access to the application's memory: the trait that a host implements, and the one function through which all copies go.

use core::ops::Deref;

use urxe_wire::Qpn;

use crate::access::Access;
use crate::direct::{DirectOutcome, DirectRequest};
use crate::key::Key;
use crate::mr::{Accessor, Pd, Refusal, Region, RegionKind};
use crate::mw::{Bind, BindError};

/// The memory is not there, or not writable: the application unmapped it after registering it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the memory is not mapped, or not writable")]
pub struct Fault;

/// An access that somebody asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AccessRequest {
    /// The accessor.
    pub by: Accessor,
    /// Key that is presented.
    pub key: Key,
    /// Rights that are asked for.
    pub access: Access,
    /// First address.
    pub va: u64,
    /// Number of bytes.
    pub length: u64,
}

/// Operation on memory to which access was granted.
#[derive(Debug)]
pub enum MemoryOp<'a> {
    /// No operation: only whether access is granted.
    Look,
    /// Copies from it. A null region has zeros.
    Read(&'a mut [u8]),
    /// Copies to it. A null region forgets them.
    Write(&'a [u8]),
    /// Stores eight bytes at once.
    WriteWord([u8; 8]),
    /// Replaces eight bytes if they are as expected.
    CompareSwap {
        /// The value expected.
        compare: u64,
        /// The value stored then.
        swap: u64,
    },
    /// Adds to eight bytes.
    FetchAdd(u64),
    /// Flushes it.
    Flush {
        /// True: to persistence.
        persistent: bool,
        /// All of the region, whatever range was asked for.
        whole: bool,
    },
}

/// An access that was refused: who asked for what, and the rule it broke.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("access to {length} bytes at {va:#x} by key {:#010x} is refused: {refusal}", .key.0)]
pub struct AccessDenied {
    /// The accessor.
    pub by: Accessor,
    /// Key that was presented.
    pub key: Key,
    /// Rights that were asked for.
    pub access: Access,
    /// First address.
    pub va: u64,
    /// Number of bytes.
    pub length: u64,
    /// Reason of the refusal.
    pub refusal: Refusal,
}

/// Kind of the invalidation of a memory window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Invalidation {
    /// Request of the application, which has the memory to itself when it completes.
    Local,
    /// SEND with Invalidate of a peer: where packets are executed, no stopped thread is waited for.
    Remote,
}

/// The application's memory, as the engine may touch it: by host addresses that [`Region::check`] gave.
///
/// The memory is shared with the application's threads and with peers, so there are only copies, never
/// references. An implementation must turn memory that is gone into [`Fault`].
pub trait Memory {
    /// The region or window that has `key`. It stays registered as long as it is held: deregistration waits.
    fn region(&self, key: Key) -> Option<impl Deref<Target = Region>>;

    /// Copies from the application's memory.
    ///
    /// # Errors
    /// [`Fault`] if part of it is not mapped; `to` may have been written in part.
    fn read(&self, from: u64, to: &mut [u8]) -> Result<(), Fault>;

    /// Copies to the application's memory. The last byte becomes visible last: programs spin on it.
    ///
    /// # Errors
    /// [`Fault`] if part of it is not mapped or not writable; a part may have been written.
    fn write(&self, to: u64, from: &[u8]) -> Result<(), Fault>;

    /// Atomically replaces the eight bytes at `at` by `swap` if they equal `compare`; returns what was there.
    /// Numbers are in the host's byte order. `at` is a multiple of eight.
    ///
    /// # Errors
    /// [`Fault`] if it is not mapped or not writable.
    fn compare_swap(&self, at: u64, compare: u64, swap: u64) -> Result<u64, Fault>;

    /// Atomically adds to the eight bytes at `at`, wrapping; returns what was there.
    ///
    /// # Errors
    /// [`Fault`] if it is not mapped or not writable.
    fn fetch_add(&self, at: u64, add: u64) -> Result<u64, Fault>;

    /// Makes what was written to `[at, at + length)` visible to every thread and device of the machine, or, if
    /// `persistent`, safe from the machine's end.
    ///
    /// # Errors
    /// [`Fault`] if that cannot be done there.
    fn flush(&self, at: u64, length: u64, persistent: bool) -> Result<(), Fault>;

    /// Binds a memory window for the queue pair `qpn` of `pd`, by the rules of [`Window::bind`](crate::mw::Window).
    ///
    /// # Errors
    /// The rule broken; nothing is changed then.
    fn bind(&self, pd: Pd, qpn: Qpn, bind: &Bind) -> Result<(), BindError>;

    /// Takes back a bind whose request does not complete with success, by [`RegionTable::undo_bind`]. When it returns,
    /// nobody copies from or to what the window showed.
    ///
    /// [`RegionTable::undo_bind`]: crate::mw::RegionTable::undo_bind
    fn undo_bind(&self, qpn: Qpn, bind: &Bind);

    /// Unbinds the memory window with `key`. When it returns, nobody copies from or to it any more.
    ///
    /// # Errors
    /// `key` is none that may be invalidated through the queue pair `qpn` of `pd`.
    fn invalidate(&self, pd: Pd, qpn: Qpn, key: Key, how: Invalidation) -> Result<(), Refusal>;

    /// Whether `by` belongs to a protection domain of another process: then the whole access is that process' to check
    /// and carry out, by [`access_remote`](Self::access_remote), and none of the other methods is called.
    fn is_remote(&self, _by: Accessor) -> bool {
        false
    }

    /// Touches memory of another process, as [`access`] does otherwise.
    ///
    /// # Errors
    /// As [`access`].
    fn access_remote(&self, _request: &AccessRequest, _op: &mut MemoryOp<'_>) -> Result<u64, Refusal> {
        Err(Refusal::Vanished)
    }

    /// Whether the peer's memory may be within reach, so that [`carry_out`](Self::carry_out) is worth asking.
    #[inline]
    fn reaches_peer(&self) -> bool {
        false
    }

    /// Whether the peer's receive buffers may be within reach as well.
    #[inline]
    fn reaches_receives(&self) -> bool {
        false
    }

    /// Carries out a request at the peer's memory, if the peer's responder would accept it as it is: key, bounds, rights, states
    /// and PSN are checked here. Called while no other request is outstanding. The peer may have to wait for
    /// [`leave_peer`](Self::leave_peer) before its memory is its own again.
    fn carry_out(&self, _request: &DirectRequest<'_>) -> DirectOutcome {
        DirectOutcome::ByPackets
    }

    /// No request is carried out for a while. Called behind one or several calls of [`carry_out`](Self::carry_out), and before a packet
    /// leaves.
    #[inline]
    fn leave_peer(&self) {}

    /// An access to `region` (`None`: there is none) was refused, for a person debugging to know. The event or
    /// completion that comes of it follows in the same call.
    fn refused(&self, _denied: &AccessDenied, _region: Option<&Region>) {}
}

/// Touches memory as `request` asks for, if that is granted; the region is held meanwhile. Returns what eight bytes that are
/// changed at once were before; else 0.
///
/// # Errors
/// The [`Refusal`]; then nothing was touched, but for a [`Fault`] half way, which is [`Refusal::Unmapped`].
// What is touched, and how, is known where this is called: nearly all of it falls away there.
#[inline(always)]
pub fn access<M: Memory>(memory: &M, request: &AccessRequest, op: MemoryOp<'_>) -> Result<u64, Refusal> {
    // Here and for what is denied `request` and `op` are put together only then: they need not be in memory otherwise.
    if memory.is_remote(request.by) {
        return access_remote(memory, *request, op);
    }
    let Some(region) = memory.region(request.key) else {
        return Err(denied(memory, *request, Refusal::NoSuchKey, None));
    };
    let (va, length) = match op {
        MemoryOp::Flush { whole: true, .. } => (region.iova, region.length),
        _ => (request.va, request.length),
    };
    let done = match region.check(request.by, request.access, va, length) {
        Ok(at) => op.carry_out(memory, (region.kind != RegionKind::Null).then_some(at), length),
        Err(refusal) => Err(refusal),
    };
    done.map_err(|refusal| denied(memory, *request, refusal, Some(&region)))
}

/// Whether an access to memory of this process would be granted. Nobody is told of a refusal.
pub(crate) fn is_granted<M: Memory>(memory: &M, request: &AccessRequest) -> bool {
    let AccessRequest { by, key, access, va, length } = *request;
    !memory.is_remote(by) && memory.region(key).is_some_and(|region| region.check(by, access, va, length).is_ok())
}

#[cold]
fn access_remote<M: Memory>(memory: &M, request: AccessRequest, mut op: MemoryOp<'_>) -> Result<u64, Refusal> {
    memory.access_remote(&request, &mut op)
}

#[cold]
fn denied<M: Memory>(memory: &M, request: AccessRequest, refusal: Refusal, region: Option<&Region>) -> Refusal {
    let AccessRequest { by, key, access, va, length } = request;
    memory.refused(&AccessDenied { by, key, access, va, length, refusal }, region);
    refusal
}

impl MemoryOp<'_> {
    /// At the host address `at`; `None` is a null region's.
    #[inline(always)]
    fn carry_out<M: Memory>(self, memory: &M, at: Option<u64>, length: u64) -> Result<u64, Refusal> {
        let unmapped = |Fault| Refusal::Unmapped;
        let Some(at) = at else {
            return match self {
                Self::Look | Self::Write(_) => Ok(0),
                Self::Read(to) => {
                    to.fill(0);
                    Ok(0)
                }
                // None of these is ever granted there.
                Self::WriteWord(_) | Self::CompareSwap { .. } | Self::FetchAdd(_) | Self::Flush { .. } => {
                    Err(Refusal::Unmapped)
                }
            };
        };
        let is_word = matches!(self, Self::WriteWord(_) | Self::CompareSwap { .. } | Self::FetchAdd(_));
        if is_word && !at.is_multiple_of(8) {
            return Err(Refusal::Misaligned);
        }
        match self {
            Self::Look => Ok(0),
            Self::Read(to) => memory.read(at, to).map(|()| 0).map_err(unmapped),
            Self::Write(from) => memory.write(at, from).map(|()| 0).map_err(unmapped),
            Self::WriteWord(word) => memory.write(at, &word).map(|()| 0).map_err(unmapped),
            Self::CompareSwap { compare, swap } => memory.compare_swap(at, compare, swap).map_err(unmapped),
            Self::FetchAdd(add) => memory.fetch_add(at, add).map_err(unmapped),
            Self::Flush { persistent, .. } => memory.flush(at, length, persistent).map(|()| 0).map_err(unmapped),
        }
    }
}
