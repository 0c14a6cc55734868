//! The provider library that the stock libibverbs loads.
//!
//! ```text
//! libibverbs ─▶ edge/      extern "C", pointers, errno          ─▶ verbs/    what each call means, in safe code
//!            ─▶ kernel/    what libibverbs asks a kernel for
//!                                                                  cm/       ids and events of rdma_cm
//!                                                                  mad/      agents for management datagrams
//!                                                                  status/   how the device is, for those who ask
//! ```
//!
//! The engine (`urxe-engine`) is the transport, `urxe-net` the sockets, `urxe-runtime` the device with its threads and locks,
//! `urxe-ffi` the ABI. `unsafe` is in `edge/`, `kernel/` and, for single system calls, beside who makes them.

mod cm;
mod device;
mod edge;
pub mod kernel;
mod mad;
mod status;
mod verbs;
