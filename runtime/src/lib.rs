//! RoCE v2 devices in a process: threads, locks and the clock around [`urxe_engine`], sockets from [`urxe_net`], without
//! anything of libibverbs.
//!
//! A [`device::Device`] has the sockets of an interface, queue pairs, registered memory and timers. [`device::Device::open`] opens the sockets;
//! [`fork::remember`] closes them in forked children, and [`progress::start`] starts the background thread that receives while no
//! application polls. A thread that polls a completion queue receives for all queue pairs.
//!
//! | module | holds |
//! |---|---|
//! | [`device`] | sockets, queue pairs, regions, timers; receiving and answering |
//! | [`qp`], [`cq`], [`srq`], [`counter`] | objects that several threads may use |
//! | [`progress`] | polling and the background thread; one policy, whose constants are in `progress::tuning` |
//! | [`memory`] | registered memory, and copies that survive faults |
//! | `direct` | requests between processes of one host without packets |
//! | [`host`] | the engine's [`urxe_engine::Host`], made of the above |
//! | [`interceptor`] | the one hook for captures, explanations and faults |
//! | [`event`], [`async_events`], [`port_events`] | events for the application |
//! | [`groups`], [`gsi`] | multicast; datagrams to QP1 |
//! | [`raw`] | raw Ethernet: queue pairs of frames, flow rules |
//! | [`xrc`] | XRC domains that processes share |
//! | [`fork`], [`fork_safe_mutex`] | fork(2): a child has no device, and finds tables whole |
//! | [`clock`], [`limits`], [`quirks`] | time; limits of the device; rare but legal behaviour |
//! | [`threads`] | what threads of the library ask for, and keep from |
//! | [`sanitizer`] | what sanitizers and valgrind are told |
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use urxe_net::Interface;
//! use urxe_runtime::device::{Device, OpenOptions};
//! use urxe_runtime::{fork, progress};
//!
//! let interface = Interface::by_name("lo").expect("an interface");
//! let device = Arc::new(Device::open("urxe0", interface, OpenOptions::default()).expect("RoCE's port"));
//! fork::remember(&device);
//! let thread = progress::start(Arc::clone(&device)).expect("a thread");
//! println!("{:?}", device.net().interface().gids());
//! ```
//!
//! # Enums
//!
//! [`event::EventType`] is `#[non_exhaustive]`, as the numbers of `enum ibv_event_type` are not all taken. The others are
//! exhaustive, and a new variant is a breaking change: each [`groups::GroupError`] and [`memory::maps::NotUsable`] has an errno
//! and advice of its own, each [`interceptor::Verdict`] is carried out, and whoever matches one shall learn of another from the
//! compiler.
//!
//! # Locks
//!
//! Locks are taken in this order: receive token ([`device::Device`]) → the ring of [`raw`] frames → flow rules → a queue pair's
//! engine → the table of regions, a shared queue, a completion queue → an event file.
//!
//! - No lock is held while the application's or libibverbs' code is called. The receive token and an engine's lock alone are held
//!   across system calls.
//! - An engine that works for an XRC SRQ of another process takes the lock of the connection to that process in the place of the
//!   SRQ's, and holds it until the process answers. The thread that answers takes no lock above the table of regions ([`xrc`]).
//! - A cached region ([`region_cache`](crate::memory::region_cache)) counts as a lock below the queue pair's engine:
//!   deregistration waits for the end of the turn. While one is cached, no lock above is taken, and no other process is waited for.
//! - What sending needs ([`device::Device::with_work`]) has no place in the order: a thread that finds it taken uses another.
//!   Deregistration alone waits for one, which keeps the region, and holds no lock meanwhile.
//! - A [`fork_safe_mutex`] is below all of these: its holder takes no other lock. A thread that forks takes the locks that [`fork`]
//!   keeps, and then keeps all other threads from the tables.

pub mod async_events;
mod backpressure;
pub mod clock;
pub mod counter;
mod counters;
pub mod cq;
pub mod port_events;

mod direct;
mod due;
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
pub mod per_thread;
pub mod progress;
pub mod qp;
pub mod quirks;
pub mod raw;

pub mod fork_safe_mutex;
mod run_queue;
pub mod sanitizer;
pub mod srq;
pub mod subnet;
pub mod threads;
mod timers;
mod try_lock;

pub mod xrc;

#[cfg(test)]
#[path = "../../net/tests/ports/user_namespace.rs"]
mod user_namespace;

pub use urxe_net::mutex::lock;
pub(crate) use urxe_net::mutex::{contended_locks, found_taken, try_lock};
