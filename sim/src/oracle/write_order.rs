//! The order in which the bytes of WRITEs are stored.

use std::collections::BTreeMap;
use std::ops::Range;

use super::complaint::{Complaint, ensure};
use super::plan::{Planned, Verb};

/// Progress of the WRITEs of one direction, as their bytes are stored.
#[derive(Clone, Debug)]
pub(super) struct WriteOrder {
    /// The request whose bytes are stored next; all before have theirs.
    at: usize,
    /// Bytes of it that are stored, from its beginning on.
    stored: usize,
    /// Bytes of it, and of later requests, that are stored behind the first missing one, as ends by requests and beginnings. `None`:
    /// there must be none.
    early: Option<BTreeMap<(usize, usize), usize>>,
}

impl WriteOrder {
    /// Begins with the first request. Bytes behind missing ones are stored only where `keeps` says that packets behind a gap are kept.
    pub(super) fn new(keeps: bool) -> Self {
        Self { at: 0, stored: 0, early: keeps.then(BTreeMap::new) }
    }

    /// Takes a store into the remote buffer of `ops`. It must be of the oldest WRITE that lacks some bytes, and of the bytes next to
    /// those before; or of later ones but the first and the last: then the last byte of a message comes last, which programs wait for. Or
    /// it is from the middle of a later WRITE, all requests from the oldest one to it are WRITEs that will succeed, and none in front stores
    /// anything there any more. Nothing is stored twice.
    pub(super) fn store(&mut self, ops: &[Planned], offset: usize, length: usize) -> Result<(), Complaint> {
        let writes = |op: &Planned| matches!(op.verb, Verb::Write | Verb::AtomicWrite);
        while ops.get(self.at).is_some_and(|op| !writes(op) || self.stored == op.data.len()) {
            (self.at, self.stored) = (self.at + 1, 0);
            self.go_on();
        }
        let part_of = |at: usize| {
            let op: &Planned = ops.get(at).filter(|op| writes(op))?;
            let first = offset.checked_sub(op.remote)?;
            Some(first..first + length).filter(|part| part.end <= op.data.len())
        };
        let (at, stored) = (self.at, self.stored);
        // Before the first bytes of a message it is not known where it goes, nor whether all before it was carried out.
        let may_be_early = self.early.is_some() && stored > 0;
        let part = part_of(at).filter(|part| {
            let is_early = may_be_early && offset + length < ops.get(at).map_or(0, |op| op.remote + op.data.len());
            self.is_missing(at, part) && (part.start == stored || is_early)
        });
        if let Some(part) = part.clone().filter(|part| part.start == stored) {
            self.stored = part.end;
            self.go_on();
            return Ok(());
        }
        let leaves_alone = |at: usize, op: &Planned| {
            (offset..offset + length)
                .filter_map(|byte| byte.checked_sub(op.remote))
                .all(|byte| byte >= op.data.len() || self.is_stored(at, byte))
        };
        let succeeds = |op: &Planned| op.verb == Verb::Write && op.poison.is_none();
        let later = || {
            (at..ops.len())
                .zip(ops.get(at..).filter(|_| may_be_early)?)
                .take_while(|(at, op)| succeeds(op) && leaves_alone(*at, op))
                .map(|(at, _)| at + 1)
                .find_map(|at| {
                    let part = part_of(at)?;
                    let is_inside = |op: &Planned| 0 < part.start && part.end < op.data.len();
                    let is_middle = ops.get(at).is_some_and(|op| succeeds(op) && is_inside(op));
                    (is_middle && self.is_missing(at, &part)).then_some((at, part))
                })
        };
        let found = part.map(|part| (at, part)).or_else(later);
        let due = ops.get(at).map(|op| op.remote..op.remote + op.data.len());
        match (found, &mut self.early) {
            (Some((at, part)), Some(early)) => _ = early.insert((at, part.start), part.end),
            _ => ensure!(
                false,
                "{length} bytes stored at offset {offset}, but of request {at} at {due:?} those from {stored} on are due"
            ),
        }
        Ok(())
    }

    /// Takes bytes that are next, and stored already.
    fn go_on(&mut self) {
        while let Some(end) = self.early.as_mut().and_then(|early| early.remove(&(self.at, self.stored))) {
            self.stored = end;
        }
    }

    /// Whether no byte of this part of a WRITE is stored.
    fn is_missing(&self, at: usize, part: &Range<usize>) -> bool {
        let before = self.early.iter().flat_map(|early| early.range((at, 0)..(at, part.end))).next_back();
        (at > self.at || part.start >= self.stored) && before.is_none_or(|(_, end)| *end <= part.start)
    }

    /// Whether a byte of the oldest WRITE, or of a later one, is stored.
    fn is_stored(&self, at: usize, byte: usize) -> bool {
        let before = self.early.iter().flat_map(|early| early.range((at, 0)..=(at, byte))).next_back();
        at == self.at && byte < self.stored || before.is_some_and(|(_, end)| *end > byte)
    }
}

#[cfg(test)]
mod tests {
    use urxe_engine::rng::Rng;
    use urxe_wire::Mtu;

    use super::super::plan::{Plan, Poison, Style};
    use super::*;

    /// Some WRITEs of three bytes at least.
    fn writes() -> Vec<Planned> {
        let style = Style { ops: 64, mtu: Mtu::Mtu256, max_sge: 1, max_inline: 0, verbs: &[Verb::Write], poison: None };
        let mut ops = Plan::random(&mut Rng::new(1), &style).ops;
        ops.retain(|op| op.data.len() >= 3);
        ops
    }

