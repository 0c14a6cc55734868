//! Side by side: what stock RDMA programs reach over urxe, and what else this machine can do, in one run.
//!
//! [`programs`] runs one program and reads its figures, [`bare`] is UDP with nothing of urxe around it, [`ethernet`] are frames, [`raw`] runs those beside urxe's, [`paths`] runs streams over several paths, [`own`] measures
//! what no stock program does, [`suite`] says what is measured and which figures are compared, [`sample`] holds what was
//! measured, [`report`] prints it; [`curves`] measures how figures depend on sizes, queue pairs and losses, and [`plot`]
//! draws that. [`cost`] measures what being ready to be looked at costs when nobody looks. [`threads`] measures threads of one process beside
//! processes, [`dialogue`] two that talk with each other, [`load`] programs on a machine that has no processor to spare. [`trials`] are other ways
//! to send and receive UDP.

pub mod bare;
pub mod cost;
pub mod curves;
pub mod dialogue;
mod ends;
pub mod ethernet;
pub mod load;
pub mod own;
pub mod paths;
pub mod plot;
pub mod programs;
pub mod raw;
pub mod report;
pub mod sample;
pub mod suite;
pub mod threads;
pub mod trials;
