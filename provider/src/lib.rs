//! The provider library that the stock libibverbs loads.
//!
//! ```text
//! libibverbs ─▶ edge/      extern "C", pointers, errno          ─▶ verbs/    what each call means, in safe code
//!            ─▶ kernel/    what libibverbs asks a kernel for       runtime/  threads, locks, clock around the engine
//!                                                                  memory/   the application's memory
//!                                                                  observe/  captures and explanations, if asked for
//!                                                                  xrc/      XRC domains shared with other processes
//!                                                                  cm/       ids and events of rdma_cm
//!                                                                  status/   how the device is, for those who ask
//! ```
//!
//! The engine (`urxe-engine`) is the transport, `urxe-net` the sockets, `urxe-ffi` the ABI. `unsafe` is in `edge/`,
//! `kernel/`, `memory/` and, for single system calls, beside who makes them.

mod cm;
mod counters;
mod device;
mod edge;
pub mod kernel;
mod limits;
mod memory;
mod observe;
mod runtime;
mod status;
mod verbs;
mod xrc;
