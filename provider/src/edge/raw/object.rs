//! Raw packet queue pairs as libibverbs holds them.

use std::cell::UnsafeCell;
use std::sync::{Arc, Mutex};

use urxe_ffi::driver::objects::verbs_qp;
use urxe_ffi::verbs as v;

use super::requests::Request;
use crate::edge::batch::{Builder, Building};
use crate::edge::users::{Use, Users};
use crate::kernel::Errno;
use crate::verbs::diagnostics;
use crate::verbs::objects::ProtectionDomain;
use crate::verbs::quota::Counted;
use urxe_runtime::raw::{Flow, RawQp, Rss, Target};

/// A group that a queue pair is attached to.
pub(super) struct Group {
    pub(super) address: [u8; 6],
    pub(super) flow: Flow,
}

/// Queues behind a raw packet queue pair.
pub(super) enum Kind {
    /// Queues of its own.
    Own(Arc<RawQp>),
    /// Work queues, by a table.
    Rss(Arc<Rss>),
}

impl Kind {
    /// Returns the receiver for flow rules.
    pub(super) fn target(&self) -> Target {
        match self {
            Self::Own(qp) => Target::Queue(Arc::clone(qp.recv_queue())),
            Self::Rss(rss) => Target::Rss(Arc::clone(rss)),
        }
    }
}

impl RawQpObject {
    /// Returns the queue pair with its queues.
    ///
    /// # Errors
    /// EOPNOTSUPP of one that only spreads frames over work queues.
    pub(super) fn own(&self) -> Result<&Arc<RawQp>, Errno> {
        match &self.kind {
            Kind::Own(qp) => Ok(qp),
            Kind::Rss(_) => Err(diagnostics::wrong(
                Errno(libc::EOPNOTSUPP),
                "the queue pair has an indirection table, and neither states nor queues of its own",
                "post to the work queues; send by another queue pair",
            )),
        }
    }
}

// SAFETY: `verbs` comes first.
unsafe impl Building for RawQpObject {
    type Request = Request;

    fn builder(&self) -> &Builder<Request> {
        &self.builder
    }

    fn max_inline(&self) -> u32 {
        self.max_inline
    }
}

/// An `ibv_qp` of ours, for frames.
#[repr(C)]
pub(super) struct RawQpObject {
    /// libibverbs writes there (state, events counted) while others refer to the rest.
    pub(super) verbs: UnsafeCell<verbs_qp>,
    pub(super) kind: Kind,
    pub(super) builder: Builder<Request>,
    pub(super) max_inline: u32,
    /// Groups that it is attached to.
    pub(super) groups: Mutex<Vec<Group>>,
    /// Flows to it.
    pub(super) users: Users,
    pub(super) domain: Arc<ProtectionDomain>,
    /// Keeps the objects that the queue pair uses from being destroyed.
    pub(super) used: Use,
    pub(super) _counted: Counted,
}

/// Returns the object behind an `ibv_qp` for frames.
///
/// # Safety
/// [`is_raw`](super::is_raw), and as there.
pub(super) unsafe fn object<'a>(qp: *mut v::ibv_qp) -> &'a RawQpObject {
    // SAFETY: such an `ibv_qp` is the start of a RawQpObject.
    unsafe { &*qp.cast::<RawQpObject>() }
}
