//! The send side: packets collected into batches, and handed to the kernel in GSO runs, put into shared memory, or kept for a
//! queue pair of this process.

pub mod batch;
mod gso;
pub mod inside;
mod segments;
