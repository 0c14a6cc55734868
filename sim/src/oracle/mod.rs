//! Traffic from a seed, a prediction of what must come of it, and the comparison.
//!
//! A [`Scenario`] says what two nodes, the network and the traffic are like; [`Scenario::from_seed`] chooses
//! one. [`Scenario::run`] carries it out and checks that, whatever the network did,
//!
//! - every signaled request and every receive completed exactly once, in order, with the right status, length,
//!   immediate data and bytes, and no unsignaled one did unless it failed;
//! - a success was told only when the peer had what was sent;
//! - atomics were carried out once each: words went through the values predicted;
//! - nothing outside of the buffers named was read or written;
//! - the bytes of WRITEs were stored once and in order, the last one last, but for nodes with the quirk `write-order`;
//! - a QP that failed did so with a status that fits, and then flushed everything behind, in order;
//! - nothing completed after that;
//! - it took no more packets than the losses explain.

mod area;
mod complaint;
mod plan;
mod run;
mod scenario;
mod space;
mod stream;
mod write_order;

pub use complaint::Complaint;
pub use plan::{ALL_VERBS, Plan, Planned, PlannedRecv, Poison, Style, Verb};
pub use run::Report;
pub use scenario::{Profile, Scenario};
pub use space::Piece;
