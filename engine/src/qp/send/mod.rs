//! The send half of a queue pair: work requests become packets, responses complete them.
//!
//! RC and XRC: [`reliable`] cuts requests into packets ([`packets`], [`answered`]), [`completer`] takes the responses, [`retransmit`] completes what is
//! acknowledged and sends again what was lost; [`crate::congestion`] bounds the packets in flight, [`credit`] the messages that need a receive WQE,
//! [`ack_timer`] says how long an answer is waited for, [`tail_loss_probe`] finds losses that nobody reports, by the round trip that [`rtt`] estimates; [`paced`] sends at a limited rate. [`selective`] sends again only
//! what is missing: [`selective_ack`] takes what the peer says of it, the [`scoreboard`] knows what that is, [`resend`] does it, and [`reordering`] knows how late a packet may be. UC and UD: [`unreliable`], at the
//! rate that [`pace`] allows. [`side`] is the choice between the two. Shared: [`wqe`], [`send_queue`],
//! [`segment`] (the headers of each packet of a message).

mod ack_timer;
mod answered;
mod completer;
mod credit;
mod direct;
mod drain;
mod pace;
mod paced;
mod packets;
mod paths;
mod reliable;
mod reordering;
mod resend;
mod retransmit;
mod rtt;
mod scoreboard;
mod segment;
mod selective;
mod selective_ack;
mod send_queue;
mod side;
mod silly_window;
mod tail_loss_probe;
mod unreliable;
mod wqe;

pub use ack_timer::AckTimer;
pub(super) use completer::Failure;
pub(super) use side::SendSide;
