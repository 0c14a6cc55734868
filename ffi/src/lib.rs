//! libibverbs as seen from Rust: the public ABI, the kernel's ABI beneath it, and the private ABI between the
//! library and its providers.
//!
//! | module | what | from |
//! |---|---|---|
//! | [`verbs`] | types and constants of `<infiniband/verbs.h>` | bindgen |
//! | [`functions`] | its functions, for programs that link with libibverbs | bindgen |
//! | [`uapi`] | uverbs commands, ioctls and events (`<rdma/ib_user_*.h>`) | bindgen |
//! | [`ucma`] | rdma_cm commands and events (`<rdma/rdma_user_cm.h>`) | bindgen |
//! | [`nldev`] | netlink commands and attributes of devices (`<rdma/rdma_netlink.h>`) | bindgen |
//! | [`driver`] | what libibverbs and a provider hand each other, per version | by hand |
//! | [`private`] | the libibverbs of this process, and what it exports to providers | by hand |
//!
//! Nothing here links with libibverbs: a provider is loaded *by* it, and one provider file serves several of its
//! private ABIs, so everything is looked up at run time.
//!
//! The generated files are committed; `cargo run -p urxe-ffi --example regenerate` writes them anew, and
//! `tests/generated.rs` fails when they are not what the installed headers give.

pub mod driver;
#[rustfmt::skip]
pub mod functions;
#[rustfmt::skip]
pub mod nldev;
pub mod private;
#[rustfmt::skip]
pub mod uapi;
#[rustfmt::skip]
pub mod ucma;
#[rustfmt::skip]
pub mod verbs;
