//! Memory with every key and every address: whatever the other end reads, writes or changes is there.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Deref;

use urxe_engine::{Access, Bind, BindError, Fault, Invalidation, Key, Memory, Pd, Refusal, Region, RegionKind};
use urxe_wire::Qpn;

/// Bytes of a page.
const PAGE: usize = 4096;
/// Pages that are kept, 128 MiB: the other end decides where it writes.
const PAGES: usize = 1 << 15;

/// Page and place in it.
fn place_of(address: u64) -> (u64, usize) {
    (address / PAGE as u64, usize::try_from(address % PAGE as u64).unwrap_or(0))
}

/// The protection domain of everything.
pub(crate) const PD: Pd = Pd(1);

/// Pages that have been written; the others are zero.
#[derive(Debug, Default)]
pub struct OpenMemory {
    pages: RefCell<HashMap<u64, Box<[u8]>>>,
}

impl OpenMemory {
    /// Writes bytes at an address.
    ///
    /// # Errors
    /// A page more than there is room for; the bytes before it are written.
    pub fn put(&self, at: u64, bytes: &[u8]) -> Result<(), Fault> {
        let mut pages = self.pages.borrow_mut();
        let (mut at, mut left) = (at, bytes);
        while !left.is_empty() {
            let (number, place) = place_of(at);
            if pages.len() >= PAGES && !pages.contains_key(&number) {
                return Err(Fault);
            }
            let (now, later) = left.split_at(left.len().min(PAGE - place));
            let page = pages.entry(number).or_insert_with(|| vec![0; PAGE].into());
            page[place..place + now.len()].copy_from_slice(now);
            (at, left) = (at.wrapping_add(now.len() as u64), later);
        }
        Ok(())
    }

    /// Reads `len` bytes at an address.
    #[must_use]
    pub fn get(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.copy(at, &mut bytes);
        bytes
    }

    fn copy(&self, at: u64, to: &mut [u8]) {
        let pages = self.pages.borrow();
        let (mut at, mut left) = (at, to);
        while !left.is_empty() {
            let (number, place) = place_of(at);
            let (now, later) = left.split_at_mut(left.len().min(PAGE - place));
            match pages.get(&number) {
                Some(page) => now.copy_from_slice(&page[place..place + now.len()]),
                None => now.fill(0),
            }
            (at, left) = (at.wrapping_add(now.len() as u64), later);
        }
    }

    fn word(&self, at: u64, new: impl FnOnce(u64) -> u64) -> Result<u64, Fault> {
        let mut old = [0; 8];
        self.copy(at, &mut old);
        let old = u64::from_ne_bytes(old);
        self.put(at, &new(old).to_ne_bytes())?;
        Ok(old)
    }
}

/// A region that is made when it is asked for.
struct Anything(Region);

impl Deref for Anything {
    type Target = Region;

    fn deref(&self) -> &Region {
        &self.0
    }
}

impl Memory for OpenMemory {
    fn region(&self, key: Key) -> Option<impl Deref<Target = Region>> {
        let access = Access::LOCAL_WRITE.bits() | Access::REMOTE_WRITE.bits() | Access::REMOTE_READ.bits();
        let access = Access::from_bits(access | Access::REMOTE_ATOMIC.bits());
        Some(Anything(Region { key, pd: PD, access, iova: 0, length: u64::MAX, host: 0, kind: RegionKind::Memory }))
    }

    fn read(&self, from: u64, to: &mut [u8]) -> Result<(), Fault> {
        self.copy(from, to);
        Ok(())
    }

    fn write(&self, to: u64, from: &[u8]) -> Result<(), Fault> {
        self.put(to, from)
    }

    fn compare_swap(&self, at: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
        self.word(at, |old| if old == compare { swap } else { old })
    }

    fn fetch_add(&self, at: u64, add: u64) -> Result<u64, Fault> {
        self.word(at, |old| old.wrapping_add(add))
    }

    fn flush(&self, _at: u64, _length: u64, _persistent: bool) -> Result<(), Fault> {
        Ok(())
    }

    fn bind(&self, _pd: Pd, _qpn: Qpn, _bind: &Bind) -> Result<(), BindError> {
        Ok(())
    }

    fn undo_bind(&self, _qpn: Qpn, _bind: &Bind) {}

    fn invalidate(&self, _pd: Pd, _qpn: Qpn, _key: Key, _how: Invalidation) -> Result<(), Refusal> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_holds_what_was_written() {
        let memory = OpenMemory::default();
        memory.put(0x7FFF_FFFF_FFFE, b"abcd").unwrap();
        assert_eq!(memory.get(0x7FFF_FFFF_FFFD, 6), b"\0abcd\0");
        assert_eq!(memory.fetch_add(64, 5), Ok(0));
        assert_eq!(memory.compare_swap(64, 5, 9), Ok(5));
        assert_eq!(memory.fetch_add(64, 0), Ok(9));
    }

    #[test]
    fn writes_all_over_are_bounded() {
        let memory = OpenMemory::default();
        let written = (0..100_000_u64).filter(|page| memory.put(page * 4096, &[1]).is_ok()).count();
        assert_eq!(written, PAGES);
        memory.put(5, b"there is this page").unwrap();
        assert_eq!(memory.put(PAGES as u64 * 4096 - 1, b"ab"), Err(Fault));
    }
}
