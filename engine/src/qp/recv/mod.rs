//! The receive half of a queue pair: requests of the peer are carried out and answered.
//!
//! [`responder`] has what all requests have in common on RC and XRC; [`message`] executes SENDs and WRITEs, [`resource`]
//! what takes a responder resource (READ, atomics, ATOMIC WRITE, FLUSH), [`replay`] answers duplicates, [`psn_nak`] decides
//! when a gap is reported; [`kept`] has packets behind one, with selective repeat, [`upcoming`] the WRITEs among
//! them, and [`placement`] stores their bytes where they may be. [`response_queue`] holds answers until they are sent. [`connected`] is the responder of UC,
//! [`datagram`] that of UD. [`write_reorder`] stores the bytes of WRITEs in another order than they came
//! ([`crate::quirks`]).

mod connected;
mod datagram;
pub(super) mod kept;
pub(super) mod kept_packet;
mod message;
mod placement;
mod psn_nak;
mod recv_wqe;
mod replay;
mod resource;
pub(super) mod responder;
mod response_queue;
mod upcoming;
mod write_reorder;

pub(super) use response_queue::{Burst, Gone};
