//! Keys that are used when what they stood for is gone, or stand for something else.

use std::collections::{HashMap, VecDeque};

use urxe_engine::{Instant, Key};

/// Regions that are remembered after their end, and keys that a window has had.
const MOST_DEAD: usize = 4096;
const MOST_KEYS: usize = 16;

/// A region that was deregistered.
#[derive(Clone, Debug)]
pub(super) struct Dead {
    pub(super) iova: u64,
    pub(super) length: u64,
    pub(super) at: Instant,
    /// Place in the program.
    pub(super) site: Option<String>,
}

/// Keys of the past.
#[derive(Debug, Default)]
pub(super) struct Keys {
    dead: HashMap<Key, Dead>,
    /// Keys of `dead`, oldest first.
    order: VecDeque<Key>,
    /// The low bits that each window was bound with lately, by its index.
    bound: HashMap<u32, VecDeque<u8>>,
}

impl Keys {
    /// A region was deregistered. Returns another that is not remembered any more.
    pub(super) fn bury(&mut self, key: Key, dead: Dead) -> Option<Key> {
        if self.dead.insert(key, dead).is_some() {
            self.order.retain(|other| *other != key);
        }
        self.order.push_back(key);
        let oldest = if self.order.len() > MOST_DEAD { self.order.pop_front() } else { None };
        oldest.inspect(|oldest| {
            self.dead.remove(oldest);
        })
    }

    /// The region that had this key.
    pub(super) fn dead(&self, key: Key) -> Option<&Dead> {
        self.dead.get(&key)
    }

    /// A window is bound under this key. True if it was lately.
    pub(super) fn bind(&mut self, key: Key) -> bool {
        let [tag, ..] = key.0.to_le_bytes();
        let tags = self.bound.entry(key.0 >> 8).or_default();
        let again = tags.contains(&tag);
        if tags.len() == MOST_KEYS {
            tags.pop_front();
        }
        tags.push_back(tag);
        again
    }

    /// A window is no more.
    pub(super) fn forget_window(&mut self, key: Key) {
        self.bound.remove(&(key.0 >> 8));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_come_back() {
        let mut keys = Keys::default();
        assert!(!keys.bind(Key(0x101)) && !keys.bind(Key(0x102)) && !keys.bind(Key(0x201)));
        assert!(keys.bind(Key(0x101)));
        for tag in 3..=0x12 {
            assert!(!keys.bind(Key(0x100 | tag)));
        }
        assert!(!keys.bind(Key(0x101)), "long ago");
        keys.forget_window(Key(0x101));
        assert!(!keys.bind(Key(0x112)));
    }

    #[test]
    fn the_dead_are_not_remembered_for_ever() {
        let mut keys = Keys::default();
        let dead = Dead { iova: 0, length: 1, at: Instant::from_nanos(0), site: None };
        let most = u32::try_from(MOST_DEAD).unwrap();
        for key in 0..most {
            assert_eq!(keys.bury(Key(key), dead.clone()), None);
        }
        assert_eq!(keys.bury(Key(most), dead.clone()), Some(Key(0)));
        assert!(keys.dead(Key(0)).is_none() && keys.dead(Key(1)).is_some());
        // The key that died last stays longest, also if it is its second time.
        assert_eq!(keys.bury(Key(1), dead.clone()), None);
        assert_eq!(keys.bury(Key(most + 1), dead), Some(Key(2)));
        assert!(keys.dead(Key(1)).is_some());
    }
}
