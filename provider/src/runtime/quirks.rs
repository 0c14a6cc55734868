//! The quirks ([`urxe_engine::quirks`]) of this device's objects: picked at run time, or none in a build that shows what
//! asking costs (`make cost`).

#[cfg(not(urxe_unobserved))]
mod built {
    /// Quirks of a queue pair.
    pub(crate) type Qp = urxe_engine::QpQuirks;
    /// Quirks of a completion queue.
    pub(crate) type Cq = Option<urxe_engine::CqDelay>;
    /// Quirks of a shared receive queue.
    pub(crate) type Srq = Option<urxe_engine::SrqOrder>;
}

#[cfg(urxe_unobserved)]
mod built {
    pub(crate) type Qp = ();
    pub(crate) type Cq = ();
    pub(crate) type Srq = ();
}

pub(crate) use built::{Cq, Qp, Srq};
