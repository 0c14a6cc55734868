//! Queue pairs by number, as packets look them up.

use alloc::vec::Vec;
use core::mem;

use urxe_wire::Qpn;

/// Places of the smallest table.
const SMALLEST: usize = 16;

/// A hash table from queue pair numbers to `T`: open addressing, linear probing, at most half full.
///
/// The numbers of a device are its own choice, so no peer can make many of them meet in one place, and the hash need not
/// be secret.
#[derive(Clone, Debug)]
pub struct QpnTable<T> {
    /// Places of the hash table: none, or as many as a power of two.
    places: Vec<Option<(Qpn, T)>>,
    len: usize,
}

impl<T> Default for QpnTable<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> QpnTable<T> {
    /// An empty table; it allocates nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self { places: Vec::new(), len: 0 }
    }

    /// Number of entries.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether the table has no entry.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The entry of `qpn`.
    #[inline]
    #[must_use]
    pub fn get(&self, qpn: Qpn) -> Option<&T> {
        // Not by `find`: a received packet would check the bounds twice.
        let mut at = self.home(qpn);
        loop {
            match self.places.get(at)? {
                Some((key, value)) if *key == qpn => return Some(value),
                Some(_) => at = self.next(at),
                None => return None,
            }
        }
    }

    /// The entry of `qpn`, to be changed.
    #[inline]
    #[must_use]
    pub fn get_mut(&mut self, qpn: Qpn) -> Option<&mut T> {
        let at = self.find(qpn)?;
        self.places.get_mut(at)?.as_mut().map(|(_, value)| value)
    }

    /// Whether `qpn` has an entry.
    #[must_use]
    pub fn contains(&self, qpn: Qpn) -> bool {
        self.get(qpn).is_some()
    }

    /// Enters `value` for `qpn`. Returns what was there before.
    pub fn insert(&mut self, qpn: Qpn, value: T) -> Option<T> {
        if let Some(before) = self.get_mut(qpn) {
            return Some(mem::replace(before, value));
        }
        if 2 * (self.len + 1) > self.places.len() {
            self.grow();
        }
        self.put(qpn, value);
        self.len += 1;
        None
    }

    /// Takes out the entry of `qpn`.
    pub fn remove(&mut self, qpn: Qpn) -> Option<T> {
        let mut hole = self.find(qpn)?;
        let (_, value) = self.places.get_mut(hole)?.take()?;
        self.len -= 1;
        // Entries behind the hole move up to where a search that begins at their home still finds them.
        let mut at = self.next(hole);
        while let Some(Some((key, _))) = self.places.get(at) {
            let distance = |from: usize, to: usize| to.wrapping_sub(from) & (self.places.len() - 1);
            let home = self.home(*key);
            if distance(home, at) >= distance(hole, at) {
                self.places.swap(hole, at);
                hole = at;
            }
            at = self.next(at);
        }
        Some(value)
    }

    /// All entries, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (Qpn, &T)> {
        self.places.iter().flatten().map(|(qpn, value)| (*qpn, value))
    }

    /// All values, in no order.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.iter().map(|(_, value)| value)
    }

    fn find(&self, qpn: Qpn) -> Option<usize> {
        let mut at = self.home(qpn);
        loop {
            match self.places.get(at)? {
                Some((key, _)) if *key == qpn => return Some(at),
                Some(_) => at = self.next(at),
                None => return None,
            }
        }
    }

    fn put(&mut self, qpn: Qpn, value: T) {
        let mut at = self.home(qpn);
        while let Some(Some(_)) = self.places.get(at) {
            at = self.next(at);
        }
        if let Some(place) = self.places.get_mut(at) {
            *place = Some((qpn, value));
        }
    }

    #[cold]
    fn grow(&mut self) {
        let room = (2 * self.places.len()).max(SMALLEST);
        let mut places = Vec::new();
        places.resize_with(room, || None);
        for (qpn, value) in mem::replace(&mut self.places, places).into_iter().flatten() {
            self.put(qpn, value);
        }
    }

    /// The place where a search for `qpn` begins: Fibonacci hashing (Knuth 6.4) spreads consecutive numbers.
    #[inline]
    fn home(&self, qpn: Qpn) -> usize {
        let spread = u64::from(qpn.get().wrapping_mul(0x9E37_79B9));
        // The upper bits of the product, as many as name a place.
        usize::try_from((spread * self.places.len() as u64) >> 32).unwrap_or(0)
    }

    #[inline]
    const fn next(&self, at: usize) -> usize {
        (at + 1) & (self.places.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;

    use super::*;
    use crate::rng::Rng;

    #[test]
    fn agrees_with_a_map() {
        let (mut table, mut map, mut rng) = (QpnTable::new(), BTreeMap::new(), Rng::new(1));
        // Miri takes a thousand times as long.
        let (rounds, step) = if cfg!(miri) { (500, 4096) } else { (20_000_u32, 1) };
        for round in 0..rounds {
            // Few numbers, many of them neighbours: collisions, and runs that wrap around.
            let qpn = Qpn::new(u32::try_from(rng.below(600)).unwrap() * if round.is_multiple_of(3) { 1 } else { 4096 });
            if rng.below(2) == 0 {
                assert_eq!(table.insert(qpn, round), map.insert(qpn, round));
            } else {
                assert_eq!(table.remove(qpn), map.remove(&qpn));
            }
            assert_eq!(table.len(), map.len());
            assert_eq!(table.get(qpn), map.get(&qpn));
        }
        for number in (0..600 * 4096).step_by(step) {
            assert_eq!(table.get(Qpn::new(number)), map.get(&Qpn::new(number)));
        }
        assert!(table.iter().collect::<BTreeMap<_, _>>().into_iter().eq(map.iter().map(|(qpn, value)| (*qpn, value))));
    }

    #[test]
    fn numbers_of_a_block_are_spread() {
        let mut table = QpnTable::new();
        for low in 0..256 {
            table.insert(Qpn::new(0x12_3400 | low), low);
        }
        let longest = table.places.iter().enumerate().filter_map(|(at, place)| {
            let (qpn, _) = place.as_ref()?;
            Some(at.wrapping_sub(table.home(*qpn)) & (table.places.len() - 1))
        });
        assert!(longest.max().unwrap() < 8);
    }

    #[test]
    fn an_empty_table_finds_nothing() {
        let mut table = QpnTable::<()>::default();
        assert!(table.is_empty() && table.get(Qpn::new(7)).is_none() && table.remove(Qpn::new(7)).is_none());
        assert!(!table.contains(Qpn::new(7)) && table.values().next().is_none());
    }
}
