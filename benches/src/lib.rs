//! Side by side: what stock RDMA programs reach over urxe, and what else this machine can do, in one run.
//!
//! [`programs`] runs one program and reads its figures, [`bare`] is UDP with nothing of urxe around it, [`suite`] says
//! what is measured and which figures are compared, [`sample`] holds what was measured, [`report`] prints it.

pub mod bare;
pub mod programs;
pub mod report;
pub mod sample;
pub mod suite;
