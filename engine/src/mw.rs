//! Memory windows, and the table they share with regions.
//!
//! A window opens a part of a region to peers, under a key of its own, without the cost of registering. Type 1 is
//! bound by `ibv_bind_mw`, belongs to a protection domain, and is closed by binding it to nothing; type 2B is bound
//! by a send request with a key of the consumer's choice, serves one queue pair, and is closed by invalidation,
//! local or by the peer (IBA 10.6.7).

use alloc::sync::Arc;

use urxe_wire::Qpn;

use crate::access::Access;
use crate::key::{Key, KeyTable, TableFull};
use crate::mr::{Pd, Refusal, Region, RegionKind};

/// The two types of memory windows (`enum ibv_mw_type`); type 2 is 2B.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the names are the specification's")]
pub enum WindowType {
    One,
    Two,
}

/// Parameters of a bind (`struct ibv_mw_bind_info`, IBA 11.4.1.1 "bind memory window").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bind {
    /// The window: of type 2 by the key that it has, of type 1 by any that it has had. `ibv_bind_mw(3)` tells the
    /// application a new key whether or not the bind succeeds, so the application cannot know the present one.
    pub window: Key,
    /// The key it shall have: another one, but for the low eight bits the same.
    pub new_key: Key,
    /// The region, by its L_Key.
    pub region: Key,
    /// Access of peers.
    pub access: Access,
    /// First address, in terms of the region.
    pub addr: u64,
    /// Bytes; none unbinds a window of type 1.
    pub length: u64,
}

/// Why a window is not bound: the request completes with a memory window bind error.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BindError {
    /// The window's key is not that of a window.
    #[error("the key is not that of a memory window")]
    NoSuchWindow,
    /// Window, region and queue pair are not of one protection domain.
    #[error("window, region and queue pair belong to different protection domains")]
    OtherPd,
    /// A type 2 window that is bound already (IBA C10-72).
    #[error("the type 2 window is bound already")]
    Bound,
    /// The new key is that of another entry.
    #[error("the new key is that of another window or region")]
    NewKey,
    /// The region's key is not that of a region.
    #[error("the key is not that of a region")]
    NoSuchRegion,
    /// The region does not allow windows, or not with that access, or counts from 0 (IBA C10-73 to C10-75); or a type 1
    /// window shall count from 0 (IBA o10-36.2.2).
    #[error("neither region nor window allow such a window")]
    Access,
    /// The window leaves the region, or has no bytes, which type 2 cannot do (IBA C10-75).
    #[error("the window leaves the region, or is empty")]
    OutOfBounds,
}

/// A memory window.
#[derive(Debug)]
pub struct Window {
    pd: Pd,
    kind: WindowType,
    /// The part of memory that peers see, and the region behind it.
    bound: Option<(Arc<Region>, Key)>,
}

impl Window {
    /// Checks the rules of binding. Returns the part of memory that peers would see, or `None` for nothing.
    fn bind(&self, pd: Pd, qpn: Qpn, region: Option<&Region>, bind: &Bind) -> Result<Option<Region>, BindError> {
        if self.pd != pd {
            return Err(BindError::OtherPd);
        }
        if self.kind == WindowType::Two {
            //= spec/memory.md#mem-016
            //# A type 2 window that is not bound MUST be bound under any key that its consumer chooses, also the one it has.
            if self.bound.is_some() {
                return Err(BindError::Bound);
            }
            if bind.length == 0 {
                return Err(BindError::OutOfBounds);
            }
        } else if bind.access.contains(Access::ZERO_BASED) {
            //= spec/memory.md#mem-012
            //# A type 1 window MUST NOT be bound zero-based.
            return Err(BindError::Access);
        } else if bind.length == 0 {
            return Ok(None);
        }
        let region = region.ok_or(BindError::NoSuchRegion)?;
        //= spec/memory.md#mem-004
        //# A window MUST be bound only within the protection domain of window, region and queue pair.
        if region.pd != pd {
            return Err(BindError::OtherPd);
        }
        let changes = bind.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        if !region.access.contains(Access::MW_BIND)
            || region.access.contains(Access::ZERO_BASED)
            || (changes && !region.access.contains(Access::LOCAL_WRITE))
        {
            return Err(BindError::Access);
        }
        let offset = bind.addr.checked_sub(region.iova).ok_or(BindError::OutOfBounds)?;
        let end = offset.checked_add(bind.length).ok_or(BindError::OutOfBounds)?;
        if end > region.length {
            return Err(BindError::OutOfBounds);
        }
        let zero_based = bind.access.contains(Access::ZERO_BASED);
        Ok(Some(Region {
            key: bind.new_key,
            pd,
            access: bind.access,
            iova: if zero_based { 0 } else { bind.addr },
            length: bind.length,
            host: region.host.wrapping_add(offset),
            kind: RegionKind::Window((self.kind == WindowType::Two).then_some(qpn)),
        }))
    }
}

