//! The application's memory: registered, checked, and touched without trusting it to be there.
//!
//! - [`faultable_copy`] copies from and to application memory; memory that is gone is an error, not a signal;
//! - `protected` copies from and to memory whose protection the application changed after registering it;
//! - [`mapping`] is memory of our own: device memory, dma-bufs;
//! - [`maps`] tells what is mapped, when memory is registered;
//! - `kept` has regions stay cached between the turns of a thread;
//! - `shared_pages` are those that peers of this host reach themselves;
//! - [`regions`] is the table of regions;
//! - [`region_cache`] is the engine's access to all of this.

pub mod faultable_copy;
pub(crate) mod kept;
pub mod mapping;
pub mod maps;
mod protected;
pub mod region_cache;
pub mod regions;
pub(crate) mod shared_pages;
