//! Thread domains, each with a parent domain of its own.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use urxe_ffi::verbs as v;

use super::context::Context;
use super::handle::Handle;
use super::memory::Pd;

/// A thread domain, the protection domain that it stands in, and the parent domain of both (`ibv_alloc_parent_domain(3)`).
pub struct ThreadDomain {
    parent: Arc<Pd>,
    // Freed after the parent domain, in this order.
    _thread: Handle<v::ibv_td>,
    _pd: Arc<Pd>,
}

impl ThreadDomain {
    /// `ibv_alloc_td(3)` and `ibv_alloc_parent_domain(3)`.
    pub fn new(context: &Arc<Context>) -> Result<Self> {
        let pd = Pd::new(context)?;
        // SAFETY: a live context has an extended one around it, whose functions take objects of that context.
        let (thread, parent) = unsafe {
            let ops = &*context.extended();
            let alloc = ops.alloc_td.context("no ibv_alloc_td")?;
            let dealloc = ops.dealloc_td.context("no ibv_dealloc_td")?;
            let thread = Handle::new(alloc(context.raw(), &mut v::ibv_td_init_attr { comp_mask: 0 }), dealloc)?;
            let mut attr = std::mem::zeroed::<v::ibv_parent_domain_init_attr>();
            (attr.pd, attr.td) = (pd.raw(), thread.raw());
            let alloc = ops.alloc_parent_domain.context("no ibv_alloc_parent_domain")?;
            (thread, Pd::of_raw(context, alloc(context.raw(), &raw mut attr))?)
        };
        Ok(Self { parent, _thread: thread, _pd: pd })
    }

    /// Parent domain, for objects that the thread is to use. They are destroyed before this.
    pub const fn parent(&self) -> &Arc<Pd> {
        &self.parent
    }
}
