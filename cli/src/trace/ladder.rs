//! Rows of the diagram, one for each packet of an exchange.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use urxe_wire::opcode::{Position, Role};
use urxe_wire::{Ext, Syndrome};

use super::pairs::Pair;
use urxe_pcapng::Captured;

/// The diagram.
pub(super) struct Ladder {
    pub(super) left: String,
    pub(super) right: String,
    pub(super) rows: Vec<Row>,
}

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

/// One packet, or several of the same kind.
pub(super) struct Row {
    /// Since the first packet.
    pub(super) at: Duration,
    /// From left to right.
    pub(super) there: bool,
    /// True if the packet did not arrive.
    pub(super) lost: bool,
    pub(super) kind: Kind,
    pub(super) label: String,
    pub(super) comments: Vec<String>,
}

impl Ladder {
    pub(super) fn new(pair: &Pair, packets: &[Captured], all: bool) -> Self {
        let chosen: Vec<&Captured> = pair.packets.iter().filter_map(|index| packets.get(*index)).collect();
        let start = chosen.first().map_or(Duration::ZERO, |packet| packet.at);
        let (mut rows, mut seen) = (Vec::<Row>::new(), HashSet::new());
        let mut middles: Option<Middles> = None;
        // Rows of packets that were seen leaving, until they are seen coming in.
        let mut under_way: HashMap<(bool, u32, u8), VecDeque<usize>> = HashMap::new();
        for packet in chosen {
            let there = pair.is_there(packet);
            let key = (there, packet.bth.psn.get(), packet.bth.opcode.to_u8());
            if packet.outbound == Some(false)
                && let Some(row) = under_way.get_mut(&key).and_then(VecDeque::pop_front)
                && let Some(row) = rows.get_mut(row)
            {
                row.lost |= is_lost(packet);
                row.comments.extend(packet.comments.iter().cloned());
                continue;
            }
            let again = packet.bth.opcode.info().role == Role::Request && !seen.insert((there, packet.bth.psn.get()));
            let row = row(packet, there, again, start);
            let plain = packet.bth.opcode.info().position == Position::Middle && row.comments.is_empty();
            if plain && !all {
                match &mut middles {
                    Some(run) if run.takes(packet, &row) => {
                        under_way.entry(key).or_default().push_back(rows.len() - 1);
                        run.count += 1;
                        run.last = packet.bth.psn.get();
                        if let Some(shown) = rows.last_mut() {
                            shown.label = run.label();
                        }
                        continue;
                    }
                    _ => middles = Some(Middles::new(packet, &row)),
                }
            } else {
                middles = None;
            }
            if packet.outbound == Some(true) && !row.lost {
                under_way.entry(key).or_default().push_back(rows.len());
            }
            rows.push(row);
        }
        Self { left: pair.left(), right: pair.right(), rows }
    }
}

/// Middle packets that stand in one row.
struct Middles {
    there: bool,
    kind: Kind,
    opcode: urxe_wire::Opcode,
    first: u32,
    last: u32,
    count: usize,
}

impl Middles {
    fn new(packet: &Captured, row: &Row) -> Self {
        let psn = packet.bth.psn.get();
        Self { there: row.there, kind: row.kind, opcode: packet.bth.opcode, first: psn, last: psn, count: 1 }
    }

    fn takes(&self, packet: &Captured, row: &Row) -> bool {
        self.there == row.there && self.kind == row.kind && self.opcode == packet.bth.opcode
    }

    fn label(&self) -> String {
        let again = if self.kind == Kind::Again { ", again" } else { "" };
        format!("{} x {} PSN={}..{}{again}", self.count, self.opcode, self.first, self.last)
    }
}

fn row(packet: &Captured, there: bool, again: bool, start: Duration) -> Row {
    let refusal = packet.header.is_some_and(|header| match header.ext {
        Ext::Aeth(aeth) | Ext::AethAtomicAckEth(aeth, _) => !matches!(aeth.syndrome, Syndrome::Ack(_)),
        _ => false,
    });
    let kind = match packet.bth.opcode.info().role {
        Role::Request | Role::Notification if again => Kind::Again,
        Role::Request | Role::Notification => Kind::Request,
        Role::Response if refusal => Kind::Nak,
        Role::Response => Kind::Response,
    };
    let qp = format!(" QP={}", packet.bth.dest_qp);
    let mut label = match packet.header {
        Some(header) => header.to_string(),
        None => packet.bth.to_string(),
    }
    // Where it goes shows in the diagram.
    .replacen(&qp, "", 1);
    if packet.len > 0 {
        label += &format!(" Len={}", packet.len);
    }
    if again {
        label += ", again";
    }
    let (at, lost) = (packet.at.saturating_sub(start), is_lost(packet));
    Row { at, there, lost, kind, label, comments: packet.comments.clone() }
}

/// Whether its capture says that it went no further.
fn is_lost(packet: &Captured) -> bool {
    packet.comments.iter().any(|comment| comment.contains("dropped"))
}