#[derive(Debug)]
enum Entry {
    Region {
        region: Arc<Region>,
        /// Windows bound to it.
        windows: u32,
    },
    Window(Window),
}

/// Why an entry of the table cannot be changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TableError {
    /// The key names nothing, or something else.
    #[error("no such region or window")]
    NoSuchKey,
    /// Windows are bound to the region (`ibv_dereg_mr(3)`, IBA 11.2.8.4).
    #[error("windows are bound to the region")]
    Bound,
}

/// All regions and memory windows of a device.
///
/// Regions taken out of use are handed back as long as another thread may be copying from or to them: a caller that must be sure
/// that nobody is, waits until the `Arc` is the only one.
#[derive(Debug)]
pub struct RegionTable(KeyTable<Entry>);

impl RegionTable {
    /// A table of up to `most` entries; `seed` decides the low bits of keys.
    #[must_use]
    pub fn new(most: usize, seed: u64) -> Self {
        Self(KeyTable::new(most, seed))
    }

    /// The memory that a key gives access to: a region, or a window that is bound.
    #[must_use]
    pub fn get(&self, key: Key) -> Option<&Arc<Region>> {
        match self.0.get(key)? {
            Entry::Region { region, .. } => Some(region),
            Entry::Window(window) => window.bound.as_ref().map(|(region, _)| region),
        }
    }

    /// Number of regions and windows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the table is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Every region. Windows are not among them.
    pub fn regions(&self) -> impl Iterator<Item = &Region> {
        self.0.values().filter_map(|entry| match entry {
            Entry::Region { region, .. } => Some(&**region),
            Entry::Window(_) => None,
        })
    }

    /// Adds the region that `make` makes for its key.
    ///
    /// # Errors
    /// [`TableFull`].
    pub fn insert(&mut self, make: impl FnOnce(Key) -> Region) -> Result<Key, TableFull> {
        self.0.insert(|key| Entry::Region { region: Arc::new(make(key)), windows: 0 })
    }

    /// Puts `region` into the place of the one that has its key. Returns the old one.
    ///
    /// # Errors
    /// [`TableError`]; the table is as it was.
    pub fn replace(&mut self, new: Region) -> Result<Arc<Region>, TableError> {
        match self.0.get_mut(new.key) {
            Some(Entry::Region { windows: 1.., .. }) => Err(TableError::Bound),
            Some(Entry::Region { region, .. }) => Ok(core::mem::replace(region, Arc::new(new))),
            Some(Entry::Window(_)) | None => Err(TableError::NoSuchKey),
        }
    }

    /// Removes a region.
    ///
    /// # Errors
    /// [`TableError`]; the table is as it was.
    pub fn remove(&mut self, key: Key) -> Result<Arc<Region>, TableError> {
        match self.0.get(key) {
            Some(Entry::Region { windows: 1.., .. }) => return Err(TableError::Bound),
            Some(Entry::Region { .. }) => {}
            Some(Entry::Window(_)) | None => return Err(TableError::NoSuchKey),
        }
        match self.0.remove(key) {
            Some(Entry::Region { region, .. }) => Ok(region),
            Some(Entry::Window(_)) | None => Err(TableError::NoSuchKey),
        }
    }

    /// Adds a window that is not bound.
    ///
    /// # Errors
    /// [`TableFull`].
    pub fn insert_window(&mut self, pd: Pd, kind: WindowType) -> Result<Key, TableFull> {
        self.0.insert(|_| Entry::Window(Window { pd, kind, bound: None }))
    }

