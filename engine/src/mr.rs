//! Memory regions, and who may access them (IBA 10.6).

use urxe_wire::Qpn;

use crate::access::Access;
use crate::key::Key;

/// A protection domain, by number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Pd(pub u32);

/// A registered memory region, or a bound memory window (IBA 10.6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// Key, local and remote.
    pub key: Key,
    /// The protection domain it belongs to.
    pub pd: Pd,
    /// Access granted.
    pub access: Access,
    /// The first address by which work requests and peers name it.
    pub iova: u64,
    /// Bytes.
    pub length: u64,
    /// Address of the byte at `iova` in the application's address space.
    pub host: u64,
    /// Origin.
    pub kind: RegionKind,
}

/// Origin of a region, which decides who may use it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegionKind {
    /// Registration.
    Memory,
    /// A null region: local reads give zeros, local writes go nowhere (`ibv_alloc_null_mr(3)`).
    Null,
    /// A memory window, for peers only; of type 2B for the peer of one queue pair (IBA 10.6.7.2.4).
    Window(Option<Qpn>),
}

/// Party that asks for an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Accessor {
    /// A work request, by an L_Key.
    Local(Pd),
    /// A peer, by an R_Key, through a queue pair.
    Remote(Pd, Qpn),
}

/// Why an access is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// No region has the key.
    #[error("no region has the key")]
    NoSuchKey,
    /// The region belongs to another protection domain.
    #[error("the region belongs to another protection domain")]
    OtherPd,
    /// The region does not allow it.
    #[error("the region does not allow the access")]
    Access,
    /// Part of it lies outside the region.
    #[error("the access leaves the region")]
    OutOfBounds,
    /// The memory is gone.
    #[error("the memory is not mapped")]
    Unmapped,
    /// Eight bytes at once are asked for, and the region does not begin at a word of the processor.
    #[error("the region does not begin at a multiple of eight bytes")]
    Misaligned,
    /// The memory was another process', and that process is gone, or has given up the SRQ that the memory was reached by;
    /// or it did not answer, and may have done what cannot be done twice.
    #[error("the process that has the memory has ended")]
    Vanished,
    /// The memory is another process', which does not answer now. Asking again does no harm.
    #[error("the process that has the memory does not answer")]
    Silent,
}

impl Region {
    /// The host address of `[va, va + length)`, if `by` may do `access` to all of it (IBA 10.6.3.1, C10-57 f.). Of a
    /// null region, it means nothing.
    ///
    /// # Errors
    /// The first rule broken, in the order of [`Refusal`].
    #[inline(always)]
    pub fn check(&self, by: Accessor, access: Access, va: u64, length: u64) -> Result<u64, Refusal> {
        let belongs = match (self.kind, by) {
            (RegionKind::Memory, Accessor::Local(pd) | Accessor::Remote(pd, _))
            | (RegionKind::Null, Accessor::Local(pd))
            | (RegionKind::Window(None), Accessor::Remote(pd, _)) => self.pd == pd,
            // The domain too: a number comes back with another queue pair some day.
            //= spec/memory.md#mem-005
            //# A type 2 window MUST serve the queue pair that it is bound to, and no other.
            (RegionKind::Window(Some(bound)), Accessor::Remote(pd, qpn)) => bound == qpn && self.pd == pd,
            (RegionKind::Null, Accessor::Remote(..)) | (RegionKind::Window(_), Accessor::Local(_)) => {
                return Err(Refusal::NoSuchKey);
            }
        };
        if !belongs {
            //= spec/memory.md#mem-002
            //# A key MUST NOT give access through another protection domain.
            return Err(Refusal::OtherPd);
        }
        if !self.access.contains(access) {
            //= spec/memory.md#mem-003
            //# An access MUST be one that the region was registered for.
            return Err(Refusal::Access);
        }
        let offset = va.checked_sub(self.iova).ok_or(Refusal::OutOfBounds)?;
        //= spec/memory.md#mem-001
        //# An access that leaves its region, also by overflow of an address, MUST be refused.
        let end = offset.checked_add(length).ok_or(Refusal::OutOfBounds)?;
        if end > self.length {
            return Err(Refusal::OutOfBounds);
        }
        self.host.checked_add(offset).ok_or(Refusal::OutOfBounds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region() -> Region {
        Region {
            key: Key(0x1ff),
            pd: Pd(1),
            access: Access::LOCAL_WRITE | Access::REMOTE_READ,
            iova: 0x1000,
            length: 0x100,
            host: 0x7000_0000,
            kind: RegionKind::Memory,
        }
    }

    //= spec/memory.md#mem-001
    //= type=test
    //# An access that leaves its region, also by overflow of an address, MUST be refused.
    #[test]
    fn bounds_cannot_be_tricked_by_overflow() {
        let check = |va, length| region().check(Accessor::Local(Pd(1)), Access::REMOTE_READ, va, length);
        assert_eq!(check(0x1000, 0x100), Ok(0x7000_0000));
        assert_eq!(check(0x10ff, 1), Ok(0x7000_00ff));
        assert_eq!(check(0x1100, 0), Ok(0x7000_0100));
        for (va, length) in [(0xfff, 1), (0x1000, 0x101), (0x10ff, 2), (0x1001, u64::MAX), (u64::MAX, 2), (0, u64::MAX)]
        {
            assert_eq!(check(va, length), Err(Refusal::OutOfBounds), "{va:#x}+{length:#x}");
        }
    }

    //= spec/memory.md#mem-005
    //= type=test
    //# A type 2 window MUST serve the queue pair that it is bound to, and no other.
    #[test]
    fn a_type_2_window_is_for_one_queue_pair_of_its_domain() {
        let window = Region { kind: RegionKind::Window(Some(Qpn::new(7))), ..region() };
        let check = |by| window.check(by, Access::REMOTE_READ, 0x1000, 1).map(drop);
        assert_eq!(check(Accessor::Remote(Pd(1), Qpn::new(7))), Ok(()));
        assert_eq!(check(Accessor::Remote(Pd(1), Qpn::new(8))), Err(Refusal::OtherPd));
        assert_eq!(check(Accessor::Remote(Pd(2), Qpn::new(7))), Err(Refusal::OtherPd));
        assert_eq!(check(Accessor::Local(Pd(1))), Err(Refusal::NoSuchKey));
    }

    //= spec/memory.md#mem-003
    //= type=test
    //# An access MUST be one that the region was registered for.
    //= spec/memory.md#mem-002
    //= type=test
    //# A key MUST NOT give access through another protection domain.
    #[test]
    fn rights_and_domain() {
        assert_eq!(region().check(Accessor::Local(Pd(2)), Access::NONE, 0x1000, 1), Err(Refusal::OtherPd));
        assert_eq!(region().check(Accessor::Local(Pd(1)), Access::REMOTE_WRITE, 0x1000, 1), Err(Refusal::Access));
        assert_eq!(region().check(Accessor::Local(Pd(1)), Access::NONE, 0x1000, 1), Ok(0x7000_0000));
    }
}
