//! The send half of a queue pair: work requests become packets, responses complete them.
//!
//! RC and XRC: [`reliable`] cuts requests into packets ([`packets`], [`answered`]), [`completer`] takes the responses, [`retransmit`] completes what is
//! acknowledged and sends again what was lost; [`crate::congestion`] bounds the packets in flight, [`credit`] the messages that need a receive WQE,
//! [`tail_loss_probe`] finds losses that nobody reports, by the round trip that [`rtt`] estimates. UC and UD: [`unreliable`], at the
//! rate that [`pace`] allows. [`side`] is the choice between the two. Shared: [`wqe`], [`send_queue`],
//! [`segment`] (the headers of each packet of a message).

mod answered;
mod completer;
mod credit;
mod pace;
mod packets;
mod reliable;
mod retransmit;
mod rtt;
mod segment;
mod send_queue;
mod side;
mod tail_loss_probe;
mod unreliable;
mod wqe;

pub(super) use completer::Failure;
pub(super) use side::SendSide;
