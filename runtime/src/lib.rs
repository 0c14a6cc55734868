//! Threads, locks and the clock around the engine.
//!
//! - [`device`]: what a device is in this process: sockets, queue pairs, regions, timers; receiving and answering;
//! - [`progress`]: who does it: whoever polls, else the background thread; [`watch`]: how it learns that polling stopped;
//! - [`qp`], [`cq`], [`srq`]: queue pairs, completion queues and shared receive queues that several threads may use;
//! - `slumber`: that the background thread oversleeps nothing;
//! - `moderation`: completion events that are put off;
//! - [`async_events`]: what the application is told of them besides completions; [`port_events`]: and of the port;
//! - [`poll_backoff`]: giving way to others on the same processor, and leaving it to them;
//! - `waiting`, `backpressure`: queue pairs that go on later, for others are to have a turn, or for there is no room;
//! - `clock_sampler`: how often those who poll look at the clock;
//! - [`habit`]: when an ACK waits for a request to go with; `pace`: how slow the machine is, on which such times depend;
//! - [`host`]: the engine's [`urxe_engine::Host`], made of the above;
//! - [`groups`], for multicast;
//! - [`gsi`]: datagrams to QP1;
//! - [`fork`]: a child has no device; [`table`]: and finds whole what the process knows; [`clock`].
//!
//! # Locks
//!
//! In the order in which they may be taken: receive token ([`device::Device`]) → a queue pair's engine → the table of
//! regions, a shared queue, a completion queue → an event file. No lock is held while calling the application's or
//! libibverbs' code; only the receive token and an engine's lock are held across system calls. While an engine works for an
//! XRC SRQ of another process, the lock of the line to that process is taken in its place, and held until it answers; who
//! answers there takes nothing above the table of regions ([`crate::xrc`]). A region at hand ([`region_cache`](crate::memory::region_cache))
//! counts as a lock below the queue pair's engine: whoever deregisters it waits for the end of the turn, so nothing above is
//! taken, and no other process waited for, while one is at hand. What sending needs ([`device::Device::with_work`]) has no
//! place in this order, as nobody waits for it: who finds it taken uses another. A [`table`] is below all of these: who is at
//! one takes nothing. Who forks takes what [`fork`] keeps, and then keeps everybody else from the tables.

pub mod async_events;
mod backpressure;
pub mod clock;
pub mod counter;
mod counters;
pub mod cq;
pub mod port_events;

pub mod event;
pub mod fork;

pub mod groups;
pub mod gsi;

pub mod host;

pub mod interceptor;
pub mod limits;
pub mod memory;
mod moderation;

pub mod device;
pub mod progress;
pub mod qp;
pub mod quirks;

pub mod fork_safe_mutex;
mod run_queue;
pub mod srq;
mod timers;

pub mod xrc;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, whatever a panicking thread left behind: a panic has made the device fatal already.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
