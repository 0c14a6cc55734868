//! A row of the diagram: one packet.

use std::time::Duration;

use urxe_pcapng::Captured;
use urxe_wire::opcode::{Position, Role};
use urxe_wire::{Opcode, Psn};

/// Kind of a row, which decides how it looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// A request.
    Request,
    /// A request that was sent before.
    Again,
    /// A response.
    Response,
    /// A refusal.
    Nak,
}

/// Reason why a requester sent again, with the time it waited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wait {
    /// No answer within the ACK timeout.
    Timeout(Duration),
    /// RNR NAK: the responder had no receive.
    Rnr(Duration),
}

/// Author of a note.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NoteAuthor {
    /// The end on the left.
    Left,
    /// The end on the right.
    Right,
    /// A capturing program that does not say at which end it is.
    File,
    /// `urxe trace`, from the order of the packets.
    Trace,
}

/// A remark about a packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Note {
    pub(super) by: NoteAuthor,
    pub(super) text: String,
}

/// A packet.
pub(super) struct Row {
    /// Time since the first packet.
    pub(super) at: Duration,
    /// Time until it was captured at the other end.
    pub(super) flight: Option<Duration>,
    /// True if it went from left to right.
    pub(super) there: bool,
    /// True if the packet did not arrive.
    pub(super) lost: bool,
    /// True if it arrived, and the receiver would not have it.
    pub(super) discarded: bool,
    /// True if later packets overtook it.
    pub(super) reordered: bool,
    pub(super) kind: Kind,
    pub(super) opcode: Opcode,
    pub(super) psn: Psn,
    /// Bytes of payload.
    pub(super) len: usize,
    /// Headers behind the PSN, as text.
    pub(super) detail: String,
    pub(super) wait: Option<Wait>,
    pub(super) notes: Vec<Note>,
}

impl Row {
    /// The packet in words.
    pub(super) fn label(&self) -> String {
        let len = if self.len > 0 { format!(" Len={}", self.len) } else { String::new() };
        let again = if self.kind == Kind::Again { ", again" } else { "" };
        format!("{} PSN={}{}{len}{again}", self.opcode, self.psn, self.detail)
    }

    /// True for what a reader who looks for trouble wants to see.
    pub(super) fn is_trouble(&self) -> bool {
        self.lost
            || self.discarded
            || self.reordered
            || matches!(self.kind, Kind::Again | Kind::Nak)
            || !self.notes.is_empty()
    }

    pub(super) fn is_middle(&self) -> bool {
        self.opcode.info().position == Position::Middle
    }

    pub(super) fn is_request(&self) -> bool {
        self.opcode.info().role == Role::Request
    }
}

/// Whether its capture says that it went no further: `URXE_FAULTS: dropped`.
pub(super) fn is_lost(packet: &Captured) -> bool {
    packet.comments.iter().any(|comment| comment.contains(": dropped"))
}
