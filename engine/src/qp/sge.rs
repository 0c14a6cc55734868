//! Copies between packets and what scatter/gather lists describe.

use crate::access::Access;
use crate::memory::{self, AccessRequest, Memory, MemoryOp};
use crate::mr::{Accessor, Pd, Refusal};
use crate::work::{Data, Sge, SgeList};

/// Copies the bytes from `offset` on of what `data` describes to `to`.
///
/// # Errors
/// The first access that is refused, or that `data` is too short.
#[inline(always)]
pub fn copy_payload<M: Memory>(memory: &M, pd: Pd, data: &Data, offset: usize, to: &mut [u8]) -> Result<(), Refusal> {
    match data {
        _ if to.is_empty() => Ok(()),
        Data::Inline(bytes) => {
            let from = bytes.get(offset..).and_then(|rest| rest.get(..to.len()));
            to.copy_from_slice(from.ok_or(Refusal::OutOfBounds)?);
            Ok(())
        }
        Data::Gather(list) => match list.as_slice() {
            // Nearly always there is one, and nothing to be gathered.
            [sge] if offset.saturating_add(to.len()) <= sge.length as usize => read(memory, pd, sge, offset, to),
            elements => gather(memory, pd, elements, offset, to),
        },
    }
}

/// Copies the bytes from `offset` on of what `elements` describe to `to`.
#[inline(never)]
fn gather<M: Memory>(memory: &M, pd: Pd, elements: &[Sge], offset: usize, to: &mut [u8]) -> Result<(), Refusal> {
    let (mut skip, mut to) = (offset, to);
    for sge in elements {
        let length = sge.length as usize;
        if skip >= length {
            skip -= length;
            continue;
        }
        if to.is_empty() {
            break;
        }
        let (part, rest) = to.split_at_mut((length - skip).min(to.len()));
        read(memory, pd, sge, skip, part)?;
        (skip, to) = (0, rest);
    }
    if to.is_empty() { Ok(()) } else { Err(Refusal::OutOfBounds) }
}

/// Copies the bytes from `skip` on of what `sge` describes to `to`.
#[inline(always)]
fn read<M: Memory>(memory: &M, pd: Pd, sge: &Sge, skip: usize, to: &mut [u8]) -> Result<(), Refusal> {
    let va = sge.addr.checked_add(skip as u64).ok_or(Refusal::OutOfBounds)?;
    memory::access(memory, &access_request(pd, sge, Access::NONE, va, to.len()), MemoryOp::Read(to)).map(drop)
}

const fn access_request(pd: Pd, sge: &Sge, access: Access, va: u64, length: usize) -> AccessRequest {
    AccessRequest { by: Accessor::Local(pd), key: sge.key(), access, va, length: length as u64 }
}

/// Copies `from` to the bytes from `offset` on of what `list` describes.
///
/// # Errors
/// The first access that is refused, or that `list` is too short; what comes before was written.
pub fn scatter<M: Memory>(memory: &M, pd: Pd, list: &SgeList, offset: usize, from: &[u8]) -> Result<(), Refusal> {
    let (mut skip, mut from) = (offset, from);
    for sge in list.as_slice() {
        let length = sge.length as usize;
        if skip >= length {
            skip -= length;
            continue;
        }
        if from.is_empty() {
            break;
        }
        let (part, rest) = from.split_at((length - skip).min(from.len()));
        let va = sge.addr.checked_add(skip as u64).ok_or(Refusal::OutOfBounds)?;
        memory::access(memory, &access_request(pd, sge, Access::LOCAL_WRITE, va, part.len()), MemoryOp::Write(part))?;
        (skip, from) = (0, rest);
    }
    if from.is_empty() { Ok(()) } else { Err(Refusal::OutOfBounds) }
}
