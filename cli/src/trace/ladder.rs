//! Rows of the diagram, one for each packet of an exchange.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use urxe_wire::opcode::Role;
use urxe_wire::{Ext, Psn, Syndrome};

use super::order;
use super::pairs::{End, Pair};
use super::row::{Kind, Note, NoteAuthor, Row, Wait, is_lost};
use urxe_pcapng::Captured;

/// An interval between two tries that no note explains is an ACK timeout from here on: shorter ones are duplicates.
const SHORTEST_TIMEOUT: Duration = Duration::from_micros(100);

/// The diagram of an exchange.
pub(super) struct Ladder {
    pub(super) left: End,
    pub(super) right: End,
    /// Time of the first packet, since 1970.
    pub(super) start: Duration,
    pub(super) rows: Vec<Row>,
}

impl Ladder {
    pub(super) fn new(pair: &Pair, packets: &[Captured]) -> Self {
        let chosen: Vec<&Captured> = pair.packets.iter().filter_map(|index| packets.get(*index)).collect();
        let start = chosen.first().map_or(Duration::ZERO, |packet| packet.at);
        let (mut rows, mut seen) = (Vec::<Row>::new(), HashSet::new());
        let sendings = order::sendings(&chosen, pair);
        // The row of a packet that was captured where it left.
        let mut row_of: HashMap<usize, usize> = HashMap::new();
        let mut arrivals = order::Arrivals::default();
        for (place, packet) in chosen.into_iter().enumerate() {
            let there = pair.is_there(packet);
            let by = match packet.outbound {
                None => NoteAuthor::File,
                Some(outbound) if outbound == there => NoteAuthor::Left,
                Some(_) => NoteAuthor::Right,
            };
            if let Some(&index) = sendings.get(&place).and_then(|sending| row_of.get(sending))
                && let Some(row) = rows.get_mut(index)
            {
                row.lost |= is_lost(packet);
                row.discarded |= is_discarded(packet);
                row.flight = (packet.at - start).checked_sub(row.at);
                row.notes.extend(notes(packet, by));
                arrivals.push(there, index);
                continue;
            }
            let again = packet.bth.opcode.info().role == Role::Request && !seen.insert((there, packet.bth.psn));
            let row = row(packet, there, again, start, by);
            if packet.outbound == Some(true) {
                row_of.insert(place, rows.len());
            }
            rows.push(row);
        }
        order::mark_lost_and_reordered(&mut rows, &arrivals);
        waits(&mut rows);
        if let (Some((from, wants)), Some(row)) = (pair.mismatch, rows.first_mut()) {
            let text = format!(
                "the PSNs of the ends do not match: requests begin with PSN {from}, the responder speaks of PSN {wants}: \
                 its rq_psn is not the requester's sq_psn"
            );
            row.notes.push(Note { by: NoteAuthor::Trace, text });
        }
        Self { left: pair.left(), right: pair.right(), start, rows }
    }

    /// Number of rows with trouble.
    pub(super) fn troubles(&self) -> usize {
        self.rows.iter().filter(|row| row.is_trouble()).count()
    }
}

fn row(packet: &Captured, there: bool, again: bool, start: Duration, by: NoteAuthor) -> Row {
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
    let label = match packet.header {
        Some(header) => header.to_string(),
        None => packet.bth.to_string(),
    };
    // Where it goes shows in the diagram.
    let known = format!("{} QP={} PSN={}", packet.bth.opcode, packet.bth.dest_qp, packet.bth.psn);
    Row {
        at: packet.at.saturating_sub(start),
        flight: None,
        there,
        lost: is_lost(packet),
        discarded: is_discarded(packet),
        reordered: false,
        kind,
        opcode: packet.bth.opcode,
        psn: packet.bth.psn,
        len: packet.len,
        detail: label.strip_prefix(&known).unwrap_or(&label).to_owned(),
        wait: None,
        notes: notes(packet, by).collect(),
    }
}

fn notes(packet: &Captured, by: NoteAuthor) -> impl Iterator<Item = Note> {
    packet.comments.iter().map(move |text| Note { by, text: text.clone() })
}

/// Whether its capture says that the receiver dropped it, and why.
fn is_discarded(packet: &Captured) -> bool {
    packet.comments.iter().any(|comment| comment.starts_with("dropped: "))
}

/// Finds where a requester went back, and what it had waited for.
fn waits(rows: &mut [Row]) {
    // By direction of the requests: time and PSN of the last one, and the NAK after it, if it was an RNR NAK.
    let mut last: [Option<(Duration, Psn)>; 2] = [None; 2];
    let mut nak: [Option<bool>; 2] = [None; 2];
    for row in rows {
        let there = usize::from(row.there);
        if row.kind == Kind::Nak {
            nak[1 - there] = Some(row.detail.contains("RNR"));
        }
        if !row.is_request() {
            continue;
        }
        if let Some((at, psn)) = last[there]
            && row.kind == Kind::Again
            && row.psn.distance_from(psn) <= 0
        {
            let waited = row.at.saturating_sub(at);
            let says = |text| row.notes.iter().any(|note| note.by != NoteAuthor::Trace && note.text.contains(text));
            row.wait = match nak[there] {
                _ if says("no answer within the ACK timeout") => Some(Wait::Timeout(waited)),
                Some(true) => Some(Wait::Rnr(waited)),
                None if waited >= SHORTEST_TIMEOUT && !says("sent again") && !row.reordered => {
                    Some(Wait::Timeout(waited))
                }
                Some(false) | None => None,
            };
        }
        last[there] = Some((row.at, row.psn));
        nak[there] = None;
    }
}
