//! The quirks ([`urxe_engine::quirks`]) of this device's objects: picked at run time, or none in a build that shows what
//! asking costs (`make cost`).

#[cfg(not(urxe_unobserved))]
mod built {
    /// Quirks of a queue pair.
    pub type Qp = urxe_engine::QpQuirks;
    /// Quirks of a completion queue.
    pub type Cq = Option<urxe_engine::CqDelay>;
    /// Quirks of a shared receive queue.
    pub type Srq = Option<urxe_engine::SrqOrder>;
}

#[cfg(urxe_unobserved)]
mod built {
    pub type Qp = ();
    pub type Cq = ();
    pub type Srq = ();
}

pub use built::{Cq, Qp, Srq};
