//! Lists of objects with their public members, for tools that look from outside (`rdma resource`).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use urxe_runtime::fork_safe_mutex::ForkSafeMutex;

/// Public members of an object: names of `urxe_status::resources`, and numbers.
pub(crate) type Members = Vec<(&'static str, u64)>;

/// Tells it; none if the object is just going.
type Describe = dyn Fn() -> Option<Members> + Send + Sync;

/// The objects of one kind, by numbers that are not used again soon.
pub(crate) struct Objects(ForkSafeMutex<Inner>);

struct Inner {
    last: u32,
    all: BTreeMap<u32, Arc<Describe>>,
}

impl Default for Objects {
    fn default() -> Self {
        Self(ForkSafeMutex::new(Inner { last: 0, all: BTreeMap::new() }))
    }
}

/// An object that is known for as long as this lives.
pub(crate) struct Tracked {
    objects: Arc<Objects>,
    number: u32,
}

impl Objects {
    /// Makes an object known. `describe` is given its number; what that returns is asked whenever somebody looks, and holds
    /// nothing that the object needs to be alone with.
    pub(crate) fn track<D>(self: &Arc<Self>, describe: impl FnOnce(u32) -> D) -> Tracked
    where
        D: Fn() -> Option<Members> + Send + Sync + 'static,
    {
        let number = self.0.with(|inner| {
            while inner.all.contains_key(&next(&mut inner.last)) {}
            inner.last
        });
        let describe: Arc<Describe> = Arc::new(describe(number));
        self.0.with(|inner| inner.all.insert(number, describe));
        Tracked { objects: Arc::clone(self), number }
    }

    /// Public members of all of them.
    pub(crate) fn describe(&self) -> Vec<Members> {
        let all: Vec<Arc<Describe>> = self.0.with(|inner| inner.all.values().cloned().collect());
        all.iter().filter_map(|describe| describe()).collect()
    }
}

/// The number after `last`, which is never 0.
fn next(last: &mut u32) -> u32 {
    *last = last.checked_add(1).unwrap_or(1);
    *last
}

impl Drop for Tracked {
    fn drop(&mut self) {
        drop(self.objects.0.with(|inner| inner.all.remove(&self.number)));
    }
}

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Objects")
    }
}

impl fmt::Debug for Tracked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tracked").field(&self.number).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_told_of_as_long_as_they_live() {
        let objects = Arc::new(Objects::default());
        let track = || objects.track(|number| move || Some(vec![("cqn", u64::from(number))]));
        let (first, second) = (track(), track());
        assert_eq!(objects.describe(), [[("cqn", 1)], [("cqn", 2)]]);
        drop(first);
        let _third = track();
        assert_eq!(objects.describe(), [[("cqn", 2)], [("cqn", 3)]], "numbers are not used again at once");
        drop(second);
        assert_eq!(objects.describe(), [[("cqn", 3)]]);
    }
}