    #[test]
    fn bytes_are_stored_once_and_the_last_one_last() {
        let ops = writes();
        let [first, second] = [&ops[0], &ops[1]].map(|op| (op.remote, op.data.len()));
        let check = |stores: &[(usize, usize)]| {
            let mut order = WriteOrder::new(false);
            stores.iter().position(|&(offset, length)| order.store(&ops, offset, length).is_err())
        };
        let (head, last) = ((first.0, first.1 - 1), (first.0 + first.1 - 1, 1));
        assert_eq!(check(&[head, last, second]), None);
        assert_eq!(check(&[last, head]), Some(0), "the last byte first");
        assert_eq!(check(&[head, head]), Some(1), "twice");
        assert_eq!(check(&[head, second]), Some(1), "the last byte is missing");
        assert_eq!(check(&[first, second, second]), Some(2), "after the last");
        assert_eq!(check(&[(first.0, first.1 + 1)]), Some(0), "too long");
    }

    /// The middle of a later WRITE may be stored where all requests in front of it are WRITEs that will succeed.
    #[test]
    fn the_middle_of_a_later_write_is_stored_early_too() {
        let mut ops: Vec<_> = writes().into_iter().filter(|op| op.data.len() >= 8).take(3).collect();
        assert_eq!(ops.len(), 3);
        let check = |ops: &[Planned], stores: &[(usize, usize)]| {
            let mut order = WriteOrder::new(true);
            stores.iter().position(|&(offset, length)| order.store(ops, offset, length).is_err())
        };
        let [first, second, third] = [0, 1, 2].map(|nth| (ops[nth].remote, ops[nth].data.len()));
        let (begun, rest, third_rest) = ((first.0, 1), (first.0 + 1, first.1 - 1), (third.0 + 3, third.1 - 3));
        assert_eq!(check(&ops, &[begun, (third.0 + 1, 2), rest, second, (third.0, 1), third_rest]), None);
        assert_eq!(check(&ops, &[(third.0 + 1, 2)]), Some(0), "before the first message has begun");
        assert_eq!(check(&ops, &[begun, (third.0, 1)]), Some(1), "its first bytes");
        assert_eq!(check(&ops, &[begun, (third.0 + 1, third.1 - 1)]), Some(1), "its last");
        assert_eq!(check(&ops, &[begun, (third.0 + 1, 2), (third.0 + 2, 2)]), Some(2), "twice");
        ops[1].poison = Some(Poison::RKey);
        assert_eq!(check(&ops, &[begun, (third.0 + 1, 2)]), Some(1), "behind one that fails");
        (ops[1].verb, ops[1].poison) = (Verb::Send, None);
        assert_eq!(check(&ops, &[begun, (third.0 + 1, 2)]), Some(1), "behind a SEND");
        (ops[1].verb, ops[1].remote) = (Verb::Write, third.0 + 2);
        assert_eq!(check(&ops, &[begun, (third.0 + 1, 2)]), Some(1), "the second one begins there");
        ops[1].remote += 1;
        assert_eq!(check(&ops, &[begun, (third.0 + 1, 2)]), None);
        ops[2].poison = Some(Poison::RKey);
        assert_eq!(check(&ops, &[begun, (third.0 + 1, 2)]), Some(1), "it will be refused itself");
    }

    /// Where packets behind a gap are kept, their bytes may be stored, but for the last ones, and those of the next message but for the
    /// first and the last.
    #[test]
    fn bytes_behind_a_gap_are_stored_once_too() {
        let ops: Vec<_> = writes().into_iter().filter(|op| op.data.len() >= 8).collect();
        let (at, len) = (ops[0].remote, ops[0].data.len());
        let check = |stores: &[(usize, usize)]| {
            let mut order = WriteOrder::new(true);
            stores.iter().position(|&(offset, length)| order.store(&ops, offset, length).is_err())
        };
        assert_eq!(check(&[(at, 1), (at + 4, 1), (at + 2, 2), (at + 1, 1), (at + 5, len - 5)]), None);
        assert_eq!(check(&[(at, 1), (at + 2, 2), (at + 3, 2)]), Some(2), "a byte twice");
        assert_eq!(check(&[(at, 1), (at + 2, 2), (at + 1, 2)]), Some(2), "the same");
        assert_eq!(check(&[(at, 2), (at + 1, 2)]), Some(1), "the same");
        assert_eq!(check(&[(at + 1, 2)]), Some(0), "before its first bytes");
        assert_eq!(check(&[(at, 1), (at + len - 1, 1)]), Some(1), "the last byte is early");
        if let Some(second) = ops.get(1) {
            let (next, end) = (second.remote, second.data.len());
            assert_eq!(check(&[(at, len - 1), (next, 1)]), Some(1), "the message before is not complete");
            assert_eq!(check(&[(at, len - 1), (next + 1, 2), (at + len - 1, 1), (next, 1), (next + 3, end - 3)]), None);
            assert_eq!(check(&[(at, 1), (next + 1, 2), (next + 2, 1)]), Some(2), "a byte of the next one twice");
            assert_eq!(check(&[(at, 1), (next + 1, end - 1)]), Some(1), "the last byte of the next one is early");
        }
    }
}
