//! L_Keys and R_Keys, and the table that finds what they name.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::rng::Rng;

/// A local key or a remote key: eight random low bits and the index of a table entry.
///
/// Regions have one number for both (`ibv_mr.lkey`, `.rkey`), as on the kernel's rxe.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Key(pub u32);

/// Entries found by key in constant time. A key that was removed does not come back soon: the random low bits change with
/// every use of an entry.
#[derive(Debug)]
pub struct KeyTable<T> {
    entries: Vec<Entry<T>>,
    /// Longest free first: what was freed rests while others are used.
    free: VecDeque<u32>,
    rng: Rng,
    most: usize,
}

#[derive(Debug)]
struct Entry<T> {
    tag: u8,
    value: Option<T>,
}

/// The table is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the table is full")]
pub struct TableFull;

impl<T> KeyTable<T> {
    /// A table of up to `most` entries (at most 2^24 - 1); `seed` decides the low bits of keys.
    #[must_use]
    pub fn new(most: usize, seed: u64) -> Self {
        Self { entries: Vec::new(), free: VecDeque::new(), rng: Rng::new(seed), most: most.min((1 << 24) - 1) }
    }

    /// Adds what `make` returns for its key.
    ///
    /// # Errors
    /// [`TableFull`]; `make` is not called then.
    pub fn insert(&mut self, make: impl FnOnce(Key) -> T) -> Result<Key, TableFull> {
        let index = match self.free.pop_front() {
            Some(index) => index,
            None if self.entries.len() < self.most => {
                self.entries.push(Entry { tag: self.rng.next_u8(), value: None });
                u32::try_from(self.entries.len() - 1).map_err(|_| TableFull)?
            }
            None => return Err(TableFull),
        };
        let step = 1 + self.rng.next_u8() % 254;
        let entry = self.entries.get_mut(index as usize).ok_or(TableFull)?;
        //= spec/memory.md#mem-006
        //# The key of memory that was deregistered MUST NOT be the next one given.
        entry.tag = entry.tag.wrapping_add(step);
        // Index 0 would make small, plausible-looking keys; keys start at entry 1.
        let key = Key((index + 1) << 8 | u32::from(entry.tag));
        entry.value = Some(make(key));
        Ok(key)
    }

    /// The entry with `key`.
    #[must_use]
    pub fn get(&self, key: Key) -> Option<&T> {
        let entry = self.entries.get(Self::index(key)?)?;
        if entry.tag == Self::tag(key) { entry.value.as_ref() } else { None }
    }

    /// The entry with `key`, to be changed.
    #[must_use]
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let entry = self.entries.get_mut(Self::index(key)?)?;
        if entry.tag == Self::tag(key) { entry.value.as_mut() } else { None }
    }

    /// Gives the entry with `key` the low bits of `new`, which is its key then. `false` if that is not a key of the
    /// same entry.
    pub(crate) fn rekey(&mut self, key: Key, new: Key) -> bool {
        let same = Self::index(key) == Self::index(new);
        let entry = Self::index(key).and_then(|index| self.entries.get_mut(index));
        match entry.filter(|entry| same && entry.tag == Self::tag(key) && entry.value.is_some()) {
            Some(entry) => {
                entry.tag = Self::tag(new);
                true
            }
            None => false,
        }
    }

    /// The key that the entry of `key` has now, whatever low bits `key` has.
    pub(crate) fn present(&self, key: Key) -> Option<Key> {
        let entry = self.entries.get(Self::index(key)?)?;
        entry.value.is_some().then_some(Key((key.0 & !0xff) | u32::from(entry.tag)))
    }

    /// Takes the entry with `key` out.
    pub fn remove(&mut self, key: Key) -> Option<T> {
        let index = Self::index(key)?;
        let entry = self.entries.get_mut(index)?;
        if entry.tag != Self::tag(key) {
            return None;
        }
        let value = entry.value.take()?;
        self.free.push_back(u32::try_from(index).ok()?);
        Some(value)
    }

    /// Every entry.
    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().filter_map(|entry| entry.value.as_ref())
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Whether the table is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn index(key: Key) -> Option<usize> {
        (key.0 >> 8).checked_sub(1).map(|index| index as usize)
    }

    const fn tag(key: Key) -> u8 {
        key.0.to_le_bytes()[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= spec/memory.md#mem-006
    //= type=test
    //# The key of memory that was deregistered MUST NOT be the next one given.
    #[test]
    fn keys_do_not_come_back_at_once() {
        let mut table = KeyTable::new(1, 7);
        let first = table.insert(|key| key).unwrap();
        assert_eq!(table.insert(|key| key), Err(TableFull));
        assert_eq!(table.get(first), Some(&first));
        assert_eq!(table.remove(first), Some(first));
        assert_eq!(table.remove(first), None);
        let second = table.insert(|key| key).unwrap();
        assert_ne!(first, second);
        assert_eq!((table.get(first), table.get(Key(0)), table.get(Key(u32::MAX))), (None, None, None));
    }
}
