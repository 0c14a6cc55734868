//! End-to-end tests: stock programs against the built provider.
//!
//! Every test has a machine of its own, a [`World`]: private `/dev`, `/etc/libibverbs.d`, provider folder, `/var/lib`
//! and network. `urxe install` runs in there as it does on a real machine, whatever is or is not installed outside;
//! nothing on the machine changes, tests run in parallel, and what a world holds goes away with it, also when the test
//! is killed. Worlds need root or user namespaces.
//!
//! # Stock programs
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! use urxe_tests::{PingPong, World};
//! let world = World::new()?; //                                urxe is installed, `lo` is up
//! let host = world.host();
//! host.run("ibv_devinfo", &["-d", "urxe0"])?; //               fails when the program does, with its output
//! PingPong { size: 1, ..PingPong::default() }.run(host, host)?;
//! let other = world.add_host()?; //                            another network namespace, same machine otherwise
//! world.link(host, &other, 1500)?; //                          a veth pair; urxe0 now sits on it on both hosts
//! PingPong::default().run(host, &other)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Tests that call libibverbs themselves
//! [`in_world`] runs the test's body in a process of its own inside a fresh world, with `SYSFS_PATH` set from the start,
//! so that linking libibverbs and `dlopen`ing it both work, and a crash fails this test only:
//! ```no_run
//! #[test]
//! fn the_device_opens() {
//!     urxe_tests::in_world(|| {
//!         // ibv_get_device_list(), ibv_open_device(), ...; /dev/infiniband and urxe0 (on lo) are there
//!         Ok(())
//!     });
//! }
//! ```
//!
//! [`verbs`] is libibverbs with owners and `Result`s, for such tests; [`rdmacm`] is librdmacm.
//!
//! # Which library is tested
//! The release build. `make test` builds it and passes its folder in `URXE_BIN_DIR`; without that variable the harness
//! asks `cargo build --release` for it, which rebuilds what is older than its sources ([`artifacts`]).

pub mod artifacts;
mod capture;
mod copy;
pub mod descriptors;
pub mod documents;
pub mod forward;
mod infiniband;
mod inside;
mod launcher;
pub mod opensm;
mod perftest;
mod pingpong;
mod process;
mod procfs;
pub mod raw_ethernet;
pub mod rdmacm;
pub mod requirements;
pub mod sandbox;
pub mod scapy;
mod snapshot;
mod status;
mod stderr;
mod terminal;
pub mod verbs;
mod world;

pub use capture::{Capture, Fields, dissect, without_segmentation_offload};
pub use copy::{copy_program, write_program};
pub use infiniband::{DIAGNOSTICS, REFUSED_DIAGNOSTICS, Subnet, ask_again, compile_mad_program};
pub use inside::{in_world, in_world_over_udp, in_world_with, is_inside};
pub use launcher::Launcher;
pub use perftest::Perftest;
pub use pingpong::{GID_DEFAULT, GID_IPV4, GID_IPV6, Pair, PingPong, ping_pong, wait_for_listener};
pub use process::{Finished, Process, TIMEOUT};
pub use procfs::{Leftovers, memory_of_our_own, memory_of_our_share, port_owner, wakes_of_our_thread};
pub use snapshot::Snapshot;
pub use status::{devices, host_counter, host_counters, own_counter, own_status, wait_for_device, wait_for_devices};
pub use stderr::Stderr;
pub use terminal::Terminal;
pub use world::{Host, World, wait_until, wait_within};
