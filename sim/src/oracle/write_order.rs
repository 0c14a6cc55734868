//! The order in which the bytes of WRITEs are stored.

use super::complaint::{Complaint, ensure};
use super::plan::{Planned, Verb};

/// Progress of the WRITEs of one direction, as their bytes are stored.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WriteOrder {
    /// The request whose bytes are stored next; all before have theirs.
    at: usize,
    /// Bytes of it that are stored.
    stored: usize,
}

impl WriteOrder {
    /// Takes a store into the remote buffer of `ops`. It must be of the bytes next to those before, of the oldest WRITE that lacks some:
    /// then the last byte of a message comes last, which programs wait for, and nothing is stored twice.
    pub(super) fn store(&mut self, ops: &[Planned], offset: usize, length: usize) -> Result<(), Complaint> {
        let writes = |op: &Planned| matches!(op.verb, Verb::Write | Verb::AtomicWrite);
        while ops.get(self.at).is_some_and(|op| !writes(op) || self.stored == op.data.len()) {
            *self = Self { at: self.at + 1, stored: 0 };
        }
        let due = ops.get(self.at).map(|op| op.remote + self.stored..op.remote + op.data.len());
        let is_due = due.as_ref().is_some_and(|due| due.start == offset && offset + length <= due.end);
        ensure!(is_due, "{length} bytes stored at offset {offset}, but of request {} is due: {due:?}", self.at);
        self.stored += length;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use urxe_engine::rng::Rng;
    use urxe_wire::Mtu;

    use super::super::plan::{Plan, Style};
    use super::*;

    /// Two WRITEs of so many bytes.
    fn writes() -> Vec<Planned> {
        let style = Style { ops: 64, mtu: Mtu::Mtu256, max_sge: 1, max_inline: 0, verbs: &[Verb::Write], poison: None };
        let mut ops = Plan::random(&mut Rng::new(1), &style).ops;
        ops.retain(|op| op.data.len() >= 3);
        ops.truncate(2);
        ops
    }

    #[test]
    fn bytes_are_stored_once_and_the_last_one_last() {
        let ops = writes();
        let [first, second] = [&ops[0], &ops[1]].map(|op| (op.remote, op.data.len()));
        let check = |stores: &[(usize, usize)]| {
            let mut order = WriteOrder::default();
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
}
