//! How many objects there may be: what `ibv_query_device` promises is all that there is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::diagnostics;
use super::tracked::{Members, Objects, Tracked};
use crate::kernel::Errno;
use urxe_runtime::limits;

/// Counts of a device's objects in this process. Memory regions are counted by their table.
#[derive(Debug)]
pub(crate) struct Quotas {
    pub(crate) qp: Quota,
    pub(crate) srq: Quota,
    pub(crate) cq: Quota,
    pub(crate) mw: Quota,
    pub(crate) pd: Quota,
    pub(crate) ah: Quota,
    pub(crate) comp_cntr: Quota,
    pub(crate) counters: Quota,
    pub(crate) ind_table: Quota,
    /// Open contexts, of which there may be any number.
    pub(crate) ctx: Arc<Objects>,
}

/// Limit and number of the objects of a kind.
#[derive(Debug)]
pub(crate) struct Quota {
    /// Attribute by which an application asks for the limit.
    name: &'static str,
    most: u32,
    used: Arc<AtomicU32>,
    objects: Arc<Objects>,
}

/// An object that counts, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Counted {
    used: Arc<AtomicU32>,
    objects: Arc<Objects>,
    tracked: Option<Tracked>,
}

impl Quotas {
    /// Quotas of a device that can have so many queue pair numbers.
    pub(crate) fn new(numbers: usize) -> Self {
        let numbers = u32::try_from(numbers).unwrap_or(u32::MAX);
        Self {
            qp: Quota::new("max_qp of ibv_query_device", limits::MAX_QP.min(numbers)),
            srq: Quota::new("max_srq of ibv_query_device", limits::MAX_SRQ),
            cq: Quota::new("max_cq of ibv_query_device", limits::MAX_CQ),
            mw: Quota::new("max_mw of ibv_query_device", limits::MAX_MW),
            pd: Quota::new("max_pd of ibv_query_device", limits::MAX_PD),
            ah: Quota::new("max_ah of ibv_query_device", limits::MAX_AH),
            comp_cntr: Quota::new("max_counters of ibv_query_comp_cntr_caps", limits::MAX_COMP_CNTR),
            counters: Quota::new("flow counters of a device", limits::MAX_FLOW_COUNTERS),
            ind_table: Quota::new("max_rwq_indirection_tables of ibv_query_device_ex", limits::MAX_RWQ_IND_TABLES),
            ctx: Arc::default(),
        }
    }
}

impl Quota {
    fn new(name: &'static str, most: u32) -> Self {
        Self { name, most, used: Arc::default(), objects: Arc::default() }
    }

    /// Returns the limit, as `ibv_query_device(3)` reports it.
    pub(crate) const fn most(&self) -> u32 {
        self.most
    }

    /// Counts an object more.
    ///
    /// # Errors
    /// ENOMEM if that would be too many.
    pub(crate) fn take(&self) -> Result<Counted, Errno> {
        let more = |used: u32| (used < self.most).then_some(used + 1);
        match self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => Ok(Counted { used: Arc::clone(&self.used), objects: Arc::clone(&self.objects), tracked: None }),
            Err(_) => Err(diagnostics::used_up(self.name, self.most)),
        }
    }

    /// Returns the objects that are [tracked](Counted::tracked).
    pub(crate) fn objects(&self) -> &Objects {
        &self.objects
    }
}

impl Counted {
    /// Has the object told of to those who look from outside ([`Objects::track`]).
    pub(crate) fn tracked<D>(mut self, describe: impl FnOnce(u32) -> D) -> Self
    where
        D: Fn() -> Option<Members> + Send + Sync + 'static,
    {
        self.tracked = Some(self.objects.track(describe));
        self
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.used.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_as_there_may_be() {
        let quota = Quota::new("max_cq", 2);
        let (_first, second) = (quota.take().unwrap(), quota.take().unwrap());
        assert_eq!(quota.take().unwrap_err(), Errno(libc::ENOMEM));
        assert_eq!(quota.take().unwrap_err(), Errno(libc::ENOMEM));
        drop(second);
        let _third = quota.take().unwrap();
        assert_eq!(quota.take().unwrap_err(), Errno(libc::ENOMEM));
    }
}