    /// Removes a window, bound or not; `key` may be one that it had before. Returns what it gave access to.
    ///
    /// # Errors
    /// [`TableError::NoSuchKey`].
    pub fn remove_window(&mut self, key: Key) -> Result<Option<Arc<Region>>, TableError> {
        let present = self.0.present(key).ok_or(TableError::NoSuchKey)?;
        if !matches!(self.0.get(present), Some(Entry::Window(_))) {
            return Err(TableError::NoSuchKey);
        }
        let closed = self.close(present);
        self.0.remove(present);
        Ok(closed)
    }

    /// Binds a window on behalf of the queue pair `qpn` of `pd`. Returns what it gave access to before.
    ///
    /// # Errors
    /// The rule broken; the table is as it was.
    pub fn bind(&mut self, pd: Pd, qpn: Qpn, bind: &Bind) -> Result<Option<Arc<Region>>, BindError> {
        let present = self.0.present(bind.window).ok_or(BindError::NoSuchWindow)?;
        let Some(Entry::Window(window)) = self.0.get(present) else { return Err(BindError::NoSuchWindow) };
        if window.kind == WindowType::Two && present != bind.window {
            return Err(BindError::NoSuchWindow);
        }
        let region = match self.0.get(bind.region) {
            Some(Entry::Region { region, .. }) => Some(&**region),
            Some(Entry::Window(_)) | None => None,
        };
        let visible = window.bind(pd, qpn, region, bind)?;
        if !self.0.rekey(present, bind.new_key) {
            return Err(BindError::NewKey);
        }
        let before = self.close(bind.new_key);
        if let Some(visible) = visible {
            if let Some(Entry::Region { windows, .. }) = self.0.get_mut(bind.region) {
                *windows += 1;
            }
            if let Some(Entry::Window(window)) = self.0.get_mut(bind.new_key) {
                window.bound = Some((Arc::new(visible), bind.region));
            }
        }
        Ok(before)
    }

    /// Takes back a bind on behalf of the queue pair `qpn`, unless something else has become of the window since: the
    /// window is closed, and a type 2 window has the key of before. Returns what it gave access to.
    ///
    /// A type 1 window does not show again what it showed before: its region may be gone.
    pub fn undo_bind(&mut self, qpn: Qpn, bind: &Bind) -> Option<Arc<Region>> {
        let Some(Entry::Window(window)) = self.0.get(bind.new_key) else { return None };
        let kind = window.kind;
        let foreign =
            |(region, _): &(Arc<Region>, _)| matches!(region.kind, RegionKind::Window(Some(owner)) if owner != qpn);
        if window.bound.as_ref().is_some_and(foreign) {
            return None;
        }
        let closed = self.close(bind.new_key);
        if kind == WindowType::Two {
            self.0.rekey(bind.new_key, bind.window);
        }
        closed
    }

    /// Unbinds a type 2 window on behalf of the queue pair it is bound to (IBA 10.6.7.2.6). Its key means nothing
    /// until it is bound again. Returns what it gave access to.
    ///
    /// # Errors
    /// [`Refusal`] of a key that may not be invalidated.
    pub fn invalidate(&mut self, pd: Pd, qpn: Qpn, key: Key) -> Result<Arc<Region>, Refusal> {
        let (visible, kind) = match self.0.get(key) {
            Some(Entry::Window(window)) => {
                (window.bound.as_ref().map(|(region, _)| region).ok_or(Refusal::NoSuchKey)?, window.kind)
            }
            // Regions of user space are not made to be invalidated, as on the kernel's rxe (`rxe_invalidate_mr`).
            Some(Entry::Region { .. }) => return Err(Refusal::Access),
            None => return Err(Refusal::NoSuchKey),
        };
        // Type 1 cannot be invalidated (IBA o10-37.2.26).
        if kind == WindowType::One {
            return Err(Refusal::Access);
        }
        if visible.pd != pd || visible.kind != RegionKind::Window(Some(qpn)) {
            return Err(Refusal::OtherPd);
        }
        self.close(key).ok_or(Refusal::NoSuchKey)
    }

    fn close(&mut self, key: Key) -> Option<Arc<Region>> {
        let Some(Entry::Window(window)) = self.0.get_mut(key) else { return None };
        let (visible, behind) = window.bound.take()?;
        if let Some(Entry::Region { windows, .. }) = self.0.get_mut(behind) {
            *windows = windows.saturating_sub(1);
        }
        Some(visible)
    }
}

#[cfg(test)]
mod tests;
