//! Flow steering of Ethernet frames (`ibv_create_flow(3)`): which rule a frame belongs to.
//!
//! | module | holds |
//! |---|---|
//! | [`frame`] | where the headers of a frame are |
//! | [`spec`] | `struct ibv_flow_spec_*`, as a table of fields, read from bytes |
//! | [`table`] | rules by priority |
//! | [`filter`] | classic BPF programs that pass what some rule may match |
//! | [`xdp`] | eBPF programs that take what some rule matches |
//! | [`rss`] | the Toeplitz hash by which frames are spread over queues |
//! | [`checksum`] | checksums of IPv4, TCP and UDP |
//! | [`segment`] | segments of TCP and UDP out of one header and a long payload |

pub mod checksum;
pub mod filter;
pub mod frame;
pub mod rss;
pub mod segment;
pub mod spec;
pub mod table;
#[cfg(test)]
mod tests;
pub mod xdp;

pub use frame::{Header, Headers};
pub use spec::{Actions, Match, SpecError};
pub use table::{Class, FlowTable, Rule, RuleId};
