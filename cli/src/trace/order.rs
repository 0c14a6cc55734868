//! Reordered or lost: the two have the same effect on a receiver, and other causes.
//!
//! Where both ends were captured, arrivals tell. At one end, a request that comes for the first time behind a later one was
//! overtaken, or lost and sent again. A requester that sends again goes back and sends all that follows (go-back-N): the later
//! one comes again too.

use std::collections::{HashMap, HashSet};

use urxe_pcapng::Captured;
use urxe_wire::{Opcode, Psn};

use super::pairs::Pair;
use super::row::{Kind, Note, NoteAuthor, Row, is_lost};

/// Pairs arrivals with sendings: the place of each packet that came in, and of the same packet where it left.
///
/// A packet that is sent again looks like the first one. The last arrival belongs to the last sending before it, and so on
/// backwards: what is left over of the earlier sendings is what was lost.
pub(super) fn sendings(packets: &[&Captured], pair: &Pair) -> HashMap<usize, usize> {
    type Key = (bool, Psn, Opcode);
    let mut ends: HashMap<Key, (Vec<usize>, Vec<usize>)> = HashMap::new();
    for (place, packet) in packets.iter().enumerate() {
        let (sent, arrived) = ends.entry((pair.is_there(packet), packet.bth.psn, packet.bth.opcode)).or_default();
        match packet.outbound {
            Some(true) if !is_lost(packet) => sent.push(place),
            Some(false) => arrived.push(place),
            _ => {}
        }
    }
    let mut sendings = HashMap::new();
    for (mut sent, arrived) in ends.into_values() {
        for arrival in arrived.into_iter().rev() {
            while let Some(sending) = sent.pop() {
                if sending < arrival {
                    sendings.insert(arrival, sending);
                    break;
                }
            }
        }
    }
    sendings
}

/// Rows in the order in which they came in at the other end, by direction.
#[derive(Default)]
pub(super) struct Arrivals([Vec<usize>; 2]);

impl Arrivals {
    pub(super) fn push(&mut self, there: bool, row: usize) {
        self.0[usize::from(there)].push(row);
    }
}

/// Marks rows as lost, reordered or sent again.
pub(super) fn mark_lost_and_reordered(rows: &mut [Row], arrivals: &Arrivals) {
    for there in [false, true] {
        let arrived = &arrivals.0[usize::from(there)];
        if arrived.is_empty() {
            by_psn(rows, there);
        } else {
            by_arrival(rows, there, arrived);
        }
    }
}

fn by_arrival(rows: &mut [Row], there: bool, arrived: &[usize]) {
    let places: HashMap<usize, usize> = arrived.iter().enumerate().map(|(place, row)| (*row, place)).collect();
    let first = arrived.iter().min().copied().unwrap_or_default();
    // The earliest place among later rows.
    let mut earliest = usize::MAX;
    // Packets among later rows that arrived.
    let mut later = HashSet::new();
    for (index, row) in rows.iter_mut().enumerate().rev() {
        if row.there != there {
            continue;
        }
        match places.get(&index) {
            Some(&place) => {
                later.insert((row.psn, row.opcode));
                if earliest < place {
                    row.reordered = true;
                    row.notes.push(note("reordered: later packets arrived before it"));
                }
                earliest = earliest.min(place);
            }
            // The other end was captured before and after; or this one was sent again, and came.
            None if !row.lost
                && (index > first && earliest != usize::MAX || later.contains(&(row.psn, row.opcode))) =>
            {
                row.lost = true;
                row.notes.push(note("lost on the way: it was captured where it left, and not at the other end"));
            }
            None => {}
        }
    }
}

fn by_psn(rows: &mut [Row], there: bool) {
    let is_of = |row: &Row| row.there == there && row.is_request();
    let mut last_seen: HashMap<Psn, usize> = HashMap::new();
    for (index, row) in rows.iter().enumerate().filter(|(_, row)| is_of(row)) {
        last_seen.insert(row.psn, index);
    }
    let seen_after = |psn: Psn, index: usize| last_seen.get(&psn).is_some_and(|last| *last > index);
    let mut highest: Option<Psn> = None;
    // PSN of the request before, if it was sent again.
    let mut resent: Option<Psn> = None;
    for (index, row) in rows.iter_mut().enumerate() {
        if !is_of(row) {
            continue;
        }
        let high = highest.filter(|high| row.psn.distance_from(*high) < 0);
        if high.is_none() {
            highest = Some(row.psn);
        }
        if let Some(high) = high
            && row.kind != Kind::Again
        {
            let follows = resent.is_some_and(|before| row.psn.distance_from(before) > 0);
            if follows || !seen_after(row.psn, index) && seen_after(high, index) {
                row.kind = Kind::Again;
                row.notes.push(note("sent again: the first one was lost before it was captured"));
            } else {
                row.reordered = true;
                row.notes.push(note("reordered: later packets came before it"));
            }
        }
        resent = Some(row.psn).filter(|_| row.kind == Kind::Again);
    }
}

fn note(text: &str) -> Note {
    Note { by: NoteAuthor::Trace, text: text.to_owned() }
}
