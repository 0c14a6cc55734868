//! The send side: packets collected into batches, and handed to the kernel in GSO runs or put into shared memory.

pub mod batch;
mod gso;
mod segments;
