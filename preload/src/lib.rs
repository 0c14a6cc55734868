//! Functions that `liburxe.so` puts in front of libc's when `urxe run` preloads it.
//!
//! Programs find RDMA devices by paths that are compiled into them (`/sys/class/infiniband`, `/dev/infiniband`) and by a
//! netlink socket. `urxe run` makes a folder that holds what these paths should show, names it in `URXE_RUN`, and
//! preloads the library. From then on, in the program and its children:
//!
//! ```text
//! program ──open("/sys/class/infiniband/urxe0/…")──▶ open ──▶ libc's open("<folder>/sys/class/infiniband/urxe0/…")
//!         ──open(anything else)────────────────────▶ open ──▶ libc's open, as if we were not there
//!         ──socket(NETLINK_RDMA)───────────────────▶ socket ─▶ a socket whose requests are answered here ([`Netlink`])
//! ```
//!
//! What a program is handed are real descriptors of real files: `readdir`, `openat`, `fstat` and all else need no help.
//! Counters are files in memory that are made when they are opened ([`Live`]).
//!
//! These functions run in every program, also before `main`, in signal handlers and between fork and exec. So there is
//! no `std`, no malloc(3), no lock and no large frame here, and nothing but the path is looked at. Without `URXE_RUN` (the
//! library is a provider and nothing else then) everything passes.
//!
//! Only the library may be linked with this crate: in a program these functions would take the place of the library's.
//!
//! libibverbs will not run the constructor of a provider that is loaded already. [`when_devices_are_looked_for`] tells
//! the provider when to make itself known instead.
#![cfg_attr(not(test), no_std)]

mod buffer;
mod ends;
mod environment;
mod folder;
mod interposed;
mod listing;
mod live;
mod netlink;
mod next;
mod nodes;
mod pointer;
mod read_only;
mod resolve;
mod sanitizer_options;
mod shared_lock;
mod signals;
mod standard_error;
mod status;
mod text;

use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, Ordering};

pub use ends::before_failures;
pub use folder::{folder, is_active};
pub use interposed::find_all as find_next_functions;
pub use interposed::next_sigaction as sigaction;
pub use live::{Live, counters_are};
pub use netlink::{Netlink, NetlinkSocket, netlink_is};
pub use nodes::{Nodes, nodes_are};
pub use shared_lock::hold_folder;
pub use signals::{FaultAction, fault_signals_are};
pub use standard_error::{
    expect_text as expect_text_on_standard_error, remember as remember_standard_error, write as write_to_standard_error,
};

static WHEN_LOOKED_FOR: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Has `act` called each time somebody looks for devices: asks netlink for them, or opens `/sys/class/infiniband_verbs`.
pub fn when_devices_are_looked_for(act: extern "C" fn()) {
    WHEN_LOOKED_FOR.store(act as *mut c_void, Ordering::Release);
}

fn devices_are_looked_for() {
    let act = WHEN_LOOKED_FOR.load(Ordering::Acquire);
    if !act.is_null() {
        // SAFETY: only `when_devices_are_looked_for` stores here, and what it stores has this type.
        let act = unsafe { core::mem::transmute::<*mut c_void, extern "C" fn()>(act) };
        act();
    }
}
