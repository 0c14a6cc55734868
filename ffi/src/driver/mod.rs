//! The private ABI between libibverbs and its providers: rdma-core's `libibverbs/driver.h`, which no `-dev`
//! package carries, described in our own words for every version that we serve.
//!
//! What a provider must know about the versions:
//!
//! - the registration symbol and the provider file's suffix carry a number, the [`Pabi`];
//! - the op table ([`ContextOps`]) and `verbs_context` grew, also *within* such a number: see [`Layout`];
//! - `ibv_qp_ex` grew within a number too, and with it moved the word behind it: see [`QpLayout`];
//! - all else ([`device`], [`objects`]) is the same in rdma-core 36 to 65.

pub mod device;
pub mod newer;
pub mod objects;
pub mod ops;
mod version;

pub use ops::{ContextOps, OpTable};
pub use version::{Layout, Pabi, QpLayout};
