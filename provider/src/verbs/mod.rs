//! Semantics of the verbs, in safe code, on Rust types.

pub(crate) mod address_vector;
pub(crate) mod ah;
pub(crate) mod capabilities;
pub(crate) mod context;
pub(crate) mod diagnostics;
pub(crate) mod dm;
pub(crate) mod handles;
pub(crate) mod lid;
pub(crate) mod objects;
pub(crate) mod query;
pub(crate) mod quota;
pub(crate) mod shards;
pub(crate) mod shared_device;
pub(crate) mod tracked;
pub(crate) mod xrcd;
